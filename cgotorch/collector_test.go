package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"runtime"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A call is the last use of its arguments, and only a cleanup of the garbage collector frees the
// arguments. The arguments must live until the core has read them.
func TestCall_ArgumentsOutliveTheCollector(t *testing.T) {
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, CPU)
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
				time.Sleep(10 * time.Millisecond) // cleanups run in a goroutine of the Go runtime
			}
			x.Zeros(Float32, 1000) // takes the memory of the arguments, if they were freed
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
