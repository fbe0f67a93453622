package weights

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheOptions are the options of [NewCache]. The zero value has two slots and the policy LRU.
type CacheOptions struct {
	Policy Policy

	// Slots is the number of units that the device has room for, beside those of Pinned. 0 means 2,
	// with Resident one for each unit. Two are enough where the next unit is known in time. A cache
	// of experts wants some for each layer.
	Slots int

	// SlotBytes is the size of a slot; 0 means that of the store's largest unit.
	SlotBytes int64

	// Pinned names units that are copied when the cache is made and stay on the device, each in a
	// slot of its own.
	Pinned []string

	// InFlight bounds the prefetches whose copies are not done; 0 means 8, or Slots if larger. With
	// more of them [Cache.Prefetch] waits for a copy, or fails where all wait for a slot.
	InFlight int
}

// Cache has the units of a [Store] on a device when they are used, in fewer slots than there are
// units. It copies them on a stream of its own while other streams compute. M is the module that
// the program makes of a unit's weights, such as *nn.Linear. See Note [Life of a slot]. A Cache is
// safe for use by several goroutines.
type Cache[M any] struct {
	store  *Store
	device cgotorch.Device
	o      CacheOptions
	copies *cgotorch.Stream // of copies to the slots
	backs  *cgotorch.Stream // of copies to the store; nil before the first
	slots  []*slot[M]
	kinds  []*kind // in the order of their first units in the store
	units  map[string]*unit[M]
	order  []*unit[M] // the store's

	handed   chan *fill[M] // to the enqueuer
	enqueuer chan struct{} // closed when the enqueuer has ended

	mu      sync.Mutex
	clock   int64
	queue   []*unit[M]                    // prefetches that wait for a slot
	pending []*fill[M]                    // copies that are not known to be enqueued, in order
	emptied bool                          // a copy failed, and nobody has been offered its slot
	waiting map[*cgotorch.Stream]*unit[M] // the unit that a Do waits for in Use
	line    []*cgotorch.Stream            // of these Dos, in the order in which they came
	changed chan struct{}                 // closed, and made anew, when a slot or the queue is freer
	stats   stats
	closed  bool
	freed   bool
}

// unit is a unit of the store as its Cache sees it. The Cache's lock guards it.
type unit[M any] struct {
	*storeUnit
	kind    *kind
	place   int             // in the store's order
	slot    *slot[M]        // that holds it, or will when its copy is done; else nil
	usage   usage           // for the policy
	written *cgotorch.Event // behind its last copy to the store, or nil
}

// kind is the common part of the units of one layout.
type kind struct {
	*layout
	first string // unit
	err   error  // why they cannot be used
}

// NewCache makes slots for the units of a store on a device. With Resident or Pinned it begins the
// copies of these units, and does not wait for the copies. For a CUDA device it page-locks the
// store.
//
// build makes a module on x's device. The module's state, as [nn.State] lists it, must have the
// names, dtypes and shapes of the unit of that name. The values do not matter
// ([cgotorch.Exec.Empty] will do), since the slot's memory takes their place. Units whose tensors
// are equal in name, dtype and shape are of one kind. NewCache calls build for each slot and kind,
// with the name of the kind's first unit. A module that does not fit a kind is an error of that
// kind alone: Prefetch, Use and [Cache.Check] return it. NewCache fails where build fits no kind.
//
// The caller must Close the cache before the store. NewCache fails with [ErrInvalidOptions], with
// [ErrUnknownUnit] for a name in Pinned, with [cgotorch.ErrNoDevice], and with
// [cgotorch.ErrOutOfMemory] and the numbers.
func NewCache[M any](store *Store, device cgotorch.Device, build func(x *cgotorch.Exec, name string) (M, error), o CacheOptions) (*Cache[M], error) {
	o, err := o.complete(store)
	if err != nil {
		return nil, err
	}
	c := &Cache[M]{store: store, device: device, o: o, units: map[string]*unit[M]{},
		handed: make(chan *fill[M], o.InFlight), enqueuer: make(chan struct{}),
		waiting: map[*cgotorch.Stream]*unit[M]{}, changed: make(chan struct{})}
	c.classify()
	if err := store.use(device.IsCUDA()); err != nil {
		return nil, err
	}
	if c.copies, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "weight copies"}); err != nil {
		store.unuse()
		return nil, fmt.Errorf("weights: %w", err)
	}
	go c.enqueueHanded()
	made := false
	defer func() {
		if !made { // build may panic
			c.Close()
		}
	}()
	if err = c.allocate(build); err == nil {
		err = c.anyKind()
	}
	if err == nil {
		err = c.fillPinned()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	made = true
	return c, nil
}

