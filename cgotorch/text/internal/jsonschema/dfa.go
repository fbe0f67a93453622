package jsonschema

import (
	"encoding/binary"
	"slices"
	"sort"
)

// edge leads from a state of a dfa to another one, with each character of a range.
type edge struct {
	lo, hi rune
	to     int32
}

// dfa is a deterministic automaton over characters. It begins in state 0, and each state can reach
// an end.
type dfa struct {
	edges  [][]edge // by state, in the order of the characters
	accept []bool
}

// follow returns the state to which a character leads, or -1. Edges have the order of characters.
func follow(edges []edge, c rune) int32 {
	i := sort.Search(len(edges), func(i int) bool { return edges[i].hi >= c })
	if i < len(edges) && edges[i].lo <= c {
		return edges[i].to
	}
	return -1
}

// grow returns the state to which a character leads in a trie. It adds an edge to the state `next`
// if there is none.
func grow(edges *[]edge, c rune, next int) int32 {
	i := sort.Search(len(*edges), func(i int) bool { return (*edges)[i].lo >= c })
	if i == len(*edges) || (*edges)[i].lo != c {
		*edges = slices.Insert(*edges, i, edge{c, c, int32(next)})
	}
	return (*edges)[i].to
}

// step returns the next state, or -1.
func (d *dfa) step(from int32, c rune) int32 { return follow(d.edges[from], c) }

// any reports whether a character of a range leads on. same tells whether all of them lead to one
// state.
func (d *dfa) any(from int32, lo, hi rune) (some, same bool) {
	edges := d.edges[from]
	i := sort.Search(len(edges), func(i int) bool { return edges[i].hi >= lo })
	if i == len(edges) || edges[i].lo > hi {
		return false, false
	}
	return true, edges[i].lo <= lo && edges[i].hi >= hi
}

func (d *dfa) matches(s string) bool {
	at := int32(0)
	for _, c := range s {
		if at = d.step(at, c); at < 0 {
			return false
		}
	}
	return d.accept[at]
}

