package streams

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/prefetcher"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// resNetSteps trains ResNet-18 on batches of a prefetcher, for as many steps. around is handed each step to run, and read says whether
// that step is to read its loss.
func resNetSteps(t *testing.T, d cgotorch.Device, steps int, around func(step int, run func(waits func(x *cgotorch.Exec) *cgotorch.Exec, read bool) error)) {
	t.Helper()
	source := &endless{n: 8, hw: 32}
	var err error
	if source.slab, err = cgotorch.NewHostSlab(source.n*8 + source.n*source.hw*source.hw*3); err != nil {
		t.Fatal(err)
	}
	defer source.slab.Close()
	source.labels = make([]int64, source.n)
	ahead, err := prefetcher.New(source, d, prefetcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ahead.Close()
	stream, err := cgotorch.NewStream(d, cgotorch.StreamOptions{Name: "training"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var model nn.Module
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		model = vision.NewResNet18(x, vision.Options{Classes: 10})
		nn.To(x, model, nn.ToOptions{ChannelsLast: true})
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.01, Momentum: 0.9, Nesterov: true}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Close(model)
	defer opt.Close()
	schedule := optim.OneCycle(100, optim.OneCycleOptions{})
	step := 0
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		around(step, func(derive func(x *cgotorch.Exec) *cgotorch.Exec, read bool) error {
			opt.SetScale(schedule(step))
			var reads []*cgotorch.HostRead
			err := stream.Do(func(x *cgotorch.Exec) error {
				x = derive(x)
				images, labels := batch.Use(x)
				opt.ZeroGrad()
				ax := x.Autocast(cgotorch.BFloat16)
				l := nn.CrossEntropy(ax, model.Forward(ax, images), labels, nn.CrossEntropyOptions{LabelSmoothing: 0.1})
				x.Backward(l)
				optim.ClipGradNorm(x, opt.Params(), 1)
				opt.Step(x)
				reads = append(reads, x.ReadAsync(l))
				for step < warm && len(reads) < steps { // page-locked memory for all that are on their way later
					reads = append(reads, x.ReadAsync(l))
				}
				if read {
					x.Item(l)
				}
				return nil
			})
			for _, r := range reads {
				r.Close()
			}
			return err
		})
		if step++; step == steps {
			break
		}
	}
}

// warm is how many steps come first, until memory is allocated and algorithms are chosen.
const warm = 6

// A whole training step asserts that it does not wait, while another goroutine does; one that reads its loss fails, at that line.
func TestNoWaits_TrainingStep(t *testing.T) {
	onEach(t, func(t *testing.T, d cgotorch.Device) {
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
				if err := run(func(x *cgotorch.Exec) *cgotorch.Exec { return x }, true); err != nil {
					t.Fatal(err)
				}
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

// LibTorch's own check, which is one switch for the whole process, agrees.
func TestSyncDebug_TrainingStep(t *testing.T) {
	if n, err := cgotorch.CUDACount(); n == 0 {
		t.Skip(err)
	}
	resNetSteps(t, cgotorch.CUDA(0), warm+3, func(step int, run func(func(x *cgotorch.Exec) *cgotorch.Exec, bool) error) {
		plain := func(x *cgotorch.Exec) *cgotorch.Exec { return x }
		if step < warm {
			if err := run(plain, true); err != nil {
				t.Fatal(err)
			}
			return
		}
		restore, err := ambient.SyncDebug(2)
		if err != nil {
			t.Fatal(err)
		}
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
