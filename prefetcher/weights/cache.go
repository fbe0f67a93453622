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

	// Slots is the number of units that the device has room for. 0 means 2. Two slots are enough if
	// the program knows the next unit in time.
	Slots int

	// SlotBytes is the size of a slot. 0 means the size of the store's largest unit.
	SlotBytes int64

	// InFlight bounds the number of prefetches whose copies are not done. 0 means 8, or Slots if
	// that is more. While there are InFlight such prefetches, another [Cache.Prefetch] waits until
	// a copy is done. If all InFlight prefetches wait for a slot, Prefetch fails.
	InFlight int
}

// Cache brings the units of a [Store] to a device when they are used. It needs fewer slots than
// there are units. It copies the units on a stream of its own while other streams compute. M is
// the module that the program makes of a unit's weights, such as *nn.Linear. See Note [Life of a
// slot]. Several goroutines may use a Cache.
type Cache[M any] struct {
	store  *Store
	device cgotorch.Device
	o      CacheOptions
	copies *cgotorch.Stream // for copies to the slots
	backs  *cgotorch.Stream // for copies to the store; nil before the first of these
	slots  []*slot[M]
	kinds  []*kind // in the order of the kinds' first units in the store
	units  map[string]*unit[M]
	order  []*unit[M] // in the store's order

	handed   chan *fill[M] // fills for the enqueuer
	enqueuer chan struct{} // closed when the enqueuer has ended

	mu      sync.Mutex
	clock   int64
	queue   []*unit[M]                    // prefetches that wait for a slot
	pending []*fill[M]                    // copies that are perhaps not enqueued yet, in order
	emptied bool                          // a copy has failed, and its slot has not been offered to any goroutine
	waiting map[*cgotorch.Stream]*unit[M] // by stream of a Do: the unit for which the Do waits in Use
	line    []*cgotorch.Stream            // the streams of Dos that wait in Use, in the order in which the Dos began to wait
	changed chan struct{}                 // closed and made again when a slot becomes free or the queue shorter
	stats   stats
	closed  bool
	freed   bool
}

// unit is what a Cache knows of a unit of the store. The Cache's lock guards it.
type unit[M any] struct {
	*storeUnit
	kind    *kind
	place   int             // in the store's order
	slot    *slot[M]        // the slot that holds the unit, or will hold it when its copy is done; else nil
	usage   usage           // for the policy
	written *cgotorch.Event // recorded after the unit's last copy to the store, or nil
}

// kind is what the units of one layout have in common.
type kind struct {
	*layout
	first string // name of the first unit of the kind
	err   error  // why the units of the kind cannot be used, or nil
}

