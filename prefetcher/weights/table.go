package weights

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/hostmemory"
)

// Note [Table of slots]
//
// A mixture of experts picks a few experts for each token and layer. Only the device finds out
// which. A Table therefore lets the device itself decide what is in a slot:
//
//	token_route    picks experts, and finds the slot of each in the layer's Places. A missing one
//	               gets the slot whose last use is longest ago, or that has the fewest uses.
//	token_experts  multiplies with a slot, or with the missing expert where it lies in host memory.
//	               What comes over the bus is written into the slot on the way.
//
// The host takes no part, so a token of all layers can be one CUDA graph. Where so much misses that
// the copy engine is faster, [Table.Fetch] takes a part between the two. Fetch and any operator
// also serve dtypes and devices that token_experts does not take. A token takes the time of
// its missing bytes at the bus's speed, and the time that it takes with all experts on the device.
// The kernels: csrc/kernels/token_route.cc and token_experts.cc. Both give the bits of a model
// whose experts are all on the device. Places has, as Int32: the slot of each expert or -1, the
// expert of each slot or -1, the time of each slot's last use or the number of its uses, and the
// number of tokens so far. Among equal slots the first one is given up, and an expert that comes
// back begins with one use. Times wrap after 2^31 tokens, and counts of uses stop there. Forget
// resets both.
//
// token_route notes that an expert is in its slot before token_experts has filled it. So both run
// for each layer of a token, on one stream. If something fails between them, Forget comes first.

// Table keeps the experts of a model in host memory, page-locked, and some of them in slots on a
// device. The device decides which: Note [Table of slots]. On the CPU a table works too, and saves
// nothing. One goroutine at a time uses a table, and the work of its tokens and passes is on one
// stream, or in an order that events make.
type Table struct {
	o       TableOptions
	layers  []TableLayer
	places  *cgotorch.Tensor    // Int32 [layers, n], of which the layers have rows
	counts  *cgotorch.Tensor    // Int64 [layers, 2]
	empty   *cgotorch.Tensor    // Int32 [n]: places without experts; nil if there are no slots
	stages  [layersInPass]stage // of passes
	stream  *cgotorch.Stream    // that copies into them, or nil
	passing atomic.Bool         // a pass runs
	ahead   ahead               // of Fetch
	way     way                 // in which missing experts come
	fetched int64               // experts, by Fetch
	closed  bool
}

// TableOptions are the options of [NewTable].
type TableOptions struct {
	Layers   int            // that have experts
	Experts  int            // of a layer
	Matrices [][2]int64     // the rows and the columns of each matrix of an expert
	DType    cgotorch.DType // of all matrices; Uint8 for what pack4 makes
	Slots    int            // of a layer, at least one for each expert that a token picks: token_route checks it
	Policy   Policy         // LRU or LFU
	Passes   bool           // the device has memory for [Table.Pass] too: all experts of two layers
	Ahead    int            // experts of the next layer that [Table.Fetch] may copy before they are picked; 0: none
}

// TableLayer has the memory of a layer's experts. The table owns it. Experts, Slots and Memory have
// one element for each of TableOptions.Matrices.
type TableLayer struct {
	// Experts are the matrices of all experts, [experts, rows, columns]. They lie in host memory.
	// Work of the device reads and writes them over the bus.
	Experts []*cgotorch.Tensor
	// Memory is the host memory of Experts. A program that writes it calls Touch before, and
	// [Table.Forget] after.
	Memory []*cgotorch.HostSlab
	Slots  []*cgotorch.Tensor // [slots, rows, columns], on the device
	Places *cgotorch.Tensor   // Int32: what is in the slots, as token_route has it
	Counts *cgotorch.Tensor   // Int64 [2]: picks of experts that were in a slot, and of those that were not
	LFU    bool               // `often` of token_route
}

// TableStats holds counts since the table was made.
type TableStats struct {
	Hits        int64 // picks of experts that were in a slot
	Misses      int64 // picks of experts that came over the bus
	Fetched     int64 // of the misses, those that the copy engine brought: see Table.Fetch
	Ahead       int64 // experts that the copy engine brought before they were picked
	AheadPicked int64 // of these, those that were then picked
	BusBytes    int64 // that came over the bus for all of them
	HostBytes   int64 // in host memory
	DeviceBytes int64 // on the device: of slots, for passes, and for what comes ahead
}

// expert returns the bytes of an expert.
func (o TableOptions) expert() int64 {
	n := int64(0)
	for _, m := range o.Matrices {
		n += m[0] * m[1] * int64(o.DType.Size())
	}
	return n
}

// places returns how many numbers the Places of a layer have.
func (o TableOptions) places() int { return o.Experts + 2*o.Slots + 1 }

// host returns the bytes of all experts. It is no integer, because hostile options may ask for more
// than one holds.
func (o TableOptions) host() float64 {
	n := 0.
	for _, m := range o.Matrices {
		n += float64(m[0]) * float64(m[1]) * float64(o.DType.Size())
	}
	return n * float64(o.Layers) * float64(o.Experts)
}

