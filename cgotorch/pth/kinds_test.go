package pth

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"slices"
	"strings"
	"testing"
)

// Files with tensors and objects of many kinds open. Each tensor has PyTorch's dtype, shape and
// bytes, or is refused by its name when it is read. testdata/kinds.py has made the files.
func TestFile_Kinds(t *testing.T) {
	text, err := os.ReadFile("testdata/kinds.json")
	if err != nil {
		t.Fatal(err)
	}
	var files []struct {
		Name    string
		Whole   []byte
		Entries map[string][]byte
		Wants   map[string]struct {
			DType, Error string
			Shape        []int64
			Data         []byte
		}
	}
	must.Do(t, json.Unmarshal(text, &files))
	if len(files) < 60 {
		t.Errorf("%d files", len(files))
	}
	for _, file := range files {
		if file.Entries != nil {
			file.Whole = encode(t, func(b *bytes.Buffer) error {
				z := zip.NewWriter(b)
				for name, data := range file.Entries {
					e, err := z.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store})
					if err != nil {
						return err
					}
					if _, err := e.Write(data); err != nil {
						return err
					}
				}
				return z.Close()
			})
		}
		f, err := NewFile(bytes.NewReader(file.Whole), int64(len(file.Whole)), "kind.pth")
		if err != nil {
			t.Errorf("%s: %v", file.Name, err)
			continue
		}
		var got, want []string
		for _, info := range f.Tensors() {
			got = append(got, info.Name)
		}
		for name, w := range file.Wants {
			want = append(want, name)
			info, ok := f.Lookup(name)
			data, err := f.Read(name)
			switch {
			case !ok:
			case w.Error != "":
				if err == nil || errors.Is(err, ErrFormat) || !strings.HasPrefix(err.Error(), "pth: kind.pth: tensor "+name+": ") || !strings.Contains(err.Error(), w.Error) {
					t.Errorf("%s: tensor %s: %v, want %q", file.Name, name, err, w.Error)
				}
			case err != nil || info.DType != w.DType || !slices.Equal(info.Shape, w.Shape) || !bytes.Equal(data, w.Data) || info.Bytes != int64(len(data)):
				t.Errorf("%s: tensor %s: %v with %x (%v), want %s%v with %x", file.Name, name, info, data, err, w.DType, w.Shape, w.Data)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: tensors %q, want %q", file.Name, got, want)
		}
	}
}
