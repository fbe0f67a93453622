package text

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// check fails the test if a page is free and held, free twice, or neither.
func (p *pages) check(t *testing.T) {
	t.Helper()
	free := map[int64]int{}
	for _, page := range p.free {
		free[page]++
	}
	for page := 1; page <= p.all; page++ {
		if refs, n := p.refs[page], free[int64(page)]; refs < 0 || n > 1 || (refs > 0) == (n > 0) {
			t.Fatalf("page %d is %d times free, and has %d holders", page, n, refs)
		}
	}
	if p.refs[0] != 0 || free[0] != 0 {
		t.Fatalf("page 0 has %d holders and is %d times free", p.refs[0], free[0])
	}
}

// A page is free again when its last holder has given it back.
func TestPages_Share(t *testing.T) {
	p := freePages(5)
	first, err := p.take(3)
	if err != nil || len(first) != 3 || p.left() != 2 {
		t.Fatalf("got %v, %v, and %d are left, want 3 and 2 left", first, err, p.left())
	}
	p.share(append(slices.Clone(first[:2]), 0))
	if n := p.sole(append(slices.Clone(first), 0)); n != 1 {
		t.Errorf("%d pages have one holder, want 1", n)
	}
	if freed := p.give(append(slices.Clone(first), 0)); freed != 1 || p.left() != 3 {
		t.Errorf("%d pages became free, and %d are left, want 1 and 3", freed, p.left())
	}
	if _, err := p.take(4); !errors.Is(err, cgotorch.ErrOutOfMemory) {
		t.Errorf("got %v, want ErrOutOfMemory", err)
	}
	second, _ := p.take(3)
	for _, page := range second {
		if slices.Contains(first[:2], page) {
			t.Errorf("page %d is held, and was taken", page)
		}
	}
	p.check(t)
	if freed := p.give(slices.Concat(first[:2], second)); freed != 5 {
		t.Errorf("%d pages became free, want all 5", freed)
	}
	p.check(t)
}

// A page that nobody holds is neither given back nor shared, and the pool stays whole.
func TestPages_NotHeld(t *testing.T) {
	for name, wrong := range map[string]func(p *pages, held, given int64){
		"give":       func(p *pages, held, given int64) { p.give([]int64{given}) },
		"share":      func(p *pages, held, given int64) { p.share([]int64{held, given}) },
		"give twice": func(p *pages, held, given int64) { p.give([]int64{held, held}) },
	} {
		p := freePages(4)
		mine, _ := p.take(2)
		p.give(mine[:1])
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.Contains(text, "nobody holds it") {
					t.Errorf("%s: got %q, want a panic", name, text)
				}
			}()
			wrong(p, mine[1], mine[0])
		}()
		p.check(t)
	}
}

// Goroutines take, share and give at once.
func TestPages_Goroutines(t *testing.T) {
	p := freePages(40)
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 500 {
				mine, err := p.take(4)
				if err != nil {
					t.Error(err)
					return
				}
				p.share(mine)
				p.give(mine)
				if p.sole(mine) != 4 {
					t.Error("another goroutine has a share of these pages")
				}
				p.give(mine)
			}
		}()
	}
	all.Wait()
	p.check(t)
	if p.left() != 40 {
		t.Errorf("%d pages are left, want all 40", p.left())
	}
}
