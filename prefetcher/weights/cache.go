package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheOptions are the options of [NewCache]. The zero value has two slots, and gives up the unit that was used longest ago.
type CacheOptions struct {
	Policy Policy

	// Slots is the number of units that the device has room for, those of Pinned not counted; 0 means 2, with Resident one for each unit.
	// Two are enough where it is known in time what comes next; a cache of experts wants some for each layer.
	Slots int

	// SlotBytes is the size of a slot; 0 means that of the store's largest unit.
	SlotBytes int64

	// Pinned names units that are copied when the Cache are made and stay on the device, each in a slot of its own.
	Pinned []string

	// InFlight bounds the prefetches that are not done; with more of them [Cache.Prefetch] waits for a copy, or fails where all wait for a slot.
	// 0 means 8, or Slots if those are more.
	InFlight int
}

// Errors of units, to test for with [errors.Is].
var (
	ErrUnknownUnit = errors.New("unknown unit")
	ErrNoSlot      = errors.New("no slot")
)

// Cache has the units of a [Store] on a device when they are used, in fewer slots than there are units: device memory of fixed address
// through which weights pass, copied on a stream of its own while other streams compute. M is what the program makes of the weights, such as
// *nn.Linear or a layer of its own. See Note [Life of a slot]. It is safe for use by several goroutines.
type Cache[M any] struct {
	store  *Store
	device cgotorch.Device
	o      CacheOptions
	copies *cgotorch.Stream
	backs  *cgotorch.Stream // of copies to the store; nil before the first
	slots  []*slot[M]
	kinds  []*kind // in the order of their first units in the store
	units  map[string]*unit[M]
	order  []*unit[M] // the store's

	mu      sync.Mutex
	clock   int64
	queue   []*unit[M]                    // prefetches that wait for a slot
	pending []*filling[M]                 // copies that are not known to be enqueued, in order
	emptied bool                          // one of them failed, and nobody has been offered its slot
	waiting map[*cgotorch.Stream]*unit[M] // what a Do waits in Use for
	line    []*cgotorch.Stream            // of these Dos, who came first
	changed chan struct{}                 // closed, and made anew, when a slot or the queue has become shorter
	stats   stats
	closed  bool
	freed   bool
}

// unit is a unit of the store as its Cache see it. The lock is theirs.
type unit[M any] struct {
	*storeUnit
	kind    *kind
	place   int             // in the store's order
	slot    *slot[M]        // where it is, or will be when its copy is done; nil where it is not
	use     use             // for the policy
	written *cgotorch.Event // behind its last copy to the store, or nil
}

// kind is what is common to the units of one layout.
type kind struct {
	*layout
	first string // unit
	err   error  // why they cannot be used
}

