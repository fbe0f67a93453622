package jsonschema

import "slices"

// Nodes that all grammars have, so that masks of their frames can be shared.
const (
	nodeString int32 = iota
	nodeNull
	nodeBool
	nodeNumber
	commonNodes
)

// nodeKind is what the values of a node are.
type nodeKind uint8

const (
	nodeAny  nodeKind = iota // those of any of its parts
	nodeDFA                  // texts of an automaton over bytes
	nodeText                 // strings
	nodeArray
	nodeObject
)

// node is a set of JSON values.
type node struct {
	kind        nodeKind
	parts       []int32 // none of which is a nodeAny
	dfa         *dfa    // of a string, that of its characters; nil for all
	least, most int32   // characters, items or properties; most may be none
	prefix      []int32
	items       int32 // behind prefix; of an object, the values of other keys, or -1 for none
	properties  []property
	why         *fault // of a node without values
	finite      bool   // some value is finite

	keys    *keyTrie
	next    []int32 // by property, the first required one from there on, or their number
	left    []int32 // by property, how many required ones there are from there on
	counted bool    // least or most can bind
}

// property is a key of an object with its values.
type property struct {
	key      string
	value    int32
	required bool
}

// Grammar is what a schema accepts, in the form of Note [Form]. It does not change.
type Grammar struct {
	nodes []node
	root  int32
	open  bool // some object has keys that are not declared
}

// want is how many children of a node must still be found finite before the node is: each one of
// `all`, and any of `some`.
type want struct {
	all, some int
}

// use is a place where a node is the child of another one.
type use struct {
	by    int32
	must  bool
	worth int // towards want.some
}

// prune finds the nodes that have finite values, and takes the others out of their users.
func (g *Grammar) prune() {
	wants, uses := make([]want, len(g.nodes)), make([][]use, len(g.nodes))
	for i := range g.nodes {
		wants[i] = g.wants(int32(i), func(child int32, u use) { uses[child] = append(uses[child], u) })
	}
	var queue []int32
	check := func(i int32) {
		if n := &g.nodes[i]; !n.finite && wants[i].all <= 0 && wants[i].some <= 0 {
			n.finite, queue = true, append(queue, i)
		}
	}
	for i := range g.nodes {
		check(int32(i))
	}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, u := range uses[i] {
			if u.must {
				wants[u.by].all--
			}
			wants[u.by].some -= u.worth
			check(u.by)
		}
	}
	for i := range g.nodes {
		g.cut(&g.nodes[i])
	}
}

// wants returns what a node needs of its children, and calls `tell` for each of them.
func (g *Grammar) wants(i int32, tell func(child int32, u use)) want {
	n, w := &g.nodes[i], want{}
	switch n.kind {
	case nodeAny:
		for _, part := range n.parts {
			tell(part, use{by: i, worth: 1})
		}
		w.some = 1
	case nodeArray:
		for k, item := range n.prefix {
			if k < int(n.least) {
				w.all++
				tell(item, use{by: i, must: true})
			}
		}
		if int(n.least) > len(n.prefix) {
			w.all++
			tell(n.items, use{by: i, must: true})
		}
	case nodeObject:
		w.some = int(n.least)
		for _, p := range n.properties {
			if p.required {
				w.all++
			}
			tell(p.value, use{i, p.required, 1})
		}
		if n.items >= 0 {
			tell(n.items, use{by: i, worth: int(n.least)})
		}
	}
	return w
}

// cut takes children without finite values out of a node.
func (g *Grammar) cut(n *node) {
	if !n.finite { // it goes with all that it has
		return
	}
	switch n.kind {
	case nodeAny:
		n.parts = slices.DeleteFunc(n.parts, func(p int32) bool { return !g.nodes[p].finite })
	case nodeArray:
		for i, item := range n.prefix {
			if !g.nodes[item].finite {
				n.prefix, n.most = n.prefix[:i], min(n.most, int32(i))
				return
			}
		}
		if !g.nodes[n.items].finite {
			n.most = min(n.most, int32(len(n.prefix)))
		}
	case nodeObject:
		if n.items >= 0 && !g.nodes[n.items].finite {
			n.items = -1
		}
	}
}

// reason returns why a node has no finite value, or nil if its values only contain one another.
func (g *Grammar) reason(i int32, seen map[int32]bool) *fault {
	n := &g.nodes[i]
	if n.why != nil || n.finite || seen[i] {
		return n.why
	}
	seen[i] = true
	children := slices.Concat(n.parts, n.prefix)
	if n.kind == nodeArray {
		children = append(children, n.items)
	}
	for _, p := range n.properties {
		if p.required {
			children = append(children, p.value)
		}
	}
	for _, child := range children {
		if why := g.reason(child, seen); why != nil {
			return why
		}
	}
	return nil
}

// finish makes the tables of objects.
func (g *Grammar) finish() {
	for i := range g.nodes {
		n := &g.nodes[i]
		if n.kind == nodeArray {
			n.counted = n.most < none
		}
		if n.kind != nodeObject || !n.finite {
			continue
		}
		g.open = g.open || n.items >= 0
		var kept []property
		n.keys = newKeyTrie()
		for _, p := range n.properties {
			if g.nodes[p.value].finite {
				n.keys.add(p.key, int32(len(kept)))
				kept = append(kept, p)
			} else {
				n.keys.add(p.key, keyForbidden)
			}
		}
		n.properties = kept
		count := int32(len(kept))
		n.next, n.left = make([]int32, count+1), make([]int32, count+1)
		n.next[count] = count
		for k := count - 1; k >= 0; k-- {
			n.next[k], n.left[k] = n.next[k+1], n.left[k+1]
			if kept[k].required {
				n.next[k], n.left[k] = k, n.left[k]+1
			}
		}
		n.counted = n.least > 0 || n.most < none
	}
}
