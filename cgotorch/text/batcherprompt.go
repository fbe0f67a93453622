package text

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostPieces is the largest number of pieces between two steps, where more prompts wait than
// answers go on.
const mostPieces = 16

// farKeys is the number of keys before a token that take as long as its products. Up to nearKeys do
// not count.
const (
	farKeys  = 8192
	nearKeys = 2048
)

// leastPass is the number of tokens that take as long as a pass of fewer: it reads all weights.
const leastPass = 128

// pieces enqueues pieces of the prompts that are not computed. It reports whether there is one.
//
// All of them together take as long as Piece tokens beside answers that go on. They take longer
// where more prompts wait than answers go on. The shortest rest comes first in every other turn, so
// that a long prompt does not keep others waiting. The oldest comes first in the turns between.
func (b *Batcher) pieces() (any bool) {
	prompts, running := b.byAge(false), len(b.byAge(true))
	budget := b.m.lane.part
	if running > 0 {
		budget = b.o.Piece * max(1, min(mostPieces, len(prompts)/running))
	}
	b.odd = !b.odd
	if b.odd {
		slices.SortStableFunc(prompts, func(r, s *request) int { return cmp.Compare(r.unmade(), s.unmade()) })
	}
	least := min(leastPass, b.o.Piece)
	for _, r := range prompts {
		for budget >= least && r.seat >= 0 && !r.running {
			far := 1 + float64(max(0, r.keep-nearKeys))/farKeys
			done, err := b.piece(r, max(pageTokens, int(float64(budget)/far)))
			if err != nil {
				b.fail(err)
				return true
			}
			if done == 0 {
				break
			}
			budget -= max(least, int(float64(done)*far))
			any = true
		}
	}
	return any
}

// unmade returns how many tokens of a prompt are not computed.
func (r *request) unmade() int { return len(r.a.prompt) + len(r.a.made) - r.keep }

// piece enqueues the next tokens of a prompt, at most `most`, and samples a token behind the last
// of them. It returns how many they are. 0 means that the prompt has to wait.
func (b *Batcher) piece(r *request, most int) (int, error) {
	if r.saved != nil {
		return b.resume(r)
	}
	tokens := r.tokens()
	if r.rest == nil && !b.begin(r, tokens) {
		return 0, nil
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
		return 0, nil
	}
	if room, err := b.grow(r, from, to); err != nil || !room {
		return 0, err
	}
	last := to == len(tokens)
	read, err := b.runPiece(r, to, last)
	if err != nil {
		return 0, err
	}
	r.keep = to
	if last {
		b.began(r, tokens, read)
	}
	return to - from, nil
}

// runPiece runs tokens r.keep up to `to` through the layers.
func (b *Batcher) runPiece(r *request, to int, last bool) (read *cgotorch.HostRead, err error) {
	a, l := r.a, r.a.c.lane
	from, tokens := r.rest.from, r.rest.tokens
	var numbers []int64
	if b.b.captures(r.keep, to-r.keep) {
		if numbers, err = b.b.writePiece(b.m.stream, tokens[r.keep-from:to-from], r.keep); err != nil {
			return nil, err
		}
	}
	err = b.m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		l.turn(x, from+len(tokens))
		if last {
			b.load(x, r, a.mask)
		}
		var logits *cgotorch.Tensor
		if numbers != nil {
			logits = b.b.runPiece(x, l, numbers, a.c.live(to), last)
		} else {
			if r.rest.device == nil {
				r.rest.device = x.Keep(cgotorch.FromSlice(x, tokens))
			}
			logits = l.prompt(x, x.Narrow(r.rest.device, 0, r.keep-from, to-r.keep), r.keep, a.c.live(to), last)
		}
		if last {
			l.sample(x, a.f, logits, l.results.next(x))
			read = l.results.read(x)
		}
		return nil
	})
	return read, err
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
