// Command release makes the prebuilt libraries of a release: an archive for each processor and
// each LibTorch, one for the loader alone, and their SHA256SUMS. It runs in the root of a clone, on
// Linux on amd64. Two runs in two folders give equal bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/csrc"
	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/library"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("streamtorch: release: ")
	out := flag.String("out", "build/release", "the folder for the archives")
	versions := flag.String("libtorch", "all", "versions of LibTorch, with commas; \"none\" makes the loader's archive alone")
	archs := flag.String("arch", "amd64,arm64", "processors, with commas")
	jobs := flag.Int("j", runtime.NumCPU(), "how many files are compiled at a time; one can take 2 GB")
	flag.Parse()
	m, err := newMaker(*out, *jobs)
	for _, arch := range strings.Split(*archs, ",") {
		if err == nil {
			err = m.processor(arch, *versions)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

// A maker makes archives.
type maker struct {
	out    string // for the archives
	root   string // of the clone
	source string // the folder of this program
	jobs   int
	parts  *parts
}

func newMaker(out string, jobs int) (*maker, error) {
	if err := needTools(); err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	m := &maker{root: root, source: filepath.Join(root, "internal", "release"), jobs: jobs}
	if _, err := os.Stat(filepath.Join(m.source, "toolchain.cmake")); err != nil {
		return nil, fmt.Errorf("%s is not the root of a clone: run make release there", root)
	}
	if m.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	hash, err := csrc.Hash(csrc.Files)
	if err != nil {
		return nil, err
	}
	if hash != library.Source {
		return nil, fmt.Errorf("csrc has the hash %.12s, and package library says %.12s: run make generate", hash, library.Source)
	}
	all, err := parseLock(lockText)
	if err != nil {
		return nil, err
	}
	cache := library.UserRoot()
	if cache == "" {
		return nil, errors.New("there is no folder for downloads: set STREAMTORCH_CACHE to one, from / on")
	}
	for _, folder := range []string{m.root, m.out, cache} {
		if strings.ContainsAny(folder, " '\"\t;") {
			return nil, fmt.Errorf("%s: compilers do not take a path with a space, a quote or a semicolon: use another folder", folder)
		}
	}
	m.parts = &parts{filepath.Join(cache, "release"), all}
	return m, os.MkdirAll(m.parts.cache, 0o777)
}

// processor makes the archives for a processor.
func (m *maker) processor(arch, versions string) error {
	if install.MachineOf(arch) == "" {
		return fmt.Errorf("-arch %s: the processors are amd64 and arm64", arch)
	}
	work := filepath.Join(m.out, "work", arch)
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o777); err != nil {
		return err
	}
	started := time.Now()
	t, err := newToolchain(m.parts, arch, m.source, work)
	if err != nil {
		return err
	}
	if err := buildCodecs(m.parts, t, work, m.jobs); err != nil {
		return err
	}
	loader := filepath.Join(work, "loader-lib")
	if err := t.cmake(filepath.Join(m.root, "csrc"), filepath.Join(work, "loader"), m.jobs, []string{"libraries"}, "-DCGOTORCH_LOADER_ONLY=ON", "-DCGOTORCH_LIB_DIR="+loader); err != nil {
		return err
	}
	if err := m.archive(t, nil, loader); err != nil {
		return err
	}
	fmt.Printf("%s: the loader's archive, %v\n", arch, time.Since(started).Round(time.Second))
	torches, err := versionsFor(arch, versions)
	if err != nil {
		return err
	}
	for _, version := range torches {
		started = time.Now()
		if err := m.makeFor(t, version, work, loader); err != nil {
			return fmt.Errorf("LibTorch %s for %s: %w", version, arch, err)
		}
		fmt.Printf("%s: the archive for LibTorch %s, %v\n", arch, version, time.Since(started).Round(time.Second))
	}
	return nil
}

// makeFor makes the archive for one LibTorch. The decoder is that of the loader.
func (m *maker) makeFor(t *toolchain, version, work, loader string) error {
	torch, err := findTorch(t.arch, version)
	if err != nil {
		return err
	}
	setup, build, lib := filepath.Join(work, "setup"+version+".cmake"), filepath.Join(work, "torch"+version), filepath.Join(work, "lib"+version)
	if err := write(setup, []byte(torch.CMake()), 0o666); err != nil {
		return err
	}
	targets := []string{"cgotorch", "cgotorch_cuda", "cgotorch_nocuda", "cgotorch_nopython"}
	if err := t.cmake(filepath.Join(m.root, "csrc"), build, m.jobs, targets, "-DCGOTORCH_SETUP="+setup, "-DCGOTORCH_LIB_DIR="+lib, "-DRELEASE_LIBTORCH="+filepath.Dir(torch.Folder)); err != nil {
		return err
	}
	if err := copyFirst(filepath.Join(lib, library.DecoderFile), filepath.Join(loader, library.DecoderFile)); err != nil {
		return err
	}
	return m.archive(t, torch, lib)
}

// archive checks the libraries in a folder, and packs them with what belongs to them.
func (m *maker) archive(t *toolchain, torch *libTorch, lib string) error {
	libraries, err := filepath.Glob(filepath.Join(lib, "*.so"))
	if err != nil {
		return err
	}
	files := lib + "-archive"
	licences := map[string]string{"streamtorch-LICENSE": filepath.Join(m.root, "LICENSE")}
	version, exports := "", map[string]bool(nil)
	if torch != nil {
		if version, exports = torch.Version, torch.exports; len(libraries) != len(rules) {
			return fmt.Errorf("%s has %d libraries, not %d", lib, len(libraries), len(rules))
		}
		licences["pytorch-LICENSE"] = torch.licence()
	}
	for _, c := range codecs {
		for _, name := range c.licences {
			licences[c.name+"-"+name] = filepath.Join(t.codecs, "licenses", c.name+"-"+name)
		}
	}
	var names []string
	for _, path := range libraries {
		if err := check(path, exports); err != nil {
			return err
		}
		names = append(names, filepath.Base(path))
		if err := copyFirst(filepath.Join(files, filepath.Base(path)), path); err != nil {
			return err
		}
	}
	for name, from := range licences {
		if err := copyFirst(filepath.Join(files, "licenses", name), from); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(files, "CONTENTS.txt"), []byte(contents(names, m.parts.all, t.arch)), 0o666); err != nil {
		return err
	}
	manifest := library.Manifest{LibTorch: version, Platform: "linux-" + t.arch, Source: library.Source}
	if err := write(filepath.Join(files, library.ManifestFile), manifest.Text(), 0o666); err != nil {
		return err
	}
	if err := pack(files, filepath.Join(m.out, install.ArchiveName(manifest.Platform, version))); err != nil {
		return err
	}
	return writeSums(m.out)
}
