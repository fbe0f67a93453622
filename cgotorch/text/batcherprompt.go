package text

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostPieces bounds the tokens of prompts in a turn, in pieces, where more prompts wait than
// answers go on.
const mostPieces = 16

// farKeys is the number of keys before a token that take as long as its products. Up to nearKeys do
// not count.
const (
	farKeys  = 6144
	nearKeys = 2048
)

// leastPass is the number of tokens that take as long as a pass of fewer: it reads all weights.
const leastPass = 128

// promptTurn chooses the pieces of prompts that one turn computes.
//
// All of them together take as long as Piece tokens beside answers that go on. They take longer
// where more prompts wait than answers go on. The shortest rest comes first in every other turn, so
// that a long prompt does not keep others waiting. The oldest comes first in the turns between.
type promptTurn struct {
	b             *Batcher
	order         []*request
	budget, least int // tokens
	any           bool
	left          *promptPiece // that beside has chosen, and that a step cannot take
}

func (b *Batcher) newPromptTurn() *promptTurn {
	b.odd = !b.odd
	t := &promptTurn{b: b, budget: b.m.lane.part, least: min(leastPass, b.o.Piece)}
	t.arrange()
	if running := len(b.byAge(true)); running > 0 {
		t.budget = b.o.Piece * max(1, min(mostPieces, len(t.order)/running))
	}
	return t
}

// arrange orders the prompts that wait now.
func (t *promptTurn) arrange() {
	t.order = t.b.byAge(false)
	if t.b.odd {
		slices.SortStableFunc(t.order, func(r, s *request) int { return cmp.Compare(r.unmade(), s.unmade()) })
	}
}

// next returns the next piece of at most `most` tokens, or nil. It takes the piece's pages. It
// waits until the device has read the piece before the last one. Requests that have given their
// pages up get them again before. `beside` a step next returns nil if such a request comes first.
// The piece then has 64, 128 and so on tokens, or fewer than 64: what lies between takes as long as
// the next of these sizes.
func (t *promptTurn) next(most int, beside bool) (*promptPiece, error) {
	for len(t.order) > 0 && t.budget >= t.least {
		r := t.order[0]
		if r.seat < 0 || r.running {
			t.order = t.order[1:]
			continue
		}
		if r.saved != nil {
			if beside {
				return nil, nil
			}
			done, err := t.b.resume(r)
			if err != nil {
				return nil, err
			}
			t.any = t.any || done > 0
			t.budget -= done
			t.order = t.order[1:]
			continue
		}
		far := 1 + float64(max(0, r.keep-nearKeys))/farKeys
		size := max(pageTokens, min(most, int(float64(t.budget)/far)))
		if full := leastOf(size, 64, 2); beside && 64 < size && size < full {
			size = full / 2
		}
		p, err := t.b.choose(r, size)
		if err != nil {
			return nil, err
		}
		if p != nil {
			t.any = true
			t.budget -= max(t.least, int(float64(p.to-p.from)*far))
			return p, nil
		}
		t.order = t.order[1:]
	}
	return nil, nil
}

// beside returns a piece that a step takes with it, or nil. Rows of a step that are `long` have the
// rotation of long sequences.
func (t *promptTurn) beside(long bool) (*promptPiece, error) {
	b := t.b
	if !b.b.takesPieces || b.o.Reproducible || t.left != nil {
		return nil, nil
	}
	t.arrange()
	if len(t.order) == 0 || b.m.d.c.long(t.order[0].length()) != long {
		return nil, nil
	}
	p, err := t.next(mostCapturedPiece, true)
	if p != nil && p.r.a.c.long != long {
		t.left, p = p, nil
	}
	return p, err
}

// stepBeside is a step with a piece of a prompt in the same pass over the weights. `first` is the
// read of the token behind the last piece.
func (b *Batcher) stepBeside(x *cgotorch.Exec, f features, n int, blocks []int, p *promptPiece) (read, first *cgotorch.HostRead) {
	a, l := p.r.a, p.r.a.c.lane
	if p.last {
		b.load(x, p.r, a.mask)
		x.FillInPlace(l.position, -1) // the step passes over the seat
	}
	read, logits := b.b.stepBeside(x, f, n, blocks, l, p.numbers, a.c.live(p.to))
	if p.last {
		a.place(x, l)
		l.sample(x, a.f, logits, l.results.next(x))
		first = l.results.read(x)
	}
	return read, first
}

// pieces enqueues the pieces of a turn that no step has taken. It reports whether there is any.
func (b *Batcher) pieces(t *promptTurn) bool {
	t.arrange()
	for {
		p, err := t.left, error(nil)
		if t.left = nil; p == nil || p.r.seat < 0 { // or a step has failed, and ended all requests
			p, err = t.next(b.m.lane.part, false)
		}
		if err == nil && p != nil {
			err = b.runPiece(p)
		}
		switch {
		case err != nil:
			b.fail(err)
			return true
		case p == nil:
			return t.any
		}
	}
}

// unmade returns how many tokens of a prompt are not computed.
func (r *request) unmade() int { return r.length() - r.keep }

// length returns how many tokens the prompt and the answer so far have.
func (r *request) length() int { return len(r.a.prompt) + len(r.a.made) }

// promptPiece is the next tokens of a prompt.
type promptPiece struct {
	r        *request
	from, to int
	last     bool    // a token is sampled behind them
	numbers  []int64 // what writePiece has written; nil for a piece that is not captured
}

