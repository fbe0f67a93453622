package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestOpen_PythonFile(t *testing.T) {
	f, err := Open("testdata/python.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := f.Metadata()["format"]; got != "pt" {
		t.Errorf("format is %q, want pt", got)
	}
	le := binary.LittleEndian
	want := []struct {
		name, dtype string
		shape       []int64
		data        []byte // bytes of the first element
	}{
		{"layer1.0.bn1.num_batches_tracked", "I64", []int64{}, le.AppendUint64(nil, 7)},
		{"double", "F64", []int64{1}, le.AppendUint64(nil, math.Float64bits(math.Pi))},
		{"complex", "C64", []int64{1}, le.AppendUint32(le.AppendUint32(nil, math.Float32bits(1)), math.Float32bits(2))},
		{"layer1.0.conv1.weight", "F32", []int64{2, 3, 3, 3}, le.AppendUint32(nil, math.Float32bits(-2))},
		{"nothing", "F32", []int64{0, 5}, nil},
		{`odd "name" <é>`, "F32", []int64{1}, le.AppendUint32(nil, math.Float32bits(1))},
		{"int", "I32", []int64{1, 2}, le.AppendUint32(nil, 1<<31)},
		{"brain", "BF16", []int64{2, 1}, []byte{0x80, 0x3f}},
		{"half", "F16", []int64{3}, []byte{0x00, 0x38}},
		{"short", "I16", []int64{1}, []byte{0x00, 0x80}},
		{"signed", "I8", []int64{2}, []byte{0x80}},
		{"bytes", "U8", []int64{3}, []byte{0}},
		{"flags", "BOOL", []int64{2}, []byte{1, 0}},
	}
	if len(f.Tensors()) != len(want) {
		t.Fatalf("%d tensors, want %d", len(f.Tensors()), len(want))
	}
	for i, w := range want {
		got := f.Tensors()[i]
		if got.Name != w.name || got.DType != w.dtype || !slices.Equal(got.Shape, w.shape) {
			t.Errorf("tensor %d is %+v, want %+v", i, got, w)
			continue
		}
		data, err := f.Read(w.name)
		if err != nil || int64(len(data)) != got.Bytes || !bytes.HasPrefix(data, w.data) {
			t.Errorf("%s: % x, %v; want % x…", w.name, data, err, w.data)
		}
	}
	if _, err := f.Read("layer2"); err == nil || !strings.Contains(err.Error(), "python.safetensors: there is no tensor layer2") {
		t.Errorf("reading a missing tensor: %v", err)
	}
}