func (o TableOptions) check() error {
	least := int64(1)
	for _, m := range o.Matrices {
		least = min(least, m[0], m[1])
	}
	switch {
	case o.Layers < 1 || o.Experts < 1 || len(o.Matrices) == 0 || least < 1:
		return fmt.Errorf("weights: a table of %d layers of %d experts with the matrices %v, want 1 or more of each: %w", o.Layers, o.Experts, o.Matrices, ErrInvalidOptions)
	case !o.DType.IsFloat() && o.DType != cgotorch.Uint8:
		return fmt.Errorf("weights: a table of %v, want a floating dtype, or uint8 for codes of 4 bits: %w", o.DType, ErrInvalidOptions)
	case o.Slots < 1 || o.Slots > o.Experts:
		return fmt.Errorf("weights: a table of %d slots, want 1 to the number of experts, %d: %w", o.Slots, o.Experts, ErrInvalidOptions)
	case o.Ahead < 0 || o.Ahead > o.Experts:
		return fmt.Errorf("weights: a table of %d experts ahead, want 0 to the number of experts, %d: %w", o.Ahead, o.Experts, ErrInvalidOptions)
	case o.Policy != LRU && o.Policy != LFU:
		return fmt.Errorf("weights: a table with the policy %v, want LRU or LFU: %w", o.Policy, ErrInvalidOptions)
	}
	return nil
}

// NewTable makes a table on x's device. All experts are 0, and no slot has one. It enqueues work on
// x's stream, and waits for the system to page-lock the host memory: about 0.2 s for each GB. The
// caller closes the table. NewTable fails with [ErrInvalidOptions] for options that are not valid,
// and with [cgotorch.ErrOutOfMemory] if the host has too little memory. If the device has too
// little, the Do fails.
func NewTable(x *cgotorch.Exec, o TableOptions) (*Table, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if host := o.host(); host > math.MaxInt64/4 {
		return nil, fmt.Errorf("weights: the experts of %d layers take %g bytes of host memory: %w", o.Layers, host, cgotorch.ErrOutOfMemory)
	} else if free, known := hostmemory.Available(); known && host > float64(free) {
		return nil, fmt.Errorf("weights: the experts of %d layers take %.2f GB of host memory, and %.2f GB are free: free some, or take a narrower dtype: %w",
			o.Layers, host/1e9, float64(free)/1e9, cgotorch.ErrOutOfMemory)
	}
	o.Matrices = slices.Clone(o.Matrices)
	t, made := &Table{o: o}, false
	defer func() {
		if !made {
			t.Close()
		}
	}()
	t.counts = x.Keep(x.Zeros(cgotorch.Int64, int64(o.Layers), 2))
	for i := range o.Layers {
		t.layers = append(t.layers, TableLayer{LFU: o.Policy == LFU, Counts: x.Keep(x.Select(t.counts, 0, i))})
		for _, m := range o.Matrices {
			if err := t.add(x, &t.layers[i], m); err != nil {
				return nil, err
			}
		}
	}
	if err := t.addSlots(x); err != nil {
		return nil, err
	}
	if err := t.addRooms(x); err != nil {
		return nil, err
	}
	made = true
	return t, nil
}

// addSlots makes the memory of slots and passes. No slot has an expert.
func (t *Table) addSlots(x *cgotorch.Exec) error {
	o := t.o
	first := slices.Concat(slices.Repeat([]int32{-1}, o.Experts+o.Slots), make([]int32, o.Slots+1))
	t.empty = x.Keep(cgotorch.FromSlice(x, first, int64(len(first))))
	t.places = x.Keep(x.Zeros(cgotorch.Int32, int64(o.Layers), int64(len(first))))
	for i := range t.layers {
		l := &t.layers[i]
		l.Places = x.Keep(x.Select(t.places, 0, i))
		for _, m := range o.Matrices {
			l.Slots = append(l.Slots, x.Keep(x.Empty(o.DType, int64(o.Slots), m[0], m[1])))
		}
	}
	if o.Passes {
		if err := t.addStages(x); err != nil {
			return err
		}
	}
	t.Forget(x)
	return nil
}

// closeSlots frees what addSlots has made, also a part of it.
func (t *Table) closeSlots() error {
	errs := []error{t.closeStages(), t.places.Close(), t.empty.Close()} // copies of passes read slots
	t.places, t.empty = nil, nil
	for i := range t.layers {
		l := &t.layers[i]
		for _, one := range append(l.Slots, l.Places) {
			errs = append(errs, one.Close())
		}
		l.Slots, l.Places = nil, nil
	}
	return errors.Join(errs...)
}

