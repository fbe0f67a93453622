package text

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// treeTalk is a conversation without a device. It fills its pages with sums of the tokens before.
type treeTalk struct {
	w      *treeWorld
	kind   int
	tables []pageTable
	tokens []int64
}

// treeWorld has what the pages of a cache would have: for each row of a page, a sum of the kind,
// the layer and all tokens up to there. It also has what the tree should have, by the kind and the
// tokens of each node.
type treeWorld struct {
	t       *testing.T
	pool    *pages
	tree    *prefixes
	spans   []span
	rows    map[int64]*[pageTokens]uint64
	talks   []*treeTalk
	want    map[string]*treeNode
	clock   int
	lent    int // blocks that conversations got of the tree
	refused int // conversations that ended because no page was free
}

type treeNode struct {
	pages []int64
	used  int
}

func newTreeWorld(t *testing.T, spans []span, pages int) *treeWorld {
	w := &treeWorld{t: t, pool: freePages(pages), spans: spans, rows: map[int64]*[pageTokens]uint64{}, want: map[string]*treeNode{}}
	w.tree = newPrefixes(w.pool)
	return w
}

func treeName(kind int, tokens []int64) string { return fmt.Sprint(kind, tokens) }

// parentOf returns the name of the node before one.
func parentOf(name string) string {
	fields := strings.Fields(strings.TrimSuffix(name, "]"))
	if len(fields) <= 1+pageTokens {
		return ""
	}
	return strings.Join(fields[:len(fields)-pageTokens], " ") + "]"
}

// begin makes a conversation of a prompt with what the tree has of it.
func (w *treeWorld) begin(kind int, prompt []int64) *treeTalk {
	c := &treeTalk{w: w, kind: kind}
	for _, s := range w.spans {
		c.tables = append(c.tables, pageTable{span: s, pages: make([][]int64, len(s.layers))})
	}
	chain := w.tree.find(kind, prompt[:len(prompt)-1])
	w.clock++
	n := 0
	for ; n+1 <= (len(prompt)-1)/pageTokens; n++ {
		want := w.want[treeName(kind, prompt[:(n+1)*pageTokens])]
		if want == nil {
			break
		}
		if want.used = w.clock; n >= len(chain) || !slices.Equal(chain[n].pages, want.pages) {
			w.t.Fatalf("block %d of %d is not found, or has other pages", n, len(chain))
		}
	}
	if n != len(chain) {
		w.t.Fatalf("a chain of %d blocks is found, want %d", len(chain), n)
	}
	w.tree.lend(chain, c.tables)
	w.lent += n
	c.tokens = slices.Clone(prompt[:n*pageTokens])
	c.reads()
	w.talks = append(w.talks, c)
	return c
}

// sums returns what the rows of a layer have.
func (c *treeTalk) sums(layer int) (all []uint64) {
	sum := uint64(c.kind*100 + layer + 1)
	for _, id := range c.tokens {
		sum = (sum^uint64(id+1))*0x9e3779b97f4a7c15 + 1
		all = append(all, sum)
	}
	return all
}

// write computes tokens. It evicts what it needs, and reports whether there was room.
func (c *treeTalk) write(tokens ...int64) bool {
	from := len(c.tokens)
	for i := range c.tables {
		t := &c.tables[i]
		for {
			_, _, err := t.grow(c.w.pool, from, from+len(tokens))
			if err == nil {
				break
			}
			if need := (blocksOf(from+len(tokens)) - t.first - len(t.pages[0])) * len(t.layers); c.w.evict(need) == 0 {
				return false
			}
		}
	}
	c.tokens = append(c.tokens, tokens...)
	for i := range c.tables {
		t := &c.tables[i]
		for k, layer := range t.layers {
			for at, sum := range c.sums(layer) {
				if at < from {
					continue
				}
				page := t.pages[k][at/pageTokens-t.first]
				if c.w.pool.refs[page] != 1 {
					c.w.t.Fatalf("token %d writes page %d, which has %d holders", at, page, c.w.pool.refs[page])
				}
				if c.w.rows[page] == nil {
					c.w.rows[page] = &[pageTokens]uint64{}
				}
				c.w.rows[page][at%pageTokens] = sum
			}
		}
	}
	c.reads()
	return true
}

// reads checks all rows that the next token sees.
func (c *treeTalk) reads() {
	for i := range c.tables {
		t := &c.tables[i]
		first := 0
		if t.window > 0 {
			first = max(0, len(c.tokens)-t.window+1)
		}
		for k, layer := range t.layers {
			sums := c.sums(layer)
			for at := first; at < len(sums); at++ {
				b := at/pageTokens - t.first
				if b < 0 || b >= len(t.pages[k]) {
					c.w.t.Fatalf("after %d tokens a table of window %d has %d blocks from %d on, and lacks token %d", len(c.tokens), t.window, len(t.pages[k]), t.first, at)
				}
				if c.w.rows[t.pages[k][b]][at%pageTokens] != sums[at] {
					c.w.t.Fatalf("token %d of layer %d is that of another sequence", at, layer)
				}
			}
		}
	}
}

// whole returns how many of the first `tokens` tokens of a table may stay if the next token is
// written behind them: all, or those of whole blocks if others hold the page of the last one.
func (t *pageTable) whole(p *pages, tokens int) int {
	at := tokens/pageTokens - t.first
	if tokens%pageTokens == 0 || at < 0 || at >= len(t.pages[0]) {
		return tokens
	}
	for _, layer := range t.pages {
		if p.sole(layer[at:at+1]) == 0 {
			return tokens - tokens%pageTokens
		}
	}
	return tokens
}

