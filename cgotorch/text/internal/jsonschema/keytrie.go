package jsonschema

import "sort"

// What a node of a keyTrie ends, in place of the index of a property.
const (
	keyNone      int32 = -1
	keyForbidden int32 = -2 // a key whose values cannot be written
)

// keyTrie has the keys of an object, by character.
type keyTrie struct {
	edges [][]edge
	ends  []int32
	below [][]int32 // the properties whose keys pass, in order
}

func newKeyTrie() *keyTrie {
	return &keyTrie{[][]edge{nil}, []int32{keyNone}, [][]int32{nil}}
}

// add adds a key. `index` is that of its property, or keyForbidden. Properties come in order.
func (t *keyTrie) add(key string, index int32) {
	at := int32(0)
	t.pass(at, index)
	for _, c := range key {
		if at = grow(&t.edges[at], c, len(t.edges)); int(at) == len(t.edges) {
			t.edges, t.ends, t.below = append(t.edges, nil), append(t.ends, keyNone), append(t.below, nil)
		}
		t.pass(at, index)
	}
	t.ends[at] = index
}

// pass notes that the key of a property passes a node.
func (t *keyTrie) pass(at, index int32) {
	if index >= 0 {
		t.below[at] = append(t.below[at], index)
	}
}

// step returns the next node, or -1.
func (t *keyTrie) step(at int32, c rune) int32 { return follow(t.edges[at], c) }

// leads reports whether a key of a property from lo to hi passes a node.
func (t *keyTrie) leads(at, lo, hi int32) bool {
	below := t.below[at]
	i := sort.Search(len(below), func(i int) bool { return below[i] >= lo })
	return i < len(below) && below[i] <= hi
}

// any reports whether a key of a property from lo to hi goes on with a character of a range.
func (t *keyTrie) any(at int32, from, to rune, lo, hi int32) bool {
	edges := t.edges[at]
	for i := sort.Search(len(edges), func(i int) bool { return edges[i].lo >= from }); i < len(edges) && edges[i].lo <= to; i++ {
		if t.leads(edges[i].to, lo, hi) {
			return true
		}
	}
	return false
}

// touches reports whether any key goes on with a character of a range.
func (t *keyTrie) touches(at int32, from, to rune) bool {
	edges := t.edges[at]
	i := sort.Search(len(edges), func(i int) bool { return edges[i].lo >= from })
	return i < len(edges) && edges[i].lo <= to
}
