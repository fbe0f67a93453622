package imageloader

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// item is one place in an epoch's sequence of images.
type item struct {
	number int // of the sample, in the archive's order
	shard  *shard
	member int
	name   string
	label  int32
	data   []byte  // the compressed image
	memory *memory // memory of data, nil when data stays
	bad    *Error  // why the image is not usable. data is then nil
}

// memory is bytes of one or several items. It goes back to its source with the last of them.
type memory struct {
	items atomic.Int32
	free  func()
}

func (m *memory) release() {
	if m != nil && m.items.Add(-1) == 0 {
		m.free()
	}
}

// hold makes the item the only user of data, which is from an arena.
func (it *item) hold(from *arena.Arena, data []byte) {
	it.data, it.memory = data, &memory{free: func() { from.Give(data) }}
	it.memory.items.Store(1)
}

// drop gives back the memory of items that no consumer will have.
func drop(items []item) {
	for i := range items {
		items[i].memory.release()
		items[i].memory = nil
	}
}
