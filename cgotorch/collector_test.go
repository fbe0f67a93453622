package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"runtime"
	"testing"
	"time"
)

// An argument whose last use is the call itself must live until the core has read it, also when
// only a cleanup frees it.
func TestCall_ArgumentsOutliveTheCollector(t *testing.T) {
	checkLeaks(t)
	stream := newStream(t, CPU)
	before := liveTensors()
	var kept []*Tensor
	err := stream.Do(func(x *Exec) error {
		kept = append(kept, x.Keep(x.Ones(Float32, 1000)), x.Keep(x.Ones(Float32, 1000)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Do(func(x *Exec) error {
		sum := AddForgotten(x, &kept, func() {
			for range 3 {
				runtime.GC()
				time.Sleep(10 * time.Millisecond) // cleanups run in a goroutine of the runtime's
			}
			x.Zeros(Float32, 1000) // takes the memory, if it was freed
		})
		if got := x.Item(x.Sum(sum)); got != 2000 {
			t.Errorf("the sum is %v, want 2000", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { runtime.GC(); return liveTensors() <= before }) {
		t.Error("the collector has not freed the kept tensors")
	}
}
