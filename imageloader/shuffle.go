package imageloader

import "github.com/streamtorch/streamtorch/imageloader/internal/archive"

// shuffleBuffer holds items. Its method `draw` removes one of them at random. The bytes of the
// items are limited.
type shuffleBuffer struct {
	limit, bytes int
	added        int
	items        []item
	draws        draws
}

// add adds an item.
func (b *shuffleBuffer) add(it item) {
	b.items = append(b.items, it)
	b.bytes += archive.Footprint(len(it.data))
	b.added++
}

// full reports whether an item must be drawn before the next item is added. When the items take
// more than a sixteenth of the limit, full returns true after every second item. So an epoch begins
// soon, but its first images are drawn from few images.
func (b *shuffleBuffer) full() bool {
	return b.bytes > b.limit || b.bytes > b.limit/16 && b.added%2 == 0
}

// draw removes a random item and returns it. The buffer must not be empty.
func (b *shuffleBuffer) draw() item {
	i, last := b.draws.below(len(b.items)), len(b.items)-1
	it := b.items[i]
	b.items[i], b.items[last] = b.items[last], item{}
	b.items = b.items[:last]
	b.bytes -= archive.Footprint(len(it.data))
	return it
}
