package safetensors

import (
	"bytes"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestWrite_SameBytesAsPython(t *testing.T) {
	want, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFile(bytes.NewReader(want), int64(len(want)), "python")
	if err != nil {
		t.Fatal(err)
	}
	var tensors []Tensor
	for _, info := range f.Tensors() {
		tensors = append(tensors, Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return f.Read(info.Name) }})
	}
	var got bytes.Buffer
	must.Do(t, Write(&got, tensors, f.Metadata()))
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got\n%q\nwant\n%q", got.Bytes(), want)
	}
}

func TestWrite_WideElementsFirst(t *testing.T) {
	var b bytes.Buffer
	err := Write(&b, []Tensor{
		{Name: "a", DType: "U8", Shape: []int64{1}, Data: []byte{1}},
		{Name: "b", DType: "F32", Shape: nil, Data: []byte{0, 0, 0, 0}},
		{Name: "c", DType: "BOOL", Shape: []int64{1}, Data: []byte{1}},
		{Name: "d", DType: "F64", Shape: []int64{1}, Data: make([]byte, 8)},
		{Name: "e", DType: "I32", Shape: []int64{1}, Data: make([]byte, 4)},
	}, map[string]string{"b": "<2>", "a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFile(bytes.NewReader(b.Bytes()), int64(b.Len()), "x")
	if err != nil {
		t.Fatal(err)
	}
	order := ""
	for _, info := range f.Tensors() {
		order += info.Name
	}
	if order != "dbeac" {
		t.Errorf("order %s, want dbeac", order)
	}
	if f.base%8 != 0 {
		t.Errorf("elements begin at byte %d", f.base)
	}
	if m := f.Metadata(); len(m) != 2 || m["a"] != "1" || m["b"] != "<2>" {
		t.Errorf("metadata %v", m)
	}
}

func TestWrite_Refuses(t *testing.T) {
	four := make([]byte, 4)
	for _, c := range []struct {
		what     string
		tensors  []Tensor
		metadata map[string]string
		want     string
	}{
		{"name twice", []Tensor{{Name: "w", DType: "U8", Shape: []int64{4}, Data: four}, {Name: "w", DType: "F32", Data: four}}, nil, "tensor w is there twice"},
		{"reserved name", []Tensor{{Name: "__metadata__", DType: "F32", Data: four}}, nil, `the name "__metadata__"`},
		{"name not UTF-8", []Tensor{{Name: "\xff", DType: "F32", Data: four}}, nil, `the name "\xff"`},
		{"dtype", []Tensor{{Name: "w", DType: "float32", Data: four}}, nil, `tensor w: dtype "float32"`},
		{"too little data", []Tensor{{Name: "w", DType: "F32", Shape: []int64{2}, Data: four}}, nil, "tensor w: F32 of shape [2] has 8 bytes, and 4 are given"},
		{"negative size", []Tensor{{Name: "w", DType: "F32", Shape: []int64{-1}, Data: four}}, nil, "negative size"},
		{"data read", []Tensor{{Name: "w", DType: "F32", Shape: []int64{2}, Read: func() ([]byte, error) { return four, nil }}}, nil, "has 8 bytes, and 4 are given"},
		{"failing read", []Tensor{{Name: "w", DType: "F32", Read: func() ([]byte, error) { return nil, io.ErrNoProgress }}}, nil, "tensor w: multiple Read calls"},
		{"metadata not UTF-8", nil, map[string]string{"a": "\xff"}, `metadata "a" is not UTF-8`},
		{"header too long", nil, map[string]string{"a": strings.Repeat("x", maxHeader)}, "the header has"},
	} {
		err := Write(io.Discard, c.tensors, c.metadata)
		if err == nil || !strings.HasPrefix(err.Error(), "safetensors: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestWrite_FullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full here: ", err)
	}
	defer full.Close()
	err = Write(full, []Tensor{{Name: "w", DType: "U8", Shape: []int64{1}, Data: []byte{1}}}, nil)
	torchtest.WantError(t, err, syscall.ENOSPC)
}