// back forgets all tokens but about n.
func (c *treeTalk) back(n int) {
	for i := range c.tables {
		n = min(n, c.tables[i].whole(c.w.pool, n))
	}
	for i := range c.tables {
		if !c.tables[i].keeps(n) {
			n = 0
		}
	}
	for i := range c.tables {
		c.tables[i].cut(c.w.pool, n)
	}
	c.tokens = c.tokens[:n]
}

// keep adds what the conversation has to the tree, and to what the tree should have.
func (c *treeTalk) keep() {
	w := c.w
	w.clock++
	fresh := 0
walk:
	for b := range len(c.tokens) / pageTokens {
		name := treeName(c.kind, c.tokens[:(b+1)*pageTokens])
		if w.want[name] == nil {
			n := &treeNode{}
			for _, t := range c.tables {
				for k := range t.layers {
					if b < t.first {
						break walk
					}
					n.pages = append(n.pages, t.pages[k][b-t.first])
				}
			}
			w.want[name] = n
			fresh++
		}
		w.want[name].used = w.clock
	}
	if got := w.tree.add(c.kind, c.tokens, c.tables); got != fresh {
		w.t.Fatalf("%d nodes are new, want %d", got, fresh)
	}
}

// end gives the pages of a conversation back.
func (c *treeTalk) end() {
	for i := range c.tables {
		c.tables[i].cut(c.w.pool, 0)
	}
	c.w.talks = slices.DeleteFunc(c.w.talks, func(other *treeTalk) bool { return other == c })
}

// holders returns how many should hold each page.
func (w *treeWorld) holders() (refs []int32) {
	refs = make([]int32, w.pool.all+1)
	for _, n := range w.want {
		for _, page := range n.pages {
			refs[page]++
		}
	}
	for _, c := range w.talks {
		for _, t := range c.tables {
			for _, page := range slices.Concat(t.pages...) {
				refs[page]++
			}
		}
	}
	return refs
}

// evict is evict of the tree, beside a search for the oldest leaf at each step.
func (w *treeWorld) evict(n int) int {
	freed, want := w.tree.evict(n), 0
	refs := w.holders()
	free := 0
	for _, r := range refs[1:] {
		if r == 0 {
			free++
		}
	}
	for free < n {
		parents := map[string]bool{}
		for name := range w.want {
			parents[parentOf(name)] = true
		}
		oldest := ""
		for name, node := range w.want {
			alone := slices.ContainsFunc(node.pages, func(page int64) bool { return refs[page] == 1 })
			if alone && !parents[name] && (oldest == "" || node.used < w.want[oldest].used) {
				oldest = name
			}
		}
		if oldest == "" {
			break
		}
		for _, page := range w.want[oldest].pages {
			if refs[page]--; refs[page] == 0 {
				free++
				want++
			}
		}
		delete(w.want, oldest)
	}
	if freed != want {
		w.t.Fatalf("evict(%d) freed %d pages, want %d", n, freed, want)
	}
	w.check()
	return freed
}

// check compares the pool and the tree with what they should have.
func (w *treeWorld) check() {
	w.t.Helper()
	w.pool.check(w.t)
	if want := w.holders(); !slices.Equal(w.pool.refs, want) {
		w.t.Fatalf("the pages have %v holders, want %v", w.pool.refs, want)
	}
	held := 0
	for _, n := range w.want {
		held += len(n.pages)
	}
	if w.tree.pages() != held || len(w.tree.nodes) != len(w.want) || w.tree.used.Len() != len(w.want) {
		w.t.Fatalf("the tree has %d pages and %d nodes, %d of them in order, want %d and %d", w.tree.pages(), len(w.tree.nodes), w.tree.used.Len(), held, len(w.want))
	}
}

// step makes a random change of a world. said are prompts of conversations before.
func (w *treeWorld) step(r *rand.Rand, said *[][]int64) {
	more := make([]int64, 1+r.IntN(40))
	for i := range more {
		more[i] = r.Int64N(50)
	}
	at := r.IntN(max(1, len(w.talks)))
	switch what := r.IntN(20); {
	case len(w.talks) == 0 || what < 6 && len(w.talks) < 4:
		old := (*said)[r.IntN(len(*said))]
		prompt := slices.Concat(old[:r.IntN(len(old)+1)], more)
		if len(prompt) > 200 {
			prompt = more
		}
		c := w.begin(r.IntN(3)/2, prompt)
		if !c.write(prompt[len(c.tokens):]...) {
			w.refused++
			c.end()
		}
	case what < 9:
		if c := w.talks[at]; len(c.tokens) < 200 && !c.write(more...) {
			w.refused++
			c.end()
		}
	case what < 11:
		w.talks[at].back(r.IntN(len(w.talks[at].tokens) + 1))
	case what < 13:
		w.talks[at].keep()
	case what < 18:
		c := w.talks[at]
		if c.keep(); len(c.tokens) > 0 {
			*said = append(*said, slices.Clone(c.tokens))
			(*said) = (*said)[max(0, len(*said)-12):]
		}
		c.end()
	case what < 19:
		w.evict(r.IntN(w.pool.all + 2))
	case r.IntN(10) == 0:
		w.tree.clear()
		clear(w.want)
	}
}
