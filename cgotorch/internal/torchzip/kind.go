package torchzip

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"strings"

	"github.com/streamtorch/streamtorch/internal/signature"
)

// HeadLength is the number of bytes from which [Recognize] knows a file.
const HeadLength = 512

// A FileKind is a kind of file that is known by its first bytes, or by the entries of a zip file.
type FileKind struct {
	name    string // such as "an ONNX model"
	weights string // what to do where weights are wanted; FILE stands for the path; "" means saveAnew
	program string // what to do where a program is wanted; "" means Kind.Make
}

// Weights returns the error for a file of weights at the path.
func (f *FileKind) Weights(path string) error {
	advice := f.weights
	if advice == "" {
		advice = saveAnew
	}
	return fmt.Errorf("%s: %s", f.name, strings.ReplaceAll(advice, "FILE", strings.ReplaceAll(path, "'", `\'`)))
}

// Program returns the error for a file of a program.
func (f *FileKind) Program(k Kind) error {
	advice := f.program
	if advice == "" {
		advice = k.Make
	}
	return fmt.Errorf("%s: %s", f.name, advice)
}

// These advices serve many kinds. saveAnew is for files from which no command gets the names of
// PyTorch's state dict.
const (
	saveAnew = "where the PyTorch model was made, run torch.save(model.state_dict(), \"weights.pth\")"
	unpack   = "unpack it, and open the file in it"
	unzip    = "unpack it with gunzip, or with tar xzf if it is a .tgz"
	load     = "it holds weights and no program: use checkpoint.LoadModel"
	ofGGUF   = "get the .safetensors files of the model"
	ofKeras  = "get PyTorch's weights, or convert names and layouts in Python"
	lfs      = "run git lfs pull in its repository"
	ofPage   = "download the file itself: the address gave a page, perhaps of an error"
	ofJSON   = "download the file of the model itself; the name of an index of shards must end in .json"
)

// python returns a command that runs in Python.
func python(command string) string { return `python3 -c "import torch; ` + command + `"` }

// Kinds that one of the packages reads.
var (
	SafeTensors = &FileKind{"a safetensors file", "open it with OpenWeights", load}
	TorchSave   = &FileKind{"a file of torch.save", "open it with OpenWeights", load}
	TorchScript = &FileKind{"a TorchScript program", "open it with OpenWeights", "export the model again, with torch.export.export and torch.export.save"}
	Exported    = &FileKind{"a program of torch.export", "run " + ofExported + " for its weights", "load it with package pt2, or compile it with torch._inductor.aoti_compile_and_package"}
	Compiled    = &FileKind{"a program that AOTInductor compiled", "", "load it with package aoti, or save the result of torch.export.export with torch.export.save instead"}
)

var (
	oldExported = &FileKind{"an old program of torch.export", "run " + ofExported + " for its weights",
		"PyTorch 2.8 or older has written it: load and save it again, with torch.export.load and torch.export.save of PyTorch 2.9 or newer"}
	packaged = &FileKind{"a package of torch.package", "", ""}
	arrays   = &FileKind{"arrays of NumPy", "run " + python("import numpy; torch.save({k: torch.from_numpy(v) for k, v in numpy.load('FILE').items()}, 'weights.pth')"), ""}
	keras    = &FileKind{"a Keras model", ofKeras, ""}

	ofExported = python("torch.save(torch.export.load('FILE').state_dict, 'weights.pth')")
)

// known are the kinds of package signature that are named here with another advice.
var known = map[string]FileKind{
	"a gzip file":       {"a gzip file", unzip, unzip},
	"a bzip2 file":      {"a bzip2 file", unpack, unpack},
	"an xz file":        {"an xz file", unpack, unpack},
	"a zstd file":       {"a zstd file", unpack, unpack},
	"a 7z file":         {"a 7z archive", unpack, unpack},
	"a RAR file":        {"a RAR archive", unpack, unpack},
	"an HDF5 file":      {"an HDF5 file, as Keras writes it", ofKeras, ""},
	"an array of numpy": {"an array of NumPy", "run " + python("import numpy; torch.save({'name': torch.from_numpy(numpy.load('FILE'))}, 'weights.pth')"), ""},
	"a Git LFS pointer": {"a pointer of Git LFS, and not the file itself", lfs, lfs},
}

// signatures are the bytes with which kinds of models begin.
var signatures = []struct {
	at    int
	begin string
	FileKind
}{
	{0, "GGUF", FileKind{"a GGUF file of llama.cpp", ofGGUF, ""}},
	{0, "lmgg", FileKind{"a GGML file of llama.cpp", ofGGUF, ""}},
	{0, "tjgg", FileKind{"a GGML file of llama.cpp", ofGGUF, ""}},
	{0, "\x7fELF", FileKind{"a shared library", "", "package aoti loads a library in its package: make that with torch._inductor.aoti_compile_and_package"}},
	{0, "ftrt", FileKind{"an engine of TensorRT", "", ""}},
	{4, "TFL3", FileKind{"a model of TensorFlow Lite", "", ""}},
	{4, "ET12", FileKind{"a program of ExecuTorch", "", ""}},
	{4, "ORTM", FileKind{"a model of ONNX Runtime", "", ""}},
}

