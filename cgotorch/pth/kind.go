package pth

import (
	"errors"
	"fmt"
	"maps"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
)

// errKind is wrapped by the errors for files of a known kind that hold no tensors for this package.
// Exported programs, ONNX models and .tar archives are examples. Each error names the kind, and
// says how to get the weights.
var errKind = errors.New("a file of another kind")

// kindOf returns the error for a file whose first bytes belong to a known kind. It returns nil for
// all other files, and for those that this package reads.
func kindOf(name string, head []byte) error {
	if f := torchzip.Recognize(head); f != nil && f != torchzip.TorchSave {
		return fmt.Errorf("pth: %s: %w: %w", name, errKind, f.Weights(name))
	}
	return nil
}

// kindOfZip is kindOf for the names of a zip file's entries. A TorchScript archive gives nil,
// because its weights can be read.
func kindOfZip(name string, entries map[string]bool) error {
	if f := torchzip.RecognizeZip(maps.Keys(entries)); f != nil && f != torchzip.TorchSave && f != torchzip.TorchScript {
		return fmt.Errorf("pth: %s: %w: %w", name, errKind, f.Weights(name))
	}
	return nil
}
