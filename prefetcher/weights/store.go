package weights

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/hostmemory"
)

// Note [Memory of a store]
//
// Units lie in slabs that the library allocates itself, so that one copy takes a unit to a slot.
// 768 experts of 18.9 MB then take no more memory than their own bytes. LibTorch's allocator
// rounds to powers of two, so it would lock 1.78 times that memory. A changed unit goes back to
// the store on a stream that does only this. So while Offload steps an optimizer unit by unit,
// copies run in both directions.

// Store holds weights in host memory that can be page-locked. The weights may be more than a
// device has room for. The bytes of a unit lie together, so that one copy takes the unit to a
// device. Each tensor begins at a multiple of 64 bytes. Several goroutines may use a Store.
type Store struct {
	slabs  []*cgotorch.HostSlab
	units  map[string]*storeUnit
	names  []string
	mapped bool

	mu     sync.Mutex
	users  int // number of Caches that use the store
	pinned bool
	closed bool
}

// TensorSpec describes a tensor of a unit. Name is the tensor's name in the module's state, as
// [nn.State] lists it.
type TensorSpec struct {
	Name  string
	DType cgotorch.DType
	Shape []int64 // empty for a scalar
}

// UnitSpec describes a unit of a [Store].
type UnitSpec struct {
	Name    string
	Tensors []TensorSpec
}

// StoreStats describes the memory of a [Store].
type StoreStats struct {
	Units  int
	Bytes  int64 // bytes of the tensors
	Memory int64 // bytes of host memory that the store uses
	Pinned bool  // the memory is page-locked
	Mapped bool  // the memory is pages of the files, which the system reads and keeps
}

// storeUnit is a unit in a Store.
type storeUnit struct {
	name   string
	layout *layout
	parts  [][]byte // the memory of each tensor
	whole  []byte   // the memory of all tensors, as `layout` says; nil in a mapped store
}

// layout says where the tensors of a unit lie in its memory. Units with equal tensors share a
// layout.
type layout struct {
	tensors []TensorSpec
	begin   []int64
	size    []int64
	bytes   int64 // from the first tensor to the end of the last
}

// In its unit, each tensor begins at a multiple of `alignment` bytes. The widest load of
// LibTorch's kernels takes 16 bytes, and a cache line of a GPU has 128.
const alignment = 64

func aligned(bytes int64) int64 { return (bytes + alignment - 1) / alignment * alignment }

func newLayout(tensors []TensorSpec) (*layout, error) {
	l := &layout{tensors: tensors}
	seen := map[string]bool{}
	for _, t := range tensors {
		size, err := t.size()
		switch {
		case err != nil:
			return nil, err
		case seen[t.Name]:
			return nil, fmt.Errorf("tensor %s is there twice", t.Name)
		}
		seen[t.Name] = true
		begin := aligned(l.bytes)
		if size > math.MaxInt64/4-begin {
			return nil, errors.New("it is larger than any memory")
		}
		l.begin, l.size, l.bytes = append(l.begin, begin), append(l.size, size), begin+size
	}
	if l.bytes == 0 {
		return nil, errors.New("it has no elements")
	}
	return l, nil
}

func (t TensorSpec) size() (int64, error) {
	size := int64(t.DType.Size())
	for _, n := range t.Shape {
		if n < 0 || n > 0 && size > (1<<62)/n {
			return 0, fmt.Errorf("tensor %s cannot have the shape %v", t.Name, t.Shape)
		}
		size *= n
	}
	return size, nil
}

// text returns the dtype and the shape.
func (t TensorSpec) text() string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// layoutKey returns a text that is equal for units with equal tensors.
func layoutKey(tensors []TensorSpec) string {
	var b strings.Builder
	for _, t := range tensors {
		fmt.Fprintf(&b, "%q%s;", t.Name, t.text())
	}
	return b.String()
}

// NewStore allocates host memory for units, all zero. The program then writes the tensors into
// the memory that [Store.Bytes] returns, before it uses the units. The order of units is kept,
// see [Store.Units]. The caller closes the Store. NewStore fails with [ErrInvalidOptions] for a
// unit without elements or without a name of its own. It fails with [cgotorch.ErrOutOfMemory],
// and says how many bytes are left, if the host has too little memory.
func NewStore(units []UnitSpec) (*Store, error) {
	s := &Store{}
	if err := s.lay(units); err != nil {
		return nil, err
	}
	if err := s.allocate(); err != nil {
		s.free()
		return nil, err
	}
	return s, nil
}

// lay decides the layout of each unit, and notes the order of the units.
func (s *Store) lay(units []UnitSpec) error {
	layouts := map[string]*layout{}
	s.units = make(map[string]*storeUnit, len(units))
	for _, spec := range units {
		if _, twice := s.units[spec.Name]; twice || spec.Name == "" {
			return fmt.Errorf("weights: unit %q: it has no name, or another one has it too: %w", spec.Name, ErrInvalidOptions)
		}
		k := layoutKey(spec.Tensors)
		l, ok := layouts[k]
		if !ok {
			var err error
			if l, err = newLayout(slices.Clone(spec.Tensors)); err != nil {
				return fmt.Errorf("weights: unit %s: %w: %w", spec.Name, err, ErrInvalidOptions)
			}
			layouts[k] = l
		}
		s.units[spec.Name] = &storeUnit{name: spec.Name, layout: l}
		s.names = append(s.names, spec.Name)
	}
	if len(s.names) == 0 {
		return fmt.Errorf("weights: a store of no units: %w", ErrInvalidOptions)
	}
	return nil
}

// slabBytes is the size of a slab, unless one unit needs more.
const slabBytes = 1 << 30

