package jsonschema

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// State is a place in a text. See Note [States]. The lock of its Masks guards it.
type State struct {
	entries []entry
	final   bool // the text may end
	id      uint64
	next    *[256]*State // by byte, the states that are known
	like    *State       // the state with the same mask, or nil
	mask    bits
}

// bits is a set of tokens.
type bits []uint64

func (b bits) set(i int32) { b[i>>6] |= 1 << (i & 63) }

// partial is what one frame allows. See Note [Masks].
type partial struct {
	mask  bits
	exits []int32 // nodes of the trie at which the frame's value has ended
}

// Masks is the automaton of a grammar and a vocabulary. Any number of goroutines may use it.
type Masks struct {
	g *Grammar
	v *Vocabulary

	mu     sync.Mutex
	states map[string]*State
	unions map[[2]*State]*State
	parts  map[frame]*partial
	ids    uint64 // given so far; never again, so that a state of dropped caches has an own one
	bottom *State // behind the whole value
	dead   *State
	cost   *cost
}

// cost counts the bytes of one automaton's caches.
type cost struct {
	all *atomic.Int64 // those of all automata of the vocabulary
	own int64
}

func (c *cost) add(n int64) {
	c.own += n
	c.all.Add(n)
}

// mostCache is about how many bytes the caches of a vocabulary's automata take. An automaton that
// is used while they take more drops its own.
const mostCache = 64 << 20

// NewMasks makes the automaton of a grammar and a vocabulary.
func NewMasks(g *Grammar, v *Vocabulary) *Masks {
	m := &Masks{g: g, v: v, cost: &cost{all: &v.used}}
	m.clear()
	runtime.AddCleanup(m, func(c *cost) { c.add(-c.own) }, m.cost)
	return m
}

// clear drops the caches. States that are in use stay right, and their caches go with them.
func (m *Masks) clear() {
	m.cost.add(-m.cost.own)
	m.states, m.unions, m.parts = map[string]*State{}, map[[2]*State]*State{}, map[frame]*partial{}
	m.bottom, m.dead = &State{final: true, id: 1}, &State{}
	m.ids = max(m.ids, 1)
}

// start returns the state before a text.
func (m *Masks) start(space bool) *State {
	s := &stepper{m: m, g: m.g}
	s.enter(m.g.root, m.bottom)
	if space {
		s.add(frame{kind: spaceRoot, node: m.g.root}, m.bottom)
	}
	return m.intern(s.to, false)
}

// intern returns the state of a set of frames.
func (m *Masks) intern(entries []entry, final bool) *State {
	if len(entries) == 0 {
		if final {
			return m.bottom
		}
		return m.dead
	}
	slices.SortFunc(entries, compareEntries)
	key := make([]byte, 0, len(entries)*32+1)
	for _, e := range entries {
		key = append(key, byte(e.kind), byte(e.lex))
		for _, n := range [...]int32{e.node, e.x, e.y, e.z, e.part} {
			key = binary.LittleEndian.AppendUint32(key, uint32(n))
		}
		key = binary.LittleEndian.AppendUint64(key, e.up.id)
	}
	if final {
		key = append(key, 1)
	}
	if known, ok := m.states[string(key)]; ok {
		return known
	}
	m.ids++
	s := &State{entries: slices.Clone(entries), final: final, id: m.ids}
	m.states[string(key)] = s
	m.cost.add(int64(len(key)) + int64(len(entries))*int64(unsafe.Sizeof(entry{})) + 256)
	return s
}

func compareEntries(a, b entry) int {
	for _, d := range [...]int32{int32(a.kind) - int32(b.kind), a.node - b.node, int32(a.lex) - int32(b.lex), a.x - b.x, a.y - b.y, a.z - b.z, a.part - b.part} {
		if d != 0 {
			return int(d)
		}
	}
	return 0
}

// union returns the state that goes on as either of two.
func (m *Masks) union(a, b *State) *State {
	if a.id > b.id {
		a, b = b, a
	}
	key := [2]*State{a, b}
	if known, ok := m.unions[key]; ok {
		return known
	}
	s := &stepper{m: m, g: m.g}
	s.leave(a)
	s.leave(b)
	u := m.intern(s.to, s.final)
	m.unions[key] = u
	m.cost.add(64)
	return u
}

