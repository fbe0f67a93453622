package imageloader

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// Results wait for a slow loop, as many as may, and no more calls run at a time than may.
func TestInOrder_Ahead(t *testing.T) {
	const n, atOnce, ahead = 100, 3, 40
	var running, most, done, dropped atomic.Int32
	all := inOrder(context.Background(), n, atOnce, ahead, nil, func(i int) (int, error) {
		most.Store(max(most.Load(), running.Add(1)))
		time.Sleep(time.Millisecond)
		running.Add(-1)
		done.Add(1)
		return i, nil
	}, func(int) { dropped.Add(1) })
	next := 0
	for i, err := range all {
		if err != nil || i != next {
			t.Fatalf("got %d, %v, want %d", i, err, next)
		}
		next++
		if i == 0 {
			for end := time.Now().Add(10 * time.Second); done.Load() < ahead && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(20 * time.Millisecond)
			if d := done.Load(); d < ahead || d > ahead+2 {
				t.Errorf("%d results are there while the loop waits, want %d", d, ahead)
			}
		}
		if i == 50 {
			break
		}
	}
	if next != 51 || most.Load() > atOnce || dropped.Load() != done.Load()-51 {
		t.Errorf("%d results, %d calls at a time, %d of %d dropped", next, most.Load(), dropped.Load(), done.Load())
	}
}
