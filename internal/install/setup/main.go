// Program setup makes a clone ready to compile. The Makefile runs it in the root of the clone.
//
//	setup PURPOSE [FOLDER]    PURPOSE is build, test, bundle, loader or test-loader
//	setup manifest [FOLDER]   after the compilation: write what the libraries are beside them
//
// What it finds is written to FOLDER, which is build if no other is given. Environment:
//
//	LIBTORCH           a folder that holds lib/ and include/ of LibTorch, or the folder above it
//	LIBTORCH_VERSION   a version of wheels.lock, such as 2.15.0: LibTorch must be of this version
//	PYTHON             the Python that is asked for an installed torch
//	STREAMTORCH_CACHE  the folder for downloads. Default: ${XDG_CACHE_HOME:-~/.cache}/streamtorch
//	STREAMTORCH_CUDA   1: get the CUDA libraries even if no driver is found. 0: do not get them even
//	                   if a driver is found. Unset: get them if a driver is found
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/streamtorch/streamtorch/internal/install"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := install.Prepare(ctx, install.Locked(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "streamtorch:", err)
		os.Exit(1)
	}
}