// allocate gives each unit memory. Each slab is as large as the units in it.
func (s *Store) allocate() error {
	total := int64(0)
	for _, name := range s.names {
		total = aligned(total) + s.units[name].layout.bytes
		if total > math.MaxInt64/4 {
			return fmt.Errorf("weights: a store of more than %d bytes: %w", total, cgotorch.ErrOutOfMemory)
		}
	}
	var taken int64
	for first := 0; first < len(s.names); {
		size, last := int64(0), first
		for ; last < len(s.names); last++ {
			end := aligned(size) + s.units[s.names[last]].layout.bytes
			if size > 0 && end > slabBytes {
				break
			}
			size = end
		}
		if free, known := hostmemory.Available(); known && size > free {
			return fmt.Errorf("weights: a store of %d bytes: %d of them are allocated, and the host has %d left for the next %d: %w: take fewer units, or a smaller dtype",
				total, taken, free, size, cgotorch.ErrOutOfMemory)
		}
		slab, err := cgotorch.NewHostSlab(cgotorch.CPU, int(size))
		if err != nil {
			return fmt.Errorf("weights: a store of %d bytes, of which %d are allocated: %w", total, taken, err)
		}
		s.slabs = append(s.slabs, slab)
		taken += size
		memory := slab.Bytes()
		takePages(memory) // so that the check for the next slab sees how much memory is left
		for at := int64(0); first < last; first++ {
			unit := s.units[s.names[first]]
			begin := aligned(at)
			at = begin + unit.layout.bytes
			unit.whole = memory[begin:at:at]
			unit.parts = unit.layout.cut(unit.whole)
		}
	}
	return nil
}

// cut divides the memory of a unit into the memory of its tensors.
func (l *layout) cut(whole []byte) (parts [][]byte) {
	for i, begin := range l.begin {
		end := begin + l.size[i]
		parts = append(parts, whole[begin:end:end])
	}
	return parts
}

// Units returns the names of the units. They are in the order given to [NewStore], or in the
// order that [OpenStore] describes. The slice belongs to the store: do not change it.
func (s *Store) Units() []string { return s.names }

// Bytes returns the memory of a tensor, row-major and in the machine's byte order. The memory is
// valid until Close. The program may write the memory while no copy of the unit runs. It must not
// write the memory of a mapped store. Copies that are already on a device do not change. Bytes
// fails with [ErrUnknownUnit] for an unknown unit or tensor, and with [cgotorch.ErrClosed] after
// Close.
func (s *Store) Bytes(name, tensor string) ([]byte, error) {
	unit, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("weights: the store: %w", cgotorch.ErrClosed)
	}
	var tensors []string
	for i, t := range unit.layout.tensors {
		if t.Name == tensor {
			return unit.parts[i], nil
		}
		tensors = append(tensors, t.Name)
	}
	return nil, fmt.Errorf("weights: unit %s has no tensor %s; it has %s: %w", name, tensor, strings.Join(tensors, ", "), ErrUnknownUnit)
}

func (s *Store) lookup(name string) (*storeUnit, error) {
	if unit, ok := s.units[name]; ok {
		return unit, nil
	}
	return nil, fmt.Errorf("weights: %w: the store has no unit %q; its %d units are named like %q", ErrUnknownUnit, name, len(s.names), s.names[0])
}

// pin page-locks the memory, so that copies to CUDA devices do not wait. The caller holds s.mu. On
// a pinned store pin does nothing. It fails with [cgotorch.ErrOutOfMemory], and says how many bytes
// are locked, if the system does not lock all of the memory.
func (s *Store) pin() error {
	switch {
	case s.closed:
		return fmt.Errorf("weights: the store: %w", cgotorch.ErrClosed)
	case s.pinned:
		return nil
	}
	var locked, total int64
	for _, slab := range s.slabs {
		total += int64(len(slab.Bytes()))
	}
	for _, slab := range s.slabs {
		if err := slab.Pin(); err != nil {
			hint := ""
			if s.mapped {
				hint = "; without StoreOptions.Map the weights are copied to memory that can be locked"
			}
			return fmt.Errorf("weights: page-locking a store of %d bytes, of which %d are locked%s: %w", total, locked, hint, err)
		}
		locked += int64(len(slab.Bytes()))
	}
	s.pinned = true
	return nil
}

// Stats returns the sizes of the store's memory, and how it is held.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := StoreStats{Units: len(s.names), Pinned: s.pinned, Mapped: s.mapped}
	for _, unit := range s.units {
		for _, part := range unit.parts {
			st.Bytes += int64(len(part))
		}
	}
	for _, slab := range s.slabs {
		st.Memory += int64(len(slab.Bytes()))
	}
	return st
}

// use counts one more Cache that copies from the store. If `pin` is set, it first page-locks the
// store.
func (s *Store) use(pin bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("weights: the store: %w", cgotorch.ErrClosed)
	}
	if pin {
		if err := s.pin(); err != nil {
			return err
		}
	}
	s.users++
	return nil
}

// shared reports whether more than one Cache uses the store.
func (s *Store) shared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users > 1
}

func (s *Store) unuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
}

// Close frees the memory. It fails with [ErrBusy] while a [Cache] uses the store. A second Close
// does nothing.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return fmt.Errorf("weights: the store: %w: %d Caches use it: close them first", ErrBusy, s.users)
	}
	s.closed = true
	return s.free()
}

func (s *Store) free() error {
	var errs []error
	for _, slab := range s.slabs {
		errs = append(errs, slab.Close())
	}
	s.slabs = nil
	for _, unit := range s.units {
		unit.parts, unit.whole = make([][]byte, len(unit.parts)), nil
	}
	return errors.Join(errs...)
}
