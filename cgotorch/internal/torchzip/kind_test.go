package torchzip

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// Files of other kinds are named from their first bytes, and others are not.
func TestRecognize(t *testing.T) {
	header := func(length uint64, text string) string {
		return string(binary.LittleEndian.AppendUint64(nil, length)) + text
	}
	tar := func(first string) string { return first + strings.Repeat("\x00", 257-len(first)) + "ustar\x0000" }
	for _, c := range []struct{ head, want string }{
		{"\x08\x08\x12\x07pytorch\x1a\x052.1", "an ONNX model"},
		{"\x08\x0b:\xa0\x01\n\x05", "an ONNX model"},
		{"\x08\x07\x12\x0cskl2onnx\x1a\x031.1", "an ONNX model"},
		{"\x08\x03\x22\x08ai.onnx\x28\x01", "an ONNX model"},
		{"\x08\x0aB\x04\n\x00\x10\x15", "an ONNX model"},
		{"\x08\x01\x12\xd0\x05\x0a\x20\x12", ""}, // a SavedModel of TensorFlow
		{"\x08\x05\x12\x20\x0a\x10", ""},         // a model of Core ML
		{"\x10\x00\x00\x00ORTM", "a model of ONNX Runtime"},
		{"\x1c\x00\x00\x00TFL3", "a model of TensorFlow Lite"},
		{"\x80\x00\x00\x00ET12", "a program of ExecuTorch"},
		{"GGUF\x03\x00\x00\x00", "a GGUF file"},
		{"\x89HDF\r\n\x1a\n", "an HDF5 file"},
		{"\x93NUMPY\x01\x00", "an array of NumPy"},
		{"\x7fELF\x02\x01\x01", "a shared library"},
		{"\x80\x02}q\x00.", "a pickle, and torch.save did not write it"},
		{"\x80\x05\x95\x10\x00", "a pickle, and"},
		{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "a file of torch.save"},
		{"\x1f\x8b\x08\x00", "a gzip file"},
		{"BZh91AY", "a bzip2 file"},
		{"\xfd7zXZ\x00\x00", "an xz file"},
		{"\x28\xb5\x2f\xfd\x04", "a zstd file"},
		{"7z\xbc\xaf\x27\x1c", "a 7z archive"},
		{tar("model/model.pt2"), "a .tar archive"},
		{tar("pickle"), "an archive of torch.save before PyTorch 0.2"},
		{"<!DOCTYPE html>\n<html>", "a web page"},
		{"\n\n  <HTML lang=en>", "a web page"},
		{"\ufeff<!doctype html>", "a web page"},
		{"<?xml version='1.0'?><Error><Code>AccessDenied", "a web page"},
		{"Entry not found", "an error of a download"},
		{"Invalid username or password.", "an error of a download"},
		{`{"error": "Repository not found"}`, "a JSON text"},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:", "a pointer of Git LFS"},
		{header(2, "{}"), "a safetensors file"},
		{header(0x8b1f, `{"w":`), "a safetensors file"}, // begins as a gzip file does
		{header(0x0280, ` {"w":`), "a safetensors file"},
		{header(100_000_001, `{"w":`), ""},
		{"", ""}, {"\x80", ""}, {"PK\x03\x04", ""}, {"hello world", ""}, {"{\x00\x01", ""}, {"\x08\x08", ""},
	} {
		got := Recognize([]byte(c.head))
		if (got == nil) != (c.want == "") || got != nil && !strings.HasPrefix(got.name, c.want) {
			t.Errorf("%q: %v, want %q", c.head, got, c.want)
		}
		// Each reader of programs says it, with what to do, and does not say to copy the file again.
		if _, err := Open(Kind{Package: "pt2", Format: errors.New("no program"), Make: "export it"}, bytes.NewReader([]byte(c.head)), int64(len(c.head)), "m.pt2"); err == nil ||
			!strings.HasPrefix(err.Error(), "pt2: m.pt2: no program: "+c.want) || c.want != "" && (strings.Contains(err.Error(), "copy") || strings.HasSuffix(err.Error(), ": ")) {
			t.Errorf("%q: %v", c.head, err)
		}
	}
}

// The name of a zip file's first folder does not make it a file of another kind.
func TestRecognizeZip(t *testing.T) {
	for entries, want := range map[string]*FileKind{
		"models/data.pkl models/data/0":                       TorchSave,
		"code/data.pkl code/version":                          TorchSave,
		"m/data.pkl m/code/a.py":                              TorchScript,
		"m/models/model.json m/data/weights/weight_0":         Exported,
		"serialized_exported_program.json version":            oldExported,
		"m/data/aotinductor/model/a.so":                       Compiled,
		"data/aotinductor/model/a.so":                         Compiled,
		"m/.data/extern_modules m/m/model.pkl":                packaged,
		"weight.npy bias.npy":                                 arrays,
		"metadata.json config.json model.weights.h5":          keras,
		"word/document.xml [Content_Types].xml":               nil,
		"m/models/model.json m/data/aotinductor/model/a.so":   Compiled,
		"archive/data.pkl archive/data/0 archive/byteorder":   TorchSave,
		"data/data.pkl data/data/0 data/.format_version":      TorchSave,
		"serialized_exported_program/data.pkl m/archive.json": TorchSave,
	} {
		got := RecognizeZip(func(yield func(string) bool) {
			for _, name := range strings.Fields(entries) {
				if !yield(name) {
					return
				}
			}
		})
		if got != want {
			t.Errorf("%s: %v, want %v", entries, got, want)
		}
	}
}
