package text

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// step enqueues the next token of all requests whose prompts are computed. It reports whether there
// is one.
func (b *Batcher) step(prompts *promptTurn) (stepped bool) {
	b.compact()
	for _, long := range []bool{false, true} { // sequences of one step have one rotation
		if b.stepOf(long, prompts) {
			stepped = true
		}
	}
	return stepped
}

// stepOf is step for long sequences, or for short ones: see [decoderConfig.long].
func (b *Batcher) stepOf(long bool, prompts *promptTurn) bool {
	rows, f, err := b.ready(long)
	last := -1
	for i, r := range rows {
		if r != nil {
			last = i
		}
	}
	if err == nil && last < 0 {
		return false
	}
	var piece *promptPiece
	if err == nil {
		piece, err = prompts.beside(long)
	}
	n, blocks := b.sizes(rows, last+1)
	for i := range b.rows {
		if rows[i] == nil {
			//edge:batch-rows-passed-over TestBatcher_Answers
			b.b.place(i, -1)
		}
	}
	if err == nil {
		//edge:batch-positions-uploaded TestBatcher_Early
		err = b.b.upload(b.m.stream)
	}
	var read, first *cgotorch.HostRead
	if err == nil {
		err = b.m.stream.Do(func(x *cgotorch.Exec) (err error) {
			x = plain(x)
			b.b.chooseFrequencies(x, b.lengthOf(long))
			if f.mask {
				b.masks(x, rows)
			}
			if piece == nil {
				read = b.b.step(x, f, n, blocks, b.o.Reproducible)
				return nil
			}
			read, first = b.stepBeside(x, f, n, blocks, piece)
			return nil
		})
	}
	if err != nil {
		b.fail(err)
		return false
	}
	for _, r := range rows {
		if r != nil {
			r.flights++
		}
	}
	b.flights = append(b.flights, flight{rows: rows, read: read})
	if piece != nil {
		b.ranPiece(piece, first)
	}
	return true
}

// lengthOf returns the length of a sequence that is long, or short.
func (b *Batcher) lengthOf(long bool) int {
	if long {
		return b.m.d.c.context
	}
	return 1
}

// ready returns the requests of a step by seat, and what their sampling needs together.
func (b *Batcher) ready(long bool) (rows []*request, f features, err error) {
	rows = make([]*request, len(b.rows))
	greedy := false
	for _, r := range b.byAge(true) {
		c := r.a.c
		at := len(r.a.prompt) + len(r.a.made) + r.flights - 1 // the position of the token that the step begins with
		if c.long != long || r.yields || len(r.a.made)+r.flights >= r.a.most {
			continue
		}
		//edge:batch-long-computed-again TestBatcher_Answers
		if b.m.d.c.long(at+1) != long { // all keys are turned anew
			if r.flights == 0 {
				b.restart(r)
			}
			continue
		}
		room, err := b.grow(r, at, at+1)
		if err != nil {
			return rows, f, err
		}
		if !room {
			continue
		}
		rows[r.seat] = r
		b.b.place(r.seat, int64(at))
		f, greedy = f.with(r.a.f), greedy || r.a.o.Greedy
	}
	f.top = f.top || f.draw && greedy
	return rows, f, nil
}

// byAge returns the requests in seats whose prompts are computed, or the others, the oldest first.
func (b *Batcher) byAge(running bool) (all []*request) {
	for _, r := range b.rows {
		if r != nil && r.running == running {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(r, s *request) int { return cmp.Compare(r.admitted, s.admitted) })
	return all
}

// with returns what two answers need together.
func (f features) with(g features) features {
	return features{
		draw: f.draw || g.draw, top: f.top || g.top, filter: f.filter || g.filter, penalties: f.penalties || g.penalties,
		bias: f.bias || g.bias, mask: f.mask || g.mask, ranked: f.ranked || g.ranked,
	}
}

// sizes returns the number of rows and of blocks with which a step runs.
func (b *Batcher) sizes(rows []*request, n int) (int, []int) {
	var blocks []int
	for i, s := range b.b.spans {
		longest := 1
		for _, r := range rows {
			if r != nil {
				longest = max(longest, len(r.a.c.tables[i].pages[0]))
			}
		}
		if b.o.Reproducible {
			longest = s.width
		} else if b.early {
			longest = blocksFor(longest, s.width)
		}
		blocks = append(blocks, longest)
	}
	return b.size(n), blocks
}

// size returns the number of rows of a step that has room for n.
func (b *Batcher) size(n int) int {
	switch {
	case b.o.Reproducible:
		return b.o.MaxBatch
	case b.early:
		return sizeOf(n, b.o.MaxBatch)
	}
	return n
}

// masks gives the device the masks of rows. Those without one allow all tokens.
func (b *Batcher) masks(x *cgotorch.Exec, rows []*request) {
	for _, r := range rows {
		switch {
		case r == nil:
		case r.a.f.mask:
			write(x, r.a.c.lane.sampler.allowed, r.a.mask)
		case !r.open:
			x.FillInPlace(r.a.c.lane.sampler.allowed, 1)
			r.open = true
		}
	}
}

// compact moves requests from the last seats to empty ones, if a step then has fewer rows.
func (b *Batcher) compact() {
	for {
		last, count := -1, 0
		for i, r := range b.rows {
			if r != nil {
				last = i
				count++
			}
		}
		to := slices.Index(b.rows, nil)
		if to < 0 || to > last || !b.rows[last].running || b.size(count) >= b.size(last+1) {
			return
		}
		r := b.rows[last]
		if err := b.m.stream.Do(func(x *cgotorch.Exec) error {
			b.b.move(plain(x), last, to)
			return nil
		}); err != nil {
			b.fail(err)
			return
		}
		b.rows[to], b.rows[last] = r, nil
		b.b.place(to, b.b.positions[last])
		b.b.place(last, -1)
		b.b.changed = true
		r.seat, r.a.c.lane = to, b.b.lanes[to]
		b.b.lanes[to].loaded = r.a.c
	}
}
