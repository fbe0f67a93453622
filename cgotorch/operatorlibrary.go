package cgotorch

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// OpenOperators is process-wide: it opens a shared library that registers operators with
// TORCH_LIBRARY, and runs the initialisers of the library. [Exec.Call], programs of package pt2 and
// packages of package aoti then find these operators by name. The library stays open. Open only a
// library that you would also run as a command.
//
//	err := cgotorch.OpenOperators(".../site-packages/torchvision/_C.so")
//	kept := x.Call1("torchvision::nms", boxes, scores, 0.5)
//
// The library must be built for this LibTorch, and must not use Python. On a machine without a GPU,
// PyPI's torchvision opens too. A library that is open already stays as it is.
//
// OpenOperators opens the library in a child process first. So a library whose initialisers throw
// or crash is an error. A second copy of a library is an error, and a library without operators.
// The errors are of the kind [ErrInvalidArgument].
func OpenOperators(path string) error {
	const op = "OpenOperators"
	if err := ready(); err != nil {
		return err
	}
	full, err := filepath.Abs(path)
	if err == nil {
		var info os.FileInfo
		if info, err = os.Stat(full); err != nil {
			err = fmt.Errorf("%w; check the path", err)
		} else if !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no file: name the .so file", path)
		}
	}
	if err != nil {
		return &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Err: err}
	}
	return check(op, ct.OperatorsOpen(full))
}
