package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

func TestCompress(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for _, length := range []int{0, 1, gzipPiece, 3*gzipPiece + 1, 5 * gzipPiece} {
		want := make([]byte, length)
		random.Read(want)
		var file bytes.Buffer
		if err := compress(&file, bytes.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		r.Multistream(false) // all content must be in the first member
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d came back, %v", length, len(got), err)
		}
		if file.Len() != 0 {
			t.Errorf("%d bytes: %d bytes behind the member", length, file.Len())
		}
	}
}

func TestPhotographs_WriteTgz(t *testing.T) {
	once := photographs{{"sample/cat/1.jpg", []byte("one")}, {"sample/dog/2.jpg", []byte("two")}}
	path := filepath.Join(t.TempDir(), "repeated.tgz")
	if err := once.writeTgz(path, 5); err != nil {
		t.Fatal(err)
	}
	got, err := readPhotographs(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, p := range got {
		names = append(names, p.name)
		if want := once[i%2].data; !bytes.Equal(p.data, want) {
			t.Errorf("%s: got %q, want %q", p.name, p.data, want)
		}
	}
	want := []string{"sample/cat/000-1.jpg", "sample/dog/000-2.jpg", "sample/cat/001-1.jpg", "sample/dog/001-2.jpg", "sample/cat/002-1.jpg"}
	if !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if got, want := got.classes(), []string{"cat", "dog"}; !slices.Equal(got, want) {
		t.Errorf("classes %q, want %q", got, want)
	}
}
