package idx

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// file returns an idx file with the given header and elements.
func file(kind byte, sizes []byte, data ...byte) []byte {
	text := []byte{0, 0, kind, byte(len(sizes))}
	for _, n := range sizes {
		text = append(text, 0, 0, 0, n)
	}
	return append(text, data...)
}

func compressed(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	must.Do(t, z.Close())
	return b.Bytes()
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, text, 0o666))
}

func TestReadMNIST(t *testing.T) {
	folder := t.TempDir()
	pixels := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	write(t, filepath.Join(folder, "train-images-idx3-ubyte"), file(8, []byte{2, 3, 2}, pixels...))
	write(t, filepath.Join(folder, "train-labels-idx1-ubyte.gz"), compressed(t, file(8, []byte{2}, 9, 0)))
	set := must.Get(ReadMNIST(folder, true))(t)
	if set.N != 2 || set.Height != 3 || set.Width != 2 || !slices.Equal(set.Images, pixels) || !slices.Equal(set.Labels, []byte{9, 0}) {
		t.Errorf("got %+v", set)
	}
	if _, err := ReadMNIST(folder, false); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "t10k-images") {
		t.Errorf("without test images: %v", err)
	}
	write(t, filepath.Join(folder, "train-labels-idx1-ubyte"), file(8, []byte{3}, 9, 0, 1))
	if _, err := ReadMNIST(folder, true); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "want 2 labels") {
		t.Errorf("with three labels of two images: %v", err)
	}
	write(t, filepath.Join(folder, "train-images-idx3-ubyte"), file(8, []byte{1}, 1))
	if _, err := ReadMNIST(folder, true); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "want images of bytes") {
		t.Errorf("with labels for images: %v", err)
	}
}

func TestRead_Hostile(t *testing.T) {
	whole := file(0x0C, []byte{2}, 0, 0, 0, 1, 0, 0, 0, 2)
	huge := append([]byte{0, 0, 8, 3}, bytes.Repeat([]byte{0xff}, 12)...)
	for name, text := range map[string][]byte{
		"empty":            nil,
		"another format":   []byte("\x89PNG\r\n"),
		"unknown type":     file(0x0A, []byte{1}, 1),
		"no dimensions":    file(8, nil, 1),
		"sizes cut":        whole[:6],
		"elements cut":     whole[:len(whole)-1],
		"more behind":      append(slices.Clone(whole), 1),
		"huge":             huge,
		"gzip header only": {0x1f, 0x8b},
		"gzip cut":         compressed(t, whole)[:20],
		"gzip of nothing":  compressed(t, nil),
	} {
		path := filepath.Join(t.TempDir(), "data")
		write(t, path, text)
		if _, err := Read(path); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "data")
	write(t, path, compressed(t, whole))
	if a, err := Read(path); err != nil || a.Type != "int32" || !slices.Equal(a.Shape, []int{2}) || len(a.Data) != 8 {
		t.Errorf("got %+v, %v", a, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(file(8, []byte{2, 1}, 1, 2))
	f.Add(compressed(f, file(0x0E, []byte{1}, 0, 0, 0, 0, 0, 0, 0, 0)))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := decode(bytes.NewReader(text))
		if err != nil && !errors.Is(err, ErrFormat) || err == nil && len(a.Shape) == 0 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}