// choose returns the next tokens of a prompt, at most `most`, whose pages it takes. It returns nil
// if the prompt has to wait.
func (b *Batcher) choose(r *request, most int) (*promptPiece, error) {
	tokens := r.tokens()
	if r.rest == nil && !b.begin(r, tokens) {
		return nil, nil
	}
	size := min(most, b.m.lane.part)
	if b.o.Reproducible {
		size = b.o.Piece
	}
	from, to := r.keep, min(len(tokens), r.keep+size)
	if to < len(tokens) { // pieces begin at pages
		to -= to % pageTokens
	}
	if to <= from {
		return nil, nil
	}
	if room, err := b.grow(r, from, to); err != nil || !room {
		return nil, err
	}
	p := &promptPiece{r: r, from: from, to: to, last: to == len(tokens)}
	if b.b.captures(to - from) {
		var err error
		if p.numbers, err = b.b.writePiece(b.m.stream, tokens[from:to], from); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// runPiece runs a piece through the layers.
func (b *Batcher) runPiece(p *promptPiece) error {
	r := p.r
	a, l := r.a, r.a.c.lane
	tokens := r.rest.tokens
	var read *cgotorch.HostRead
	err := b.m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		l.chooseFrequencies(x, r.rest.from+len(tokens))
		if p.last {
			b.load(x, r, a.mask)
		}
		var logits *cgotorch.Tensor
		if p.numbers != nil {
			logits = b.b.runPiece(x, l, p.numbers, a.c.live(p.to), p.last)
		} else {
			if r.rest.device == nil {
				r.rest.device = x.Keep(cgotorch.FromSlice(x, tokens))
			}
			logits = l.prompt(x, x.Narrow(r.rest.device, 0, p.from-r.rest.from, p.to-p.from), p.from, a.c.live(p.to), p.last)
		}
		if p.last {
			l.sample(x, a.f, logits, l.results.next(x))
			read = l.results.read(x)
		}
		return nil
	})
	if err == nil {
		b.ranPiece(p, read)
	}
	return err
}

// ranPiece notes that a piece is enqueued. `read` is of the token behind the last one.
func (b *Batcher) ranPiece(p *promptPiece, read *cgotorch.HostRead) {
	p.r.keep = p.to
	if p.last {
		b.began(p.r, p.r.tokens(), read)
	}
}

// load writes what a request's sampling needs into its seat.
func (b *Batcher) load(x *cgotorch.Exec, r *request, allowed []bool) {
	l := r.a.c.lane
	r.a.load(x, l, allowed)
	if !r.a.f.bias { // another request has left one
		//edge:batch-bias-of-seat TestBatcher_Answers
		x.FillInPlace(l.sampler.bias, 0)
	}
	//edge:batch-mask-of-seat TestBatcher_ResumeInOtherSeat
	r.open = false
}

// began lets a request take part in steps: its prompt is enqueued, and the token behind it.
func (b *Batcher) began(r *request, tokens []int64, read *cgotorch.HostRead) {
	r.rest.close()
	r.rest, r.running = nil, true
	r.flights++
	b.flights = append(b.flights, flight{rows: []*request{r}, read: read})
	b.b.positions[r.seat] = int64(len(tokens)) // the sampling has moved it there
	if b.o.Reproducible {
		tokens = tokens[:min(len(r.a.prompt), len(tokens)/b.o.Piece*b.o.Piece)/b.o.Piece*b.o.Piece]
	}
	b.keep(r, tokens)
}

// keep adds the whole blocks of tokens to the prefixes, unless the weights that made their keys
// have changed.
func (b *Batcher) keep(r *request, tokens []int64) {
	//edge:batch-old-weights TestBatcher_Trained
	if r.a.c.weights == b.version {
		b.prefixes.add(b.kind(r), tokens, r.a.c.tables)
	}
}

// begin shares the pages of an equal beginning with a request. It reports false if another prompt
// with a longer one is being computed: it is computed once.
func (b *Batcher) begin(r *request, tokens []int64) bool {
	c := r.a.c
	c.long, c.weights = b.m.d.c.long(len(tokens)), b.version
	b.prefixes.mu.Lock()
	defer b.prefixes.mu.Unlock()
	chain := b.prefixes.find(b.kind(r), tokens[:len(tokens)-1])
	if b.o.Reproducible {
		chain = chain[:len(chain)*pageTokens/b.o.Piece*b.o.Piece/pageTokens]
	}
	const worth = 4 * pageTokens
	for _, other := range b.rows {
		if other == nil || other == r || other.running || other.rest == nil || other.a.c.long != c.long {
			continue
		}
		common := equal(tokens[:len(tokens)-1], other.a.prompt)
		if b.o.Reproducible {
			common -= common % b.o.Piece
		}
		// A short question does not wait for a prompt that takes longer than the beginning is worth.
		if common >= len(chain)*pageTokens+worth && other.unmade() <= 4*common {
			return false
		}
	}
	b.prefixes.lend(chain, c.tables)
	r.keep = len(chain) * pageTokens
	r.rest = &promptRest{from: r.keep, tokens: tokens[r.keep:]}
	c.lane.loaded = nil
	b.mu.Lock()
	b.stats.Shared += int64(r.keep)
	b.stats.Prompts += int64(len(tokens) - r.keep)
	b.mu.Unlock()
	return true
}

// equal returns how many tokens two sequences begin with alike.
func equal(a, b []int64) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// restart lets a request's tokens be computed again as a prompt, from its seat.
func (b *Batcher) restart(r *request) {
	seat := r.seat
	b.free(r)
	r.seat, r.a.c.lane = seat, b.b.lanes[seat]
	b.rows[seat] = r
}
