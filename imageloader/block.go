package imageloader

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/internal/inflate"
)

// block is a run of samples that are read together. In a .tgz, these are the samples that begin
// in one segment. A segment is a part of the .tgz that can be inflated alone.
type block struct {
	first, count int   // number of the first sample, and number of samples
	from, to     int64 // offsets in the shard's content: of the first sample, and of the end of the last sample
}

// bytes returns the memory that a block takes while it is in use.
func (b block) bytes() int { return int(b.to - b.from) }

const (
	blockSamples = 16      // samples of a block, in a shard whose samples are read one by one
	blockBytes   = 1 << 20 // approximate bytes of a block, in a shard whose samples are read one by one

	// Here a segment is a part of a .tgz that can be inflated alone. If a segment is longer than
	// blockMost, and longer than half the shuffle buffer, it is cut into several blocks. Without this
	// limit, a compressor or an attacker could decide how much memory a block takes. To read one of
	// these blocks, the loader inflates the segment from its beginning.
	blockMost = 16 << 20
)

// blocks cuts the samples into blocks. A block has more than `most` bytes only if its single
// sample is that large.
func (a *archive) blocks(x *index, most int64) []block {
	var blocks []block
	last, segment := int32(-1), 0
	for i, s := range x.samples {
		at := 0
		shard := a.shards[s.shard]
		content := shard.content.Load()
		if content != nil {
			at = content.Index().SegmentAt(s.offset)
		}
		end := s.offset
		if x.bad[i] == nil {
			end += max(s.size, 0)
		}
		begins := len(blocks) == 0 || s.shard != last || at != segment || end-blocks[len(blocks)-1].from > most
		if !begins && content == nil {
			b := blocks[len(blocks)-1]
			begins = b.count == blockSamples || b.to-b.from > blockBytes
		}
		if begins {
			blocks = append(blocks, block{first: i, from: s.offset})
			last, segment = s.shard, at
		}
		b := &blocks[len(blocks)-1]
		b.count++
		b.to = max(b.to, end)
	}
	for i := range blocks {
		blocks[i].to = max(blocks[i].to, blocks[i].from)
	}
	return blocks
}

// loadBlock reads those samples of the block b that have the given numbers.
func (s *sequence) loadBlock(b block, numbers []int32) ([]item, error) {
	shard := s.archive.shards[s.index.samples[b.first].shard]
	if content := shard.content.Load(); content != nil {
		return s.inflateBlock(shard, content, b, numbers)
	}
	return s.loadEach(numbers)
}

// inflateBlock reads those samples of the block b that have the given numbers. It inflates the
// bytes from the first to the last of these samples at once.
func (s *sequence) inflateBlock(shard *shard, content *inflate.File, b block, numbers []int32) ([]item, error) {
	x := s.index
	from, to := b.to, b.from
	for _, n := range numbers {
		if x.bad[int(n)] == nil {
			from, to = min(from, x.samples[n].offset), max(to, x.samples[n].offset+x.samples[n].size)
		}
	}
	from = min(from, to)
	m := &piece{}
	var buf []byte
	data, err := content.Inflate(from, to, func(n int) []byte {
		buf = s.memory.Take(n)
		return buf
	})
	if err != nil {
		s.memory.Give(buf)
		return nil, s.complete(shard, err)
	}
	items := make([]item, len(numbers))
	held := int32(0)
	for i, n := range numbers {
		it := s.item(int(n))
		if it.bad == nil {
			at := x.samples[n].offset - from
			it.data, it.memory = data[at:at+x.samples[n].size], m
			held++
		}
		items[i] = it
	}
	m.free = func() { s.memory.Give(buf) }
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
		sample := s.index.samples[n]
		switch {
		case it.bad != nil:
		case s.index.held != nil:
			it.data = s.index.held[n]
		default:
			data, err := s.archive.shards[sample.shard].read(sample.entry(), s.memory)
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
	x := s.index
	sample := x.samples[number]
	return item{number: number, shard: s.archive.shards[sample.shard], member: int(sample.member), name: sample.name, label: sample.label, bad: x.bad[number]}
}

// complete puts an error of a shard into an *Error that names the shard.
func (s *sequence) complete(shard *shard, err error) error {
	if full := (*Error)(nil); errors.As(err, &full) {
		return err
	}
	return fmt.Errorf("%w", shard.explain(s.ctx, err))
}
