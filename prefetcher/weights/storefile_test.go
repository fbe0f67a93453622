package weights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// compareNames has no cycle, so it is an order.
func TestCompareNames_Cycle(t *testing.T) {
	a, b, c := "10", "1"+strings.Repeat("0", 21), "5"
	if compareNames(a, b) < 0 && compareNames(b, c) < 0 && compareNames(c, a) < 0 {
		t.Errorf("%s < %s < %s < %s", a, b, c, a)
	}
}

func save(t *testing.T, name string, tensors ...safetensors.Tensor) string {
	path := filepath.Join(t.TempDir(), name)
	f := must.Get(os.Create(path))(t)
	must.Do(t, safetensors.Write(f, tensors, nil))
	f.Close()
	return path
}

// With Map, a file without a tensor of a unit is neither mapped nor page-locked.
func TestOpenStore_Map_UnusedShard(t *testing.T) {
	w := func(n string, k int) safetensors.Tensor {
		return safetensors.Tensor{Name: n, DType: "F32", Shape: []int64{int64(k)}, Data: make([]byte, 4*k)}
	}
	a := save(t, "a.safetensors", w("x.0.w", 4))
	b := save(t, "b.safetensors", w("head", 1<<20))
	s := must.Get(OpenStore([]string{a, b}, StoreOptions{Units: regexp.MustCompile(`^x\.\d`), Map: true}))(t)
	defer s.Close()
	if st := s.Stats(); st.Memory > 1<<20 {
		t.Errorf("%+v: a file without any unit is mapped, and will be page-locked", st)
	}
}

// writeUnits writes a safetensors file with the linear layers from `from` to `to`-1. The layers
// have the values of scalesStore. The file also has one tensor that belongs to no unit.
func writeUnits(t testing.TB, path string, from, to int) {
	t.Helper()
	var tensors []safetensors.Tensor
	add := func(name string, shape []int64, values []float32) {
		data := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: "F32", Shape: shape, Data: data})
	}
	add("shared.weight", []int64{3}, make([]float32, 3))
	for i := from; i < to; i++ {
		weight, bias := make([]float32, width*width), make([]float32, width)
		for k := range width {
			weight[k*width+k], bias[k] = float32(i+1), float32(i)
		}
		add(unitName(i)+".bias", []int64{width}, bias)
		add(unitName(i)+".weight", []int64{width, width}, weight)
	}
	file := must.Get(os.Create(path))(t)
	must.Do(t, errors.Join(safetensors.Write(file, tensors, nil), file.Close()))
}

var blocks = regexp.MustCompile(`^block\.\d+\.mlp`)

func TestOpenStore(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("mapped=%v", mapped), func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				folder := t.TempDir()
				a, b, index := filepath.Join(folder, "a.safetensors"), filepath.Join(folder, "b.safetensors"), filepath.Join(folder, "model.safetensors.index.json")
				writeUnits(t, a, 0, 3)
				writeUnits(t, b, 3, 12)
				text := `{"weight_map": {"block.0.mlp.weight": "a.safetensors", "block.5.mlp.weight": "b.safetensors", "block.6.mlp.weight": "b.safetensors"}}`
				must.Do(t, os.WriteFile(index, []byte(text), 0o644))
				for _, paths := range [][]string{{a, b}, {index}} {
					s := must.Get(OpenStore(paths, StoreOptions{Units: blocks, Map: mapped}))(t)
					var want []string
					for i := range 12 {
						want = append(want, unitName(i))
					}
					if got := s.Units(); !slices.Equal(got, want) {
						t.Errorf("units %v, want %v", got, want)
					}
					c := must.Get(NewCache(s, d, newLinear, CacheOptions{}))(t)
					torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
						for i := range 12 {
							apply(t, x, c, i)
						}
					})
					if st := s.Stats(); st.Mapped != mapped || st.Bytes != 12*4*(width*width+width) {
						t.Errorf("%+v", st)
					}
					must.Check(t, errors.Join(c.Close(), s.Close(), s.Close()))
				}
			})
		})
	}
}