// NewCache makes slots on a device for the units of a store. For a CUDA device it page-locks the
// store.
//
// The function `build` makes a module on x's device. It gets the name of a unit. The module's
// state, as [nn.State] lists it, must have the names, dtypes and shapes of that unit. The values
// do not matter, because the slot's memory takes the place of the module's: [cgotorch.Exec.Empty]
// is enough. Units with the same tensors, by name, dtype and shape, are of one kind. NewCache
// calls `build` once for each slot and kind, with the name of the kind's first unit. If a module
// does not fit its kind, the units of that kind cannot be used. Prefetch, Use and [Cache.Check]
// then return the error. NewCache itself fails only if no kind can be used.
//
// The caller closes the cache before the store. NewCache fails with [ErrInvalidOptions] for
// options that are not valid, and with [cgotorch.ErrNoDevice] if the device is absent. It fails
// with [cgotorch.ErrOutOfMemory], and says how many bytes it needs, if memory is short.
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
		if !made { // also when build panics
			c.Close()
		}
	}()
	if err = c.allocate(build); err == nil {
		err = c.anyKind()
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
	}
	if o.Slots == 0 {
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

// classify makes the list of units. It also finds the kinds: units with equal tensors are of one
// kind.
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

// allocate makes the slots and their modules. If the slots cannot hold units of a kind, it notes
// the error in the kind.
func (c *Cache[M]) allocate(build func(x *cgotorch.Exec, name string) (M, error)) error {
	taken := map[*cgotorch.Tensor]bool{}
	err := c.copies.Do(func(x *cgotorch.Exec) error {
		for i := range c.o.Slots {
			slot := newSlot[M](i)
			c.slots = append(c.slots, slot)
			slot.memory = x.Keep(x.Empty(cgotorch.Uint8, c.o.SlotBytes))
			for _, k := range c.kinds {
				if k.err != nil {
					continue
				}
				if k.bytes > c.o.SlotBytes {
					k.err = fmt.Errorf("unit %s, and what is like it, has %d bytes, and a slot %d: let CacheOptions.SlotBytes be as many: %w", k.first, k.bytes, c.o.SlotBytes, ErrInvalidOptions)
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
		return fmt.Errorf("weights: %d slots of %d bytes, of which %d are there: take fewer: %w", c.o.Slots, c.o.SlotBytes, max(0, len(c.slots)-1), err)
	} else if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return nil
}

// anyKind fails if no kind of units can be used.
func (c *Cache[M]) anyKind() error {
	for _, k := range c.kinds {
		if k.err == nil {
			return nil
		}
	}
	return c.Check()
}

// lookup returns the unit of that name, or an error if the unit cannot be used. c.mu is held.
func (c *Cache[M]) lookup(name string) (*unit[M], error) {
	if c.closed {
		return nil, fmt.Errorf("weights: %w", cgotorch.ErrClosed)
	}
	unit := c.units[name]
	if unit == nil {
		_, err := c.store.lookup(name)
		return nil, err
	}
	if err := unit.kind.err; err != nil {
		return nil, fmt.Errorf("weights: unit %s cannot be used: %w", name, err)
	}
	return unit, nil
}

// Check returns one error that says why some kinds of units cannot be used. It returns nil if all
// units can be used.
func (c *Cache[M]) Check() error {
	var errs []error
	for _, k := range c.kinds {
		if k.err != nil {
			errs = append(errs, fmt.Errorf("weights: %w", k.err))
		}
	}
	return errors.Join(errs...)
}

// At returns the module of slot number `slot` for units of the same kind as the named unit. The
// module is for functions that are captured. A graph made with the module reads the unit that the
// slot holds when the graph is launched. Call Use before the launch and Release after it. Launch
// the graph of the slot that Use.Slot names. Only this Use makes the launch wait for the copy
// into the slot. Only its Release makes the next copy wait for the launch:
//
//	u := cache.Use(x, name)
//	x.Launch(graphs[u.Slot])
//	u.Release(x)
//
// Outside a capture call [Cache.Use]. At fails with [ErrUnknownUnit] for an unknown name, and
// with [ErrNoSlot] for a slot that does not exist or cannot hold the unit. It also fails for a
// unit that cannot be used.
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

// Close waits for the copies that still run. It then frees the slots and the Cache's streams.
// While units are in use, Close returns at once, and the last release frees everything. A second
// Close after that release waits until everything is freed. A Prefetch or a Use that waits fails
// with [cgotorch.ErrClosed].
func (c *Cache[M]) Close() error {
	if c == nil {
		return nil
	}
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
		return nil // the last release frees everything
	}
	return c.free()
}

func (c *Cache[M]) inUse() bool {
	return slices.ContainsFunc(c.slots, func(s *slot[M]) bool { return s.uses > 0 })
}

// freeLater calls the method `free` on a goroutine of its own. It is for the end of a Do, where
// the caller holds the lock and must not wait.
func (c *Cache[M]) freeLater() {
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.freed {
			_ = c.free()
		}
	}()
}

// free makes the copy stream wait for the end of every use. It then frees the slots, whose memory
// goes back to the pool of that stream. The host waits for the copies, because they read the store.
// c.mu is held.
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
