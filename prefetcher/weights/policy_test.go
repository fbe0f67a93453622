package weights

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Every policy gives the same results. For each policy, the numbers of hits, of Uses of units
// copied ahead, and of copies are as expected.
func TestPolicy(t *testing.T) {
	order := []int{0, 1, 2, 3, 0, 1, 2, 3, 3, 3, 0, 0}
	for _, test := range []struct {
		o                   CacheOptions
		hits, ahead, copies int
	}{
		{CacheOptions{Policy: LRU, Slots: 2}, 3, 0, 9},
		{CacheOptions{Policy: LRU, Slots: 4}, 8, 0, 4},
		{CacheOptions{Policy: LFU, Slots: 2}, 3, 0, 9},
		{CacheOptions{Policy: NextLayer}, 3, 8, 10},
	} {
		t.Run(fmt.Sprintf("%v/%d", test.o.Policy, test.o.Slots), func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				c := newCache(t, scalesStore(t, 4), d, test.o)
				torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
					for _, i := range order {
						apply(t, x, c, i)
					}
				})
				s := c.Stats()
				if got := int(s.Bytes / c.o.SlotBytes); s.Hits != test.hits || s.Ahead != test.ahead || s.Hits+s.Ahead+s.Misses != len(order) || got != test.copies {
					t.Errorf("%+v and %d copies; want %d hits and %d ahead of %d, %d copies", s, got, test.hits, test.ahead, len(order), test.copies)
				}
			})
		})
	}
}
