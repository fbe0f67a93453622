package imageloader

import (
	"context"
	"sync"
)

// budget is a limited number of bytes. Only one goroutine takes bytes from it.
type budget struct {
	mu    sync.Mutex
	limit int
	taken int
	freed chan struct{}
	short chan<- struct{} // the function `take` offers a value here while it waits; may be nil
}

func newBudget(limit int, short chan<- struct{}) *budget {
	return &budget{limit: limit, freed: make(chan struct{}, 1), short: short}
}

// try takes `bytes` bytes if they are free, or if nothing is taken. It reports whether it took
// them.
func (b *budget) try(bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken > 0 && b.taken+bytes > b.limit {
		return false
	}
	b.taken += bytes
	return true
}

// take waits until `bytes` bytes are free or nothing is taken, and takes the bytes. It fails when
// ctx ends.
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

// settle corrects the count of taken bytes after a read. Before the read, `bytes` bytes were
// taken for `items`, perhaps without knowing their real sizes. settle counts the real sizes
// instead. Each item gives its own bytes back when it is decoded.
func (b *budget) settle(bytes int, items []item) {
	for i := range items {
		bytes -= b.charge(&items[i])
	}
	b.give(bytes)
}

// settleBlock is for items that share one piece of memory. Before the read, `bytes` bytes were
// taken for that piece. The piece gives all these bytes back when its last item is decoded. If
// the items do not share one piece, settleBlock calls settle.
func (b *budget) settleBlock(bytes int, items []item) {
	var shared *piece
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

// charge makes an item's memory give its bytes back to the budget when the memory is freed. The
// item must be the only user of its memory. charge returns the number of bytes.
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
// The loader limits the bytes of compressed images where it reads them. Compressed images of 16
// KiB or more lie in an arena outside Go's heap. Content that is inflated ahead lies there too.
// The images of a .tgz that is kept whole are an exception: they lie in Go's heap.
//
// Go's collector lets the heap grow to twice the live data. In Go's heap the garbage of one
// loader would add to the memory of the next loader. A training process grew from 2.3 to 3.0 GB
// over three loaders in this way. The loader gives back all bytes that it takes, also after an
// error. The tests check this for each Loader, when it is closed.
