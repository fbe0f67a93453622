package imageloader

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/arena"
)

// Note [Orders]
//
// The images of a .tar, a directory or a .tgz that fits into Options.Reading.ShuffleBuffer are
// permuted uniformly. In a larger .tgz, the blocks are permuted. A group is a number of blocks
// that together fill half of the shuffle buffer. The images of a group are permuted, while the
// next group is read into the other half of the buffer.
//
// If the classes of a larger .tgz are given, its first epoch streams through a shuffle buffer.
// Streaming needs no index. The first epoch streams even if there is an index. Otherwise the
// second run with the same options would not give the batches of the first run. TestEpoch_Blocks
// bounds how far the order of blocks is from uniform. bench/results/2026-11-21-h200.md has
// figures.
//
// Each rank has a contiguous part of the order and reads only its own blocks. All ranks deliver
// the same number of images. A rank replaces unusable images by usable images from the beginning
// of its part. If one rank has streamed the beginning of epoch 0 and several ranks go on, each of
// them streams. See Note [Divisions].

// sequence reads the images of one epoch in their order. See Note [Order of an epoch].
type sequence struct {
	ctx      context.Context
	archive  *archive.Archive
	index    *archive.Index
	options  Options
	memory   *arena.Arena
	from     State
	share    share
	workers  int
	streamed bool // images come in the archive's order, which only the shuffle buffer changes
	out      chan<- []item
	// missing is used with ranks, after all samples of the rank are sent. It receives the number of
	// images that are wanted in place of unusable images.
	missing <-chan int
	// Sometimes the reader can read on only after some of the sent items are decoded. During that
	// time the reader offers a value here.
	short   chan<- struct{}
	pending []item         // items that are not sent yet
	made    *archive.Index // the index of the archive, if streaming has made it
	order   []int32        // numbers of all samples in order, if they are read one by one
}

// mostAhead is the number of blocks that may be inflated and wait for those before them.
const mostAhead = 4096

// sendItems is the number of items that are sent at a time.
const sendItems = 16

// emit queues an item. Queued items are sent together, by `emit` or by `flush`.
func (s *sequence) emit(it item) error {
	s.pending = append(s.pending, it)
	if len(s.pending) < sendItems {
		return nil
	}
	return s.flush()
}

