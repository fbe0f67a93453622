package tokenizer

import "math/bits"

// table maps numbers to numbers. It is read-only after it is filled. A key is not 0.
type table struct {
	slots []slot
	shift int
	count int
}

type slot struct{ key, value uint64 }

// newTable returns a table with room for `count` keys.
func newTable(count int) *table {
	size := max(bits.Len(uint(count)*2), 3)
	return &table{slots: make([]slot, 1<<size), shift: 64 - size}
}

func (t *table) home(key uint64) int { return int(key * 0x9E3779B97F4A7C15 >> t.shift) }

func (t *table) get(key uint64) (uint64, bool) {
	for i := t.home(key); ; i = (i + 1) & (len(t.slots) - 1) {
		switch s := &t.slots[i]; s.key {
		case key:
			return s.value, true
		case 0:
			return 0, false
		}
	}
}

// set stores a value. A later value of the same key wins.
func (t *table) set(key, value uint64) {
	if t.count*2 >= len(t.slots) {
		old := t.slots
		*t = *newTable(len(old))
		for _, s := range old {
			if s.key != 0 {
				t.set(s.key, s.value)
			}
		}
	}
	i := t.home(key)
	for t.slots[i].key != 0 && t.slots[i].key != key {
		i = (i + 1) & (len(t.slots) - 1)
	}
	if t.slots[i].key == 0 {
		t.count++
	}
	t.slots[i] = slot{key, value}
}

// trie finds the words that begin at a place of a text. Nodes are numbers. The root is node 0.
type trie struct {
	next  *table  // by node and byte, the next node
	words []int64 // by node, the id of the word that ends there, or -1
}

func newTrie() *trie { return &trie{next: newTable(0), words: []int64{-1}} }

// step returns the node that follows `node` by a byte. ok reports whether there is such a node.
func (t *trie) step(node uint64, b byte) (next uint64, ok bool) {
	return t.next.get(node<<8 | uint64(b) | 1<<63)
}

// add stores a word. It reports whether the word is new.
func (t *trie) add(word string, id int64) bool {
	node := uint64(0)
	for i := range len(word) {
		next, ok := t.step(node, word[i])
		if !ok {
			next = uint64(len(t.words))
			t.words = append(t.words, -1)
			t.next.set(node<<8|uint64(word[i])|1<<63, next)
		}
		node = next
	}
	isNew := t.words[node] < 0
	t.words[node] = id
	return isNew
}

// longest returns the longest word at the beginning of `text`. The length is 0 if there is none.
func (t *trie) longest(text string) (id int64, length int) {
	node, ok := uint64(0), false
	for i := range len(text) {
		if node, ok = t.step(node, text[i]); !ok {
			break
		}
		if t.words[node] >= 0 {
			id, length = t.words[node], i+1
		}
	}
	return id, length
}