func (o CacheOptions) complete(store *Store) (CacheOptions, error) {
	refuse := func(format string, args ...any) (CacheOptions, error) {
		return o, fmt.Errorf("weights: CacheOptions."+format+": %w", append(args, ErrInvalidOptions)...)
	}
	switch {
	case !o.Policy.valid():
		return refuse("Policy is %d; it must be one of %v", int(o.Policy), policyNames)
	case o.Slots < 0:
		return refuse("Slots is %d; it must not be negative", o.Slots)
	case o.SlotBytes < 0:
		return refuse("SlotBytes is %d; it must not be negative", o.SlotBytes)
	case o.InFlight < 0:
		return refuse("InFlight is %d; it must not be negative", o.InFlight)
	case o.Policy == Resident && o.Slots != 0 && o.Slots != len(store.names):
		return refuse("Slots is %d, and the store has %d units: leave it 0 with Resident", o.Slots, len(store.names))
	}
	for i, name := range o.Pinned {
		if _, err := store.lookup(name); err != nil {
			return o, err
		}
		if slices.Contains(o.Pinned[:i], name) {
			return refuse("Pinned has %s twice", name)
		}
	}
	if o.Policy == Resident {
		o.Slots, o.Pinned = 0, store.names // each in a slot of its own
	} else if o.Slots == 0 {
		o.Slots = 2
	}
	if o.SlotBytes == 0 {
		for _, unit := range store.units {
			o.SlotBytes = max(o.SlotBytes, unit.layout.bytes)
		}
	}
	if o.InFlight == 0 {
		o.InFlight = max(8, o.Slots)
	}
	return o, nil
}

// classify finds out which units there are, and of which kinds.
func (c *Cache[M]) classify() {
	kinds := map[*layout]*kind{}
	for i, name := range c.store.names {
		stored := c.store.units[name]
		if kinds[stored.layout] == nil {
			kinds[stored.layout] = &kind{layout: stored.layout, first: name}
			c.kinds = append(c.kinds, kinds[stored.layout])
		}
		c.units[name] = &unit[M]{storeUnit: stored, kind: kinds[stored.layout], place: i}
		c.order = append(c.order, c.units[name])
	}
}

// allocate makes the slots and their modules. It notes a kind of units that they cannot hold.
func (c *Cache[M]) allocate(build func(x *cgotorch.Exec, name string) (M, error)) error {
	n := c.Slots()
	taken := map[*cgotorch.Tensor]bool{}
	err := c.copies.Do(func(x *cgotorch.Exec) error {
		for i := range n {
			slot := newSlot[M](i)
			c.slots = append(c.slots, slot)
			size, only := c.o.SlotBytes, (*layout)(nil)
			if i >= c.o.Slots { // of a unit that stays
				only = c.store.units[c.o.Pinned[i-c.o.Slots]].layout
				size = only.bytes
			}
			slot.memory = x.Keep(x.Empty(cgotorch.Uint8, size))
			for _, k := range c.kinds {
				if k.err != nil || only != nil && only != k.layout {
					continue
				}
				if k.bytes > size {
					k.err = fmt.Errorf("unit %s, and what is like it, has %d bytes, and a slot %d: let CacheOptions.SlotBytes be as many: %w", k.first, k.bytes, size, ErrInvalidOptions)
					continue
				}
				m, err := newSlotModule(x, slot.memory, k, build, taken)
				if err != nil {
					k.err = fmt.Errorf("unit %s, and what is like it: %w", k.first, err)
					continue
				}
				slot.modules[k.layout] = m
			}
		}
		return nil
	})
	if errors.Is(err, cgotorch.ErrOutOfMemory) {
		return fmt.Errorf("weights: %d slots of %d bytes, of which %d are there: take fewer: %w", n, c.o.SlotBytes, max(0, len(c.slots)-1), err)
	} else if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return nil
}

