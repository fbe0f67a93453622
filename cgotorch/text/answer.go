package text

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// answer is the state of one Generate. The device is one step ahead of the host: while the host
// reads a token, the device computes the next one.
type answer struct {
	c      *Conversation
	o      GenerateOptions
	f      features
	most   int     // tokens of the answer
	prompt []int64 // the conversation before the answer
	kept   int     // tokens that the cache had before
	made   []int64 // tokens of the answer that the host knows
	mask   []bool  // that of the token to be read, or nil
	ahead  bool    // the layers have been given the last token that was sampled
	late   *cgotorch.HostRead
	err    error // of a step ahead, for the next call
	text   *answerText
}

func (c *Conversation) newAnswer(prompt []int64, o GenerateOptions) (*answer, error) {
	a := &answer{c: c, prompt: slices.Clone(prompt), kept: len(prompt)}
	o.Bias, o.Stop = maps.Clone(o.Bias), slices.Clone(o.Stop) // the program may change them between tokens
	var err error
	if a.o, err = o.filled(c.m.generation); err == nil {
		err = a.o.fit(c.m)
	}
	if err != nil {
		return nil, err
	}
	a.f = a.o.features(c.m.d.c.vocab)
	room := c.m.context - len(prompt)
	switch {
	case len(prompt) == 0:
		return nil, refused("the prompt is empty")
	case room < 1:
		return nil, refused("the prompt has %d tokens, and Options.Context is %d, with the answer", len(prompt), c.m.context)
	}
	a.most = room
	if a.o.MaxTokens > 0 {
		a.most = min(a.o.MaxTokens, room)
	}
	for i, id := range prompt {
		if id < 0 || id >= int64(c.m.d.c.vocab) {
			return nil, refused("token %d of the prompt is %d, and the model has tokens 0 to %d", i, id, c.m.d.c.vocab-1)
		}
	}
	a.text = newAnswerText(c.m.Tokenizer, a.o.Stop)
	return a, nil
}

func (a *answer) close() { a.late.Close() }

// start runs what the cache lacks of the prompt and of the answer so far, and samples a token.
func (a *answer) start(ctx context.Context) error {
	c := a.c
	tokens := slices.Concat(a.prompt, a.made)
	keep, err := c.begin(tokens)
	if err != nil {
		return err
	}
	a.kept = min(a.kept, keep)
	rest := &promptRest{from: keep, tokens: tokens[keep:]}
	defer rest.close()
	for keep < len(tokens) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to := min(len(tokens), keep+c.lane.part)
		if err := a.part(rest, keep, to, to == len(tokens)); err != nil {
			return err
		}
		c.tokens = append(c.tokens, tokens[keep:to]...)
		keep = to
	}
	return nil
}

// promptRest is the part of a prompt that the cache lacks.
type promptRest struct {
	from   int // the position of its first token
	tokens []int64
	device *cgotorch.Tensor // Int64 [len(tokens)], from the first part on
}

func (r *promptRest) close() { r.device.Close() }

