package weights

import (
	"context"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A slot is filled again only after the pending work that reads it. The host waits neither for
// that work nor for the copy.
func TestSlot_Reuse_InOrder(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		c := newCache(t, scalesStore(t, 8), d, CacheOptions{Slots: 2})
		var means []*cgotorch.HostRead
		stream := torchtest.NewStream(t, d)
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			apply(t, x, c, 0) // the first product is slow
			for range 8 {
				means = append(means, mean(x, c, 0))
			}
		})
		for _, r := range means {
			r.Item()
			r.Close()
		}
		means = nil
		began := time.Now()
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			in := x.Ones(cgotorch.Float32, 1, width)
			for i := range 8 {
				u := c.Use(x, unitName(i))
				torchtest.Sleep(x, 50*time.Millisecond)
				means = append(means, x.ReadAsync(x.Mean(u.Module.Forward(x, in))))
				u.Release(x)
				if i+1 < 8 {
					must.Check(t, c.Prefetch(context.Background(), unitName(i+1)))
				}
			}
			if took := time.Since(began); d.IsCUDA() && took > 200*time.Millisecond {
				t.Errorf("enqueueing took %v, with 400 ms of work pending", took)
			}
		})
		checkMeans(t, means)
	})
}

// If several streams read a slot, the next copy into the slot waits for all of them.
func TestSlot_Reuse_SeveralStreams(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		var onA, onB []*cgotorch.HostRead
		for i := range 3 {
			torchtest.DoOn(t, a, func(x *cgotorch.Exec) { onA = append(onA, mean(x, c, i)) })
			torchtest.DoOn(t, b, func(x *cgotorch.Exec) { onB = append(onB, mean(x, c, i)) })
		}
		checkMeans(t, onA)
		checkMeans(t, onB)
		if s := c.Stats(); s.Hits != 3 || s.Misses != 3 {
			t.Errorf("%+v; want 3 hits and 3 misses", s)
		}
	})
}
