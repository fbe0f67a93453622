package imageloader

// shuffleBuffer holds items, limited by their bytes, and draws from them.
type shuffleBuffer struct {
	limit, bytes int
	added        int
	items        []item
	draws        draws
}

// add takes an item in.
func (b *shuffleBuffer) add(it item) {
	b.items = append(b.items, it)
	b.bytes += footprint(len(it.data))
	b.added++
}

// full says that an item must be drawn before the next is added. From a sixteenth of the limit on
// that is so for every second item. An epoch thus begins soon, and its first images are drawn from
// few.
func (b *shuffleBuffer) full() bool {
	return b.bytes > b.limit || b.bytes > b.limit/16 && b.added%2 == 0
}

// draw removes an item. The buffer must not be empty.
func (b *shuffleBuffer) draw() item {
	i, last := b.draws.below(len(b.items)), len(b.items)-1
	it := b.items[i]
	b.items[i], b.items[last] = b.items[last], item{}
	b.items = b.items[:last]
	b.bytes -= footprint(len(it.data))
	return it
}

// footprint is the memory that an image of that many bytes takes, its entry in an index included.
func footprint(bytes int) int { return bytes + 128 }
