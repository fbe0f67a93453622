package tokenizer

import "unicode/utf8"

// instruction is a step of a pattern. See Note [Patterns].
type instruction struct {
	op operation
	// set has the characters of opSet and opLoop. Of opSplit it has those with which `next` can
	// begin, or is nil. Of opAssert it has those of words.
	set      *runeSet
	min, max int  // of opLoop: how many characters; max is -1 without a limit
	mode     mode // of opLoop
	next     int  // of opSplit, opJump, opLook and opAtomic: where it goes
	other    int  // of opSplit: where it goes if `next` fails; of opLook and opAtomic: behind the part
	assert   byte // of opAssert: the letter of the assertion
	negative bool // of opLook
	back     int  // of opLook: how many characters before the place the part begins
}

type operation uint8

const (
	opMatch operation = iota
	opSet
	opLoop // a set, several times
	opSplit
	opJump
	opAssert
	opLook
	opAtomic
)

type mode uint8

const (
	greedy mode = iota
	lazy
	possessive
)

// matcher runs a pattern over one text.
type matcher struct {
	program []instruction
	text    string
	stack   []retry
	steps   int
	// patience is the number of steps after which the failed states are noted.
	patience int
	failed   map[state]struct{} // states that lead to no match
}

// retry is a state to which the matcher goes back: at `pc`, with the places from `low` to `high`.
// The greedy mode begins at `high`, the lazy mode at `low`.
type retry struct {
	pc, low, high int
	mode          mode
}

type state struct{ pc, at int }

// patience is the number of steps for one character without notes of failed states. Few texts need
// more.
const patience = 20_000

// find returns the first match that begins at `from` or later.
func (p *pattern) find(m *matcher, from int) (begin, end int, ok bool) {
	m.program = p.program
	m.failed, m.steps = nil, 0
	for at := from; at <= len(m.text); {
		m.patience = patience + 64*(at-from)
		if at < len(m.text) && p.first[m.text[at]] || p.empty {
			if end, ok := m.run(0, at); ok {
				return at, end, true
			}
		}
		_, width := utf8.DecodeRuneInString(m.text[at:])
		at += max(width, 1)
	}
	return 0, 0, false
}

// run matches the program from `pc` at a place. It returns where the match ends.
func (m *matcher) run(pc, at int) (end int, ok bool) {
	base := len(m.stack)
	defer func() { m.stack = m.stack[:base] }()
	for {
		if m.steps++; m.steps > m.patience && !m.fresh(pc, at) {
			if pc, at, ok = m.retreat(base); !ok {
				return 0, false
			}
			continue
		}
		in, good := &m.program[pc], true
		switch in.op {
		case opMatch:
			return at, true
		case opSet:
			r, width := m.rune(at)
			if good = width > 0 && in.set.has(r); good {
				at, pc = at+width, pc+1
			}
		case opLoop:
			at, good = m.loop(in, pc, at)
			pc++
		case opSplit:
			r, width := m.rune(at)
			if in.set != nil && (width == 0 || !in.set.has(r)) {
				pc = in.other
				break
			}
			m.stack = append(m.stack, retry{in.other, at, at, greedy})
			pc = in.next
		case opJump:
			pc = in.next
		case opAssert:
			good = m.holds(in, at)
			pc++
		case opLook:
			good = m.look(in, at) != in.negative
			pc = in.other
		case opAtomic:
			at, good = m.part(in.next, at)
			pc = in.other
		}
		if !good {
			if pc, at, ok = m.retreat(base); !ok {
				return 0, false
			}
		}
	}
}

// fresh notes a state. It reports whether the state is new: else it has failed before.
func (m *matcher) fresh(pc, at int) bool {
	if m.failed == nil {
		m.failed = map[state]struct{}{}
	}
	before := len(m.failed)
	m.failed[state{pc, at}] = struct{}{}
	return len(m.failed) > before
}