// step returns the state behind a byte.
func (m *Masks) step(s *State, b byte) *State {
	if s.next != nil {
		if known := s.next[b]; known != nil {
			return known
		}
	} else {
		s.next = new([256]*State)
		m.cost.add(int64(unsafe.Sizeof(*s.next)))
	}
	st := &stepper{m: m, g: m.g}
	for _, e := range s.entries {
		st.step(e, b)
	}
	next := m.intern(st.to, st.final)
	s.next[b] = next
	return next
}

// alive reports whether a text may have come to a state.
func (s *State) alive() bool { return s.final || len(s.entries) > 0 }

// shared returns a frame with the same mask, in which counts that no token can exhaust are alike.
func (m *Masks) shared(f frame) frame {
	if f.kind == inText {
		f.y = min(f.y, m.v.longest+1)
		if f.z > m.v.longest {
			f.z = unbounded
		}
	}
	return f
}

// renew drops caches that are too large. It returns the state in the new ones: the old state holds
// the old ones.
func (m *Masks) renew(s *State) *State {
	if m.cost.all.Load() <= mostCache || m.cost.own <= mostCache/16 {
		return s
	}
	m.clear()
	return m.again(s, map[*State]*State{})
}

// maskOf returns the tokens that may come in a state. The caller must not change them.
func (m *Masks) maskOf(s *State) bits {
	if s.like == nil {
		entries, same := slices.Clone(s.entries), true
		for i := range entries {
			f := m.shared(entries[i].frame)
			same, entries[i].frame = same && f == entries[i].frame, f
		}
		if s.like = s; !same {
			st := &stepper{m: m, g: m.g}
			for _, e := range entries {
				st.add(e.frame, e.up)
			}
			s.like = m.intern(st.to, s.final)
		}
	}
	if s = s.like; s.mask != nil {
		return s.mask
	}
	mask := m.v.newBits()
	m.cost.add(int64(len(mask)) * 8)
	for _, e := range s.entries {
		p := m.partialOf(e.frame)
		for i, w := range p.mask {
			mask[i] |= w
		}
		if len(e.up.entries) > 0 {
			for _, node := range p.exits {
				m.walk(e.up, node, mask, nil)
			}
		}
	}
	s.mask = mask
	return mask
}

// again makes a state in new caches.
func (m *Masks) again(s *State, known map[*State]*State) *State {
	if len(s.entries) == 0 {
		return m.intern(nil, s.final)
	}
	if k, ok := known[s]; ok {
		return k
	}
	entries := slices.Clone(s.entries)
	for i := range entries {
		entries[i].up = m.again(entries[i].up, known)
	}
	known[s] = m.intern(entries, s.final)
	return known[s]
}

// partialOf returns what a frame allows by itself.
func (m *Masks) partialOf(f frame) *partial {
	if p, ok := m.parts[f]; ok {
		return p
	}
	common := f.node < commonNodes && f.kind != spaceRoot
	if common {
		if p := m.v.common(f); p != nil {
			m.parts[f] = p
			return p
		}
	}
	p := &partial{mask: m.v.newBits()}
	m.walk(m.intern([]entry{{f, m.bottom}}, false), 0, p.mask, &p.exits)
	m.parts[f] = p
	if common {
		m.v.setCommon(f, p)
	}
	m.cost.add(int64(len(p.mask))*8 + int64(len(p.exits))*4)
	return p
}

// walk adds the tokens below a node of the trie that lead on from a state. It appends nodes at
// which the text has ended to exits.
func (m *Masks) walk(s *State, node int32, mask bits, exits *[]int32) {
	v := m.v
	for child := v.first[node]; child < v.first[node+1]; child++ {
		next := m.step(s, v.label[child])
		if !next.alive() {
			continue
		}
		for _, id := range v.tokens[v.ends[child]:v.ends[child+1]] {
			mask.set(id)
		}
		if exits != nil && next.final && v.first[child] < v.first[child+1] {
			*exits = append(*exits, child)
		}
		if len(next.entries) > 0 {
			m.walk(next, child, mask, exits)
		}
	}
}