// NewCache makes slots for the units of a store on a device and, with Resident or Pinned, has these copied, without waiting for the copies.
// For a CUDA device it page-locks the store.
//
// build makes a unit on x's device whose state, as [nn.State] lists it, has the names, dtypes and shapes of the unit of that name in the
// store; what the tensors hold is of no account ([cgotorch.Exec.Empty] will do), since the slot's memory takes their place. It is called for each slot and for each
// kind of unit, by the name of the first of its kind; units whose tensors are equal in name, dtype and shape are of one kind. An M that
// is not fit for a kind is an error of the units of that kind alone, which Prefetch and Use return, and [Cache.Check]; NewCache fails where it
// fits none.
//
// The caller must Close it, before the store. It fails with [ErrInvalidOptions], [ErrUnknownUnit] (in Pinned), [cgotorch.ErrNoDevice] and, with the numbers, with
// [cgotorch.ErrOutOfMemory].
func NewCache[M any](store *Store, device cgotorch.Device, build func(x *cgotorch.Exec, name string) (M, error), o CacheOptions) (*Cache[M], error) {
	o, err := o.complete(store)
	if err != nil {
		return nil, err
	}
	m := &Cache[M]{store: store, device: device, o: o, units: map[string]*unit[M]{},
		waiting: map[*cgotorch.Stream]*unit[M]{}, changed: make(chan struct{})}
	kinds := map[*layout]*kind{}
	for i, name := range store.names {
		s := store.units[name]
		if kinds[s.layout] == nil {
			kinds[s.layout] = &kind{layout: s.layout, first: name}
			m.kinds = append(m.kinds, kinds[s.layout])
		}
		m.units[name] = &unit[M]{storeUnit: s, kind: kinds[s.layout], place: i}
		m.order = append(m.order, m.units[name])
	}
	if err := store.use(device.IsCUDA()); err != nil {
		return nil, err
	}
	if m.copies, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "unit copies"}); err != nil {
		store.unuse()
		return nil, fmt.Errorf("weights: %w", err)
	}
	made := false
	defer func() {
		if !made { // build may panic
			m.Close()
		}
	}()
	if err = m.allocate(build); err == nil {
		err = m.anyKind()
	}
	if err == nil {
		err = m.copyStaying()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	made = true
	return m, nil
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
		for _, s := range store.units {
			o.SlotBytes = max(o.SlotBytes, s.layout.bytes)
		}
	}
	if o.InFlight == 0 {
		o.InFlight = max(8, o.Slots)
	}
	return o, nil
}

// allocate makes the slots and what lies in them. A kind of units that they cannot hold is noted.
func (m *Cache[M]) allocate(build func(x *cgotorch.Exec, name string) (M, error)) error {
	n := m.Slots()
	bound := map[*cgotorch.Tensor]bool{}
	err := m.copies.Do(func(x *cgotorch.Exec) error {
		for i := range n {
			s := newSlot[M](i)
			m.slots = append(m.slots, s)
			size, only := m.o.SlotBytes, (*layout)(nil)
			if i >= m.o.Slots { // of a unit that stays
				only = m.store.units[m.o.Pinned[i-m.o.Slots]].layout
				size = only.bytes
			}
			s.memory = x.Keep(x.Empty(cgotorch.Uint8, size))
			for _, k := range m.kinds {
				if k.err != nil || only != nil && only != k.layout {
					continue
				}
				if k.bytes > size {
					k.err = fmt.Errorf("unit %s, and what is like it, has %d bytes, and a slot %d: let CacheOptions.SlotBytes be as many: %w", k.first, k.bytes, size, ErrInvalidOptions)
					continue
				}
				b, err := bind(x, s, k.layout, k.first, build, bound)
				if err != nil {
					k.err = fmt.Errorf("unit %s, and what is like it: %w", k.first, err)
					continue
				}
				s.bound[k.layout] = b
			}
		}
		return nil
	})
	if errors.Is(err, cgotorch.ErrOutOfMemory) {
		return fmt.Errorf("weights: %d slots of %d bytes, of which %d are there: take fewer: %w", n, m.o.SlotBytes, max(0, len(m.slots)-1), err)
	} else if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return nil
}

// anyKind fails where no kind of unit can be used.
func (m *Cache[M]) anyKind() error {
	for _, k := range m.kinds {
		if k.err == nil {
			return nil
		}
	}
	return m.Check()
}

// copyStaying starts the copies of the units that are to stay.
func (m *Cache[M]) copyStaying() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, name := range m.o.Pinned {
		s, err := m.lookup(name)
		if err != nil && m.o.Policy == Resident {
			continue // an error of that unit's
		} else if err != nil {
			return err
		}
		slot := m.slots[m.o.Slots+i]
		slot.stays = true
		if err := m.fill(slot, s, false, false); err != nil {
			return err
		}
	}
	return nil
}

