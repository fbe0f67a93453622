// Package pt2test has the programs of the tests of package pt2.
package pt2test

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Path returns the path of a file of pt2/testdata. A test runs in folder pt2 or in a folder below
// it. A test that was built with -trimpath knows no other path.
func Path(parts ...string) string {
	above := "."
	for range 3 {
		if _, err := os.Stat(filepath.Join(above, "testdata", "small")); err == nil {
			break
		}
		above = filepath.Join(above, "..")
	}
	return filepath.Join(append([]string{above, "testdata"}, parts...)...)
}

// Model, WeightTable and ConstantTable are entries of a program that computes relu(x @ w.T + b) +
// c, where c is a constant in no state dict. They are what torch.export.save writes, without what
// nobody reads.
var Model, WeightTable, ConstantTable = small("model.json"), small("weights.json"), small("constants.json")

func small(name string) string {
	text, err := os.ReadFile(Path("small", name))
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Entries returns the entries of the program.
func Entries() map[string]string {
	return map[string]string{
		"models/model.json": Model, "data/weights/model_weights_config.json": WeightTable, "data/constants/model_constants_config.json": ConstantTable,
		"data/weights/weight_0":   "\x00\x00\x80\x3f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x3f", // 1 0 0 1
		"data/weights/weight_1":   "\x00\x00\x80\x3f\x00\x00\x00\xc0",                                 // 1 -2
		"data/constants/tensor_0": "\x00\x00\x00\x3f\x00\x00\x80\x3f",                                 // 0.5 1
		"archive_format":          "pt2", "archive_version": "0", "byteorder": "little",
	}
}

// Archive returns the file with these entries.
func Archive(t testing.TB, entries map[string]string) []byte {
	data, err := Zipped(entries)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Zipped returns the file with these entries.
func Zipped(entries map[string]string) ([]byte, error) {
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for name, text := range entries {
		e, err := w.CreateHeader(&zip.FileHeader{Name: "net/" + name, Method: zip.Store})
		if err != nil {
			return nil, err
		}
		if _, err := e.Write([]byte(text)); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return file.Bytes(), err
}
