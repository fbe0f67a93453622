package imageloader

import (
	"context"
	"sync"
)

// budget is a limited number of bytes. One goroutine takes from it.
type budget struct {
	mu    sync.Mutex
	limit int
	taken int
	freed chan struct{}
	short chan<- struct{} // offered a value while the taker waits; may be nil
}

func newBudget(limit int, short chan<- struct{}) *budget {
	return &budget{limit: limit, freed: make(chan struct{}, 1), short: short}
}

// try takes that many bytes if they are free, or if nothing is taken.
func (b *budget) try(bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken > 0 && b.taken+bytes > b.limit {
		return false
	}
	b.taken += bytes
	return true
}

// take waits until that many bytes are free, or nothing is taken, or ctx ends.
func (b *budget) take(ctx context.Context, bytes int) error {
	for !b.try(bytes) {
		select {
		case <-b.freed:
		case b.short <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// settle replaces bytes that were taken for items by the items' own bytes. Their sizes may not have
// been known before. Each item gives its own bytes back when it is decoded.
func (b *budget) settle(bytes int, items []item) {
	for i := range items {
		bytes -= b.charge(&items[i])
	}
	b.give(bytes)
}

// settleBlock is settle for items that lie in one memory, which is given back with the last of
// them.
func (b *budget) settleBlock(bytes int, items []item) {
	var shared *memory
	for _, it := range items {
		if it.memory != nil && shared != nil && it.memory != shared {
			b.settle(bytes, items)
			return
		}
		if it.memory != nil {
			shared = it.memory
		}
	}
	if shared == nil {
		b.give(bytes)
		return
	}
	free := shared.free
	shared.free = func() {
		free()
		b.give(bytes)
	}
}

// charge makes an item, the only user of its memory, give back its bytes with it. It returns the
// number of bytes.
func (b *budget) charge(it *item) int {
	m, bytes := it.memory, len(it.data)
	if m == nil {
		return 0
	}
	free := m.free
	m.free = func() {
		free()
		b.give(bytes)
	}
	return bytes
}

func (b *budget) give(bytes int) {
	b.mu.Lock()
	b.taken -= bytes
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// Note [Memory of compressed images]
//
// Bytes are bounded where they are read. Compressed images of 16 KiB or more, and what is
// inflated ahead, lie in an arena outside Go's heap. Images of a .tgz that is kept whole are
// excepted. Go's collector lets its heap grow to twice what lives. What one loader left then
// came on top of the next one's: a training process grew from 2.3 to 3.0 GB over three loaders.
// Every path gives back what it took, and the tests of each Loader check that nothing is out
// when it is closed.
