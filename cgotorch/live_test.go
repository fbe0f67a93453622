package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestLiveHandles(t *testing.T) {
	torchtest.CheckLeaks(t)
	before := LiveHandles()
	s := torchtest.NewStream(t, CPU)
	slab := Must(NewHostSlab(CPU, 5000))
	e := record(t, s)
	s.Do(func(x *Exec) error {
		x.Ones(Float32, 1)
		x.Ones(Float32, 1)
		got := LiveHandles()
		for kind, want := range map[string]int{"stream": 1, "slab": 1, "event": 1, "tensor": 2, "status": 0} {
			if got[kind] != before[kind]+want {
				t.Errorf("%d of kind %s, want %d more than %d", got[kind], kind, want, before[kind])
			}
		}
		return nil
	})
	if live := LiveHandles(); live["slab bytes"] < 5000 || live["pinned bytes"] > live["slab bytes"] {
		t.Errorf("the slabs have %v", live)
	}
	slab.Close()
	e.Close()
}