// lookup finds a unit that can be used. m.mu is held.
func (m *Cache[M]) lookup(name string) (*unit[M], error) {
	if m.closed {
		return nil, fmt.Errorf("weights: %w", ErrClosed)
	}
	s := m.units[name]
	if s == nil {
		_, err := m.store.lookup(name)
		return nil, err
	}
	if s.slot != nil && s.slot.stays {
		return s, nil // whatever others of its kind find
	}
	if err := s.kind.err; err != nil {
		return nil, fmt.Errorf("weights: unit %s cannot be used: %w", name, err)
	}
	return s, nil
}

// Check returns, in one error, what keeps kinds of units from being used; nil where all can be.
func (m *Cache[M]) Check() error {
	var errs []error
	for _, k := range m.kinds {
		if k.err != nil {
			errs = append(errs, fmt.Errorf("weights: %w", k.err))
		}
	}
	return errors.Join(errs...)
}

// Prefetch has the unit copied to a slot, unless it is there or on its way, and returns at once: where every slot is in use, or holds what was
// prefetched and not used yet, the copy begins when one is released. The calls into CUDA are made on another goroutine, by [cgotorch.Stream.Later]; where they
// fail the Use tries again, and says why. Only where InFlight prefetches are not done, and copies are among them, does it wait, for one of
// these, or for the end of ctx, whose cause it returns. It may be called inside a Do or outside. It fails with [ErrNoSlot] where InFlight prefetches wait for a
// slot, with [ErrUnknownUnit], with [ErrClosed], and for a unit that does not fit its slot or M.
func (m *Cache[M]) Prefetch(ctx context.Context, name string) error {
	for {
		slotFree, copied, err := m.tryPrefetch(name, true)
		if slotFree == nil {
			return err
		}
		began := time.Now()
		select {
		case <-slotFree:
		case <-copied:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		m.mu.Lock()
		m.stats.HostWait += time.Since(began)
		m.mu.Unlock()
		if err != nil {
			return fmt.Errorf("weights: unit %s: %w", name, err)
		}
	}
}

// prefetchNow is Prefetch where that need not wait, and nothing elsewhere: the Use will copy, and return the error.
func (m *Cache[M]) prefetchNow(name string) { _, _, _ = m.tryPrefetch(name, false) }

// tryPrefetch is Prefetch up to the wait, for one of two channels.
func (m *Cache[M]) tryPrefetch(name string, aside bool) (slotFree, copied <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.offerEmptied()
	s, err := m.lookup(name)
	if err != nil {
		return nil, nil, err
	}
	if s.slot != nil {
		s.slot.wanted = true
		return nil, nil, nil
	}
	if slices.Contains(m.queue, s) {
		return nil, nil, nil
	}
	if len(m.queue) >= m.o.InFlight {
		return nil, nil, fmt.Errorf("weights: unit %s: %w: all are in use, and %d prefetches wait for one already: use or Drop them, or let CacheOptions.InFlight be more", name, ErrNoSlot, len(m.queue))
	}
	if m.inFlight() >= m.o.InFlight {
		m.settleBefore(nil)
		m.stats.harvest()
	}
	if m.inFlight() >= m.o.InFlight {
		if i := slices.IndexFunc(m.stats.copies, func(s span) bool { return s.ahead }); i >= 0 {
			copied = m.stats.copies[i].to.Done()
		}
		return m.changed, copied, nil
	}
	if slot := m.victim(false); slot != nil {
		return nil, nil, m.fill(slot, s, true, aside)
	}
	m.queue = append(m.queue, s)
	return nil, nil, nil
}

// inFlight counts the prefetches that are not known to be done.
func (m *Cache[M]) inFlight() int { return len(m.queue) + len(m.pending) + m.stats.prefetching }

// Drop says that units that were prefetched will not be used: their slots may be had by others at once, as if they had been used.
func (m *Cache[M]) Drop(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		s := m.units[name]
		if s == nil {
			continue
		}
		if s.slot != nil {
			s.slot.wanted = false
		}
		m.dequeue(s)
	}
	m.slotFree()
}

