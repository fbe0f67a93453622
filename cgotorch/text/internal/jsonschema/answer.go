package jsonschema

import (
	"slices"
	"sync"
)

// Answer is the way of one text through an automaton. Any number of goroutines may use it.
type Answer struct {
	m     *Masks
	space bool    // the text may begin with a space
	ends  []int64 // tokens that may end the text

	mu     sync.Mutex
	tokens []int64
	state  *State
	keys   seenKeys
}

// NewAnswer begins a text, which any token of `ends` may end. With `space` it may begin with a
// space.
func (m *Masks) NewAnswer(ends []int64, space bool) *Answer {
	return &Answer{m: m, space: space, ends: ends}
}

// Fill sets allowed[id] for each token that may come behind the tokens of an answer. All are false
// before. It sets none if the tokens are no beginning of an answer. It is fast if they go on from
// those of the last call.
func (a *Answer) Fill(tokens []int64, allowed []bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mask, state := a.read(tokens)
	expand(mask, allowed)
	if state.final {
		for _, id := range a.ends {
			if id >= 0 && id < int64(len(allowed)) {
				allowed[id] = true
			}
		}
	}
	if a.m.g.open {
		a.keys.forbid(a.m.v, mask, allowed)
	}
}

// read returns the mask and the state behind tokens.
func (a *Answer) read(tokens []int64) (bits, *State) {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	known := len(a.tokens)
	if a.state == nil || known > len(tokens) || !slices.Equal(a.tokens, tokens[:known]) {
		a.state, a.tokens, a.keys, known = a.m.start(a.space), nil, seenKeys{}, 0
	}
	for _, id := range tokens[known:] {
		a.tokens = append(a.tokens, id)
		switch {
		case slices.Contains(a.ends, id):
			if a.state = a.m.intern(nil, a.state.final); a.state.final {
				continue
			}
		case id < 0 || id >= int64(len(a.m.v.bytes)) || len(a.m.v.bytes[id]) == 0:
			a.state = a.m.intern(nil, false)
		default:
			for _, b := range a.m.v.bytes[id] {
				a.state = a.m.step(a.state, b)
			}
			if a.m.g.open && a.state.alive() && !a.keys.read(a.m.v.bytes[id]) {
				a.state = a.m.intern(nil, false)
			}
		}
	}
	a.state = a.m.renew(a.state)
	return a.m.maskOf(a.state), a.state
}

// eight has the flags of each byte of a mask.
var eight = func() (all [256][8]bool) {
	for b := range all {
		for i := range 8 {
			all[b][i] = b>>i&1 != 0
		}
	}
	return all
}()

// expand sets the flags of a mask. All are false before.
func expand(mask bits, allowed []bool) {
	for i, w := range mask {
		if w == 0 {
			continue
		}
		at := i * 64
		if at+64 > len(allowed) {
			for k := at; k < len(allowed); k++ {
				allowed[k] = allowed[k] || w>>(k-at)&1 != 0
			}
			return
		}
		for k := 0; k < 64; k += 8 {
			*(*[8]bool)(allowed[at+k:]) = eight[byte(w>>k)]
		}
	}
}
