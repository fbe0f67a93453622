package pth

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/pickle"
)

// small are tensors of a few bytes.
func small(names ...string) []safetensors.Tensor {
	var tensors []safetensors.Tensor
	for i, name := range names {
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: "U8", Shape: []int64{3}, Data: []byte{byte(i), 5, 6}})
	}
	return tensors
}

func encode(t *testing.T, write func(*bytes.Buffer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// One call opens both formats, whole or in shards.
func TestOpenWeights(t *testing.T) {
	pickle := encode(t, func(b *bytes.Buffer) error { return Write(b, small("a", "b")) })
	plain := encode(t, func(b *bytes.Buffer) error { return safetensors.Write(b, small("a", "b"), nil) })
	second := encode(t, func(b *bytes.Buffer) error { return safetensors.Write(b, small("x", "b")[1:], nil) })
	index := `{"weight_map": {"a": "1.x", "b": "2.x"}}`
	files := fstest.MapFS{
		"w.pth": {Data: pickle}, "w.safetensors": {Data: plain}, "wrong.pth": {Data: plain}, "wrong.safetensors": {Data: pickle},
		"folder/model.safetensors": {Data: plain}, "shards/model.safetensors.index.json": {Data: []byte(index)},
		"shards/1.x": {Data: encode(t, func(b *bytes.Buffer) error { return Write(b, small("a")) })}, "shards/2.x": {Data: second},
		"twice/i.json": {Data: []byte(index)}, "twice/1.x": {Data: plain}, "twice/2.x": {Data: plain},
		"half/i.json": {Data: []byte(index)}, "half/1.x": {Data: plain},
	}
	folder := t.TempDir()
	if err := os.CopyFS(folder, files); err != nil {
		t.Fatal(err)
	}
	open := func(path string) (Weights, error) { return OpenWeights(filepath.Join(folder, path)) }
	for _, path := range []string{"w.pth", "w.safetensors", "wrong.pth", "wrong.safetensors", "folder", "shards", "shards/model.safetensors.index.json"} {
		w, err := open(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for i, name := range []string{"a", "b"} {
			info, ok := w.Lookup(name)
			if data, err := w.Read(name); err != nil || !ok || info.Bytes != 3 || !slices.Equal(data, []byte{byte(i), 5, 6}) || len(w.Tensors()) != 2 {
				t.Errorf("%s: tensor %s is %v %v of %v (%v)", path, name, info, data, w.Tensors(), err)
			}
		}
		if _, err := w.Read("c"); err == nil || !strings.Contains(err.Error(), "no tensor c") {
			t.Errorf("%s: a tensor that is not there: %v", path, err)
		}
		if err := errors.Join(w.Close(), w.Close()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := open("none.pth"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := open("half/i.json"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "2.x") {
		t.Errorf("no shard: %v", err)
	}
	if _, err := open("twice/i.json"); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "tensor a is in") {
		t.Errorf("a tensor in two shards: %v", err)
	}
}

// holes writes a file and leaves out blocks of zeros, so that they take no space.
type holes struct{ file *os.File }

func (h holes) Write(data []byte) (int, error) {
	if len(data) > 1<<20 && len(bytes.TrimLeft(data, "\x00")) == 0 {
		_, err := h.file.Seek(int64(len(data)), 1)
		return len(data), err
	}
	return h.file.Write(data)
}

// Files above 100 MB are recognised too.
func TestOpenWeights_Large(t *testing.T) {
	const large = 101 << 20
	path := filepath.Join(t.TempDir(), "large.pth")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tensors := append(small("a"), safetensors.Tensor{Name: "zeros", DType: "U8", Shape: []int64{large}, Data: make([]byte, large)})
	if err := Write(holes{file}, tensors); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWeights(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if data, err := w.Read("a"); err != nil || !slices.Equal(data, []byte{0, 5, 6}) {
		t.Errorf("a is %v (%v)", data, err)
	}
	if _, err := safetensors.Open(path); err == nil || !strings.Contains(err.Error(), "torch.save wrote it") {
		t.Errorf("safetensors.Open: %v, want that torch.save wrote it", err)
	}
}

// Files that are made to take time or memory give an error soon.
func TestNewFile_Bombs(t *testing.T) {
	if testing.Short() {
		t.Skip("long on purpose")
	}
	none := func([]any) (any, error) { return nil, errors.New("no storage") }
	loop := func(head, body string, times int, end string) string { return head + strings.Repeat(body, times) + end }
	for name, c := range map[string]struct{ pickle, want string }{
		// A text of 1 MB as module and name of many classes.
		"long classes": {"\x8d\x00\x00\x10\x00\x00\x00\x00\x00" + strings.Repeat("a", 1<<20) + "\x94" + loop("(", "h\x00h\x00\x93", 1000, "l."), "a class whose name"},
		// A dict of many pairs, made many times.
		"dicts of pairs": {"(" + loop("(", "K\x01K\x02\x86", 1<<13, "l") + "\x940" + loop("", "ccollections\nOrderedDict\nh\x00\x85R0", 1<<14, "."), "instructions"},
		// A shape of many dimensions.
		"dimensions": {"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00" + loop("(", "K\x01", 1<<16, "t") + "\x94h\x00tR.", "a tensor without storage"},
	} {
		_, _, err := pickle.Read([]byte(c.pickle), pickle.Builder{Call: build, Storage: none})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	w := walker{file: &File{values: map[string]any{}, index: map[string]int{}, views: map[string]*tensor{}}, path: map[any]bool{}}
	var tree any = &pickle.List{Items: []any{int64(1)}}
	for range 60 {
		tree = &pickle.List{Items: []any{tree, tree}}
	}
	if err := w.walk("", tree, 0); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a tree of 2^60 values: %v", err)
	}
	w.names, w.seen = 0, 0
	long := &pickle.Dict{Keys: []any{strings.Repeat("k", 1<<20)}, Values: []any{&pickle.List{Items: make([]any, 1000)}}}
	if err := w.walk("", long, 0); err == nil || !strings.Contains(err.Error(), "names of its values") {
		t.Errorf("long names: %v", err)
	}
	zipped := func(fill func(z *zip.Writer) error) error {
		data := encode(t, func(b *bytes.Buffer) error {
			z := zip.NewWriter(b)
			return errors.Join(fill(z), z.Close())
		})
		_, err := NewFile(bytes.NewReader(data), int64(len(data)), "bomb")
		return err
	}
	many := func(n, length int) func(z *zip.Writer) error {
		return func(z *zip.Writer) error {
			for i := range n {
				if _, err := z.CreateRaw(&zip.FileHeader{Name: fmt.Sprintf("a/%0*d", length, i)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		fill func(z *zip.Writer) error
		want string
	}{
		"100,000 entries": {many(100_000, 10), "torch.save did not write it"},
		"a long list":     {many(700, 60_000), "the list of its entries has more than"},
		"a pickle that inflates": {func(z *zip.Writer) error {
			e, err := z.Create("a/data.pkl")
			for range 65 {
				e.Write(make([]byte, 1<<20))
			}
			return err
		}, "has 68157440 bytes, more than"},
		"a storage that is not there": {func(z *zip.Writer) error {
			_, err := z.CreateRaw(&zip.FileHeader{Name: "a/data/0", UncompressedSize64: 1 << 40, CompressedSize64: 1 << 40})
			e, err2 := z.Create("a/data.pkl")
			_, err3 := e.Write([]byte("(S'storage'\nctorch\nByteStorage\nS'0'\nNL1099511627776L\ntQ."))
			return errors.Join(err, err2, err3)
		}, "cannot have 1099511627776 bytes"},
	} {
		if err := zipped(c.fill); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