// victim is the slot that is to hold another unit, or nil: an empty one, or else the one that the policy gives up. Slots in use are not
// to be had, and those that hold what was prefetched and is not used yet only for a Use, the oldest first. m.mu is held.
func (m *Cache[M]) victim(forUse bool) *slot[M] {
	var best *slot[M]
	for _, s := range m.slots[:m.o.Slots] {
		switch {
		case s.uses > 0 || s.wanted && !forUse:
		case s.holds == nil:
			return s
		case best == nil || best.wanted && !s.wanted:
			best = s
		case best.wanted == s.wanted && m.o.Policy.before(s.holds.use, best.holds.use):
			best = s
		}
	}
	return best
}

// slotFree lets queued prefetches have the slots that there are now, and wakes who waits for one. m.mu is held.
func (m *Cache[M]) slotFree() {
	for len(m.queue) > 0 && !m.closed {
		slot := m.victim(false)
		if slot == nil {
			break
		}
		s := m.queue[0]
		m.queue = m.queue[1:]
		if err := m.fill(slot, s, true, false); err != nil {
			break // the device is lost, which the next call for it says
		}
	}
	m.signal()
}

// signal wakes who waits for a slot, or for room in the queue. m.mu is held.
func (m *Cache[M]) signal() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Stats returns the counts since the Cache were made, and waits for nothing but the calls that Prefetch has left to others; of work that the device has not finished, Copy and Stall are not known yet.
func (m *Cache[M]) Stats() CacheStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.offerEmptied()
	m.settleBefore(nil)
	m.stats.harvest()
	return m.stats.CacheStats
}

// Flush waits until what was released as changed is in the store, or for the end of ctx, whose cause it returns. It fails with
// [cgotorch.ErrDeviceLost].
func (m *Cache[M]) Flush(ctx context.Context) error {
	for _, s := range m.order {
		for {
			m.mu.Lock()
			e := s.written
			m.mu.Unlock()
			if e == nil {
				break
			}
			select {
			case <-e.Done():
			case <-ctx.Done():
				return fmt.Errorf("weights: Flush: unit %s: %w", s.name, context.Cause(ctx))
			}
			_, err := e.Query()
			if errors.Is(err, cgotorch.ErrClosed) { // by a later change, unless the Cache are closed
				m.mu.Lock()
				same := s.written == e
				m.mu.Unlock()
				if same {
					break
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("weights: unit %s is not in the store: %w", s.name, err)
			}
			break
		}
	}
	return nil
}

// Close waits for copies that are under way, and frees the slots and the stream. While units are in use it does so when the last of them is
// released, and returns at once; whoever waits in Prefetch or Use gets [ErrClosed]. Closing again, when they are released, waits for the rest.
func (m *Cache[M]) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed && (m.freed || m.inUse()) {
		return nil
	} else if m.closed {
		return m.free()
	}
	m.closed = true
	m.queue = nil
	m.signal()
	if m.inUse() {
		return nil // the last release ends it
	}
	return m.free()
}

func (m *Cache[M]) inUse() bool {
	return slices.ContainsFunc(m.slots, func(s *slot[M]) bool { return s.uses > 0 })
}

// freeLater is free where the lock is held by what must not wait: the end of a Do.
func (m *Cache[M]) freeLater() {
	go func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.freed {
			_ = m.free()
		}
	}()
}

// free orders the end of every use before the memory goes back to the copy stream's pool, and waits for the copies, which read the store.
func (m *Cache[M]) free() error {
	m.freed = true
	m.settleBefore(nil)
	var errs []error
	for _, s := range m.order {
		if s.written != nil {
			errs = append(errs, s.written.Synchronize(), s.written.Close())
		}
	}
	for _, s := range m.slots {
		errs = append(errs, s.close(m.copies))
	}
	if m.backs != nil {
		errs = append(errs, m.backs.Close())
	}
	m.slots = nil
	m.stats.close()
	errs = append(errs, m.copies.Close())
	m.store.unuse()
	return errors.Join(errs...)
}
