package pt2

import (
	"cmp"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/export"
)

// weightReader reads tensors of an archive into memory of the Exec's device.
type weightReader struct {
	file  *export.Archive
	float cgotorch.DType // of tensors that are float32 in the file; 0 means float32
	reads []pendingRead
	bases map[string]*cgotorch.Tensor // by entry: all of a storage with several tensors
}

// pendingRead is a part of the archive that will fill host memory.
type pendingRead struct {
	entry string
	from  io.Reader
	to    []byte
	flat  *cgotorch.Tensor // the tensor whose memory `to` is
}

// read reads the tensors. The Do owns them. Tensors with one storage share their memory, and
// tensors with one storage and one layout are one tensor.
func (r *weightReader) read(x *cgotorch.Exec, tensors []*export.Stored) error {
	groups := map[string][]*export.Stored{}
	var entries []string
	for _, t := range tensors {
		if t.Entry == "" {
			return r.file.Pickled(t)
		}
		if groups[t.Entry] == nil {
			entries = append(entries, t.Entry)
		}
		groups[t.Entry] = append(groups[t.Entry], t)
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
func (r *weightReader) cast(x *cgotorch.Exec, base *cgotorch.Tensor, group []*export.Stored) {
	casts := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	together := base != nil && !slices.ContainsFunc(group, func(t *export.Stored) bool { return t.DType != cgotorch.Float32 })
	if together {
		base = r.narrow(x, base, group[0].Constant)
	}
	for _, t := range group {
		if t.DType != cgotorch.Float32 {
			continue
		}
		old := t.Tensor
		switch {
		case casts[old] != nil:
		case together:
			casts[old] = x.AsStrided(base, t.Shape, t.Strides, int(t.Offset))
		default:
			casts[old] = r.narrow(x, old, t.Constant)
		}
		t.Tensor = casts[old]
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
		limit := x.MulScalar(x.Sign(t), export.Limited(math.MaxFloat32, r.float))
		return x.To(x.Where(most, limit, t), r.float)
	})
}

// group makes the tensors of one storage.
func (r *weightReader) group(x *cgotorch.Exec, entry string, group []*export.Stored) error {
	bytes := int64(0)
	for _, t := range group {
		size := export.ElementSize(t.DType)
		if size != export.ElementSize(group[0].DType) {
			return r.file.Refuse("the tensors %.100q and %.100q share memory and have elements of different sizes", group[0].Name, t.Name)
		}
		bytes = max(bytes, t.Span*size)
	}
	section, err := r.file.SectionFor(entry, bytes, group[0].Name)
	if err != nil {
		return err
	}
	first := group[0]
	var base *cgotorch.Tensor
	if len(group) == 1 && first.Dense && !x.Device().IsCUDA() {
		base = x.EmptyStrided(first.DType, first.Shape, first.Strides)
		first.Tensor = base
	} else {
		base = x.Empty(first.DType, bytes/export.ElementSize(first.DType))
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
		if t.Tensor != nil {
			continue
		}
		for _, before := range group[:i] {
			if t.Equal(&before.Layout) {
				t.Tensor = before.Tensor
			}
		}
		if t.Tensor == nil {
			memory := base
			if t.DType != first.DType {
				memory = x.Call1("aten::view.dtype", base, t.DType)
			}
			t.Tensor = x.AsStrided(memory, t.Shape, t.Strides, int(t.Offset))
		}
	}
	return nil
}

// load fills a tensor from an entry: on the CPU later, all tensors at once; on another device now,
// through host memory.
func (r *weightReader) load(x *cgotorch.Exec, base *cgotorch.Tensor, from io.Reader, entry string, bytes int64, t *export.Stored) (*cgotorch.Tensor, error) {
	if x.Device().IsCUDA() {
		host := make([]byte, bytes)
		if err := r.file.ReadWhole(entry, from, host); err != nil {
			return nil, err
		}
		base.Close()
		return cgotorch.FromBytes(x, host, t.DType, []int64{bytes / export.ElementSize(t.DType)}), nil
	}
	flat := x.Call1("aten::view.dtype", x.AsStrided(base, []int64{bytes / export.ElementSize(t.DType)}, []int64{1}, 0), cgotorch.Uint8)
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
