package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/install"
)

// A libTorch is a LibTorch that the libraries are compiled for.
type libTorch struct {
	*install.Torch
	exports map[string]bool // names that its libraries and CUDA's export
}

// versionsFor returns the versions of LibTorch to make archives for.
func versionsFor(arch, wanted string) ([]string, error) {
	all := install.Locked().VersionsFor(arch)
	switch wanted {
	case "all":
		return all, nil
	case "none":
		return nil, nil
	}
	chosen := strings.Split(wanted, ",")
	for _, version := range chosen {
		if !slices.Contains(all, version) {
			return nil, fmt.Errorf("-libtorch %s: wheels.lock has %s for %s", version, strings.Join(all, " "), arch)
		}
	}
	return chosen, nil
}

// findTorch returns a LibTorch of wheels.lock. It downloads the LibTorch if the cache lacks it.
func findTorch(arch, version string) (*libTorch, error) {
	in := &install.Installer{Lock: install.Locked(), Version: version, Arch: arch, Out: install.NewPrinter(os.Stderr)}
	pinned, err := in.Pinned(context.Background())
	if err != nil {
		return nil, err
	}
	var libraries []string
	for _, name := range []string{"libc10.so", "libtorch_cpu.so", "libc10_cuda.so", "libtorch_cuda.so"} {
		libraries = append(libraries, filepath.Join(pinned.Lib(), name))
	}
	cuda, err := filepath.Glob(filepath.Join(pinned.Headers, "*", "lib", "libcudart.so.*"))
	if err != nil {
		return nil, err
	}
	t := &libTorch{Torch: pinned}
	t.exports, err = exportsOf(append(libraries, cuda...))
	return t, err
}

// licence is the file with LibTorch's licence.
func (t *libTorch) licence() string {
	return filepath.Join(filepath.Dir(t.Folder), "torch-"+t.Version+".dist-info", "licenses", "LICENSE")
}
