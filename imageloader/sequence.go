package imageloader

import (
	"context"
	"errors"
	"io"
	"time"
)

// item is one place in an epoch's sequence of images.
type item struct {
	number int // of the sample, in the archive's order
	member int
	name   string
	label  int32
	data   []byte // the compressed image
	bad    *Error // the image is not usable, and data nil
	pooled bool   // data goes back to the memory pool
}

// sequence reads the images of one epoch in their order. See Note [Order of an epoch].
type sequence struct {
	archive *archive
	index   *index
	options Options
	memory  *memoryPool
	stats   *statistics
	from    State
}

// run sends the items from place from.Position on to out, until the epoch or ctx ends. It returns how many images the
// whole epoch has.
func (s *sequence) run(ctx context.Context, out chan<- item) (int, error) {
	if s.index.random() {
		return s.index.length, s.runIndexed(ctx, out)
	}
	return s.runStreamed(ctx, out)
}

// runIndexed reads an archive whose members can be read in any order.
func (s *sequence) runIndexed(ctx context.Context, out chan<- item) error {
	x := s.index
	at := func(place int) int { return place }
	if s.options.shuffled() {
		order := permutation(x.length, &draws{seed: s.from.Seed, epoch: s.from.Epoch})
		at = func(place int) int { return int(order[place]) }
	}
	if s.archive.file != nil && x.held == nil {
		if err := s.archive.unchanged(); err != nil {
			return err
		}
	}
	for place := s.from.Position; place < x.length; place++ {
		it, err := s.load(at(place))
		if err != nil {
			return err
		}
		if err := send(ctx, out, it); err != nil {
			return err
		}
	}
	return nil
}

// load reads one sample of an indexed archive.
func (s *sequence) load(number int) (item, error) {
	x, sample := s.index, s.index.samples[number]
	it := item{number: number, member: int(sample.member), name: sample.name, label: sample.label, bad: x.bad[number]}
	if it.bad != nil {
		return it, nil
	}
	if x.held != nil {
		it.data = x.held[number]
		return it, nil
	}
	return it, s.fill(&it, func() ([]byte, error) { return s.archive.read(sample.entry(), s.memory.take) })
}

// fill sets the data of an item. An error about that image alone becomes the item's own.
func (s *sequence) fill(it *item, read func() ([]byte, error)) error {
	begin := time.Now()
	data, err := read()
	s.stats.read(time.Since(begin))
	if bad := (*Error)(nil); errors.As(err, &bad) && bad.Kind == ErrBadMember {
		it.bad = bad
		return nil
	}
	it.data, it.pooled = data, true
	return err
}

// runStreamed reads an archive that has to be inflated from its start. The places before from.Position are read too, since
// what is drawn from the shuffle buffer depends on all that went in, but not sent.
func (s *sequence) runStreamed(ctx context.Context, out chan<- item) (int, error) {
	stream, err := s.archive.open(ctx)
	if err != nil {
		return 0, err
	}
	defer stream.close()
	place := 0
	emit := func(it item) error {
		place++
		if place <= s.from.Position {
			s.memory.give(it)
			return nil
		}
		return send(ctx, out, it)
	}
	buffer := shuffleBuffer{limit: s.options.ShuffleBuffer, draws: draws{seed: s.from.Seed, epoch: s.from.Epoch}}
	for number := 0; ; {
		it, err := s.nextStreamed(stream)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		it.number = number
		number++
		if !s.options.shuffled() {
			err = emit(it)
		} else if buffer.add(it); buffer.full() {
			err = emit(buffer.draw())
		}
		if err != nil {
			return 0, err
		}
	}
	for len(buffer.items) > 0 {
		if err := emit(buffer.draw()); err != nil {
			return 0, err
		}
	}
	return place, nil
}

// nextStreamed reads up to the next sample.
func (s *sequence) nextStreamed(stream stream) (item, error) {
	begin := time.Now()
	defer func() { s.stats.read(time.Since(begin)) }()
	for {
		e, err := stream.next()
		if err != nil {
			return item{}, err
		}
		v, err := s.archive.judge(e, s.options, s.index.classes)
		if err != nil {
			return item{}, err
		}
		if !v.sample {
			continue
		}
		it := item{member: e.number, name: e.name, label: v.label, bad: v.bad}
		if it.bad == nil {
			if it.data, err = stream.content(s.memory.take); err != nil {
				return item{}, err
			}
			it.pooled = true
		}
		return it, nil
	}
}

func send(ctx context.Context, out chan<- item, it item) error {
	select {
	case out <- it:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
