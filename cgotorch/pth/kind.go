package pth

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
)

// ErrKind is wrapped by the errors for files of a known kind that hold no tensors for this package.
// Exported programs, ONNX models and .tar archives are examples. Each error names the kind, and
// says how to get the weights.
var ErrKind = errors.New("a file of another kind")

// ofKind returns the error for a file of a kind that this package does not read.
func ofKind(name, kind, advice string) error {
	return fmt.Errorf("pth: %s: %w: %s: %s", name, ErrKind, kind, advice)
}

// saveAnew is the advice for files from which no command gets the names of PyTorch's state dict.
const saveAnew = "where the PyTorch model was made, run torch.save(model.state_dict(), \"weights.pth\")"

// kindOf returns the error for a file whose first bytes belong to a known kind. It returns nil for
// all other files.
func kindOf(name string, head []byte) error {
	begins := func(with ...string) bool {
		for _, w := range with {
			if bytes.HasPrefix(head, []byte(w)) {
				return true
			}
		}
		return false
	}
	if err := torchzip.NoModel(head); err != nil {
		return fmt.Errorf("pth: %s: %w: %w", name, ErrKind, err)
	}
	isTar := len(head) >= 262 && string(head[257:262]) == "ustar"
	switch {
	case isTar && begins("storages\x00", "tensors\x00", "pickle\x00", "sys_info\x00"):
		return ofKind(name, "an archive of torch.save before PyTorch 0.2", "run "+python("torch.save(torch.load('%s', weights_only=False), 'weights.pth')", name))
	case isTar:
		return ofKind(name, "a .tar archive", "unpack it with tar xf, and open the file of weights in it")
	case begins("GGUF"):
		return ofKind(name, "a GGUF file of llama.cpp", "get the .safetensors files of the model")
	case begins("\x89HDF\r\n"):
		return ofKind(name, "an HDF5 file, as Keras writes it", "this package reads PyTorch's weights: get those, or convert names and layouts in Python")
	case begins("\x93NUMPY"):
		return ofKind(name, "an array of NumPy", "run "+python("import numpy; torch.save({'name': torch.from_numpy(numpy.load('%s'))}, 'weights.pth')", name))
	case isONNX(head):
		return ofKind(name, "an ONNX model", "its names are not those of a state dict: "+saveAnew)
	}
	return nil
}

// isONNX reports whether a file begins as an ONNX model does: with its version, then the name of
// the program that wrote it, or its domain, or its graph.
func isONNX(head []byte) bool {
	return len(head) > 4 && head[0] == 0x08 && head[1] > 0 && head[1] < 64 && (head[2] == 0x12 || head[2] == 0x1a || head[2] == 0x22 || head[2] == 0x3a)
}

// python returns a command that runs the text in Python. %s in the text is the name of the file.
func python(text, name string) string {
	return `python3 -c "import torch; ` + fmt.Sprintf(text, strings.ReplaceAll(name, "'", `\'`)) + `"`
}

// kindOfZip is kindOf for the names of a zip file's entries. A TorchScript archive gives nil,
// because its weights can be read.
func kindOfZip(name string, entries map[string]bool) error {
	exported, compiled, numpy := false, false, false
	for entry := range entries {
		_, rest, _ := strings.Cut(entry, "/")
		switch {
		case strings.HasPrefix(rest, "data/aotinductor/"):
			compiled = true
		case strings.HasPrefix(rest, "models/"), strings.HasSuffix(entry, "serialized_exported_program.json"):
			exported = true
		case strings.HasSuffix(entry, ".npy"):
			numpy = true
		case rest == ".data/extern_modules":
			return ofKind(name, "a package of torch.package", saveAnew)
		}
	}
	switch {
	case exported:
		return ofKind(name, "a program of torch.export", "for its weights run "+python("torch.save(torch.export.load('%s').state_dict, 'weights.pth')", name))
	case compiled:
		return ofKind(name, "a program that AOTInductor compiled", "its weights lie in machine code: "+saveAnew)
	case numpy:
		return ofKind(name, "arrays of NumPy", "run "+python("import numpy; torch.save({k: torch.from_numpy(v) for k, v in numpy.load('%s').items()}, 'weights.pth')", name))
	}
	return nil
}
