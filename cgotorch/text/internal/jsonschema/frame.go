package jsonschema

// frameKind is where in a value a frame is.
type frameKind uint8

const (
	inDFA   frameKind = iota // x is the state of the automaton
	inText                   // x is that of the characters, or 0; y and z are characters: least and most that are left
	inKey                    // of a property: x is a node of the keyTrie, y the first property that may come, z the count
	inOther                  // a key that is not declared: x is a node of the keyTrie, or -1 outside it
	beginArray
	openArray // behind [, for ]
	inArray   // behind an item; x counts the items
	spaceArray
	beginObject
	openObject // behind {, for }
	inObject   // behind a value; y is the first property that may come, z counts
	spaceObject
	colon      // behind a key; x is its property, or -1
	spaceColon // behind the colon
	spaceRoot
)

// frame is a place in a grammar. What x, y and z mean depends on the kind.
type frame struct {
	kind    frameKind
	lex     lex
	node    int32
	x, y, z int32
	part    int32 // the beginning of a character: see lex
}

// unbounded is a count of characters without an end.
const unbounded = -1

// stepper collects the frames of a new state.
type stepper struct {
	m     *Masks
	g     *Grammar
	to    []entry
	index map[frame]int
	final bool
}

// entry is a frame with the state to which the text returns behind its value.
type entry struct {
	frame
	up *State
}

// add adds a frame. Behind its value come the frames of up. An equal frame that is there gets the
// union of both. See Note [States].
func (s *stepper) add(f frame, up *State) {
	at, ok := -1, false
	if len(s.to) < 8 {
		for i := range s.to {
			if s.to[i].frame == f {
				at, ok = i, true
			}
		}
	} else {
		if s.index == nil {
			s.index = map[frame]int{}
		}
		for i := len(s.index); i < len(s.to); i++ {
			s.index[s.to[i].frame] = i
		}
		at, ok = s.index[f]
	}
	switch {
	case !ok:
		s.to = append(s.to, entry{f, up})
	case s.to[at].up != up:
		s.to[at].up = s.m.union(s.to[at].up, up)
	}
}

// leave goes on behind the end of a value.
func (s *stepper) leave(up *State) {
	s.final = s.final || up.final
	for _, e := range up.entries {
		s.add(e.frame, e.up)
	}
}

// enter begins the values of a node.
func (s *stepper) enter(node int32, up *State) {
	n := &s.g.nodes[node]
	switch n.kind {
	case nodeAny:
		for _, part := range n.parts {
			s.enter(part, up)
		}
	case nodeDFA:
		s.add(frame{kind: inDFA, node: node}, up)
	case nodeText:
		f := frame{kind: inText, lex: lexQuote, node: node}
		if n.dfa == nil { // all such nodes are alike
			f.node, f.y, f.z = nodeString, n.least, n.most
			if n.most == none {
				f.z = unbounded
			}
		}
		s.add(f, up)
	case nodeArray:
		s.add(frame{kind: beginArray, node: node}, up)
	case nodeObject:
		s.add(frame{kind: beginObject, node: node}, up)
	}
}

// push begins a value, behind which a frame goes on.
func (s *stepper) push(node int32, behind frame, up *State) {
	s.enter(node, s.m.intern([]entry{{behind, up}}, false))
}

// step adds what a frame becomes with a byte.
func (s *stepper) step(e entry, b byte) {
	n, f := &s.g.nodes[e.node], e.frame
	switch f.kind {
	case inDFA:
		if f.x = n.dfa.step(f.x, rune(b)); f.x < 0 {
			return
		}
		if len(n.dfa.edges[f.x]) > 0 {
			s.add(f, e.up)
		}
		if n.dfa.accept[f.x] {
			s.leave(e.up)
		}
	case inText, inKey, inOther:
		s.lex(f, b, e.up)
	case beginArray, openArray, inArray, spaceArray:
		s.array(n, f, b, e.up)
	case spaceRoot:
		if b == ' ' {
			s.enter(f.node, e.up)
		}
	default:
		s.object(n, f, b, e.up)
	}
}

