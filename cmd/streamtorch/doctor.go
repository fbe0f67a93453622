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
	if d.libraries() {
		d.devices()
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

// libraries tells which libraries this program finds. It reports whether it can use them.
func (d *doctor) libraries() bool {
	folder, m, err := library.Find(library.CoreFile)
	if err != nil {
		loader, _, err2 := library.Find(library.DecoderFile)
		if err2 == nil {
			d.row("libraries", "%s, the loader alone", loader)
		}
		d.works("libraries", err)
		return false
	}
	d.row("libraries", "%s, source %.12s", folder, m.Source)
	torch, version, err := library.Torch(folder, m)
	if err != nil {
		d.works("LibTorch", err)
		return false
	}
	d.row("LibTorch", "%s, %s", torch, version)
	return true
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