// trim takes out the states that reach no end, and those that the beginning does not reach. It
// returns nil if nothing is left.
func (d *dfa) trim() *dfa {
	from := make([][]int32, len(d.edges))
	for s, edges := range d.edges {
		for _, e := range edges {
			from[e.to] = append(from[e.to], int32(s))
		}
	}
	live, queue := make([]bool, len(d.edges)), []int32{}
	for s, ok := range d.accept {
		if ok {
			live[s], queue = true, append(queue, int32(s))
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for _, p := range from[s] {
			if !live[p] {
				live[p], queue = true, append(queue, p)
			}
		}
	}
	if !live[0] {
		return nil
	}
	out, order := &dfa{}, []int32{0}
	names := map[int32]int32{0: 0}
	for i := 0; i < len(order); i++ {
		var edges []edge
		for _, e := range d.edges[order[i]] {
			if !live[e.to] {
				continue
			}
			to, ok := names[e.to]
			if !ok {
				to = int32(len(order))
				names[e.to], order = to, append(order, e.to)
			}
			if n := len(edges); n > 0 && edges[n-1].to == to && edges[n-1].hi+1 == e.lo {
				edges[n-1].hi = e.hi
			} else {
				edges = append(edges, edge{e.lo, e.hi, to})
			}
		}
		out.edges, out.accept = append(out.edges, edges), append(out.accept, d.accept[order[i]])
	}
	return out
}

// explore makes a dfa of a function that tells the edges and the end of each state. It returns nil
// if no text is accepted. S is the function's own name of a state. `next` leaves edge.to open, and
// to[i] is where edges[i] leads.
func explore[S comparable](c *compiler, at *location, start S, next func(S) (edges []edge, to []S, accept bool)) *dfa {
	d, order := &dfa{}, []S{start}
	names := map[S]int32{start: 0}
	for i := 0; i < len(order); i++ {
		edges, to, accept := next(order[i])
		c.spend(10 + 2*len(edges)) // for memory, too
		for k := range edges {
			name, ok := names[to[k]]
			if !ok {
				name = int32(len(order))
				names[to[k]], order = name, append(order, to[k])
				if name > mostStates {
					panic(bad(at, "it needs an automaton of more than %d states", mostStates))
				}
			}
			edges[k].to = name
		}
		d.edges, d.accept = append(d.edges, edges), append(d.accept, accept)
	}
	return d.trim()
}

// mostStates bounds one automaton.
const mostStates = 1 << 15

// both returns the automaton of the texts that two automata accept, or nil if there are none.
func (c *compiler) both(at *location, a, b *dfa) *dfa {
	return explore(c, at, [2]int32{}, func(s [2]int32) (edges []edge, to [][2]int32, accept bool) {
		x, y := a.edges[s[0]], b.edges[s[1]]
		for i, k := 0, 0; i < len(x) && k < len(y); {
			if lo, hi := max(x[i].lo, y[k].lo), min(x[i].hi, y[k].hi); lo <= hi {
				edges, to = append(edges, edge{lo: lo, hi: hi}), append(to, [2]int32{x[i].to, y[k].to})
			}
			if x[i].hi < y[k].hi {
				i++
			} else {
				k++
			}
		}
		return edges, to, a.accept[s[0]] && b.accept[s[1]]
	})
}

// counted returns the automaton of the texts of least to most characters that an automaton accepts,
// or nil if there are none.
func (c *compiler) counted(at *location, d *dfa, least, most int) *dfa {
	top := most
	if most == none {
		top = least // counts above are alike
	}
	if top > mostStates {
		panic(bad(at, "beside a pattern or a format, lengths are at most %d", mostStates))
	}
	return explore(c, at, [2]int32{}, func(s [2]int32) (edges []edge, to [][2]int32, accept bool) {
		n := int(s[1])
		if n < most {
			for _, e := range d.edges[s[0]] {
				edges, to = append(edges, e), append(to, [2]int32{e.to, int32(min(n+1, top))})
			}
		}
		return edges, to, d.accept[s[0]] && n >= least
	})
}

// literals returns the automaton of a list of texts.
func (c *compiler) literals(all []string) *dfa {
	d := &dfa{edges: [][]edge{nil}, accept: []bool{false}}
	for _, s := range all {
		c.spend(len(s) + 1)
		at := int32(0)
		for _, r := range s {
			if at = grow(&d.edges[at], r, len(d.edges)); int(at) == len(d.edges) {
				d.edges, d.accept = append(d.edges, nil), append(d.accept, false)
			}
		}
		d.accept[at] = true
	}
	return d.trim()
}

// determined makes a dfa of a nondeterministic automaton.
func (c *compiler) determined(at *location, n *nfa) *dfa {
	sets := map[string][]int32{}
	name := func(set []int32) string {
		key := make([]byte, 0, 4*len(set))
		for _, s := range set {
			key = binary.LittleEndian.AppendUint32(key, uint32(s))
		}
		sets[string(key)] = set
		return string(key)
	}
	mark, round := make([]int, len(n.states)), 0
	closed := func(from []int32, begin, end bool) []int32 {
		round++
		set := n.closure(from, begin, end, mark, round)
		c.spend(len(set))
		return set
	}
	first := closed([]int32{n.start}, true, false)
	start := "^" + name(first) // a state of its own: the same set may come again, where ^ does not hold
	sets[start] = first
	return explore(c, at, start, func(key string) (edges []edge, to []string, accept bool) {
		set := sets[key]
		for _, s := range closed(set, key == start, true) {
			accept = accept || n.states[s].op == opMatch
		}
		var ranges []edge
		for _, s := range set {
			if n.states[s].op == opSet {
				for _, r := range n.states[s].set {
					ranges = append(ranges, edge{r.lo, r.hi, n.states[s].out})
				}
			}
		}
		cuts := make([]rune, 0, 2*len(ranges))
		for _, r := range ranges {
			cuts = append(cuts, r.lo, r.hi+1)
		}
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		c.spend(len(cuts) * len(ranges))
		for i := 0; i+1 < len(cuts); i++ {
			var targets []int32
			for _, r := range ranges {
				if r.lo <= cuts[i] && r.hi >= cuts[i+1]-1 {
					targets = append(targets, r.to)
				}
			}
			if len(targets) > 0 {
				edges, to = append(edges, edge{lo: cuts[i], hi: cuts[i+1] - 1}), append(to, name(closed(targets, false, false)))
			}
		}
		return edges, to, accept
	})
}
