package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// runDoctor prints one page about the machine. Its exit code is 1 if a part that is there does not
// work.
func runDoctor(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	if code, ok := parse(flags, "", args, stderr, 0, 0); !ok {
		return code
	}
	d := doctor{to: stdout}
	d.machine()
	if core, decoder := d.libraries(); core || decoder {
		d.try(core, decoder)
	}
	d.loaded()
	if d.broken {
		return failed
	}
	return done
}

// A doctor prints rows.
type doctor struct {
	to     io.Writer
	broken bool
}

func (d *doctor) row(name, format string, args ...any) {
	fmt.Fprintf(d.to, "%-22s %s\n", name, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// works prints whether a part works.
func (d *doctor) works(name string, err error) {
	if err == nil {
		d.row(name, "works")
		return
	}
	d.broken = true
	d.row(name, "FAILS: %v", err)
}

func (d *doctor) machine() {
	d.row("system", "%s/%s, %s", runtime.GOOS, runtime.GOARCH, line("/proc/version", "Linux version"))
	d.row("processor", "%s, %d cores", line("/proc/cpuinfo", "model name"), runtime.NumCPU())
	d.row("memory", "%s", line("/proc/meminfo", "MemTotal"))
	version := library.Version()
	if version == "" {
		version = "of a checkout"
	}
	d.row("streamtorch", "%s, %s", version, runtime.Version())
}

// line returns what stands behind the name in the first line of a file that begins with it.
func line(path, name string) string {
	text, _ := os.ReadFile(path)
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, name); ok {
			return strings.TrimSpace(strings.TrimLeft(rest, " \t:"))
		}
	}
	return "unknown"
}

// libraries tells which libraries this program finds. It reports which of them it can try. The
// loader alone is a whole installation.
func (d *doctor) libraries() (core, decoder bool) {
	f, coreErr := library.Find(library.CoreFile)
	loader, loaderErr := library.Find(library.DecoderFile)
	if coreErr != nil && loaderErr != nil {
		d.works("libraries", coreErr)
		return false, false
	}
	if loaderErr != nil {
		d.works("decoder", loaderErr)
	} else {
		d.row("decoder", "%s, source %.12s", loader.Path, loader.Manifest.Source)
	}
	if coreErr == nil {
		d.row("core", "%s, source %.12s", f.Path, f.Manifest.Source)
	} else if loaderErr == nil && loader.Manifest.LibTorch == "" {
		d.row("core", "not installed: the loader alone is, which needs no LibTorch; install gets both")
		return false, true
	} else {
		d.works("core", coreErr)
		return false, loaderErr == nil
	}
	torch, version, err := f.LibTorch()
	if err != nil {
		d.works("LibTorch", err)
		return false, loaderErr == nil
	}
	d.row("LibTorch", "%s, %s", torch, version)
	return true, loaderErr == nil
}

// loaded tells which files the process has opened.
func (d *doctor) loaded() {
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, library := range []string{"libtorch_cpu.so", "libcgotorch.so", "libcgotorch_decode.so", "libcudart.so", "libcudnn.so"} {
		where := "not loaded"
		for l := range strings.Lines(string(maps)) {
			if i := strings.IndexByte(l, '/'); i >= 0 && strings.Contains(l, "/"+library) {
				where = strings.TrimSpace(l[i:])
				break
			}
		}
		d.row(library, "%s", where)
	}
}
