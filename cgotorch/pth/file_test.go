package pth

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/pickle"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The tensors of files that PyTorch wrote have PyTorch's names, dtypes, shapes and elements.
func TestFile_PyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/wants.json") // made by make.py beside it
	if err != nil {
		t.Fatal(err)
	}
	var wants map[string][]struct {
		Name, DType, Data string
		Shape             []int64
	}
	must.Do(t, json.Unmarshal(text, &wants))
	wants["script.pt"] = wants["state.pth"] // the same model, as a TorchScript archive
	for file, tensors := range wants {
		f, err := Open(filepath.Join("testdata", file))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := len(f.Tensors()); got != len(tensors) {
			t.Errorf("%s: %d tensors, want %d", file, got, len(tensors))
		}
		for _, want := range tensors {
			info, ok := f.Lookup(want.Name)
			data, err := f.Read(want.Name)
			elements, _ := base64.StdEncoding.DecodeString(want.Data)
			if !ok || err != nil || info.DType != want.DType || !slices.Equal(info.Shape, want.Shape) || !bytes.Equal(data, elements) || info.Bytes != int64(len(data)) {
				t.Errorf("%s: %s is %v %v with %v, want %s%v with %v (%v)", file, want.Name, info.DType, info.Shape, data, want.DType, want.Shape, elements, err)
			}
		}
		must.Do(t, errors.Join(f.Close(), f.Close()))
	}
}

