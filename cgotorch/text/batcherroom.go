package text

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// fits reports whether the pool has the pages with which a request begins, and one more for each
// seat. It drops prefixes that nobody else holds. The first request of all seats always fits.
func (b *Batcher) fits(r *request) bool {
	tokens := r.tokens()
	r.a.c.long = b.m.d.c.long(len(tokens))
	shared := 0
	if r.saved == nil {
		b.prefixes.mu.Lock()
		shared = len(b.prefixes.find(b.kind(r), tokens[:len(tokens)-1]))
		b.prefixes.mu.Unlock()
	}
	need, alone := 0, true
	for _, s := range b.b.spans {
		blocks := min(blocksOf(len(tokens)+1)-shared, s.width)
		for _, other := range b.rows {
			if other != nil {
				alone = false
				blocks++
			}
		}
		need += blocks * len(s.layers)
	}
	return b.m.pages.reclaim(need) || alone
}

// grow makes room for tokens of a request, from position `from` up to `to`, and gives the device
// the tables that it lacks. It reports whether there is room: see Note [Turns of a Batcher].
func (b *Batcher) grow(r *request, from, to int) (bool, error) {
	c := r.a.c
	for i := range c.tables {
		t, s := &c.tables[i], c.lane.spans[i]
		fresh, moved, err := t.grow(b.m.pages, from, to)
		for errors.Is(err, cgotorch.ErrOutOfMemory) && b.makeRoom(r, (blocksOf(to)-t.first-len(t.pages[0]))*len(t.layers)) {
			fresh, moved, err = t.grow(b.m.pages, from, to)
		}
		if errors.Is(err, cgotorch.ErrOutOfMemory) {
			return false, nil
		}
		if err == nil && (fresh > 0 || moved || c.lane.loaded != c) {
			//edge:batch-table-uploaded TestBatcher_Answers
			err = s.upload(b.m.stream, t, b.m.pages.all+1)
		}
		// A prompt gives what nobody has written the weight 0: see [lane.clear]. A step does not read it.
		if err == nil && fresh > 0 && !r.running && to%pageTokens > 0 {
			//edge:batch-rest-of-page-cleared TestBatcher_NaN
			err = b.m.stream.Do(func(x *cgotorch.Exec) error {
				n := len(t.pages[0])
				c.lane.clear(plain(x), s, n-1, n, 0)
				return nil
			})
		}
		if err != nil {
			return false, err
		}
	}
	c.lane.loaded = c
	return true, nil
}

// makeRoom drops prefixes for n pages, and reports whether there are as many then. Else it asks
// the youngest request to give its pages up, unless that is r.
func (b *Batcher) makeRoom(r *request, n int) bool {
	if b.m.pages.reclaim(n) {
		return true
	}
	youngest := r
	for _, other := range b.rows {
		if other != nil && other.admitted > youngest.admitted {
			youngest = other
		}
	}
	if youngest == r {
		return false
	}
	if youngest.running {
		youngest.yields = true
		return false
	}
	b.preempt(youngest)
	return b.m.pages.left() >= n
}
