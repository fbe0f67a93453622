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
	torchtest.DoOn(t, stream, func(x *Exec) {
		kept = append(kept, x.Keep(x.Ones(Float32, 1000)), x.Keep(x.Ones(Float32, 1000)))
	})
	torchtest.DoOn(t, stream, func(x *Exec) {
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
	})
	if !eventually(func() bool { runtime.GC(); return liveTensors() <= before }) {
		t.Error("the collector has not freed the kept tensors")
	}
}

// The garbage collector frees the handles that a program drops.
func TestDropped_IsFreed(t *testing.T) {
	torchtest.CheckLeaks(t)
	for kind, drop := range map[string]func(x *Exec){
		"event":  func(x *Exec) { x.Record() },
		"tensor": func(x *Exec) { x.Keep(x.Ones(Float32, 1)) },
		"slab":   func(*Exec) { Must(NewHostSlab(CPU, 4096)) },
	} {
		before := LiveHandles()[kind]
		torchtest.Do(t, CPU, drop)
		if !eventually(func() bool { runtime.GC(); return LiveHandles()[kind] <= before }) {
			t.Errorf("the %s is left", kind)
		}
	}
}