// OpenStore reads a folder, and converts floating-point tensors to DType.
func TestOpenStore_DType(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	writeUnits(t, filepath.Join(folder, "model.safetensors"), 0, 4)
	s := must.Get(OpenStore([]string{folder}, StoreOptions{Units: blocks, DType: cgotorch.BFloat16}))(t)
	defer s.Close()
	data := must.Get(s.Bytes(unitName(2), "weight"))(t)
	if want := cgotorch.ToBFloat16(3); len(data) != 2*width*width || data[0] != byte(want) || data[1] != byte(want>>8) {
		t.Errorf("%d bytes, which begin with %v", len(data), data[:2])
	}
	if st := s.Stats(); st.Bytes != 4*2*(width*width+width) {
		t.Errorf("%+v", st)
	}
}

func TestOpenStore_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	good, cut, text, index := filepath.Join(folder, "good"), filepath.Join(folder, "cut"), filepath.Join(folder, "text"), filepath.Join(folder, "index.json")
	writeUnits(t, good, 0, 2)
	data := must.Get(os.ReadFile(good))(t)
	os.WriteFile(cut, data[:len(data)-5], 0o644)
	os.WriteFile(text, []byte("no tensors are in this file"), 0o644)
	os.WriteFile(index, []byte(`{"weight_map": {}}`), 0o644)
	for _, test := range []struct {
		paths []string
		o     StoreOptions
		want  error
		text  string
	}{
		{[]string{good}, StoreOptions{}, ErrInvalidOptions, "Units is nil"},
		{nil, StoreOptions{Units: blocks}, ErrInvalidOptions, "no file"},
		{[]string{cut}, StoreOptions{Units: blocks}, safetensors.ErrFormat, cut},
		{[]string{text}, StoreOptions{Units: blocks}, safetensors.ErrFormat, text},
		{[]string{index}, StoreOptions{Units: blocks}, safetensors.ErrFormat, index},
		{[]string{good + "none"}, StoreOptions{Units: blocks}, os.ErrNotExist, "none"},
		{[]string{good, good}, StoreOptions{Units: blocks}, ErrInvalidOptions, "block.0.mlp.bias is in"},
		{[]string{good}, StoreOptions{Units: regexp.MustCompile(`^layer\.\d+`)}, ErrInvalidOptions, `^layer\.\d+`},
		{[]string{good}, StoreOptions{Units: blocks, DType: cgotorch.BFloat16, Map: true}, ErrInvalidOptions, "without Map"},
		{[]string{good}, StoreOptions{Units: blocks, DType: cgotorch.Int64}, ErrInvalidOptions, "int64"},
		{[]string{folder}, StoreOptions{Units: blocks}, os.ErrNotExist, "model.safetensors.index.json"},
		{[]string{good}, StoreOptions{Units: regexp.MustCompile(`^block\.\d`), Map: true}, nil, ""},
	} {
		s, err := OpenStore(test.paths, test.o)
		if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%v: got %v, want %v with %q", test.paths, err, test.want, test.text)
		}
		if s != nil {
			s.Close()
		}
	}
}

// A unit that lacks a tensor is refused, with an error that has its name. The other units can be
// used.
func TestOpenStore_MissingTensor(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "a.safetensors")
	writeUnits(t, path, 0, 3)
	data := must.Get(os.ReadFile(path))(t)
	data = bytes.Replace(data, []byte("block.1.mlp.bias"), []byte("block.1.mlq.bias"), 1)
	must.Do(t, os.WriteFile(path, data, 0o644))
	s, err := OpenStore([]string{path}, StoreOptions{Units: blocks})
	must.Do(t, err)
	t.Cleanup(func() { s.Close() })
	c := newCache(t, s, cgotorch.CPU, CacheOptions{})
	err = c.Prefetch(context.Background(), unitName(1))
	if mismatch := (*nn.LoadError)(nil); !errors.As(err, &mismatch) || !slices.Equal(mismatch.Missing, []string{"bias"}) || !strings.Contains(err.Error(), unitName(1)) {
		t.Errorf("got %v, want a bias missing in %s", err, unitName(1))
	}
	torchtest.DoOn(t, torchtest.NewStream(t, cgotorch.CPU), func(x *cgotorch.Exec) { apply(t, x, c, 0); apply(t, x, c, 2) })
}

func TestCompareNames(t *testing.T) {
	names := []string{"a.10.b", "a.2.b", "a", "a.02.b", "b.1", "a.2", "a.2.a10", "a.2.a9", "a.99999999999999999999999.b"}
	slices.SortFunc(names, compareNames)
	want := []string{"a", "a.02.b", "a.2", "a.2.a9", "a.2.a10", "a.2.b", "a.10.b", "a.99999999999999999999999.b", "b.1"}
	if !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
