package pt2

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"path"
	"runtime"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// A layout is the place of a tensor in a storage, in elements.
type layout struct {
	dtype          cgotorch.DType
	shape, strides []int64
	offset         int64
	span           int64 // the elements from the first one of the storage to the last one of the tensor
	dense          bool  // the tensor is the whole storage in some order of dimensions
	requiresGrad   bool
}

// layoutOf reads the layout of a weight. It fails for numbers that cannot be.
func layoutOf(m *tensorMeta) (layout, error) {
	dtype, ok := dtypes[m.DType]
	if !ok || m.Layout != strided || len(m.Sizes) != len(m.Strides) {
		return layout{}, fmt.Errorf("its dtype number is %d, its layout number %d, with %d sizes and %d strides", m.DType, m.Layout, len(m.Sizes), len(m.Strides))
	}
	l := layout{dtype: dtype, requiresGrad: m.RequiresGrad}
	for i := range m.Sizes {
		if m.Sizes[i].Int == nil || m.Strides[i].Int == nil {
			return layout{}, fmt.Errorf("a size or stride is no number")
		}
		l.shape = append(l.shape, *m.Sizes[i].Int)
		l.strides = append(l.strides, *m.Strides[i].Int)
	}
	if m.Offset.Int != nil {
		l.offset = *m.Offset.Int
	}
	last, count, err := l.offset, int64(1), error(nil)
	for i, n := range l.shape {
		if n < 0 || l.strides[i] < 0 || l.offset < 0 {
			return layout{}, fmt.Errorf("its shape is %v, its strides %v, its offset %d", l.shape, l.strides, l.offset)
		}
		if count, err = mulInts(count, n); err != nil || count > math.MaxInt64/16 {
			return layout{}, fmt.Errorf("its shape is %v", l.shape)
		}
	}
	if count > 0 {
		for i, n := range l.shape {
			step, err := mulInts(n-1, l.strides[i])
			if err == nil {
				last, err = addInts(last, step)
			}
			if err != nil || last > math.MaxInt64/16 {
				return layout{}, fmt.Errorf("its shape is %v, its strides %v", l.shape, l.strides)
			}
		}
		l.span = last + 1
	}
	l.dense = l.offset == 0 && l.span == count
	return l, nil
}

func (l *layout) equal(m *layout) bool {
	return l.dtype == m.dtype && l.offset == m.offset && slices.Equal(l.shape, m.shape) && slices.Equal(l.strides, m.strides)
}

// A storedTensor is a tensor of the archive, and the storage that it shares with others.
type storedTensor struct {
	name  string
	entry string
	layout
	parameter bool
	constant  bool             // the tensor is in no state dict
	tensor    *cgotorch.Tensor // once it is read
}

// stored reads the table of a folder of the archive, such as data/weights.
func (a *archive) stored(folder, model string) (map[string]*storedTensor, error) {
	var table struct {
		Config map[string]payload `json:"config"`
	}
	config := fmt.Sprintf("%s/%s_%s_config.json", folder, model, path.Base(folder))
	if err := a.json(config, &table); err != nil {
		return nil, err
	}
	tensors := map[string]*storedTensor{}
	for name, p := range table.Config {
		if p.Pickled {
			tensors[name] = &storedTensor{name: name} // refused if the program needs it
			continue
		}
		l, err := layoutOf(&p.Meta)
		if err != nil {
			return nil, a.Bad("the tensor %.100q in %s: %w", name, config, err)
		}
		tensors[name] = &storedTensor{name: name, entry: folder + "/" + p.Path, layout: l}
	}
	return tensors, nil
}

// A weightReader reads tensors of an archive into memory of the Exec's device.
type weightReader struct {
	file  *archive
	float cgotorch.DType // of tensors that are float32 in the file; 0 means float32
	reads []pendingRead
	bases map[string]*cgotorch.Tensor // by entry: all of a storage with several tensors
}

// A pendingRead is a part of the archive that will fill host memory.
type pendingRead struct {
	entry string
	from  io.Reader
	to    []byte
	flat  *cgotorch.Tensor // the tensor whose memory `to` is
}

// read reads the tensors. The Do owns them. Tensors with one storage share their memory, and
// tensors with one storage and one layout are one tensor.
func (r *weightReader) read(x *cgotorch.Exec, tensors []*storedTensor) error {
	groups := map[string][]*storedTensor{}
	var entries []string
	for _, t := range tensors {
		if t.entry == "" {
			return r.file.Refuse("the tensor %.100q is pickled: it is a tensor subclass or a custom object", t.name)
		}
		if groups[t.entry] == nil {
			entries = append(entries, t.entry)
		}
		groups[t.entry] = append(groups[t.entry], t)
	}
	for _, entry := range entries {
		if err := r.group(x, entry, groups[entry]); err != nil {
			return err
		}
	}
	if err := r.fill(); err != nil {
		return err
	}
	if r.float != 0 {
		for _, entry := range entries {
			r.cast(x, r.bases[entry], groups[entry])
		}
	}
	return nil
}

