package weights

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/hostmemory"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A unit whose size overflows int64 gives an error and no panic.
func TestNewStore_Overflow(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("NewStore panics: %v", p)
		}
	}()
	var ts []TensorSpec
	for i := range 4 {
		ts = append(ts, TensorSpec{Name: fmt.Sprint(i), DType: cgotorch.Uint8, Shape: []int64{1 << 62}})
	}
	ts = append(ts, TensorSpec{Name: "small", DType: cgotorch.Uint8, Shape: []int64{64}})
	s, err := NewStore([]UnitSpec{{Name: "a", Tensors: ts}})
	if err == nil {
		s.Close()
		t.Error("a store of 16 EiB was made")
	} else {
		t.Log(err)
	}
}

func TestStore_Bytes_AfterClose(t *testing.T) {
	s, _ := NewStore([]UnitSpec{linearSpec("a")})
	s.Close()
	if b, err := s.Bytes("a", "weight"); err == nil {
		t.Errorf("%v and no error", b)
	}
}

func TestNewStore(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := scalesStore(t, 3)
	if got, want := s.Units(), []string{unitName(0), unitName(1), unitName(2)}; !slices.Equal(got, want) {
		t.Errorf("units %v, want %v", got, want)
	}
	st := s.Stats()
	if want := int64(3 * 4 * (width*width + width)); st.Units != 3 || st.Bytes != want || st.Memory < want || st.Memory > want+3*alignment || st.Pinned || st.Mapped {
		t.Errorf("%+v, want %d bytes", st, want)
	}
	if _, err := s.Bytes(unitName(1), "wait"); !errors.Is(err, ErrUnknownUnit) {
		t.Error(err)
	}
	if unit, err := s.lookup(unitName(1)); err != nil || layoutKey(unit.layout.tensors) != layoutKey(linearSpec("").Tensors) {
		t.Errorf("%v %v", unit, err)
	}
}

// A store of large units takes the bytes of its tensors and at most a page for each slab. No unit
// lies in two slabs.
func TestNewStore_Accounting(t *testing.T) {
	torchtest.CheckLeaks(t)
	if free, ok := hostmemory.Available(); ok && free < 4<<30 {
		t.Skip("less than 4 GB of memory are available")
	}
	expert := []TensorSpec{{"wi.weight", cgotorch.Float32, []int64{3072, 768}}, {"wo.weight", cgotorch.Float32, []int64{768, 3072}}}
	var specs []UnitSpec
	for i := range 120 {
		specs = append(specs, UnitSpec{Name: fmt.Sprint(i), Tensors: expert})
	}
	before := cgotorch.LiveHandles()["slab bytes"]
	s := must.Get(NewStore(specs))(t)
	defer s.Close()
	after := cgotorch.LiveHandles()["slab bytes"]
	st := s.Stats()
	if want := int64(120 * 18874368); st.Bytes != want || st.Memory > want+want/100 || int64(after-before) != st.Memory {
		t.Errorf("%+v and %d bytes of slabs for %d bytes", st, after-before, want)
	}
}

func TestNewStore_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for text, specs := range map[string][]UnitSpec{
		"no units":       nil,
		"no name":        {linearSpec("")},
		"another":        {linearSpec("a"), linearSpec("a")},
		"there twice":    {{Name: "a", Tensors: []TensorSpec{{Name: "w", Shape: []int64{1}}, {Name: "w", Shape: []int64{1}}}}},
		"no elements":    {{Name: "a", Tensors: []TensorSpec{{Name: "w", Shape: []int64{0}}}}},
		"cannot have":    {{Name: "a", Tensors: []TensorSpec{{Name: "w", Shape: []int64{-1}}}}},
		"the shape [922": {{Name: "a", Tensors: []TensorSpec{{Name: "w", DType: cgotorch.Float32, Shape: []int64{1 << 62, 4}}}}},
	} {
		if text == "the shape [922" {
			text = "the shape [4611686018427387904 4]"
		}
		if _, err := NewStore(specs); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q in it", err, text)
		}
	}
	huge := UnitSpec{Name: "huge", Tensors: []TensorSpec{{Name: "w", DType: cgotorch.Float32, Shape: []int64{1 << 45}}}}
	if _, err := NewStore([]UnitSpec{linearSpec("small"), huge}); !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), "140737488") {
		t.Errorf("got %v, want ErrOutOfMemory with the numbers", err)
	}
}

// If CUDA does not lock the memory, NewCache fails and says how many bytes are locked. Here the
// file was cut after it was mapped, so the pages are gone.
func TestStore_Pin_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		path := filepath.Join(t.TempDir(), "a.safetensors")
		writeUnits(t, path, 0, 3)
		s, err := OpenStore([]string{path}, StoreOptions{Units: blocks, Map: true})
		must.Do(t, err)
		defer s.Close()
		if !d.IsCUDA() {
			if n, _ := cgotorch.CUDACount(); n > 0 {
				return
			}
			if err := s.pin(); !errors.Is(err, cgotorch.ErrNoDevice) {
				t.Errorf("without CUDA: %v", err)
			}
			return
		}
		must.Do(t, os.Truncate(path, 0))
		for range 2 {
			_, err = NewCache(s, d, newLinear, CacheOptions{})
			for _, text := range []string{"page-locking a store of", "of which 0 are locked", "StoreOptions.Map", "the limit of this process"} {
				if !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), text) {
					t.Errorf("got %v, want ErrOutOfMemory with %q", err, text)
				}
			}
		}
		c := newCache(t, scalesStore(t, 2), d, CacheOptions{})
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) { apply(t, x, c, 1) })
	})
}
