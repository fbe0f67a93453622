package weights

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Store holds the weights of units in host memory that can be page-locked, more of them than a device has room for. The bytes of one
// unit lie together, each tensor at a multiple of 64 bytes, so that one copy takes the unit to a device. It is safe for use by
// several goroutines.
type Store struct {
	slabs  []*cgotorch.HostSlab
	units  map[string]*storeUnit
	names  []string
	mapped bool

	mu     sync.Mutex
	users  int // Cache
	pinned bool
	closed bool
}

// TensorSpec describes a tensor of a unit. Its name is that in the unit's state, as in [nn.State].
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

// StoreStats says what a [Store] holds, in bytes.
type StoreStats struct {
	Units  int
	Bytes  int64 // of the tensors
	Memory int64 // of the host, for them
	Pinned bool  // page-locked
	Mapped bool  // Memory is that of the files, which the system reads and keeps
}

// storeUnit is a unit in a store.
type storeUnit struct {
	name   string
	layout *layout
	parts  [][]byte // of each tensor
	whole  []byte   // all of them, as the layout has them; nil where they lie elsewhere
}

// layout is where the tensors of a unit lie in the memory for it. Cache with equal tensors share one.
type layout struct {
	tensors []TensorSpec
	begin   []int64
	size    []int64
	bytes   int64 // from the first tensor to the end of the last
}

// alignment of a tensor in its unit: the widest load of LibTorch's kernels takes 16 bytes, a line of a GPU's cache 128.
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

func (t TensorSpec) String() string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// layoutKey is equal for units with equal tensors.
func layoutKey(tensors []TensorSpec) string {
	var b strings.Builder
	for _, t := range tensors {
		fmt.Fprintf(&b, "%q%v;", t.Name, t)
	}
	return b.String()
}

// NewStore allocates host memory for units, all zero; [Store.Bytes] is where their tensors go, before they are used. The order of the
// units is that of [Store.Units]. The caller must Close it. It fails with [ErrInvalidOptions] for units without elements or without
// names of their own, and with [cgotorch.ErrOutOfMemory] and the numbers where the host has not so much memory.
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

// lay finds out where everything goes.
func (s *Store) lay(units []UnitSpec) error {
	layouts := map[string]*layout{}
	s.units = make(map[string]*storeUnit, len(units))
	for _, m := range units {
		if _, twice := s.units[m.Name]; twice || m.Name == "" {
			return fmt.Errorf("weights: unit %q: it has no name, or another one has it too: %w", m.Name, ErrInvalidOptions)
		}
		k := layoutKey(m.Tensors)
		l, ok := layouts[k]
		if !ok {
			var err error
			if l, err = newLayout(slices.Clone(m.Tensors)); err != nil {
				return fmt.Errorf("weights: unit %s: %w: %w", m.Name, err, ErrInvalidOptions)
			}
			layouts[k] = l
		}
		s.units[m.Name] = &storeUnit{name: m.Name, layout: l}
		s.names = append(s.names, m.Name)
	}
	if len(s.names) == 0 {
		return fmt.Errorf("weights: a store of no units: %w", ErrInvalidOptions)
	}
	return nil
}

// slabBytes is how much memory is asked of the system at once, unless one unit needs more.
const slabBytes = 1 << 30

// allocate gives each unit memory, in slabs that are as large as what lies in them.
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
		if free, known := availableMemory(); known && size > free {
			return fmt.Errorf("weights: a store of %d bytes: %d of them are allocated, and the host has %d left for the next %d: %w: take fewer units, or a smaller dtype",
				total, taken, free, size, cgotorch.ErrOutOfMemory)
		}
		slab, err := cgotorch.NewHostSlab(int(size))
		if err != nil {
			return fmt.Errorf("weights: a store of %d bytes, of which %d are allocated: %w", total, taken, err)
		}
		s.slabs = append(s.slabs, slab)
		taken += size
		memory := slab.Bytes()
		takePages(memory) // so that the next slab is compared with what is left
		for at := int64(0); first < last; first++ {
			m := s.units[s.names[first]]
			at = aligned(at)
			m.place(memory[at : at+m.layout.bytes : at+m.layout.bytes])
			at += m.layout.bytes
		}
	}
	return nil
}

func (m *storeUnit) place(whole []byte) {
	m.whole = whole
	for i, begin := range m.layout.begin {
		end := begin + m.layout.size[i]
		m.parts = append(m.parts, whole[begin:end:end])
	}
}

// Units lists the names of the units, in order: as [NewStore] was given them, or as [OpenStore] says. Do not change it.
func (s *Store) Units() []string { return s.names }

// Spec describes a unit. It fails with [ErrUnknownUnit].
func (s *Store) Spec(unit string) (UnitSpec, error) {
	m, err := s.lookup(unit)
	if err != nil {
		return UnitSpec{}, err
	}
	return UnitSpec{Name: unit, Tensors: slices.Clone(m.layout.tensors)}, nil
}

// Bytes is the memory of a tensor, row-major and in the machine's byte order, valid until Close. It may be written, unless the store is
// mapped, while no copy of the unit is under way; copies that a device has are not changed by that. It fails with [ErrUnknownUnit].
func (s *Store) Bytes(unit, tensor string) ([]byte, error) {
	m, err := s.lookup(unit)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("weights: the store: %w", ErrClosed)
	}
	var names []string
	for i, t := range m.layout.tensors {
		if t.Name == tensor {
			return m.parts[i], nil
		}
		names = append(names, t.Name)
	}
	return nil, fmt.Errorf("weights: unit %s has no tensor %s; it has %s: %w", unit, tensor, strings.Join(names, ", "), ErrUnknownUnit)
}

func (s *Store) lookup(unit string) (*storeUnit, error) {
	if m, ok := s.units[unit]; ok {
		return m, nil
	}
	return nil, fmt.Errorf("weights: %w: the store has no unit %q; its %d units are named like %q", ErrUnknownUnit, unit, len(s.names), s.names[0])
}

// Pin page-locks the memory, so that copies to CUDA devices do not wait; [NewCache] calls it for those. It does nothing on a store that is
// pinned already. It fails with [cgotorch.ErrNoDevice] without CUDA and with [cgotorch.ErrOutOfMemory] and the numbers where the system
// refuses to lock so much.
func (s *Store) Pin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pin()
}

func (s *Store) pin() error {
	switch {
	case s.closed:
		return fmt.Errorf("weights: the store: %w", ErrClosed)
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

// Stats says what the store holds.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := StoreStats{Units: len(s.names), Pinned: s.pinned, Mapped: s.mapped}
	for _, m := range s.units {
		for _, part := range m.parts {
			st.Bytes += int64(len(part))
		}
	}
	for _, slab := range s.slabs {
		st.Memory += int64(len(slab.Bytes()))
	}
	return st
}

// use counts one that copies from the store.
func (s *Store) use(pin bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("weights: the store: %w", ErrClosed)
	}
	if pin {
		if err := s.pin(); err != nil {
			return err
		}
	}
	s.users++
	return nil
}

// shared reports whether several Cache use the store.
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

// Close frees the memory. It fails with [ErrBusy] while a [Cache] uses the store. Closing twice does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return fmt.Errorf("weights: the store: %w: %d Cache use it: close them first", ErrBusy, s.users)
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
	for _, m := range s.units {
		m.parts, m.whole = make([][]byte, len(m.parts)), nil
	}
	return errors.Join(errs...)
}