// file returns a file with the given header. After the header come zeros, as many bytes as `data`
// says.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestNewFile_Refuses(t *testing.T) {
	one := func(fields string) string { return `{"w":{` + fields + `}}` }
	const dtype, shape, offsets = `"dtype":"F32"`, `"shape":[2]`, `"data_offsets":[0,8]`
	for _, c := range []struct {
		what string
		file []byte
		want string
	}{
		{"nothing", nil, "it has 0 bytes"},
		{"half a length", make([]byte, 7), "it has 7 bytes"},
		{"header beyond the end", file("", 0)[:8:8], "no JSON object"},
		{"header cut short", append(binary.LittleEndian.AppendUint64(nil, 100), '{', '}'), "header has 100 bytes, and the file ends after 2"},
		{"header of 100 MB and a byte", append(binary.LittleEndian.AppendUint64(nil, maxHeader+1), '{', '}'), "100000001 bytes, and the most is 100000000"},
		{"header of 2^64-1", append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), '{', '}'), "the most is"},
		{"zip", []byte("PK\x03\x04torch.save writes such files, a zip of pickles"), "pth.OpenWeights read such files"},
		{"pickle", []byte("\x80\x02torch.save once wrote such files"), "pth.OpenWeights read such files"},
		{"no JSON", file("hello", 0), "no JSON object"},
		{"list", file("[]", 0), "no JSON object"},
		{"half an object", file(`{"w":`, 0), "damaged JSON"},
		{"object without end", file(`{"w":{}`, 0), "damaged JSON"},
		{"two objects", file(`{}{}`, 0), "followed by something else"},
		{"not UTF-8", file("{\"\xff\":{}}", 0), "UTF-8"},
		{"name twice", file(`{"w":{`+dtype+`,"shape":[0],"data_offsets":[0,0]},"w":{`+dtype+`,"shape":[0],"data_offsets":[0,0]}}`, 0), `"w" is there twice`},
		{"number for a tensor", file(`{"w":5}`, 0), "tensor w: no JSON object"},
		{"no dtype", file(one(shape+","+offsets), 8), "tensor w: dtype, shape or data_offsets is missing"},
		{"no shape", file(one(dtype+","+offsets), 8), "tensor w: dtype, shape or data_offsets is missing"},
		{"no offsets", file(one(dtype+","+shape), 8), "tensor w: dtype, shape or data_offsets is missing"},
		{"field in capitals", file(one(`"DTYPE":"F32",`+shape+","+offsets), 8), "tensor w: dtype, shape or data_offsets is missing"},
		{"field twice", file(one(dtype+","+dtype+","+shape+","+offsets), 8), `tensor w: ambiguous: "dtype" is there twice`},
		{"unknown dtype", file(one(`"dtype":"F33",`+shape+","+offsets), 8), `tensor w: dtype "F33"`},
		{"dtype no text", file(one(`"dtype":32,`+shape+","+offsets), 8), "tensor w: dtype: 32 is no text"},
		{"negative size", file(one(dtype+`,"shape":[-2],`+offsets), 8), "tensor w: shape [-2] has a negative size"},
		{"negative size behind 0", file(one(dtype+`,"shape":[0,-2],"data_offsets":[0,0]`), 0), "has a negative size"},
		{"fraction", file(one(dtype+`,"shape":[2.0],`+offsets), 8), "tensor w: shape: 2.0 is no whole number"},
		{"null size", file(one(dtype+`,"shape":[null],"data_offsets":[0,0]`), 0), "tensor w: shape: null is no whole number"},
		{"null shape", file(one(dtype+`,"shape":null,"data_offsets":[0,4]`), 4), "tensor w: shape: null is no list"},
		{"size above 2^63", file(one(dtype+`,"shape":[9223372036854775808],`+offsets), 8), "no whole number below 2^63"},
		{"product above 2^64", file(one(dtype+`,"shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0), "does not fit in memory"},
		{"product wraps to 8", file(one(dtype+`,"shape":[2305843009213693954,4],"data_offsets":[0,8]`), 8), "does not fit in memory"},
		{"half a byte", file(one(`"dtype":"F4","shape":[3],"data_offsets":[0,1]`), 1), "no whole number of bytes"},
		{"three offsets", file(one(dtype+","+shape+`,"data_offsets":[0,8,8]`), 8), "are no range"},
		{"offsets backwards", file(one(dtype+","+shape+`,"data_offsets":[8,0]`), 8), "are no range"},
		{"offset below 0", file(one(dtype+","+shape+`,"data_offsets":[-8,0]`), 8), "are no range"},
		{"offsets and shape differ", file(one(dtype+`,"shape":[3],`+offsets), 8), "span 8 bytes, F32 of shape [3] has 12"},
		{"elements cut short", file(one(dtype+","+shape+","+offsets), 5), "tensor w has 8 bytes, and the file ends after 5 of them: it is cut short"},
		{"bytes at the end", file(one(dtype+","+shape+","+offsets), 9), "1 bytes behind the last tensor"},
		{"bytes and no tensor", file(`{}`, 1), "1 bytes behind the last tensor"},
		{"hole at the beginning", file(one(dtype+","+shape+`,"data_offsets":[4,12]`), 12), "tensor w begins at byte 4, and nothing says what lies from 0 on"},
		{"hole", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), "tensor b begins at byte 3, and nothing"},
		{"overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "tensor b begins at byte 1, inside"},
		{"metadata no object", file(`{"__metadata__":"x"}`, 0), "__metadata__: no JSON object"},
		{"metadata no text", file(`{"__metadata__":{"epoch":3}}`, 0), "__metadata__: epoch: 3 is no text"},
	} {
		f, err := NewFile(bytes.NewReader(c.file), int64(len(c.file)), "run.safetensors")
		if err == nil {
			t.Errorf("%s: opened: %v", c.what, f.Tensors())
			continue
		}
		if !errors.Is(err, ErrFormat) || !strings.HasPrefix(err.Error(), "safetensors: run.safetensors: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want ErrFormat with %q", c.what, err, c.want)
		}
	}
}

func TestNewFile_AcceptsSpaces(t *testing.T) {
	b := file("{ \"w\" : { \"shape\" : [ 2 , 1 ] , \"data_offsets\" : [ 0 , 8 ] , \"dtype\" : \"F32\" } }   ", 8)
	f, err := NewFile(bytes.NewReader(b), int64(len(b)), "spaces")
	if err != nil {
		t.Fatal(err)
	}
	if w, ok := f.Lookup("w"); !ok || w.Bytes != 8 || !slices.Equal(w.Shape, []int64{2, 1}) {
		t.Errorf("w is %+v", w)
	}
}

// A header is read or refused as Python's package 0.8.0 does. Where this package differs, it
// refuses what is ambiguous or is not the format's.
func TestNewFile_AsPython(t *testing.T) {
	const w = `"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`
	entry := func(dtype, shape string, begin, end int) string {
		return fmt.Sprintf(`"w":{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, dtype, shape, begin, end)
	}
	const reads, refuses, differs = "reads", "refuses", "Python reads it, this package refuses it"
	for _, c := range []struct {
		header string
		data   int
		want   string
	}{
		{`{"__metadata__":null,` + w + `}`, 4, reads},
		{`{"__metadata__":{},` + w + `}`, 4, reads},
		{`{"__metadata__":{"x":"` + "\\u00e9\\n" + `"},` + w + `}`, 4, reads},
		{`{"__metadata__":{"x":1},` + w + `}`, 4, refuses},
		{`{"__metadata__":{"x":null},` + w + `}`, 4, refuses},
		{`{"__metadata__":{"x":{}},` + w + `}`, 4, refuses},
		{`{"__metadata__":[],` + w + `}`, 4, refuses},
		{`{"__metadata__":"x",` + w + `}`, 4, refuses},
		{`{"__metadata__":false,` + w + `}`, 4, refuses},
		{`{"__metadata__":{"x":"1"},"__metadata__":{"y":"2"},` + w + `}`, 4, refuses},
		{`{"__metadata__":{"x":"1","x":"2"},` + w + `}`, 4, differs},
		{`{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"note":"x"}}`, 4, reads},
		{`{"w":{"scale":[1,{"a":null}],"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, reads},
		{`{"w":{"dtype":"U8","n":1,"shape":[4],"n":2,"data_offsets":[0,4],"Shape":[9]}}`, 4, reads},
		{`{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"note":}}`, 4, refuses},
		{`{"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}`, 4, refuses},
		{`{"w":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}}`, 4, refuses},
		{`{"w":["U8",[4],[0,4]]}`, 4, differs},
		{`{"w":null}`, 0, refuses},
		{`{` + w + `,` + w + `}`, 4, differs},
		{`{` + w + `,` + entry("U8", "[4]", 4, 8) + `}`, 8, refuses},
		{`{` + w + `}` + " \n\t\r  ", 4, reads},
		{" \n{" + w + `}`, 4, reads},
		{`{` + w + `}` + "\x00", 4, refuses},
		{"\ufeff{" + w + `}`, 4, refuses},
		{`{` + w + `,}`, 4, refuses},
		{"{" + strings.Replace(w, "w", "a\nb", 1) + "}", 4, refuses},
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},` + entry("F32", "[1]", 1, 5) + `}`, 5, reads}, // not aligned
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},` + entry("U8", "[1]", 2, 3) + `}`, 3, refuses},
		{`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},` + entry("U8", "[2]", 1, 3) + `}`, 3, refuses},
		{`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},` + entry("U8", "[2]", 0, 2) + `}`, 2, refuses},
		{`{` + entry("U8", "[1]", 1, 2) + `}`, 2, refuses},
		{`{` + w + `}`, 5, refuses},
		{`{` + w + `}`, 3, refuses},
		{`{"z":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},` + w + `}`, 4, reads},
		{`{"z":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},` + w + `}`, 4, reads},
		{`{"z":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},` + w + `}`, 4, refuses},
		{`{"z":{"dtype":"F32","shape":[0],"data_offsets":[9,9]},` + w + `}`, 4, refuses},
		{`{` + entry("F32", "[]", 0, 4) + `}`, 4, reads},
		{`{}`, 0, reads},
		{`{"__metadata__":{"x":"y"}}`, 0, reads},
		{`{}`, 1, refuses},
		{``, 0, refuses},
		{`{` + entry("U8", "[9223372036854775808,2,0]", 0, 0) + `}`, 0, refuses},
		{`{"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, reads},
		{`{"\u0077\ud83d\ude00":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, reads},
		{`{` + entry("u8", "[4]", 0, 4) + `}`, 4, refuses},
		{`{` + entry("F4", "[8]", 0, 4) + `}`, 4, reads},
		{`{` + entry("F4", "[3]", 0, 2) + `}`, 2, refuses},
		{`{` + entry("F6_E2M3", "[4]", 0, 3) + `}`, 3, reads},
		{`{` + entry("F8_E4M3", "[4]", 0, 4) + `}`, 4, reads},
		{`{` + entry("F8_E5M2", "[4]", 0, 4) + `}`, 4, reads},
		{`{` + entry("F8_E8M0", "[4]", 0, 4) + `}`, 4, reads},
		{`{` + entry("F8_E4M3FNUZ", "[4]", 0, 4) + `}`, 4, reads},
		{`{` + entry("BF16", "[2]", 0, 4) + `}`, 4, reads},
		{`{` + entry("C64", "[1]", 0, 8) + `}`, 8, reads},
		{`{` + entry("U64", "[1]", 0, 8) + `}`, 8, reads},
		{`{` + entry("C128", "[1]", 0, 16) + `}`, 16, refuses},
		{`{` + entry("I4", "[8]", 0, 4) + `}`, 4, refuses},
		{`{` + entry("NF4", "[8]", 0, 4) + `}`, 4, refuses},
	} {
		b := file(c.header, c.data)
		f, err := NewFile(bytes.NewReader(b), int64(len(b)), "f")
		if (err == nil) != (c.want == reads) || err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want: %s", c.header, err, c.want)
			continue
		}
		if err == nil && strings.Contains(c.header, `"w"`) {
			if got, err := f.Read("w"); err != nil || len(got) == 0 {
				t.Errorf("%s: %v %v", c.header, got, err)
			}
		}
	}
}

// A file that is cut short at any byte gives an error.
func TestNewFile_EveryPrefix(t *testing.T) {
	whole, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if _, err := NewFile(bytes.NewReader(whole[:n]), int64(n), "prefix"); !errors.Is(err, ErrFormat) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func TestOpen_NoFile(t *testing.T) {
	if _, err := Open("testdata/none.safetensors"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "testdata/none.safetensors") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Open("testdata"); err == nil || errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "safetensors: testdata: not a regular file") {
		t.Errorf("folder: %v", err)
	}
}

func TestFile_Read_FileCutWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	must.Do(t, WriteFile(path, []Tensor{{Name: "w", DType: "U8", Shape: []int64{9}, Data: make([]byte, 9)}}, nil))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	torchtest.WantError(t, f.ReadInto("w", make([]byte, 3)), nil, "tensor w has 9 bytes, to be read into 3")
	must.Do(t, os.Truncate(path, 70))
	if _, err := f.Read("w"); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "tensor w") {
		t.Errorf("reading behind the new end: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("first Close: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func FuzzNewFile(f *testing.F) {
	whole, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(file(`{}`, 0))
	f.Add(file(`{"w":{"dtype":"F4","shape":[2,0],"data_offsets":[0,0]},"__metadata__":{"a":"b"}}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := NewFile(bytes.NewReader(data), int64(len(data)), "fuzz")
		if err != nil {
			torchtest.WantError(t, err, ErrFormat)
			return
		}
		// An accepted file can be written again. The written file has the same tensors.
		var tensors []Tensor
		for _, info := range file.Tensors() {
			data, err := file.Read(info.Name)
			if err != nil {
				t.Fatalf("reading %+v: %v", info, err)
			}
			tensors = append(tensors, Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Data: data})
		}
		var again bytes.Buffer
		if err := Write(&again, tensors, file.Metadata()); err != nil {
			t.Fatalf("writing again: %v", err)
		}
		second, err := NewFile(bytes.NewReader(again.Bytes()), int64(again.Len()), "again")
		if err != nil {
			t.Fatalf("reading again: %v", err)
		}
		for _, w := range tensors {
			info, ok := second.Lookup(w.Name)
			got, err := second.Read(w.Name)
			if !ok || err != nil || info.DType != w.DType || !slices.Equal(info.Shape, w.Shape) || !bytes.Equal(got, w.Data) {
				t.Errorf("%q: %+v, %v; want %+v", w.Name, info, err, w)
			}
		}
	})
}
