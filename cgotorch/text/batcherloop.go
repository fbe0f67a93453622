package text

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Turns of a Batcher]
//
// One goroutine makes turns while there is something to do. A turn
//
//   - ends requests whose callers have left,
//   - takes the pages of requests that stay, and gives waiting requests the empty seats,
//   - lets programs fill masks,
//   - enqueues a step of all seats whose prompts are computed, with a piece of a prompt in the same
//     pass over the weights,
//   - enqueues pieces of prompts that no step has taken,
//   - reads the tokens of the turn before.
//
// So the device computes a turn while the host reads the one before. A step begins with tokens that
// the device has, and that the host may not know. If a token was the last of its answer, the step
// was in vain for its row: its key lies behind the answer's end. The row's pages may have a new
// owner by then, whose work is behind the step on the stream. A request with a mask needs all
// tokens before its next step. So turns with such a request read first.
//
// Prefixes that only the tree holds go first if the pool lacks a page. Then the youngest request
// yields: it takes part in no further step. Its pages are copied to host memory and given back when
// the host has read its tokens. Older requests sit out until there is a page. The oldest one thus
// always gets its pages.

// flight is work whose tokens the host has not read.
type flight struct {
	rows []*request // by row of the result; nil for those without a token
	read *cgotorch.HostRead
}

func (b *Batcher) loop() {
	defer close(b.ended)
	for {
		b.mu.Lock()
		closing := b.closing || b.m.closed.Load()
		b.mu.Unlock()
		if closing {
			b.stop()
			return
		}
		if !b.turn() {
			b.rest()
		}
	}
}

// rest waits for news. Pages that conversations outside have may come back without any.
func (b *Batcher) rest() {
	wait := time.Hour
	if b.busy() {
		wait = 5 * time.Millisecond
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-b.news:
	case <-timer.C:
	}
}

// busy reports whether requests wait or have a seat.
func (b *Batcher) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0 || slices.ContainsFunc(b.rows, func(r *request) bool { return r != nil })
}

// stop ends all requests.
func (b *Batcher) stop() {
	err := fmt.Errorf("the Batcher or its model is closed: %w", cgotorch.ErrClosed)
	b.mu.Lock()
	b.closing = true
	waiting := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	for _, f := range b.flights {
		f.read.Close()
	}
	b.flights = nil
	for _, r := range slices.Concat(waiting, b.rows) {
		if r != nil {
			b.end(r, err)
		}
	}
	b.prefixes.clear()
	b.note()
}

// turn makes one turn: see Note [Turns of a Batcher]. It reports whether anything was done.
func (b *Batcher) turn() bool {
	b.leave()
	if !b.withLane(func() {
		b.preemptYielding()
		b.admit()
	}) {
		return true
	}
	b.note()
	if b.masked() {
		b.read(len(b.flights))
	}
	b.fillMasks()
	before, stepped, pieces := len(b.flights), false, false
	if !b.withLane(func() {
		prompts := b.newPromptTurn()
		stepped = b.step(prompts)
		pieces = b.pieces(prompts)
	}) {
		return true
	}
	if !b.early {
		before = len(b.flights)
	}
	b.read(before)
	yielding := slices.ContainsFunc(b.rows, func(r *request) bool { return r != nil && r.yields })
	return stepped || pieces || before > 0 || yielding
}

// withLane runs fn while nobody else uses or closes the model. It reports false if the model is
// closed.
func (b *Batcher) withLane(fn func()) bool {
	b.m.lane.mu.Lock()
	defer b.m.lane.mu.Unlock()
	if b.m.closed.Load() {
		return false
	}
	fn()
	return true
}

// note writes what Stats tells of the loop's state.
func (b *Batcher) note() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.PrefixPages, b.stats.Running = b.prefixes.pages(), 0
	for _, r := range b.rows {
		if r != nil {
			b.stats.Running++
		}
	}
}

// leave ends the requests that nobody waits for.
func (b *Batcher) leave() {
	gone := func(r *request) bool { return r.left.Load() || r.ctx.Err() != nil }
	b.mu.Lock()
	var left []*request
	b.waiting = slices.DeleteFunc(b.waiting, func(r *request) bool {
		if !gone(r) {
			return false
		}
		left = append(left, r)
		return true
	})
	b.mu.Unlock()
	for _, r := range slices.Concat(left, b.rows) {
		switch {
		case r == nil:
		//edge:batch-left-gives-seat TestBatcher_LeaveEachToken
		case r.left.Load():
			b.end(r, nil)
		case r.ctx.Err() != nil:
			b.end(r, context.Cause(r.ctx))
		}
	}
}

