package text

import (
	"container/list"
	"slices"
	"sync"
)

// Note [Tree of prefixes]
//
// The tree keeps the pages of conversations that have ended, as long as there is room. A
// conversation that begins with the same tokens reads them, and computes only what follows. If the
// pool has too few pages for somebody, it asks the trees for theirs: see [pages.reclaim].
//
// A node stands for a block of pageTokens tokens behind its parent. It has the block's pages in all
// layers, and holds each of them. A node is found by its parent, its kind and its tokens, which a
// Go map compares. Kinds differ where equal tokens have other keys, as the rotations of a long
// sequence make them. The tree is cleared where all keys change, as with new weights.
//
// A conversation adds its whole blocks. It has given away the early pages of a span with a window.
// Such a block becomes no node. Later blocks become nodes only if the tree has all earlier ones,
// perhaps from another conversation. A block that the tree already has keeps its old pages.
//
// Nobody writes a page that others hold, so that pages are never copied. Chains have whole blocks,
// and a new token lies behind them. The last token of a prompt is always computed again, so a
// prompt looks for all its tokens but the last.
//
// The list of nodes has those first that were used last, and each parent before its children. So
// eviction walks it once from its end, and meets a child before its parent becomes a leaf.

// block is the tokens of one page.
type block [pageTokens]int64

// prefixKey is what a node is found by.
type prefixKey struct {
	parent *prefixNode // nil for the first block
	kind   int
	tokens block
}

// prefixNode is a block of a chain: see Note [Tree of prefixes].
type prefixNode struct {
	key      prefixKey
	pages    []int64 // of the layers of the first span, then of those of the next
	children int
	place    *list.Element // in the order of use
}

// prefixes is a tree of blocks: see Note [Tree of prefixes]. It may be used from any goroutine.
type prefixes struct {
	pool  *pages
	mu    sync.Mutex // held by the caller of find, until it has lent what it found
	nodes map[prefixKey]*prefixNode
	used  *list.List // of nodes, the last used first
	held  int        // pages
}

// newPrefixes makes an empty tree over the pages of a pool.
func newPrefixes(pool *pages) *prefixes {
	return &prefixes{pool: pool, nodes: map[prefixKey]*prefixNode{}, used: list.New()}
}

// pages returns how many pages the tree holds, alone or with others.
func (t *prefixes) pages() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// walk returns the nodes of the first blocks of tokens. For a block that the tree lacks it calls
// missing with the block's number, and stops if that returns no pages.
func (t *prefixes) walk(kind int, tokens []int64, missing func(block int) []int64) (chain []*prefixNode) {
	//edge:batch-kind-of-node TestPrefixes_Beginnings
	key := prefixKey{kind: kind}
	for i := range len(tokens) / pageTokens {
		key.tokens = block(tokens[i*pageTokens:])
		n := t.nodes[key]
		if n == nil {
			pages := missing(i)
			if pages == nil {
				break
			}
			n = t.insert(key, pages)
		}
		chain = append(chain, n)
		key.parent = n
	}
	for _, n := range slices.Backward(chain) { // parents come before their children
		t.used.MoveToFront(n.place)
	}
	return chain
}

// insert makes a node, which holds the pages. Behind other nodes its place does not matter yet.
func (t *prefixes) insert(key prefixKey, pages []int64) *prefixNode {
	//edge:batch-tree-holds TestPrefixes_Random
	t.pool.share(pages)
	n := &prefixNode{key: key, pages: pages}
	n.place = t.used.PushBack(n)
	t.nodes[key] = n
	t.held += len(pages)
	if key.parent != nil {
		key.parent.children++
	}
	return n
}

// find returns the longest chain of the first whole blocks of tokens, and marks it as used now.
// The nodes are good until the next evict or clear. So the caller holds t.mu until it has lent
// them. For a prompt the caller gives all tokens but the last, which is always computed again.
func (t *prefixes) find(kind int, tokens []int64) []*prefixNode {
	return t.walk(kind, tokens, func(int) []int64 { return nil })
}

// lend fills empty tables, one for each span, with the pages of a chain, and adds a holder to each.
// A table with a window gets the blocks that the token behind the chain sees.
func (t *prefixes) lend(chain []*prefixNode, tables []pageTable) {
	layer := 0
	for i := range tables {
		tables[i].adopt(t.pool, chain, layer)
		layer += len(tables[i].layers)
	}
}

// adopt fills an empty table with the pages of a chain. The span's layers are those of a node from
// number `layer` on.
func (t *pageTable) adopt(p *pages, chain []*prefixNode, layer int) {
	if t.first != 0 || len(t.pages[0]) != 0 {
		panic("text: a page table adopts pages, and has others")
	}
	if t.window > 0 {
		t.first = max(0, len(chain)*pageTokens-t.window+1) / pageTokens
	}
	for i := range t.pages {
		for _, n := range chain[t.first:] {
			t.pages[i] = append(t.pages[i], n.pages[layer+i])
		}
		//edge:batch-reader-holds TestPrefixes_Random
		p.share(t.pages[i])
	}
}

// add keeps the whole blocks of tokens, whose keys and values are in the tables, one for each span.
// It stops at a block that the tree lacks, and of which a table lacks the pages. It returns how
// many nodes are new. All nodes on the way are marked as used now.
func (t *prefixes) add(kind int, tokens []int64, tables []pageTable) (fresh int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.walk(kind, tokens, func(block int) []int64 {
		var pages []int64
		for i := range tables {
			of := &tables[i]
			at := block - of.first
			for _, layer := range of.pages {
				if at < 0 || at >= len(layer) {
					return nil
				}
				pages = append(pages, layer[at])
			}
		}
		fresh++
		return pages
	})
	return fresh
}

// evict drops leaves, the least recently used first, until n pages of the pool are free, or until
// no leaf has a page that the tree alone holds. It returns how many pages became free.
func (t *prefixes) evict(n int) (freed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := t.used.Back(); at != nil && t.pool.left() < n; {
		node := at.Value.(*prefixNode)
		at = at.Prev()
		if node.children == 0 && t.pool.sole(node.pages) > 0 {
			freed += t.drop(node)
		}
	}
	return freed
}

// clear drops all nodes. Pages that others hold stay theirs.
func (t *prefixes) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.used.Len() > 0 {
		t.drop(t.used.Back().Value.(*prefixNode))
	}
}

// drop gives the pages of a leaf back, and returns how many became free.
func (t *prefixes) drop(n *prefixNode) int {
	delete(t.nodes, n.key)
	t.used.Remove(n.place)
	t.held -= len(n.pages)
	if n.key.parent != nil {
		n.key.parent.children--
	}
	return t.pool.give(n.pages)
}