// texts are the beginnings of what a download leaves in place of a model. Case does not matter.
var texts = []struct {
	begin string
	FileKind
}{
	{"<!doctype", page}, {"<html", page}, {"<?xml", page}, {"<head", page}, {"<!--", page},
	{"entry not found", failed}, {"repository not found", failed}, {"access to ", failed}, {"invalid username", failed}, {"not found", failed},
	{"{", text}, {"[", text},
}

var (
	page   = FileKind{"a web page", ofPage, ofPage}
	failed = FileKind{"an error of a download", ofPage, ofPage}
	text   = FileKind{"a JSON text", ofJSON, ofJSON}
)

// Recognize returns the kind of a file that begins with `head`, or nil for an unknown one.
func Recognize(head []byte) *FileKind {
	if isSafeTensors(head) { // first, because its length can have the bytes of any signature
		return SafeTensors
	}
	kind, _ := signature.Of(head)
	if f, ok := known[kind.Name]; ok {
		return &f
	}
	for i := range signatures {
		if s := &signatures[i]; len(head) >= s.at && bytes.HasPrefix(head[s.at:], []byte(s.begin)) {
			return &s.FileKind
		}
	}
	isTar := len(head) >= 262 && string(head[257:262]) == "ustar"
	name, _, _ := bytes.Cut(head, []byte{0})
	switch {
	case isTar && (string(name) == "storages" || string(name) == "tensors" || string(name) == "pickle" || string(name) == "sys_info"):
		return &FileKind{"an archive of torch.save before PyTorch 0.2", "run " + python("torch.save(torch.load('FILE', weights_only=False), 'weights.pth')"), ""}
	case isTar:
		return &FileKind{"a .tar archive", "unpack it with tar xf, and open the file of weights in it", "unpack it with tar xf, and open the program in it"}
	case len(head) > 2 && head[0] == 0x80 && head[1] <= 5 && bytes.Contains(head[:min(len(head), 16)], OldMagic):
		return TorchSave
	case len(head) > 2 && head[0] == 0x80 && head[1] > 0 && head[1] <= 5:
		return &FileKind{"a pickle, and torch.save did not write it", "run " + python("import pickle; torch.save(pickle.load(open('FILE', 'rb')), 'weights.pth')") + " if you trust the file", ""}
	case isONNX(head):
		return &FileKind{"an ONNX model", "", ""}
	}
	if bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	words := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n")
	for i := range texts {
		if t := &texts[i]; len(words) >= len(t.begin) && bytes.EqualFold(words[:len(t.begin)], []byte(t.begin)) {
			return &t.FileKind
		}
	}
	return nil
}

// OldMagic is the first object of a file of torch.save before PyTorch 1.6, as an integer of ten
// bytes.
var OldMagic = []byte{0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19}

// isSafeTensors reports whether a file begins with the length of a header of JSON, and the header.
func isSafeTensors(head []byte) bool {
	const maxHeader = 100_000_000
	if len(head) < 9 || binary.LittleEndian.Uint64(head) > maxHeader {
		return false
	}
	header := bytes.TrimLeft(head[8:], " \t\r\n")
	return len(header) > 0 && header[0] == '{'
}

// isONNX reports whether a file begins as an ONNX model does: with its version, then the name of
// the program that wrote it, or its domain, or its graph. Core ML and TensorFlow have a message
// where ONNX has that name.
func isONNX(head []byte) bool {
	if len(head) < 5 || head[0] != 0x08 || head[1] == 0 || head[1] >= 64 {
		return false
	}
	switch head[2] {
	case 0x12:
		return head[3] == 0 || head[4] >= ' '
	case 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42, 0x72:
		return true
	}
	return false
}

// RecognizeZip is [Recognize] for the names of a zip file's entries.
func RecognizeZip(entries iter.Seq[string]) *FileKind {
	found := map[*FileKind]bool{}
	for entry := range entries {
		inside := Below(entry)
		switch {
		case strings.HasPrefix(inside, "data/aotinductor/"), strings.HasPrefix(entry, "data/aotinductor/"): // PyTorch 2.8 and older writes no first folder
			found[Compiled] = true
		case strings.HasPrefix(inside, "code/"):
			found[TorchScript] = true
		case strings.HasPrefix(inside, "models/"):
			found[Exported] = true
		case strings.HasSuffix(entry, "serialized_exported_program.json"):
			found[oldExported] = true
		case inside == ".data/extern_modules":
			found[packaged] = true
		case inside == "data.pkl":
			found[TorchSave] = true
		case entry == "model.weights.h5":
			found[keras] = true
		case strings.HasSuffix(entry, ".npy"):
			found[arrays] = true
		}
	}
	for _, f := range []*FileKind{packaged, Compiled, TorchScript, oldExported, TorchSave, Exported, keras, arrays} {
		if found[f] {
			return f
		}
	}
	return nil
}
