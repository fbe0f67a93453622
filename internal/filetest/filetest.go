// Package filetest reads the files that tests compare their results with. Its functions fail the
// test where a file is missing or malformed.
package filetest

import (
	"encoding/json"
	"image"
	"image/png"
	"os"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// JSON reads the JSON file at `path` into the value that `out` points to.
func JSON(t testing.TB, path string, out any) {
	t.Helper()
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(path))(t), out))
}

// PNG returns the picture in the PNG file at `path`.
func PNG(t testing.TB, path string) image.Image {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	return must.Get(png.Decode(f))(t)
}
