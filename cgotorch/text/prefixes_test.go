package text

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// treeSpans are spans of models.
var treeSpans = map[string][]span{
	"full":    {{layers: []int{0, 1}, width: 99}},
	"windows": {{window: 20, layers: []int{0, 2, 3}, width: 99}, {layers: []int{1}, width: 99}},
	"narrow":  {{window: 1, layers: []int{0}, width: 99}, {window: 16, layers: []int{1}, width: 99}, {window: 17, layers: []int{2}, width: 99}, {window: 18, layers: []int{3}, width: 99}},
}

// Random conversations read what they wrote, or what one with equal tokens did. Holders, nodes and
// evictions are those of a simple model.
func TestPrefixes_Random(t *testing.T) {
	for name, spans := range treeSpans {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			w := newTreeWorld(t, spans, 60)
			said := [][]int64{treeTokens(1)}
			for range 20000 {
				w.step(r, &said)
				w.check()
			}
			t.Logf("%d blocks were lent, %d conversations found no room", w.lent, w.refused)
			if w.lent < 500 || w.refused == 0 {
				t.Errorf("%d blocks were lent, %d conversations found no room, want many and some", w.lent, w.refused)
			}
			for len(w.talks) > 0 {
				w.talks[0].end()
			}
			w.tree.clear()
			clear(w.want)
			if w.check(); w.pool.left() != 60 || w.tree.pages() != 0 {
				t.Errorf("%d of 60 pages are free at the end, and the tree has %d", w.pool.left(), w.tree.pages())
			}
		})
	}
}

// treeTokens returns two tokens more than the blocks that it gets, of which each has tokens of its
// own.
func treeTokens(blocks ...int64) (tokens []int64) {
	for _, b := range blocks {
		for i := range int64(pageTokens) {
			tokens = append(tokens, 1000*b+i)
		}
	}
	return append(tokens, 7, 8)
}

// talk is a conversation from its beginning to its end.
func (w *treeWorld) talk(kind int, prompt []int64) (found int) {
	w.t.Helper()
	c := w.begin(kind, prompt)
	found = len(c.tokens) / pageTokens
	if !c.write(prompt[len(c.tokens):]...) {
		w.t.Fatal("there is no room")
	}
	c.keep()
	c.end()
	w.check()
	return found
}

// Conversations that begin alike share blocks. Those of another kind do not, and a block is only
// found behind the blocks before it.
func TestPrefixes_Beginnings(t *testing.T) {
	w := newTreeWorld(t, treeSpans["full"], 100)
	for i, test := range []struct {
		kind   int
		prompt []int64
		want   int
	}{
		{0, treeTokens(1, 2, 3), 0},
		{0, treeTokens(1, 2, 4), 2},
		{0, treeTokens(1, 2, 3, 4), 3},
		{0, treeTokens(2, 3), 0},
		{1, treeTokens(1, 2, 3), 0},
		{1, treeTokens(1, 2, 3), 3},
		{0, treeTokens(1, 2, 3)[:3*pageTokens], 2}, // the last token is computed again
		{0, treeTokens(1, 2, 3)[:3*pageTokens+1], 3},
		{0, treeTokens(1)[:9], 0},
	} {
		if got := w.talk(test.kind, test.prompt); got != test.want {
			t.Errorf("prompt %d: %d blocks are found, want %d", i, got, test.want)
		}
	}
	if got, want := len(w.tree.nodes), 3+1+1+2+3; got != want {
		t.Errorf("the tree has %d nodes, want %d", got, want)
	}
}

// The least recently used leaves go first. A leaf that a conversation reads stays.
func TestPrefixes_Evict(t *testing.T) {
	w := newTreeWorld(t, treeSpans["full"], 20)
	for _, last := range []int64{2, 3, 4} {
		w.talk(0, treeTokens(1, last))
	}
	w.begin(0, treeTokens(1, 2)).end() // used again
	reader := w.begin(0, treeTokens(1, 3))
	has := func(want ...int64) {
		t.Helper()
		for _, last := range []int64{2, 3, 4} {
			got := w.tree.nodes[prefixKey{parent: w.tree.nodes[prefixKey{tokens: block(treeTokens(1))}], tokens: block(treeTokens(last))}] != nil
			if got != slices.Contains(want, last) {
				t.Errorf("block %d is there: %v, and want %v", last, got, want)
			}
		}
	}
	has(2, 3, 4)
	for _, step := range []struct {
		n, freed int
		want     []int64
	}{{12, 0, []int64{2, 3, 4}}, {13, 2, []int64{2, 3}}, {14, 0, []int64{2, 3}}, {20, 2, []int64{3}}, {20, 0, []int64{3}}} {
		if got := w.evict(step.n); got != step.freed {
			t.Errorf("evict(%d) freed %d pages, want %d", step.n, got, step.freed)
		}
		has(step.want...)
	}
	reader.end()
	if got := w.evict(20); got != 4 || w.pool.left() != 20 {
		t.Errorf("at the end %d pages became free, and %d are free, want 4 and 20", got, w.pool.left())
	}
}

// A span with a window lends what the next token sees. A conversation that has lost the pages of
// early blocks adds later ones only behind nodes of another conversation.
func TestPrefixes_Windows(t *testing.T) {
	w := newTreeWorld(t, treeSpans["windows"], 200)
	prompt := treeTokens(1, 2, 3, 4)
	c := w.begin(0, prompt)
	for _, token := range prompt { // token by token, so that pages of early blocks are given back
		c.write(token)
	}
	c.keep()
	if n := len(w.tree.nodes); n != 0 || c.tables[0].first != 2 {
		t.Fatalf("%d nodes are there, and the window begins at block %d, want none and 2", n, c.tables[0].first)
	}
	if w.talk(0, treeTokens(1, 2)); len(w.tree.nodes) != 2 {
		t.Fatalf("%d nodes are there, want 2", len(w.tree.nodes))
	}
	if c.keep(); len(w.tree.nodes) != 4 {
		t.Errorf("behind two nodes there are %d, want 2 more", len(w.tree.nodes)-2)
	}
	c.end()
	reader := w.begin(0, prompt)
	if narrow, full := reader.tables[0], reader.tables[1]; narrow.first != 2 || len(narrow.pages[2]) != 2 || full.first != 0 || len(full.pages[0]) != 4 {
		t.Errorf("a window has %d blocks from %d on, and all layers %d, want 2 from 2 on, and 4", len(narrow.pages[2]), narrow.first, len(full.pages[0]))
	}
	reader.end()
	w.check()
}