// cast converts the float32 tensors of one storage. If the storage has only such tensors, they
// share its memory afterwards too.
func (r *weightReader) cast(x *cgotorch.Exec, base *cgotorch.Tensor, group []*storedTensor) {
	casts := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	together := base != nil && !slices.ContainsFunc(group, func(t *storedTensor) bool { return t.dtype != cgotorch.Float32 })
	if together {
		base = r.narrow(x, base, group[0].constant)
	}
	for _, t := range group {
		if t.dtype != cgotorch.Float32 {
			continue
		}
		old := t.tensor
		switch {
		case casts[old] != nil:
		case together:
			casts[old] = x.AsStrided(base, t.shape, t.strides, int(t.offset))
		default:
			casts[old] = r.narrow(x, old, t.constant)
		}
		t.tensor = casts[old]
	}
	for old := range casts {
		old.Close()
	}
}

// narrow converts a float32 tensor. In a constant, such as a mask, the largest float32 becomes the
// largest number of the new dtype, as in arguments.
func (r *weightReader) narrow(x *cgotorch.Exec, t *cgotorch.Tensor, constant bool) *cgotorch.Tensor {
	if !constant {
		return x.To(t, r.float)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		most := x.EqScalar(x.Abs(t), math.MaxFloat32)
		limit := x.MulScalar(x.Sign(t), limited(math.MaxFloat32, r.float))
		return x.To(x.Where(most, limit, t), r.float)
	})
}

// group makes the tensors of one storage.
func (r *weightReader) group(x *cgotorch.Exec, entry string, group []*storedTensor) error {
	bytes := int64(0)
	for _, t := range group {
		size := elementSize(t.dtype)
		if size != elementSize(group[0].dtype) {
			return r.file.Refuse("the tensors %.100q and %.100q share memory and have elements of different sizes", group[0].name, t.name)
		}
		bytes = max(bytes, t.span*size)
	}
	section, err := r.file.Section(entry)
	if err != nil {
		return err
	}
	if section.Size() < bytes {
		return r.file.Bad("the entry %.200s has %d bytes, and the tensor %.100q needs %d", entry, section.Size(), group[0].name, bytes)
	}
	first := group[0]
	var base *cgotorch.Tensor
	if len(group) == 1 && first.dense && !x.Device().IsCUDA() {
		base = x.EmptyStrided(first.dtype, first.shape, first.strides)
		first.tensor = base
	} else {
		base = x.Empty(first.dtype, bytes/elementSize(first.dtype))
	}
	if bytes > 0 {
		if base, err = r.load(x, base, section, entry, bytes, first); err != nil {
			return err
		}
	}
	if len(group) > 1 {
		r.bases[entry] = base
	}
	for i, t := range group {
		if t.tensor != nil {
			continue
		}
		for _, before := range group[:i] {
			if t.equal(&before.layout) {
				t.tensor = before.tensor
			}
		}
		if t.tensor == nil {
			memory := base
			if t.dtype != first.dtype {
				memory = x.Call1("aten::view.dtype", base, t.dtype)
			}
			t.tensor = x.AsStrided(memory, t.shape, t.strides, int(t.offset))
		}
	}
	return nil
}

// load fills a tensor from an entry: on the CPU later, all tensors at once; on another device now,
// through host memory.
func (r *weightReader) load(x *cgotorch.Exec, base *cgotorch.Tensor, from io.Reader, entry string, bytes int64, t *storedTensor) (*cgotorch.Tensor, error) {
	if x.Device().IsCUDA() {
		host := make([]byte, bytes)
		if err := r.file.ReadWhole(entry, from, host); err != nil {
			return nil, err
		}
		base.Close()
		return cgotorch.FromBytes(x, host, t.dtype, []int64{bytes / elementSize(t.dtype)}), nil
	}
	flat := x.Call1("aten::view.dtype", x.AsStrided(base, []int64{bytes / elementSize(t.dtype)}, []int64{1}, 0), cgotorch.Uint8)
	memory, err := cgotorch.HostSlice[uint8](flat)
	if err != nil {
		return nil, err
	}
	r.reads = append(r.reads, pendingRead{entry, from, memory, flat})
	return base, nil
}

// fill reads what group has asked for, on some goroutines.
func (r *weightReader) fill() error {
	var wait sync.WaitGroup
	var mutex sync.Mutex
	var failed error
	next := 0
	for range min(len(r.reads), max(2, runtime.GOMAXPROCS(0))) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for {
				mutex.Lock()
				i := next
				next++
				stop := failed != nil || i >= len(r.reads)
				mutex.Unlock()
				if stop {
					return
				}
				if err := r.file.ReadWhole(r.reads[i].entry, r.reads[i].from, r.reads[i].to); err != nil {
					mutex.Lock()
					failed = cmp.Or(failed, err)
					mutex.Unlock()
				}
			}
		}()
	}
	wait.Wait()
	for _, read := range r.reads {
		read.flat.Close()
	}
	r.reads = nil
	return failed
}

// elementSize returns the bytes of one element, also of the dtypes that package cgotorch has no
// names for.
func elementSize(d cgotorch.DType) int64 {
	if n := d.Size(); n > 0 {
		return int64(n)
	}
	if d == 8 { // complex32
		return 4
	}
	return 1 // the dtypes of 8 bits
}