func (s *stepper) array(n *node, f frame, b byte, up *State) {
	switch {
	case f.kind == beginArray && b == '[':
		if n.least == 0 {
			s.add(frame{kind: openArray, node: f.node}, up)
		}
		if n.most > 0 {
			s.item(n, f.node, 0, up)
		}
	case f.kind == openArray && b == ']':
		s.leave(up)
	case f.kind == inArray && b == ']' && f.x >= n.least:
		s.leave(up)
	case f.kind == inArray && b == ',' && (n.most == none || f.x < n.most):
		s.item(n, f.node, f.x, up)
		s.add(frame{kind: spaceArray, node: f.node, x: f.x}, up)
	case f.kind == spaceArray && b == ' ':
		s.item(n, f.node, f.x, up)
	}
}

// item begins an item of an array behind so many others.
func (s *stepper) item(n *node, node, at int32, up *State) {
	item, behind := n.items, at+1
	if int(at) < len(n.prefix) {
		item = n.prefix[at]
	} else if n.most == none {
		behind = min(behind, max(n.least, int32(len(n.prefix)))) // counts above are alike
	}
	s.push(item, frame{kind: inArray, node: node, x: behind}, up)
}

func (s *stepper) object(n *node, f frame, b byte, up *State) {
	switch {
	case f.kind == beginObject && b == '{':
		if n.ends(0, 0) {
			s.add(frame{kind: openObject, node: f.node}, up)
		}
		s.key(n, f.node, 0, 0, up)
	case f.kind == openObject && b == '}', f.kind == inObject && b == '}' && n.ends(f.y, f.z):
		s.leave(up)
	case f.kind == inObject && b == ',':
		if s.key(n, f.node, f.y, f.z, up) {
			s.add(frame{kind: spaceObject, node: f.node, y: f.y, z: f.z}, up)
		}
	case f.kind == spaceObject && b == ' ':
		s.key(n, f.node, f.y, f.z, up)
	case f.kind == colon && b == ':':
		s.value(n, f, up)
		f.kind = spaceColon
		s.add(f, up)
	case f.kind == spaceColon && b == ' ':
		s.value(n, f, up)
	}
}

// value begins the value of a key.
func (s *stepper) value(n *node, f frame, up *State) {
	value := n.items
	if f.x >= 0 {
		value = n.properties[f.x].value
	}
	s.push(value, frame{kind: inObject, node: f.node, y: f.y, z: f.z}, up)
}

// ends reports whether an object of `count` keys may end where `from` is the first property that
// may come.
func (n *node) ends(from, count int32) bool {
	return int(n.next[from]) == len(n.properties) && count >= n.least
}

// keyRange returns the properties that may come next, of which lo is the first and hi the last.
func (n *node) keyRange(from, count int32) (lo, hi int32) {
	total := int32(len(n.properties))
	lo, hi = from, min(n.next[from], total-1)
	if !n.counted {
		return lo, hi
	}
	if n.most != none && count+1+n.left[from] > n.most { // only a required one
		if lo = n.next[from]; lo == total {
			return 1, 0
		}
	}
	if n.items < 0 { // so many must still come
		hi = min(hi, count+total-n.least)
	}
	return lo, hi
}

// others reports whether a key that is not declared may come next.
func (n *node) others(from, count int32) bool {
	return n.items >= 0 && int(n.next[from]) == len(n.properties) && (n.most == none || count < n.most)
}

// key begins a key. It reports whether there can be one.
func (s *stepper) key(n *node, node, from, count int32, up *State) bool {
	lo, hi := n.keyRange(from, count)
	if lo <= hi {
		s.add(frame{kind: inKey, lex: lexQuote, node: node, y: from, z: count}, up)
	}
	others := n.others(from, count)
	if others {
		s.add(frame{kind: inOther, lex: lexQuote, node: node, y: from, z: count}, up)
	}
	return lo <= hi || others
}

// keyEnd goes on behind a key.
func (s *stepper) keyEnd(n *node, f frame, up *State) {
	next := frame{kind: colon, node: f.node, x: -1, y: int32(len(n.properties))}
	if f.kind == inKey {
		next.x = n.keys.ends[f.x]
		next.y = next.x + 1
	}
	if n.counted {
		if next.z = f.z + 1; n.most == none {
			next.z = min(next.z, n.least)
		}
	}
	s.add(next, up)
}
