//go:build !cgo || !linux || !(amd64 || arm64)

package library

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

func open(string, bool, rule) (*Library, error) { return nil, available() }

func foreign() bool { return false }

func (l *Library) symbol(name string) (unsafe.Pointer, error) { return nil, available() }

// available fails in a build that can open no library.
func available() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return fmt.Errorf("this program is compiled for %s on %s, and the library runs on Linux on amd64 and arm64 only: run it there, or in a container of Linux", runtime.GOOS, runtime.GOARCH)
	}
	return errors.New("this program is compiled without cgo: compile it with CGO_ENABLED=1 and a C compiler, such as gcc, in PATH")
}
