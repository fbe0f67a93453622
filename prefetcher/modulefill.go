package prefetcher

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Who enqueues a prefetch]
//
// To enqueue a copy takes CUDA some 10 us, and 50 where the caches are cold, as they are behind a wait: time that the caller of Prefetch has better
// uses for, such as the launch of what the copy is to run beside. So Prefetch decides everything and leaves the calls to [cgotorch.Stream.Later]; they
// need no lock of the Modules. Whoever wants to know more of a slot than what it holds settles it first, which waits for those calls, never for the
// device. What a Use lacks, and what a Route brings, is enqueued where it is noticed: there nobody has anything better to do.

// filling is a copy of a module into a slot, from the decision to the copy stream.
type filling[M any] struct {
	slot     *moduleSlot[M]
	module   *module[M]
	uses     []*cgotorch.Event // behind what the slot held
	ahead    bool              // it is no Use's
	enqueued chan struct{}     // closed when what follows is set; nil where that is done by the one who decides

	copied span
	err    error
}

// fill gives a slot to a module. ahead: the copy is no Use's. aside: another goroutine enqueues it, and an error is that of whoever settles the
// slot. m.mu is held.
func (m *Modules[M]) fill(slot *moduleSlot[M], of *module[M], ahead, aside bool) error {
	_ = m.settle(slot) // it gets another copy now
	if before := slot.holds; before != nil {
		before.slot = nil
		if slot.fresh {
			m.stats.Unused++
		}
	}
	f := &filling[M]{slot: slot, module: of, uses: slot.takeUses(), ahead: ahead}
	slot.holds, slot.fresh, slot.wanted, slot.filling = of, true, ahead, f
	of.slot = slot
	m.clock++
	of.use.last = m.clock
	m.pending = append(m.pending, f)
	if !aside {
		m.settleBefore(f)
		f.enqueue(m.copies)
		return m.settle(slot)
	}
	//edge:module-prefetch-counts-as-write TestMisuse_LateBackward
	slot.bound[of.layout].whole.BumpVersion() // the copy counts as a write from now on: a backward that needs what it overwrites fails
	f.enqueued = make(chan struct{})
	err := m.copies.Later(func() {
		f.enqueue(m.copies)
		close(f.enqueued)
	})
	if err != nil {
		f.err = err
		close(f.enqueued)
	}
	return nil
}

// enqueue enqueues the copy on the stream, behind every use of what the slot held and behind the module's own copy to the store.
func (f *filling[M]) enqueue(copies *cgotorch.Stream) {
	defer closeAll(f.uses)
	behind := f.uses //edge:module-refill-behind-uses TestModules_Reuse_InOrder checked
	if f.module.written != nil {
		//edge:module-copy-behind-back TestUse_ReleaseChanged_ToAnotherSlot checked
		behind = append(behind[:len(behind):len(behind)], f.module.written)
	}
	b := f.slot.bound[f.module.layout]
	parts := []cgotorch.HostCopy{{To: b.whole, From: f.module.whole}}
	if f.module.whole == nil {
		parts = parts[:0]
		for i, part := range f.module.parts {
			parts = append(parts, cgotorch.HostCopy{To: b.state[i], From: part})
		}
	}
	began, done, err := copies.CopyFrom(behind, parts...)
	if err != nil {
		// What was enqueued before the failure may still read the store.
		f.err = errors.Join(fmt.Errorf("prefetcher: copying module %s to the device: %w", f.module.name, err), copies.Synchronize())
		return
	}
	f.copied = span{from: &mark{Event: began}, to: &mark{Event: done}, ahead: f.ahead}
}

// settle waits until the slot's copy is enqueued, and those before it. Where one failed its slot is empty again. It returns the slot's own error.
// m.mu is held.
func (m *Modules[M]) settle(slot *moduleSlot[M]) error {
	if slot.filling == nil {
		return nil
	}
	m.settleBefore(slot.filling)
	return m.settleFirst()
}

// settleBefore settles what was decided before f; with nil, everything.
func (m *Modules[M]) settleBefore(f *filling[M]) {
	for len(m.pending) > 0 && m.pending[0] != f {
		_ = m.settleFirst() // the next Use says it
	}
}

// settleFirst settles what was decided first of all that is pending, and returns its error.
func (m *Modules[M]) settleFirst() error {
	f := m.pending[0]
	m.pending = m.pending[1:]
	if f.enqueued != nil { //edge:module-settled TestModules_Prefetch
		select {
		case <-f.enqueued:
		default:
			began := time.Now()
			<-f.enqueued
			m.stats.HostWait += time.Since(began)
		}
	}
	f.slot.filling = nil
	if f.err != nil {
		f.slot.holds, f.slot.fresh, f.slot.wanted, f.module.slot = nil, false, false, nil
		m.emptied = true
		return f.err
	}
	f.slot.ready = f.copied.to.share()
	clear(f.slot.awaited)
	m.stats.Bytes += f.module.layout.bytes
	if f.ahead {
		m.stats.Prefetched++
		m.stats.prefetching++
	}
	m.stats.copies = append(m.stats.copies, f.copied)
	return nil
}

// offerEmptied lets prefetches that wait for a slot, and Dos that do, have one whose copy failed. It is called last by whoever settles.
func (m *Modules[M]) offerEmptied() {
	if m.emptied {
		m.emptied = false
		m.slotFree()
	}
}
