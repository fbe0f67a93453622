package text

import "github.com/streamtorch/streamtorch/cgotorch"

// saved is the pages of a request in page-locked host memory.
type saved struct {
	slab   *cgotorch.HostSlab
	bytes  int
	first  []int // of each table
	blocks []int // of each table
}

// close gives the memory back.
func (s *saved) close(b *Batcher) {
	if s != nil {
		_ = b.slabs.give(s.slab)
	}
}

// preempt takes a request out of its seat. If its prompt is computed, its pages are copied to host
// memory. Its tokens will be computed again without such memory, and if the next step turns all
// keys anew. The host has read all its tokens.
func (b *Batcher) preempt(r *request) {
	r.yields = false
	//edge:batch-saved-turned-anew TestBatcher_PreemptEachToken
	if r.running && b.m.d.c.long(len(r.a.prompt)+len(r.a.made)) == r.a.c.long {
		r.saved = b.save(r)
	}
	b.free(r)
	b.mu.Lock()
	b.stats.Preempted++
	b.waiting = append(b.waiting, r)
	b.mu.Unlock()
}

// pagesOf returns the numbers of all pages of a request, those of keys and those of values.
func (b *Batcher) pagesOf(r *request) (numbers []int64) {
	values := int64(b.m.pages.all + 1)
	for _, t := range r.a.c.tables {
		for _, pages := range t.pages {
			for _, page := range pages {
				numbers = append(numbers, page, page+values)
			}
		}
	}
	return numbers
}

// pageRows returns the cache as one row of bytes for each page.
func (b *Batcher) pageRows(x *cgotorch.Exec) *cgotorch.Tensor {
	memory := x.View(b.m.pages.memory, 2*int64(b.m.pages.all+1), -1)
	return call(x, "aten::view.dtype", memory, cgotorch.Uint8)
}

// save copies the pages of a request to host memory. It waits for the device. It returns nil if
// there is no such memory.
func (b *Batcher) save(r *request) *saved {
	numbers := b.pagesOf(r)
	s := &saved{bytes: len(numbers) / 2 * int(b.m.d.c.pageBytes(b.m.d.dtype))}
	for _, t := range r.a.c.tables {
		s.first, s.blocks = append(s.first, t.first), append(s.blocks, len(t.pages[0]))
	}
	var err error
	if s.slab, err = b.slabs.take(b.m.stream.Device(), s.bytes); err != nil {
		return nil
	}
	s.slab.Touch(true)
	err = b.m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		rows := x.IndexSelect(b.pageRows(x), 0, cgotorch.FromSlice(x, numbers))
		cgotorch.CopyTo(x, rows, s.slab.Bytes()[:s.bytes])
		return nil
	})
	if err == nil {
		err = b.m.stream.Synchronize()
	}
	if err != nil {
		s.close(b)
		return nil
	}
	return s
}

// takeSaved gives the tables of a request new pages in place of those that are saved. It reports
// false, and takes none, if the pool has too few.
func (b *Batcher) takeSaved(r *request) bool {
	c, s := r.a.c, r.saved
	for i := range c.tables {
		t := &c.tables[i]
		need := s.blocks[i] * len(t.layers)
		taken, err := b.m.pages.take(need)
		if err != nil && b.makeRoom(r, need) {
			taken, err = b.m.pages.take(need)
		}
		if err != nil {
			for k := range c.tables[:i] {
				c.tables[k].cut(b.m.pages, 0)
			}
			return false
		}
		t.first = s.first[i]
		for k := range t.pages {
			t.pages[k] = append([]int64(nil), taken[k*s.blocks[i]:(k+1)*s.blocks[i]]...)
		}
	}
	return true
}

// resume gives a request its pages again, and lets it take part in steps. It returns 0 if the pool
// has too few.
func (b *Batcher) resume(r *request) (int, error) {
	if !b.takeSaved(r) {
		return 0, nil
	}
	c, s := r.a.c, r.saved
	l := c.lane
	for i := range c.tables {
		if err := l.spans[i].upload(b.m.stream, &c.tables[i], b.m.pages.all+1); err != nil {
			return 0, err
		}
	}
	l.loaded = c
	var rows *cgotorch.Tensor
	//edge:batch-saved-to-its-pages TestBatcher_PreemptEachToken
	numbers := b.pagesOf(r)
	err := b.m.stream.Do(func(x *cgotorch.Exec) error {
		rows = x.Keep(x.Empty(cgotorch.Uint8, int64(len(numbers)), int64(s.bytes/len(numbers))))
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	s.slab.Touch(false)
	began, done, err := b.m.stream.CopyFrom(nil, cgotorch.HostCopy{To: rows, From: s.slab.Bytes()[:s.bytes]})
	defer began.Close()
	defer done.Close()
	if err != nil {
		return 0, err
	}
	err = b.m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		//edge:batch-saved-comes-back TestBatcher_PreemptEachToken
		indexCopy(x, b.pageRows(x), 0, cgotorch.FromSlice(x, numbers), rows)
		b.load(x, r, r.a.mask)
		//edge:batch-resumed-token TestBatcher_ResumeInOtherSeat
		write(x, l.token, r.a.made[len(r.a.made)-1:])
		return nil
	})
	if err == nil {
		err = s.slab.Await(done)
	}
	if err != nil {
		return 0, err
	}
	//edge:batch-resumed-position TestBatcher_PreemptEachToken
	b.b.positions[r.seat] = int64(len(r.a.prompt) + len(r.a.made) - 1)
	s.close(b)
	r.saved, r.running = nil, true
	return pageTokens, nil
}