// anyKind fails where no kind of units can be used.
func (c *Cache[M]) anyKind() error {
	for _, k := range c.kinds {
		if k.err == nil {
			return nil
		}
	}
	return c.Check()
}

// fillPinned begins the copies of the units that stay.
func (c *Cache[M]) fillPinned() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, name := range c.o.Pinned {
		unit, err := c.lookup(name)
		if err != nil && c.o.Policy == Resident {
			continue // an error of that unit's
		} else if err != nil {
			return err
		}
		slot := c.slots[c.o.Slots+i]
		slot.stays = true
		if err := c.fill(slot, unit, false); err != nil {
			return err
		}
	}
	return nil
}

// lookup finds a unit that can be used. c.mu is held.
func (c *Cache[M]) lookup(name string) (*unit[M], error) {
	if c.closed {
		return nil, fmt.Errorf("weights: %w", ErrClosed)
	}
	unit := c.units[name]
	if unit == nil {
		_, err := c.store.lookup(name)
		return nil, err
	}
	if unit.slot != nil && unit.slot.stays {
		return unit, nil // without a look at others of its kind
	}
	if err := unit.kind.err; err != nil {
		return nil, fmt.Errorf("weights: unit %s cannot be used: %w", name, err)
	}
	return unit, nil
}

// Check returns, in one error, why kinds of units cannot be used; nil where all can be.
func (c *Cache[M]) Check() error {
	var errs []error
	for _, k := range c.kinds {
		if k.err != nil {
			errs = append(errs, fmt.Errorf("weights: %w", k.err))
		}
	}
	return errors.Join(errs...)
}

// Slots is the number of slots, those of units that stay included.
func (c *Cache[M]) Slots() int { return c.o.Slots + len(c.o.Pinned) }

// At returns the module of a slot, of the kind of the named unit, for functions that are captured.
// A graph made with it reads the unit that the slot holds at the launch. The Use around the launch
// names the slot. It alone orders the graph with the copies:
//
//	u := cache.Use(x, name)
//	x.Launch(graphs[u.Slot])
//	u.Release(x)
//
// Outside a capture call [Cache.Use]. At fails with [ErrUnknownUnit], with [ErrNoSlot] for a slot
// that is not there, and for a unit that cannot be used.
func (c *Cache[M]) At(slot int, name string) (module M, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	unit, err := c.lookup(name)
	if err != nil {
		return module, err
	}
	if slot < 0 || slot >= len(c.slots) || c.slots[slot].modules[unit.layout] == nil {
		return module, fmt.Errorf("weights: slot %d of %d is not for unit %s: %w", slot, len(c.slots), name, ErrNoSlot)
	}
	return c.slots[slot].modules[unit.layout].module, nil
}

// Close waits for copies that are under way, and frees the slots and the stream. While units are in
// use it returns at once, and the last release frees them. Closing again after that release waits
// for the rest. A Prefetch or a Use that waits fails with [ErrClosed].
func (c *Cache[M]) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && (c.freed || c.inUse()) {
		return nil
	} else if c.closed {
		return c.free()
	}
	c.closed = true
	c.queue = nil
	c.signal()
	if c.inUse() {
		return nil // the last release ends it
	}
	return c.free()
}

func (c *Cache[M]) inUse() bool {
	return slices.ContainsFunc(c.slots, func(s *slot[M]) bool { return s.uses > 0 })
}

// freeLater is free for a caller that holds the lock and must not wait, at the end of a Do.
func (c *Cache[M]) freeLater() {
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.freed {
			_ = c.free()
		}
	}()
}

// free orders the end of every use before the memory goes back to the copy stream's pool. It waits
// for the copies, which read the store. c.mu is held.
func (c *Cache[M]) free() error {
	c.freed = true
	c.settleBefore(nil) //edge:unit-close-settles TestFill_Handed
	close(c.handed)
	<-c.enqueuer
	var errs []error
	for _, unit := range c.order {
		if unit.written != nil {
			errs = append(errs, unit.written.Synchronize(), unit.written.Close())
		}
	}
	for _, slot := range c.slots {
		errs = append(errs, slot.close(c.copies))
	}
	if c.backs != nil {
		errs = append(errs, c.backs.Close())
	}
	c.slots = nil
	c.stats.close()
	errs = append(errs, c.copies.Close())
	c.store.unuse()
	return errors.Join(errs...)
}
