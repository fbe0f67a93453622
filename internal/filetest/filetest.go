// Package filetest reads the files that tests compare their results with. Its functions fail the
// test where a file is missing or malformed.
package filetest

import (
	"encoding/json"
	"image"
	"image/png"
	"os"
	"testing"
)

// JSON reads the JSON file at `path` into the value that `out` points to.
func JSON(t testing.TB, path string, out any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
}

// PNG returns the picture in the PNG file at `path`.
func PNG(t testing.TB, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}
