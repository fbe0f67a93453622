//go:build cgo && linux

package streams

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// resNetSteps trains ResNet-18 on batches of a prefetcher. For each step it calls the function
// `around`. That function makes the step by calling `run`. The argument `waits` of run turns the
// Do's Exec into the Exec that the step uses. If `read` is set, the step reads its loss.
func resNetSteps(t *testing.T, d cgotorch.Device, steps int, around func(step int, run func(waits func(x *cgotorch.Exec) *cgotorch.Exec, read bool) error)) {
	t.Helper()
	r := newTraining(t, d, 8, 32)
	step := 0
	for batch, err := range r.ahead.Epoch(context.Background()) {
		must.Do(t, err)
		around(step, func(derive func(x *cgotorch.Exec) *cgotorch.Exec, read bool) error {
			r.opt.SetScale(r.schedule(step))
			var reads []*cgotorch.HostRead
			err := r.stream.Do(func(x *cgotorch.Exec) error {
				x = derive(x)
				l := r.step(x, batch)
				reads = append(reads, x.ReadAsync(l))
				for step < warm && len(reads) < steps { // these reads make the page-locked memory for all later reads
					reads = append(reads, x.ReadAsync(l))
				}
				if read {
					x.Item(l)
				}
				return nil
			})
			for _, read := range reads {
				read.Close()
			}
			return err
		})
		if step++; step == steps {
			break
		}
	}
}

// warm is the number of first steps, during which memory is allocated and algorithms are chosen.
const warm = 6

// A whole training step under NoWaits succeeds while another goroutine waits. A step that reads
// its loss fails, and the error names the line of the read.
func TestNoWaits_TrainingStep(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		stop, stopped := make(chan bool), make(chan bool)
		go func() {
			defer close(stopped)
			s, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for {
				select {
				case <-stop:
					return
				default:
					if err := errors.Join(work(s), s.Do(func(x *cgotorch.Exec) error { x.Item(x.Ones(cgotorch.Float32)); return nil }), s.Synchronize()); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}()
		resNetSteps(t, d, warm+4, func(step int, run func(func(x *cgotorch.Exec) *cgotorch.Exec, bool) error) {
			if step < warm {
				must.Do(t, run(func(x *cgotorch.Exec) *cgotorch.Exec { return x }, true))
				return
			}
			reads := step == warm+3
			err := run((*cgotorch.Exec).NoWaits, reads)
			switch {
			case !reads && err != nil:
				t.Errorf("step %d: %v", step, err)
			case reads && (!errors.Is(err, cgotorch.ErrWaited) || !strings.Contains(err.Error(), "watch_test.go:")):
				t.Errorf("a step that reads its loss: %v", err)
			}
		})
		close(stop)
		<-stopped
	})
}

// LibTorch's sync-debug mode also finds no wait in a training step. This mode is a switch of the
// whole process.
func TestSyncDebug_TrainingStep(t *testing.T) {
	torchtest.CUDA(t)
	resNetSteps(t, cgotorch.CUDA(0), warm+3, func(step int, run func(func(x *cgotorch.Exec) *cgotorch.Exec, bool) error) {
		plain := func(x *cgotorch.Exec) *cgotorch.Exec { return x }
		if step < warm {
			must.Do(t, run(plain, true))
			return
		}
		restore, err := ambient.SyncDebug(2)
		must.Do(t, err)
		defer restore()
		reads := step == warm+2
		err = run(plain, reads)
		switch {
		case !reads && err != nil:
			t.Errorf("step %d: %v", step, err)
		case reads && (err == nil || !strings.Contains(err.Error(), "synchronizing CUDA operation")):
			t.Errorf("a step that reads its loss: %v", err)
		}
	})
}
