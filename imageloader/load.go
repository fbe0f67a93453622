package imageloader

import (
	"errors"

	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
)

// loadBlock reads those samples of the block b that have the given numbers.
func (s *sequence) loadBlock(b archive.Block, numbers []int32) ([]item, error) {
	shard := s.archive.Shards[s.index.Samples[b.First].Shard]
	if shard.Inflates() {
		return s.inflateBlock(shard, b, numbers)
	}
	return s.loadEach(numbers)
}

// inflateBlock reads those samples of the block b that have the given numbers. It inflates the
// bytes from the first to the last of these samples at once.
func (s *sequence) inflateBlock(shard *archive.Shard, b archive.Block, numbers []int32) ([]item, error) {
	x := s.index
	from, to := b.To, b.From
	for _, n := range numbers {
		if x.Bad[int(n)] == nil {
			from, to = min(from, x.Samples[n].Offset), max(to, x.Samples[n].Offset+x.Samples[n].Size)
		}
	}
	from = min(from, to)
	data, memory, err := shard.Inflate(s.ctx, from, to)
	if err != nil {
		return nil, err
	}
	m := &piece{free: func() { s.memory.Give(memory) }}
	items := make([]item, len(numbers))
	held := int32(0)
	for i, n := range numbers {
		it := s.item(int(n))
		if it.bad == nil {
			at := x.Samples[n].Offset - from
			it.data, it.memory = data[at:at+x.Samples[n].Size], m
			held++
		}
		items[i] = it
	}
	if m.items.Store(held); held == 0 {
		m.free()
	}
	return items, nil
}

// loadEach reads the samples with the given numbers, one by one.
func (s *sequence) loadEach(numbers []int32) ([]item, error) {
	items := make([]item, len(numbers))
	for i, n := range numbers {
		it := s.item(int(n))
		sample := s.index.Samples[n]
		switch {
		case it.bad != nil:
		case s.index.Held != nil:
			it.data = s.index.Held[n]
		default:
			data, err := s.archive.Shards[sample.Shard].Read(sample)
			if bad := (*Error)(nil); errors.As(err, &bad) && bad.Kind == ErrBadMember {
				it.bad = bad
			} else if err != nil {
				drop(items)
				return nil, err
			} else {
				it.hold(s.memory, data)
			}
		}
		items[i] = it
	}
	return items, nil
}

// item returns a sample without its data.
func (s *sequence) item(number int) item {
	return itemOf(s.archive, number, s.index.Samples[number], s.index.Bad[number])
}