// part runs the tokens from position `from` up to `to` through the layers. Behind the last part, it
// samples a token.
func (a *answer) part(rest *promptRest, from, to int, last bool) error {
	c, l := a.c, a.c.lane
	var allowed []bool
	if last && a.f.mask {
		var err error
		if allowed, err = a.allowed(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loaded = nil
	return c.enter(from, to, func(x *cgotorch.Exec) error {
		if rest.device == nil {
			c.clear(x, from)
			rest.device = x.Keep(cgotorch.FromSlice(x, rest.tokens))
		}
		l.chooseFrequencies(x, rest.from+len(rest.tokens))
		c.long = l.long
		if last { // before the pass, because these copies wait for earlier work
			a.load(x, l, allowed)
		}
		logits := l.prompt(x, x.Narrow(rest.device, 0, from-rest.from, to-from), from, c.live(to), last)
		if last {
			l.sample(x, a.f, logits, l.results.next(x))
			l.loaded, a.late = c, l.results.read(x)
		}
		return nil
	})
}

// load writes what the answer's sampling needs into the lane. allowed is nil if there is no mask
// yet.
func (a *answer) load(x *cgotorch.Exec, l *lane, allowed []bool) {
	if allowed != nil {
		write(x, l.sampler.allowed, allowed)
	}
	l.sampler.load(x, &a.o, a.f, a.prompt, a.made)
	a.place(x, l)
}

// place moves the lane to the last token. It does not wait.
func (a *answer) place(x *cgotorch.Exec, l *lane) {
	x.FillInPlace(l.position, len(a.prompt)+len(a.made)-1)
}

// enter loads the lane for a step that begins with a token at position `at`.
func (a *answer) enter(x *cgotorch.Exec, l *lane, at int, token []int64) {
	l.chooseFrequencies(x, at+1)
	a.load(x, l, nil)
	write(x, l.token, token)
	l.loaded = a.c
}

// allowed lets the program fill the mask.
func (a *answer) allowed() ([]bool, error) {
	allowed := make([]bool, a.c.m.d.c.vocab)
	a.o.Mask(slices.Clone(a.made), allowed)
	a.mask = allowed
	if !slices.Contains(allowed, true) {
		return nil, refused("Mask allows no token after %d tokens of the answer", len(a.made))
	}
	return allowed, nil
}

// next returns the next token. On CUDA it first gives the device the step behind, so that the
// device computes while the host reads. On the CPU a step would only delay the token.
func (a *answer) next(ctx context.Context) (Token, error) {
	if err := errors.Join(a.err, a.c.open()); err != nil { // the program may have closed them meanwhile
		return Token{}, err
	}
	if ctx.Err() != nil {
		return Token{}, context.Cause(ctx)
	}
	if a.late == nil {
		if err := a.resume(ctx); err != nil {
			return Token{}, err
		}
	}
	read, at := a.late, len(a.prompt)+len(a.made) // `at` is the position of the token to be read
	defer read.Close()
	a.late, a.ahead = nil, false
	last, early := len(a.made)+1 >= a.most, a.c.m.stream.Device().IsCUDA()
	if changes := a.c.long != a.c.m.d.c.long(at+1); early && !last && !changes {
		a.err = a.step(at, nil)
	}
	select {
	case <-read.Done():
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	}
	row, err := cgotorch.Elements[float64](read)
	if err != nil {
		return Token{}, err
	}
	token, err := a.token(row, last)
	if early && err == nil && token.Reason == "" && a.late == nil && a.err == nil {
		a.err = a.resume(ctx)
	}
	return token, err
}

// token makes a Token of what the device has written: see [results].
func (a *answer) token(row []float64, last bool) (Token, error) {
	token := Token{ID: int64(row[0]), LogProb: row[1]}
	if math.IsNaN(token.LogProb) {
		a.c.forget(a.kept) // other tokens' keys may have become NaN, too
		return token, fmt.Errorf("%w: %w", serve.ErrModel, refused("the logits after %d tokens are not numbers: the weights have NaN, or %v is too narrow for the model: open it with DType float32",
			len(a.prompt)+len(a.made), a.c.m.d.dtype))
	}
	if a.mask != nil && !a.mask[token.ID] {
		return token, fmt.Errorf("%w: %w", serve.ErrModel, refused("the logits of all tokens that Mask allows after %d tokens of the answer are -Inf", len(a.made)))
	}
	told := min(mostRanked, a.c.m.d.c.vocab)
	for i := range min(a.o.Ranked, told) {
		token.Ranked = append(token.Ranked, Token{ID: int64(row[2+i]), LogProb: row[2+told+i]})
	}
	a.made = append(a.made, token.ID)
	if a.ahead {
		a.c.tokens = append(a.c.tokens, token.ID)
	}
	a.text.add(&token, slices.Contains(a.c.m.eos, token.ID) && !a.o.IgnoreEnd, last)
	return token, nil
}

// step gives the layers the token at position `at`. The lane has that token, unless the host knows
// it. If another conversation has taken the lane and the token is not known, step does nothing.
func (a *answer) step(at int, known []int64) error {
	c, l := a.c, a.c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != c && known == nil {
		return nil
	}
	return c.enter(at, at+1, func(x *cgotorch.Exec) error {
		if l.loaded != c {
			a.enter(x, l, at, known)
		}
		l.layers(x, a.f, c.live(at+1))
		if a.ahead = true; !a.f.mask {
			a.late = l.results.read(x)
		}
		return nil
	})
}

// resume enqueues what could not be enqueued before the host knew the answer's last token.
func (a *answer) resume(ctx context.Context) error {
	c, at, id := a.c, len(a.prompt)+len(a.made)-1, a.made[len(a.made)-1]
	if c.long != c.m.d.c.long(at+1) {
		return a.start(ctx)
	}
	if !a.ahead {
		if err := a.step(at, []int64{id}); err != nil {
			return err
		}
		c.tokens = append(c.tokens, id)
	}
	if !a.f.mask {
		return nil
	}
	allowed, err := a.allowed() // while the device computes the logits
	if err != nil {
		return err
	}
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.enter(at, at+1, func(x *cgotorch.Exec) error {
		if l.loaded != c { // another conversation has taken the lane: the step is made again
			a.enter(x, l, at, []int64{id})
			l.layers(x, a.f, c.live(at+1))
		}
		write(x, l.sampler.allowed, allowed)
		l.sampleMasked(x, a.f)
		a.late = l.results.read(x)
		return nil
	})
}
