// Package filetest reads the files that tests compare with. It fails the test where a file is
// missing or malformed.
package filetest

import (
	"encoding/json"
	"image"
	"image/png"
	"os"
	"testing"
)

// JSON reads a file into the value behind out.
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

// PNG returns the picture in a file.
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