// end takes a request out of its seat, and tells the caller why if err is not nil. Whole blocks of
// its tokens become prefixes.
func (b *Batcher) end(r *request, err error) {
	if err == nil && r.running && !b.o.Reproducible {
		all := r.tokens()
		//edge:batch-last-key-missing TestBatcher_GoOn
		b.keep(r, all[:len(all)-1])
	}
	b.free(r)
	r.saved.close(b)
	r.saved = nil
	if err != nil {
		r.tell(Token{}, err)
	}
}

// free takes a request out of its seat, and gives its pages back.
func (b *Batcher) free(r *request) {
	for i := range r.a.c.tables {
		//edge:batch-ended-gives-pages TestBatcher_LeaveEachToken
		r.a.c.tables[i].cut(b.m.pages, 0)
	}
	if r.rest != nil {
		r.rest.close()
		r.rest = nil
	}
	if r.seat >= 0 {
		b.b.place(r.seat, -1)
		b.rows[r.seat] = nil
		r.seat = -1
	}
	r.running, r.keep = false, 0
}

// fail ends all requests that have a seat, because work on the device has failed.
func (b *Batcher) fail(err error) {
	for _, f := range b.flights {
		f.read.Close()
	}
	b.flights = nil
	for _, r := range b.rows {
		if r != nil {
			b.end(r, err)
		}
	}
	b.prefixes.clear()
	//edge:batch-failed-positions TestBatcher_FailedWork
	b.b.changed = true // the work that failed may have moved positions
}

// kind is what the prefixes of a request are kept by. Keys of a long sequence are turned otherwise.
func (b *Batcher) kind(r *request) int {
	//edge:batch-kind-of-request TestBatcher_GoOn
	if r.a.c.long {
		return 1
	}
	return 0
}

// admit gives waiting requests the empty seats. Those that have begun go first. Then come the
// highest priority, the caller with the fewest answers in seats, and the oldest.
func (b *Batcher) admit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.m.d.version(); b.version != now {
		b.prefixes.clear()
		b.version = now
	}
	for len(b.waiting) > 0 {
		seat := slices.Index(b.rows, nil)
		if seat < 0 {
			return
		}
		r := slices.MinFunc(b.waiting, b.compare)
		if !b.fits(r) {
			return
		}
		b.waiting = slices.DeleteFunc(b.waiting, func(other *request) bool { return other == r })
		b.rows[seat] = r
		r.seat, r.a.c.lane = seat, b.b.lanes[seat]
		if r.admitted == 0 {
			b.admitted++
			r.admitted = b.admitted
		}
	}
}

// compare orders waiting requests.
func (b *Batcher) compare(r, s *request) int {
	served := func(r *request) (n int) {
		for _, other := range b.rows {
			if other != nil && other.a.o.Caller == r.a.o.Caller {
				n++
			}
		}
		return n
	}
	begun := func(r *request) int {
		if r.admitted == 0 {
			return math.MaxInt
		}
		return r.admitted
	}
	//edge:batch-priority TestBatcher_Order
	return cmp.Or(cmp.Compare(begun(r), begun(s)), cmp.Compare(s.a.o.Priority, r.a.o.Priority), served(r)-served(s), r.arrived.Compare(s.arrived))
}

// read reads the tokens of the oldest n flights. It waits for the device.
func (b *Batcher) read(n int) {
	//edge:batch-failed-flights TestBatcher_FailedWork
	for range min(n, len(b.flights)) { // work that failed has none
		f := b.flights[0]
		<-f.read.Done()
		row, err := cgotorch.Elements[float64](f.read)
		f.read.Close()
		if err != nil {
			b.fail(err)
			return
		}
		b.flights = b.flights[1:]
		width := len(row) / len(f.rows)
		for i, r := range f.rows {
			if r != nil {
				b.token(r, row[i*width:(i+1)*width])
			}
		}
	}
}

// preemptYielding takes the pages of requests that yield.
func (b *Batcher) preemptYielding() {
	for _, r := range b.rows {
		//edge:batch-stays-until-read TestBatcher_PreemptEachToken
		if r != nil && r.yields && r.flights == 0 {
			b.preempt(r)
		}
	}
}

// token gives a request the token that the device has computed for it.
func (b *Batcher) token(r *request, row []float64) {
	r.flights--
	if r.seat < 0 { // it has ended meanwhile
		return
	}
	if math.IsNaN(row[1]) { // keys may have become NaN, also those of prefixes
		//edge:batch-nan-prefixes TestBatcher_NaN
		b.prefixes.clear()
	}
	t, err := r.a.token(row, len(r.a.made)+1 >= r.a.most)
	if err != nil {
		b.end(r, err)
		return
	}
	//edge:batch-mask-of-each-token TestBatcher_Answers
	r.masked = false
	b.count(r, t.Reason != "")
	r.tell(t, nil)
	if t.Reason != "" {
		b.end(r, nil)
	}
}