func (s *sequence) flush() error {
	if len(s.pending) == 0 {
		return nil
	}
	select {
	case s.out <- s.pending:
		s.pending = make([]item, 0, sendItems)
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// run sends the items of the epoch. It begins at the place from.Position and ends with the epoch
// or the context. It returns the index of the archive if it has made that index.
func (s *sequence) run() (*archive.Index, error) {
	err := s.runAny()
	if err == nil {
		err = s.flush()
	}
	drop(s.pending)
	return s.made, err
}

func (s *sequence) runAny() error {
	run := s.runSamples
	switch {
	case s.streamed:
		run = s.runStreamed
	case s.index.Blocks != nil:
		run = s.runBlocks
	}
	if !s.streamed && s.index.Held == nil {
		if err := s.archive.Unchanged(); err != nil {
			return err
		}
	}
	until := s.share.images
	if until == math.MaxInt {
		until = s.share.own
	}
	for k := s.from.Position; ; {
		if k >= until && s.share.images == math.MaxInt {
			return nil
		}
		if k >= until {
			if err := s.flush(); err != nil {
				return err
			}
			select {
			case wanted := <-s.missing:
				until = k + wanted
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
		}
		spans := s.share.spans(k, until-k)
		if err := run(spans); err != nil {
			return err
		}
		k += places(spans)
	}
}

// runSamples reads some places of the epoch's order. It is for an archive whose samples can be read
// one by one.
func (s *sequence) runSamples(spans []span) error {
	if s.order == nil {
		s.order = permutation(len(s.index.Samples), &draws{seed: s.from.Seed, epoch: s.from.Epoch}, s.options.Train)
	}
	left := make([]int32, 0, places(spans))
	for _, p := range spans {
		left = append(left, s.order[p.from:p.to]...)
	}
	parts := (len(left) + archive.BlockSamples - 1) / archive.BlockSamples
	part := func(i int) []int32 { return left[i*archive.BlockSamples : min((i+1)*archive.BlockSamples, len(left))] }
	room := newBudget(s.options.Reading.ShuffleBuffer, s.short)
	admit := func(ctx context.Context, i int) error { return room.take(ctx, s.index.Bytes(part(i))) }
	load := func(i int) ([]item, error) {
		items, err := s.loadEach(part(i))
		room.settle(s.index.Bytes(part(i)), items)
		return items, err
	}
	for items, err := range inOrder(s.ctx, parts, s.workers, s.workers, admit, load, drop) {
		if err != nil {
			return err
		}
		for i, it := range items {
			if err := s.emit(it); err != nil {
				drop(items[i+1:])
				return err
			}
		}
		if err := s.flush(); err != nil { // flush, because unsent items keep their memory
			return err
		}
	}
	return nil
}

// group is some blocks whose samples are mixed.
type group struct {
	place  int     // position of the group's first sample in the epoch's order
	count  int     // number of samples
	blocks []int32 // numbers of the blocks
}

// wanted returns those places of `spans` that are in the group.
func (g group) wanted(spans []span) []span { return between(spans, g.place, g.place+g.count) }

// groups cuts the epoch's order of blocks into groups. Without shuffling, each block is a group
// of its own.
func (s *sequence) groups() []group {
	x := s.index
	d := draws{seed: s.from.Seed, epoch: s.from.Epoch}
	order := permutation(len(x.Blocks), &d, s.options.Train)
	var groups []group
	place, bytes := 0, 0
	for i, n := range order {
		b := x.Blocks[n]
		if i == 0 || !s.options.Train || bytes+b.Bytes() > s.options.Reading.ShuffleBuffer/2 {
			groups = append(groups, group{place: place})
			bytes = 0
		}
		g := &groups[len(groups)-1]
		g.blocks = append(g.blocks, n)
		g.count += b.Count
		place += b.Count
		bytes += b.Bytes()
	}
	return groups
}

// loading is a block that is to be read. It says which samples of the block are wanted.
type loading struct {
	group   int // index of the block's group
	block   archive.Block
	at      int     // the block's first sample has this index in the group
	numbers []int32 // numbers of the wanted samples
}

// runBlocks reads some places of the epoch's order. It is for an archive that is inflated block by
// block.
func (s *sequence) runBlocks(spans []span) error {
	groups := slices.DeleteFunc(s.groups(), func(g group) bool { return len(g.wanted(spans)) == 0 })
	orders := make([][]int32, len(groups))
	var plan []loading
	for i, g := range groups {
		d := draws{seed: s.from.Seed, epoch: s.from.Epoch, what: forGroups, i: uint64(g.place) << 20}
		orders[i] = permutation(g.count, &d, s.options.Train)
		wanted := make([]bool, g.count)
		for _, p := range g.wanted(spans) {
			for _, j := range orders[i][p.from-g.place : p.to-g.place] {
				wanted[j] = true
			}
		}
		at := 0
		for _, n := range g.blocks {
			l := loading{group: i, block: s.index.Blocks[n], at: at}
			for j := range l.block.Count {
				if wanted[at+j] {
					l.numbers = append(l.numbers, int32(l.block.First+j))
				}
			}
			at += l.block.Count
			if len(l.numbers) > 0 {
				plan = append(plan, l)
			}
		}
	}

	room := newBudget(s.options.Reading.ShuffleBuffer, s.short)
	admit := func(ctx context.Context, i int) error { return room.take(ctx, plan[i].block.Bytes()) }
	load := func(i int) ([]item, error) {
		items, err := s.loadBlock(plan[i].block, plan[i].numbers)
		room.settleBlock(plan[i].block.Bytes(), items)
		return items, err
	}
	next := 0 // index in `plan` of the block that comes next
	var items []item
	defer func() { drop(items) }()
	// While the images of a group are sent, the next group is inflated. Only its memory limits it.
	for loaded, err := range inOrder(s.ctx, len(plan), s.workers, min(len(plan), mostAhead), admit, load, drop) {
		if err != nil {
			return err
		}
		l := plan[next]
		g := groups[l.group]
		if items == nil {
			items = make([]item, g.count)
		}
		for i, n := range l.numbers {
			items[l.at+int(n)-l.block.First] = loaded[i]
		}
		next++
		if next < len(plan) && plan[next].group == l.group {
			continue
		}
		for _, p := range g.wanted(spans) {
			for _, j := range orders[l.group][p.from-g.place : p.to-g.place] {
				it := &items[j]
				sent := *it
				it.memory = nil
				if err := s.emit(sent); err != nil {
					return err
				}
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		items = nil
	}
	return nil
}

// errSent ends a pass through an archive after the last image that is wanted.
var errSent = errors.New("all images are sent")

// runStreamed goes through an archive from its start, and sends some places of the epoch's order.
// It also reads the images of other places. It needs them, because a draw from the shuffle buffer
// depends on all items added before. Several ranks know the index, so they need not read to the
// end.
func (s *sequence) runStreamed(spans []span) error {
	b := s.archive.NewIndexer()
	buffer := shuffleBuffer{limit: s.options.Reading.ShuffleBuffer, draws: draws{seed: s.from.Seed, epoch: s.from.Epoch}}
	room := newBudget(s.options.aside(), s.short) // does not count the items in the shuffle buffer
	place := 0
	defer func() { drop(buffer.items) }()
	emit := func(it item) error {
		for len(spans) > 0 && place >= spans[0].to {
			spans = spans[1:]
		}
		if len(spans) == 0 && s.options.Ranks.World > 1 {
			it.memory.release()
			return errSent
		}
		place++
		if len(spans) == 0 || place <= spans[0].from {
			it.memory.release()
			return nil
		}
		if !room.try(len(it.data)) {
			err := s.flush()
			if err == nil {
				err = room.take(s.ctx, len(it.data))
			}
			if err != nil {
				it.memory.release()
				return err
			}
		}
		room.charge(&it)
		return s.emit(it)
	}
	for _, shard := range s.archive.Shards {
		err := b.Stream(s.ctx, shard, func(number int, image archive.Sample, bad *Error, data []byte) error {
			it := itemOf(s.archive, number, image, bad)
			if bad == nil {
				it.hold(s.memory, data)
			}
			if !s.options.Train {
				return emit(it)
			}
			if buffer.add(it); buffer.full() {
				return emit(buffer.draw())
			}
			return nil
		})
		if err == errSent {
			return nil
		}
		if err != nil {
			return err
		}
	}
	for len(buffer.items) > 0 {
		if err := emit(buffer.draw()); err == errSent {
			return nil
		} else if err != nil {
			return err
		}
	}
	var err error
	s.made, err = b.Finish()
	return err
}
