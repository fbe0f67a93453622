package text

import (
	"fmt"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// pageTokens is the number of tokens of a page.
const pageTokens = 16

// pages is the memory of the cache. A page has the keys of pageTokens tokens in one layer, or their
// values. Both have the same number, in two halves of the memory. Page 0 belongs to nobody: tables
// name it where a sequence has no page. Several holders may read a page. It is free again when the
// last of them has given it back.
type pages struct {
	memory *cgotorch.Tensor // [2, pages, keyHeads, pageTokens, head], or nil where only numbers matter

	mu    sync.Mutex
	free  []int64
	refs  []int32 // how many hold each page
	all   int
	trees []*prefixes // that let pages go when too few are free
}

// newPages makes a pool of n pages besides page 0, all of them free.
func newPages(x *cgotorch.Exec, d *decoder, n int) *pages {
	p := freePages(n)
	p.memory = x.Keep(x.Zeros(d.dtype, 2, int64(n)+1, int64(d.c.keyHeads), pageTokens, int64(d.c.head)))
	return p
}

// freePages is newPages without the memory.
func freePages(n int) *pages {
	p := &pages{all: n, refs: make([]int32, n+1)}
	for i := n; i > 0; i-- {
		p.free = append(p.free, int64(i))
	}
	return p
}

// lean lets the pool ask a tree for pages that the tree alone holds. unlean undoes that.
func (p *pages) lean(t *prefixes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trees = append(p.trees, t)
}

func (p *pages) unlean(t *prefixes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trees = slices.DeleteFunc(p.trees, func(other *prefixes) bool { return other == t })
}

// reclaim lets trees drop what they alone hold, until n pages are free, and reports whether they
// are. The caller holds no tree.
func (p *pages) reclaim(n int) bool {
	p.mu.Lock()
	trees := slices.Clone(p.trees)
	p.mu.Unlock()
	for _, t := range trees {
		t.evict(n)
	}
	return p.left() >= n
}

// take returns n pages, which the caller alone holds, or [cgotorch.ErrOutOfMemory]. The caller
// holds no tree.
func (p *pages) take(n int) ([]int64, error) {
	//edge:batch-trees-give-way TestBatcher_PrefixesGiveWay
	p.reclaim(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > len(p.free) {
		return nil, fmt.Errorf("the cache has %d of %d pages free, and %d more are needed: close a conversation, or open the model with more CacheTokens: %w",
			len(p.free), p.all, n, cgotorch.ErrOutOfMemory)
	}
	taken := append([]int64(nil), p.free[len(p.free)-n:]...)
	p.free = p.free[:len(p.free)-n]
	for _, page := range taken {
		p.refs[page] = 1
	}
	return taken, nil
}

// share adds a holder to each page. Page 0 is passed over.
func (p *pages) share(pages []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, page := range pages {
		if page != 0 {
			p.held(page)
			p.refs[page]++
		}
	}
}

// give drops a holder of each page, and returns how many pages became free by that. Page 0 is
// passed over.
func (p *pages) give(pages []int64) (freed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, page := range pages {
		if page == 0 {
			continue
		}
		p.held(page)
		if p.refs[page]--; p.refs[page] == 0 {
			p.free = append(p.free, page)
			freed++
		}
	}
	return freed
}

// held panics if nobody holds a page: two conversations would write it later. The caller has p.mu.
func (p *pages) held(page int64) {
	if p.refs[page] < 1 {
		panic(fmt.Sprintf("text: page %d of the cache is given back or shared, and nobody holds it", page))
	}
}

// sole returns how many of these pages have a single holder.
func (p *pages) sole(pages []int64) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, page := range pages {
		if page != 0 && p.refs[page] == 1 {
			n++
		}
	}
	return n
}

// left returns how many pages are free.
func (p *pages) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// pageBytes returns the bytes of a page.
func (c *decoderConfig) pageBytes(dtype cgotorch.DType) int64 {
	return 2 * pageTokens * int64(c.keyHeads*c.head) * int64(dtype.Size())
}

// cacheBytes returns the bytes of n pages and page 0.
func (c *decoderConfig) cacheBytes(dtype cgotorch.DType, n int) float64 {
	return float64(c.pageBytes(dtype)) * (float64(n) + 1)
}

func (p *pages) bytes() int64 {
	return p.memory.Numel() * int64(p.memory.DType().Size())
}

func (p *pages) close() error {
	if p == nil {
		return nil
	}
	return p.memory.Close()
}

// span is a set of layers that see equally far, so that they keep the same tokens.
type span struct {
	window int // 0 is all tokens
	layers []int
	width  int // blocks of pageTokens tokens that are kept at most
}

// spans groups the layers. A window keeps what `part` tokens of one pass can see.
func (c *decoderConfig) spans(context, part int) (all []span) {
	of := map[int]int{}
	for i, l := range c.layers {
		at, ok := of[l.window]
		if !ok {
			at = len(all)
			of[l.window] = at
			width := blocksOf(context)
			if l.window > 0 {
				width = min(width, blocksOf(l.window-1+part)+1)
			}
			all = append(all, span{window: l.window, width: width})
		}
		all[at].layers = append(all[at].layers, i)
	}
	return all
}

// blocksOf returns the number of blocks that n tokens fill.
func blocksOf(n int) int { return (n + pageTokens - 1) / pageTokens }

// pagesFor returns the number of pages of sequences of `tokens` tokens together, of which each has
// at most `context`.
func pagesFor(spans []span, tokens, context int) (n int) {
	sequences := (tokens + context - 1) / context
	for _, s := range spans {
		n += min(blocksOf(tokens), s.width*sequences) * len(s.layers)
	}
	return n
}

// pageTable says in which pages the tokens of a sequence lie, in the layers of one span.
type pageTable struct {
	span
	first int       // the block that entry 0 stands for; earlier ones are out of the window
	pages [][]int64 // [layer][block]
}

func newPageTables(spans []*laneSpan) (tables []pageTable) {
	for _, s := range spans {
		tables = append(tables, pageTable{span: s.span, pages: make([][]int64, len(s.layers))})
	}
	return tables
}

// keeps reports whether no key is lost that the token after `tokens` tokens sees.
func (t *pageTable) keeps(tokens int) bool {
	if t.window == 0 {
		return true
	}
	return t.first*pageTokens <= max(0, tokens-t.window+1)
}

// cut gives the pages behind a number of tokens back.
func (t *pageTable) cut(p *pages, tokens int) {
	keep := max(0, blocksOf(tokens)-t.first)
	for i, pages := range t.pages {
		if len(pages) > keep {
			p.give(pages[keep:])
			t.pages[i] = pages[:keep]
		}
	}
	if tokens == 0 {
		t.first = 0
	}
}

// grow makes room for tokens `from` up to `to`, and gives back what no later token sees. It returns
// how many blocks are new, and reports whether entry 0 stands for another block than before. On an
// error nothing is new.
func (t *pageTable) grow(p *pages, from, to int) (fresh int, moved bool, err error) {
	if t.window > 0 {
		if first := max(0, from-t.window+1) / pageTokens; first > t.first {
			for i, pages := range t.pages {
				out := min(first-t.first, len(pages))
				p.give(pages[:out])
				t.pages[i] = pages[out:]
			}
			t.first, moved = first, true
		}
	}
	fresh = blocksOf(to) - t.first - len(t.pages[0])
	if fresh <= 0 {
		return 0, moved, nil
	}
	taken, err := p.take(fresh * len(t.layers))
	if err != nil {
		return 0, moved, err
	}
	for i := range t.pages {
		t.pages[i] = append(t.pages[i], taken[i*fresh:(i+1)*fresh]...)
	}
	return fresh, moved, nil
}

// write fills `to` with the table as it lies on the device: see [laneSpan]. There is page 0 where
// the sequence has none. `pages` is the distance of a value's page from its key's.
func (t *pageTable) write(to []int64, pages int) {
	clear(to)
	for i, keys := range t.pages {
		row := to[2*i*t.width:]
		for k, page := range keys {
			row[k], row[t.width+k] = page, page+int64(pages)
		}
	}
	to[len(to)-1] = int64(t.first*pageTokens) - 1
}
