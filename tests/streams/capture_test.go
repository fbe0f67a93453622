//go:build cgo && linux

package streams

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// Another library captures a graph on its stream, in CUDA's global mode. In this mode some calls
// of other threads break the capture. Meanwhile streams, events and page-locked memory are made,
// queried and closed. The capture must succeed. The control is a plain query of CUDA, which must
// break the capture.
func TestCapture_IsNotDisturbed(t *testing.T) {
	d := torchtest.CUDA(t)
	other := torchtest.NewStream(t, d)
	native := must.Get(ambient.NewStream())(t)
	queried := must.Get(ambient.NewStream())(t)
	var kept *cgotorch.Tensor
	torchtest.DoOn(t, other, func(x *cgotorch.Exec) { kept = x.Keep(x.Ones(cgotorch.Float32, 1<<20)) })
	slab := must.Get(cgotorch.NewHostSlab(d, 1<<20))(t)
	capture := func(during func() error) (captureErr, duringErr error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		captureErr = ambient.Capture(native, func() {
			done := make(chan error)
			go func() { done <- during() }()
			duringErr = <-done
		})
		return captureErr, duringErr
	}
	captureErr, duringErr := capture(func() error {
		err := other.Do(func(x *cgotorch.Exec) error { torchtest.Sleep(x, 2*time.Millisecond); x.Neg(kept); return nil })
		e, recordErr := other.Record()
		if recordErr != nil {
			return recordErr
		}
		_, queryErr := e.Query()
		<-e.Done()
		kept.Close()
		fresh, streamErr := cgotorch.NewStream(d, cgotorch.StreamOptions{HighPriority: true})
		if streamErr != nil {
			return streamErr
		}
		second, slabErr := cgotorch.NewHostSlab(cgotorch.CPU, 1<<20)
		if slabErr != nil {
			return slabErr
		}
		return errors.Join(err, queryErr, e.Synchronize(), slab.Close(), fresh.Wait(e), fresh.Close(), e.Close(), second.Pin(), second.Close())
	})
	if captureErr != nil {
		t.Errorf("the capture: %v", captureErr)
	}
	if duringErr != nil {
		t.Errorf("meanwhile: %v", duringErr)
	}
	if captureErr, _ := capture(func() error { ambient.Query(queried); return nil }); captureErr == nil {
		t.Error("the control did not disturb the capture: this test would see nothing")
	}
	must.Check(t, other.Synchronize())
}
