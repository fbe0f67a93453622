//go:build !linux

package distributed

import (
	"fmt"
	"runtime"
)

// copySocket fails: LibTorch serves the store, and it runs on Linux only.
func copySocket(uintptr) (int, error) {
	return -1, fmt.Errorf("the library cannot train on %s with several processes: run the program on Linux", runtime.GOOS)
}

func closeSocket(int) {}