// What is beside the tensors of a checkpoint is there too.
// Several goroutines read one file. The race detector sees that they change nothing.
func TestFile_Read_FromGoroutines(t *testing.T) {
	f, err := Open(filepath.Join("testdata", "state.pth"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var wait sync.WaitGroup
	for range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for _, info := range f.Tensors() {
				if _, err := f.Read(info.Name); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
}

func TestFile_Values(t *testing.T) {
	f, err := Open("testdata/checkpoint.pth")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := f.Values()
	if v["epoch"] != int64(7) || v["lr"] != 0.25 || v["name"] != "r\u00e9seau" || v["done"] != true || v["none"] != nil || v["shape.1"] != int64(2) {
		t.Errorf("the values are %v", v)
	}
	if o, ok := v["dtype"].(Object); !ok || o.Class != "torch.float32" {
		t.Errorf("the dtype is %v", v["dtype"])
	}
}

// A file of another kind gives an error that says what to do.
func TestOpen_OtherKinds(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	archive := func(names ...string) string {
		var file bytes.Buffer
		z := zip.NewWriter(&file)
		for _, name := range names {
			entry, err := z.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "data.pkl") { // an object without tensors
				entry.Write([]byte("c__torch__\nNet\n)\x81}(X\x01\x00\x00\x00a\x88ub."))
			}
		}
		z.Close()
		return file.String()
	}
	tar := func(first string) string {
		head := make([]byte, 1024)
		copy(head, first)
		copy(head[257:], "ustar")
		return string(head)
	}
	pipe := filepath.Join(folder, "pipe.pth")
	filetest.Pipe(t, pipe)
	for path, want := range map[string]string{
		write("program.pt2", archive("m/archive_format", "m/models/model.json", "m/data/weights/weight_0")): "a program of torch.export: run python3 -c",
		write("old.pt2", archive("serialized_exported_program.json", "version")):                            "an old program of torch.export: run python3",
		write("compiled.pt2", archive("m/archive_format", "m/data/aotinductor/model/a.wrapper.so")):         "a program that AOTInductor compiled: ",
		write("frozen.pt", archive("m/code/a.py", "m/data.pkl")):                                            "a frozen TorchScript program: ",
		write("package.pt", archive("m/.data/extern_modules", "m/.data/version")):                           "a package of torch.package: ",
		write("arrays.npz", archive("a.npy")):                                                               "arrays of NumPy: run python3",
		write("a.zip", archive("a.txt")):                                                                    "torch.save did not write it",
		write("model.onnx", "\x08\x08\x12\x07pytorch\x1a\x052.1"):                                           "an ONNX model: ",
		write("a.tar", tar("train/a.jpg")):                                                                  "a .tar archive: unpack it",
		write("old.tar", tar("storages")):                                                                   "an archive of torch.save before PyTorch 0.2: run python3",
		write("a.tgz", "\x1f\x8b\x08 and more"):                                                             "a gzip file: unpack it",
		write("lfs.pth", "version https://git-lfs.github.com/spec/v1\n"):                                    "a pointer of Git LFS",
		write("page.pth", "<!DOCTYPE html><html>"):                                                          "a web page: download",
		write("a.gguf", "GGUF\x03\x00\x00\x00"):                                                             "a GGUF file",
		write("a.h5", "\x89HDF\r\n\x1a\n"):                                                                  "an HDF5 file",
		write("a.npy", "\x93NUMPY\x01\x00"):                                                                 "an array of NumPy: run python3",
		write("a.pkl", "\x80\x04\x95\x05\x00\x00\x00\x00"):                                                  "a pickle, and torch.save did not write it: run python3",
		write("text.pth", "hello world"):                                                                    `it begins with "hello wo"`,
		write("empty.pth", ""):                                                                              "it has 0 bytes",
		write("zip.pth", "PK\x03\x04 no zip "):                                                              "zip:",
		folder:                                                                                              "is no file",
		pipe:                                                                                                "is no file",
	} {
		for how, open := range map[string]func(string) error{
			"Open":        func(path string) error { _, err := Open(path); return err },
			"OpenWeights": func(path string) error { _, err := OpenWeights(path); return err },
		} {
			err := open(path)
			if how == "OpenWeights" && !errors.Is(err, errKind) && err != nil {
				continue // the errors of package safetensors, and of Files
			}
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || len(err.Error())-2*len(path) > 300 {
				t.Errorf("%s of %s: %v, want %q", how, path, err, want)
			}
		}
	}
	if _, err := Open(filepath.Join(folder, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A pickle that runs code, or is damaged, gives objects or an error. Nothing runs, nothing panics.
func TestUnpickle_Hostile(t *testing.T) {
	none := func([]any) (any, error) { return nil, errors.New("no storage") }
	for text, want := range map[string]string{
		"cos\nsystem\n(S'touch /tmp/x'\ntR.":                "it calls os.system",
		"cposix\nsystem\n(S'ls'\ntR.":                       "it calls posix.system",
		"c__builtin__\neval\n(S'1'\ntR.":                    "it calls __builtin__.eval",
		"\x80\x04\x8c\x0asubprocess\x8c\x05Popen\x93)\x81.": "it calls subprocess.Popen",
		"cargparse\nNamespace\n)R.":                         "",
		"\x80\x02}q\x00(X\x01\x00\x00\x00ah\x00u.":          "",
		"":                                       "ends early",
		"\x80\x09.":                              "protocol 9",
		"(.":                                     "mark in place",
		".":                                      "stack is empty",
		"h\x05.":                                 "has not stored",
		"X\xff\xff\xff\xff.":                     "ends early",
		"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.":  "a length of",
		"K\x01K\x02a.":                           "adds to a int64",
		"K\x01K\x02K\x03s.":                      "sets a value of a int64",
		"K\x01)R.":                               "calls a int64",
		"\xf0.":                                  "unknown instruction",
		"K\x01K\x02\x93.":                        "a class without a name",
		")Q.":                                    "no storage",
		"ctorch._utils\n_rebuild_tensor_v2\n)R.": "a tensor of 0 arguments",
	} {
		_, _, err := pickle.Read([]byte(text), pickle.Builder{Call: build, Storage: none})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A file of objects without an end, and one of another order of bytes, are refused.
func TestNewFile_Refuses(t *testing.T) {
	for _, c := range []struct{ pickle, order, want string }{
		{"}q\x00(S'a'\nh\x00u.", "little", "an object that holds itself"},
		{"}.", "middle", `its byte order is "middle"`},
	} {
		data := encode(t, func(b *bytes.Buffer) error {
			z := zip.NewWriter(b)
			for name, text := range map[string]string{"data.pkl": c.pickle, "byteorder": c.order} {
				e, err := z.CreateHeader(&zip.FileHeader{Name: "net/" + name, Method: zip.Store})
				if err != nil {
					return err
				}
				if _, err := e.Write([]byte(text)); err != nil {
					return err
				}
			}
			return z.Close()
		})
		if _, err := NewFile(bytes.NewReader(data), int64(len(data)), "a.pth"); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// Conjugated and negated tensors become their numbers when they are read, in each byte order.
func TestTensor_Finish(t *testing.T) {
	for _, c := range []struct {
		dtype          string
		conj, neg, big bool
		stored, want   string
	}{
		{"F16", false, true, false, "\x01\x02\x03\x84", "\x01\x82\x03\x04"},
		{"BF16", false, true, true, "\x02\x01", "\x01\x82"},
		{"F32", false, false, true, "\x04\x03\x02\x01", "\x01\x02\x03\x04"},
		{"C32", true, false, false, "\x01\x02\x03\x04", "\x01\x02\x03\x84"},
		{"C32", false, true, false, "\x01\x02\x03\x04", "\x01\x82\x03\x84"},
		{"C32", true, true, true, "\x02\x01\x04\x03\x02\x01\x04\x03", "\x01\x82\x03\x04\x01\x82\x03\x04"},
	} {
		got := []byte(c.stored)
		(&tensor{dtype: c.dtype, conj: c.conj, neg: c.neg}).finish(got, c.big)
		if string(got) != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	// PyTorch sets these bits on floating-point and complex tensors alone.
	two, one := &pickle.List{Items: []any{int64(2)}}, &pickle.List{Items: []any{int64(1)}}
	for _, c := range []struct {
		dtype, bit string
		refused    bool
	}{{"F32", "conj", true}, {"F32", "neg", false}, {"C64", "conj", false}, {"I32", "neg", true}, {"F8_E4M3", "neg", true}, {"I32", "other", false}} {
		args := []any{&storage{key: "0", dtype: c.dtype, elements: 2}, int64(0), two, one, false, &pickle.Dict{}, &pickle.Dict{Keys: []any{c.bit}, Values: []any{true}}}
		got, err := rebuild(args, false)
		if err != nil || (got.refused != "") != c.refused || c.refused && !strings.Contains(got.refused, "resolve_conj") {
			t.Errorf("%v: %+v, %v", c, got, err)
		}
	}
}

// The bytes of a tensor lie in its storage, whatever the dtypes of both are.
func TestRebuild_OtherDType(t *testing.T) {
	for _, c := range []struct {
		storage  string
		elements int64
		dtype    pickle.Global
		shape    int64
		want     string
	}{
		{"U8", 800, "torch.float64", 100, ""},
		{"U8", 800, "torch.float64", 101, "in a storage of 100 elements"},
		{"U8", 7, "torch.float64", 1, "in a storage of 0 elements"},
		{"F32", 2, "torch.uint8", 8, ""},
		{"F32", 2, "torch.uint8", 9, "in a storage of 8 elements"},
		{"", 8, "torch.int32", 2, ""},
		{"", 8, "torch.int32", 3, "in a storage of 2 elements"},
		{"F64", math.MaxInt64, "torch.uint8", 9, ""}, // such a storage is refused later
	} {
		s := &storage{key: "0", dtype: c.storage, elements: c.elements}
		_, err := rebuild([]any{s, int64(0), &pickle.List{Items: []any{c.shape}}, &pickle.List{Items: []any{int64(1)}}, false, &pickle.Dict{}, c.dtype}, true)
		if err == nil != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %v in a storage of %d %s: %v, want %q", c.shape, c.dtype, c.elements, c.storage, err, c.want)
		}
	}
}

// Damage anywhere in a file gives an error or other values, and never a panic.
func TestFile_Damaged(t *testing.T) {
	for _, name := range []string{"checkpoint.pth", "old.pth", "module.pth", "views.pth", "protocol4.pth"} {
		whole, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			data := slices.Clone(whole)
			switch r.IntN(3) {
			case 0:
				data = data[:r.IntN(len(data))]
			default:
				for range 1 + r.IntN(4) {
					data[r.IntN(len(data))] = byte(r.IntN(256))
				}
			}
			readAll(t, data)
		}
	}
}

func readAll(t *testing.T, data []byte) {
	f, err := NewFile(bytes.NewReader(data), int64(len(data)), "damaged")
	if err != nil {
		return
	}
	for _, info := range f.Tensors() {
		if got, err := f.Read(info.Name); err == nil && int64(len(got)) != info.Bytes {
			t.Errorf("tensor %s has %d bytes, want %d", info.Name, len(got), info.Bytes)
		}
	}
}

func FuzzNewFile(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.p*")
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { readAll(t, data) })
}

// What Write writes, this package reads.
func TestWrite(t *testing.T) {
	tensors := []safetensors.Tensor{
		{Name: "layer.weight", DType: "F32", Shape: []int64{2, 3}, Data: bytes.Repeat([]byte{1, 2, 3, 4}, 6)},
		{Name: "steps", DType: "I64", Shape: nil, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "empty", DType: "F16", Shape: []int64{0, 3}},
		{Name: "late", DType: "U8", Shape: []int64{2}, Read: func() ([]byte, error) { return []byte{5, 6}, nil }},
	}
	var file bytes.Buffer
	must.Do(t, Write(&file, tensors))
	f, err := NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "written")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range tensors {
		got, err := f.Read(want.Name)
		if want.Read != nil {
			want.Data, _ = want.Read()
		}
		if err != nil || !bytes.Equal(got, want.Data) || f.Tensors()[i].Name != want.Name || f.Tensors()[i].DType != want.DType || len(f.Tensors()[i].Shape) != len(want.Shape) {
			t.Errorf("%v with %v, want %v (%v)", f.Tensors()[i], got, want, err)
		}
	}
	if at := bytes.Index(file.Bytes(), tensors[0].Data); at%64 != 0 {
		t.Errorf("the first tensor lies at %d, want a multiple of 64", at)
	}
	for want, bad := range map[string][]safetensors.Tensor{
		"is there twice":          {tensors[1], tensors[1]},
		"has 24 bytes, and 1 are": {{Name: "x", DType: "F32", Shape: []int64{2, 3}, Data: []byte{1}}},
		"no storage of F8_E4M3":   {{Name: "x", DType: "F8_E4M3", Shape: []int64{1}, Data: []byte{1}}},
	} {
		torchtest.WantError(t, Write(&bytes.Buffer{}, bad), nil, want)
	}
}
