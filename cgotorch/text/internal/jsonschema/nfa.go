package jsonschema

import "slices"

// span is a range of characters.
type span struct{ lo, hi rune }

// op is what a state of an nfa does.
type op uint8

const (
	opSet   op = iota // one character of set
	opFork            // nothing, and goes on at out and at other
	opBegin           // nothing, at the beginning of the text
	opEnd             // nothing, at the end of the text
	opMatch
)

type nfaState struct {
	op         op
	set        []span
	out, other int32
}

// nfa is a nondeterministic automaton of a regular expression.
type nfa struct {
	states []nfaState
	start  int32
}

// mostNFA bounds the states of an nfa.
const mostNFA = 1 << 12

// newNFA makes the automaton of the texts in which an expression has a match somewhere.
func (c *compiler) newNFA(at *location, r *regex) *nfa {
	b := &nfaBuilder{c: c, at: at}
	end := b.add(nfaState{op: opMatch})
	after := b.add(nfaState{op: opFork, out: end})
	b.states[after].other = b.add(nfaState{op: opSet, set: everything, out: after})
	before := b.add(nfaState{op: opFork, out: b.emit(r, after)})
	b.states[before].other = b.add(nfaState{op: opSet, set: everything, out: before})
	return &nfa{b.states, before}
}

type nfaBuilder struct {
	c      *compiler
	at     *location
	states []nfaState
}

func (b *nfaBuilder) add(s nfaState) int32 {
	b.c.spend(1)
	if len(b.states) >= mostNFA {
		panic(bad(b.at, "the expression is too large"))
	}
	b.states = append(b.states, s)
	return int32(len(b.states) - 1)
}

// emit adds the states of an expression behind which the state next follows. It returns the first.
func (b *nfaBuilder) emit(r *regex, next int32) int32 {
	b.c.spend(1)
	switch r.op {
	case reSet:
		return b.add(nfaState{op: opSet, set: r.set, out: next})
	case reBegin:
		return b.add(nfaState{op: opBegin, out: next})
	case reEnd:
		return b.add(nfaState{op: opEnd, out: next})
	case reOr:
		first := b.emit(r.parts[0], next)
		for _, part := range r.parts[1:] {
			first = b.add(nfaState{op: opFork, out: first, other: b.emit(part, next)})
		}
		return first
	case reRepeat:
		return b.emitRepeat(r, next)
	}
	for _, part := range slices.Backward(r.parts) {
		next = b.emit(part, next)
	}
	return next
}

func (b *nfaBuilder) emitRepeat(r *regex, next int32) int32 {
	first := next
	if r.most < 0 {
		loop := b.add(nfaState{op: opFork, other: next})
		b.states[loop].out = b.emit(r.parts[0], loop)
		first = loop
	}
	for i := r.least; i < r.most; i++ {
		first = b.add(nfaState{op: opFork, out: b.emit(r.parts[0], first), other: next})
	}
	for range r.least {
		first = b.emit(r.parts[0], first)
	}
	return first
}

// closure returns the states that a set reaches without a character, in order. `begin` and `end`
// say whether ^ and $ hold. `mark` has the number of the round in which a state was seen.
func (n *nfa) closure(from []int32, begin, end bool, mark []int, round int) []int32 {
	var set []int32
	stack := slices.Clone(from)
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if mark[s] == round {
			continue
		}
		mark[s], set = round, append(set, s)
		switch state := &n.states[s]; state.op {
		case opFork:
			stack = append(stack, state.other, state.out)
		case opBegin:
			if begin {
				stack = append(stack, state.out)
			}
		case opEnd:
			if end {
				stack = append(stack, state.out)
			}
		}
	}
	slices.Sort(set)
	return set
}
