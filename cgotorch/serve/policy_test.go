package serve

import (
	"testing"
	"time"
)

// A batch is gathered at once for an idle device, and else so early that it is copied when the
// device has done the batch before.
func TestPolicy_Wait(t *testing.T) {
	const ms = time.Millisecond
	p := newPolicy([]int{1, 8, 64}, []int64{0}, false, 0)
	p.Takes[form{8, 0}], p.copy[0] = 10*ms, ms/10
	now := time.Now()
	wait := func(at time.Duration, waiting int, want time.Duration) {
		t.Helper()
		if got := p.wait(now.Add(at), 0, waiting, now); got != want {
			t.Errorf("after %v, %d entries wait %v, want %v", at, waiting, got, want)
		}
	}
	wait(0, 1, 0)
	p.Began(form{8, 0}, now, now)
	wait(ms, 1, 9*ms-ms/10)
	wait(ms, 10, 8*ms)
	wait(ms, 64, 0)
	wait(12*ms, 1, 0)
	p.Ended(form{8, 0}, now, now.Add(5*ms))
	wait(5*ms, 1, 0)
}

// A batch is of the size with the highest rate, or of half of all entries.
func TestPolicy_Size(t *testing.T) {
	p := newPolicy([]int{1, 16, 32, 64}, []int64{0}, false, 0)
	for size, ms := range map[int]float64{1: 0.8, 16: 1.7, 32: 2.8, 64: 5.5} {
		p.Takes[form{size, 0}] = time.Duration(ms * 1e6)
	}
	for _, c := range []struct{ waiting, computed, want int }{
		{1, 0, 1}, {2, 0, 1}, {15, 1, 16}, {16, 0, 16}, {17, 16, 16}, {32, 32, 32}, {61, 3, 32}, {63, 1, 32}, {64, 0, 32}, {64, 64, 64},
	} {
		if got := p.size(0, c.waiting, c.computed); got != c.want {
			t.Errorf("%d entries wait and %d are computed: a batch of %d, want %d", c.waiting, c.computed, got, c.want)
		}
	}
}