// retreat returns the last state that is left to try.
func (m *matcher) retreat(base int) (pc, at int, ok bool) {
	if len(m.stack) == base {
		return 0, 0, false
	}
	top := &m.stack[len(m.stack)-1]
	pc = top.pc
	if top.mode == lazy {
		at = top.low
		_, width := utf8.DecodeRuneInString(m.text[at:])
		top.low += max(width, 1)
	} else {
		at = top.high
		_, width := utf8.DecodeLastRuneInString(m.text[:at])
		top.high -= max(width, 1)
	}
	if top.low > top.high {
		m.stack = m.stack[:len(m.stack)-1]
	}
	return pc, at, true
}

// rune returns the character at a place. The width is 0 at the end of the text.
func (m *matcher) rune(at int) (rune, int) {
	if at < len(m.text) && m.text[at] < utf8.RuneSelf {
		return rune(m.text[at]), 1
	}
	return utf8.DecodeRuneInString(m.text[at:])
}

// loop runs opLoop. The states that are left to try go on the stack.
func (m *matcher) loop(in *instruction, pc, at int) (int, bool) {
	count, low := 0, at
	for ; count != in.max; count++ {
		if count == in.min {
			low = at
		}
		r, width := m.rune(at)
		if width == 0 || !in.set.has(r) {
			break
		}
		at += width
	}
	switch {
	case count < in.min:
		return at, false
	case count == in.min || in.mode == possessive:
		return at, true
	case in.mode == lazy:
		_, width := m.rune(low)
		m.stack = append(m.stack, retry{pc + 1, low + width, at, lazy})
		return low, true
	case m.program[pc+1].op != opMatch:
		_, width := utf8.DecodeLastRuneInString(m.text[:at])
		m.stack = append(m.stack, retry{pc + 1, low, at - width, greedy})
	}
	return at, true
}

// part matches a part of the program by itself.
func (m *matcher) part(pc, at int) (end int, ok bool) {
	failed, steps, most := m.failed, m.steps, m.patience
	m.failed, m.steps, m.patience = nil, 0, patience
	defer func() { m.failed, m.steps, m.patience = failed, steps, most }()
	return m.run(pc, at)
}

func (m *matcher) look(in *instruction, at int) bool {
	for range in.back {
		if at == 0 {
			return false
		}
		_, width := utf8.DecodeLastRuneInString(m.text[:at])
		at -= width
	}
	_, ok := m.part(in.next, at)
	return ok
}

// holds reports whether an assertion holds at a place.
func (m *matcher) holds(in *instruction, at int) bool {
	switch in.assert {
	case 'A':
		return at == 0
	case 'z':
		return at == len(m.text)
	case 'Z':
		return at == len(m.text) || m.text[at:] == "\n"
	case '^':
		return at == 0 || m.text[at-1] == '\n' && at < len(m.text)
	case '$':
		return at == len(m.text) || m.text[at] == '\n'
	}
	before, width := utf8.DecodeLastRuneInString(m.text[:at])
	isBefore := width > 0 && in.set.has(before)
	after, width := utf8.DecodeRuneInString(m.text[at:])
	isAfter := width > 0 && in.set.has(after)
	return (isBefore == isAfter) == (in.assert == 'B')
}

// each cuts a text at the matches of the pattern. It calls fn for each match, and for each text
// between matches.
func (p *pattern) each(text string, fn func(from, to int, match bool)) {
	m := &matcher{text: text}
	done, last := 0, -1 // where the text that is told ends; where the last match ended
	for at := 0; at <= len(text); {
		begin, end, ok := p.find(m, at)
		if !ok {
			break
		}
		if begin == end && end == last { // an empty match behind a match is none
			_, width := utf8.DecodeRuneInString(text[at:])
			at += max(width, 1)
			continue
		}
		if done < begin {
			fn(done, begin, false)
		}
		fn(begin, end, true)
		at, last, done = end, end, end
	}
	if done < len(text) {
		fn(done, len(text), false)
	}
}