// Resize changes how many slots a layer has, and whether there is memory for passes. All slots are
// empty then, and counts go on. The work that uses the table must be done: Resize frees the Slots
// and the Places of all layers, and a program takes new ones of [Table.Layer]. It enqueues work on
// x's stream, and waits for the copies of passes. It fails with [ErrInvalidOptions] for a number of
// slots that is not valid, and with [ErrBusy] while a pass runs. If the device has too little
// memory, the Do fails, and the table has no slots until a Resize succeeds.
func (t *Table) Resize(x *cgotorch.Exec, slots int, passes bool) error {
	o := t.o
	o.Slots, o.Passes = slots, passes
	if t.closed {
		return fmt.Errorf("weights: the table: %w", cgotorch.ErrClosed)
	}
	if err := o.check(); err != nil {
		return err
	}
	if t.passing.Load() {
		return fmt.Errorf("weights: %w: a pass runs through the table: wait for its end", ErrBusy)
	}
	if err := t.closeSlots(); err != nil {
		return err
	}
	made := false
	defer func() {
		if !made {
			_ = t.closeSlots()
		}
	}()
	t.o = o
	err := t.addSlots(x)
	made = err == nil
	return err
}

// hasSlots fails if the table is closed, or if a Resize has failed.
func (t *Table) hasSlots(x *cgotorch.Exec, op string) {
	switch {
	case t.closed:
		x.Fail(op, fmt.Errorf("weights: the table: %w", cgotorch.ErrClosed))
	case t.places == nil:
		x.Fail(op, fmt.Errorf("weights: the table has no slots since a Resize has failed: call Resize again: %w", cgotorch.ErrInvalidArgument))
	}
}

// add makes the host memory of one matrix of a layer's experts.
func (t *Table) add(x *cgotorch.Exec, l *TableLayer, matrix [2]int64) error {
	slab, err := cgotorch.NewHostSlab(cgotorch.CPU, int(int64(t.o.Experts)*matrix[0]*matrix[1])*t.o.DType.Size())
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	l.Memory = append(l.Memory, slab)
	takePages(slab.Bytes()) // by all cores: Pin alone would do so on one
	if x.Device().IsCUDA() {
		if err := slab.Pin(); err != nil {
			return fmt.Errorf("weights: %w", err)
		}
	}
	l.Experts = append(l.Experts, x.Keep(slab.Mapped(x, 0, t.o.DType, int64(t.o.Experts), matrix[0], matrix[1])))
	return nil
}

// Layer returns the memory of a layer, from 0 on. It fails with a panic for a layer that is not
// there, as an index of a slice does.
func (t *Table) Layer(i int) TableLayer { return t.layers[i] }

// Forget empties all slots. A program calls it after it has changed experts, in host memory or by
// work of a stream. It enqueues the work on x's stream, and counts go on.
func (t *Table) Forget(x *cgotorch.Exec) {
	t.ahead.settle(x)
	x.CopyInPlace(t.places, x.Expand(t.empty, int64(t.o.Layers), -1))
}

// DeviceBytes returns the bytes that the table takes on its device: those of slots, those for
// passes, and those for what Fetch copies ahead. A nil table has none.
func (t *Table) DeviceBytes() int64 {
	if t == nil {
		return 0
	}
	rooms := int64(0)
	if t.ahead.rooms != nil {
		rooms = int64(t.o.Ahead) * t.o.expert()
	}
	if t.places == nil { // a Resize has failed
		return rooms
	}
	n := int64(t.o.Layers) * int64(t.o.Slots)
	if t.o.Passes {
		n += layersInPass * int64(t.o.Experts)
	}
	return n*t.o.expert() + rooms
}

// Stats returns the counts so far. It waits for the work of x's stream.
func (t *Table) Stats(x *cgotorch.Exec) TableStats {
	s := TableStats{}
	for i, n := range cgotorch.ToSlice[int64](x, t.counts) {
		if i%2 == 0 {
			s.Hits += n
		} else {
			s.Misses += n
		}
	}
	s.Fetched, s.Ahead, s.AheadPicked = t.fetched, t.ahead.copies, t.ahead.used
	s.BusBytes, s.HostBytes, s.DeviceBytes = (s.Misses+s.Ahead-s.AheadPicked)*t.o.expert(), int64(t.o.Layers)*int64(t.o.Experts)*t.o.expert(), t.DeviceBytes()
	return s
}

// Close waits for the copies of passes, and for those ahead, and frees the memory. Other work that
// uses the table must be done. A second Close does nothing.
func (t *Table) Close() error {
	if t == nil {
		return nil
	}
	t.closed = true
	errs := []error{t.ahead.close(), t.closeSlots(), t.counts.Close(), t.way.read.Close()}
	for _, l := range t.layers {
		for _, one := range append(l.Experts, l.Counts) {
			errs = append(errs, one.Close())
		}
		for _, slab := range l.Memory {
			errs = append(errs, slab.Close())
		}
	}
	return errors.Join(errs...)
}
