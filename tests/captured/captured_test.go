// Package captured compares captured training steps with eager ones. Both read their batches from
// a prefetcher.
package captured

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// run trains `steps` steps on the archive of examples/train. The training has random crops and
// flips, a schedule, clipping and dropout. The last batch of each epoch is smaller.
type run struct {
	device   cgotorch.Device
	steps    int
	autocast cgotorch.DType
	options  cgotorch.CapturedOptions
}

type result struct {
	losses []float64
	stats  cgotorch.CapturedStats
	eager  int // number of batches whose shape was not captured
}

func (r run) train(t *testing.T) (out result) {
	t.Helper()
	archive := filepath.Join("..", "..", "examples", "train", "data", "cifar10-10k.tgz")
	const size = 128
	loader := must.Get(imageloader.Open(archive, imageloader.Options{
		Train: true, BatchSize: size, Split: "train", Seed: 5, Crop: imageloader.Crop{Transform: decode.RandomCrop{Height: 32, Width: 32, Padding: 4}}, Workers: 2,
	}))(t)
	defer loader.Close()
	ahead := must.Get(prefetcher.New(loader, r.device, prefetcher.Options{}))(t)
	defer ahead.Close()
	must.Do(t, cgotorch.Seed(5))
	stream := cgotorch.DefaultStream(r.device)
	var model nn.Module
	var opt *optim.Optimizer
	must.Do(t, stream.Do(func(x *cgotorch.Exec) error {
		model = newNet(x, len(loader.Classes()))
		nn.To(x, model, nn.ToOptions{ChannelsLast: true})
		var err error
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9, WeightDecay: 5e-4, Nesterov: true}, optim.Group{Params: nn.Parameters(model)})
		return err
	}))
	defer nn.Close(model)
	defer opt.Close()
	r.options.Log = func(text string) { t.Log(text) }
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		opt.ZeroGrad()
		y := x
		if r.autocast != 0 {
			y = x.Autocast(r.autocast)
		}
		loss := nn.CrossEntropy(y, model.Forward(y, in[0]), in[1], nn.CrossEntropyOptions{LabelSmoothing: 0.1})
		x.Backward(loss)
		optim.ClipGradNorm(x, opt.Params(), 1)
		opt.Step(x)
		return []*cgotorch.Tensor{loss}
	}, r.options)
	defer step.Close()
	schedule := optim.OneCycle(r.steps, optim.OneCycleOptions{})
	var reads []*cgotorch.HostRead
	for len(reads) < r.steps {
		for batch, err := range ahead.Epoch(context.Background()) {
			must.Do(t, err)
			opt.SetScale(schedule(len(reads)))
			must.Do(t, stream.Do(func(x *cgotorch.Exec) error {
				images, labels := batch.Use(x)
				reads = append(reads, x.ReadAsync(step.Run(x, images, labels)[0]))
				return nil
			}))
			if batch.N < size {
				out.eager++
			}
			if len(reads) == r.steps {
				break
			}
		}
	}
	for _, read := range reads {
		out.losses = append(out.losses, must.Get(read.Item())(t))
		read.Close()
	}
	out.stats = step.Stats()
	return out
}

// newNet makes a model whose operators all have deterministic gradients.
func newNet(x *cgotorch.Exec, classes int) nn.Module {
	conv := func(in, out, stride int) []nn.Module {
		return []nn.Module{
			nn.NewConv2d(x, in, out, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), Stride: nn.Square(stride), NoBias: true}),
			nn.NewBatchNorm2d(x, out, nn.BatchNormOptions{}),
			&nn.ReLU{InPlace: true},
		}
	}
	mean := nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return x.MeanDim(in, []int64{2, 3}, cgotorch.SumOptions{})
	})
	return nn.NewSequential(slices.Concat(conv(3, 32, 1), conv(32, 64, 2), conv(64, 128, 2), []nn.Module{
		mean, &nn.Dropout{P: 0.2}, nn.NewLinear(x, 128, classes, nn.LinearOptions{}),
	})...)
}

func device(t *testing.T) cgotorch.Device {
	if n, _ := cgotorch.CUDACount(); n > 0 {
		return cgotorch.CUDA(0)
	}
	t.Log("no GPU: both runs are eager, on the CPU")
	return cgotorch.CPU
}

// Captured steps have the same losses as eager ones, in float32 and under autocast. The losses
// are equal bit for bit, because the algorithms are deterministic.
func TestCaptured_SameLosses(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Deterministic(t)
	for _, autocast := range []cgotorch.DType{0, cgotorch.BFloat16} {
		r := run{device: device(t), steps: 1000, autocast: autocast}
		if testing.Short() || !r.device.IsCUDA() {
			r.steps = 100
		}
		if !r.device.IsCUDA() {
			r.steps = 3
			if autocast != 0 {
				continue // few CPUs can compute in bfloat16
			}
		}
		eager := r
		eager.options.Eager = true
		want := eager.train(t)
		for _, inPlace := range []bool{false, true} {
			r.options.InPlace = inPlace
			got := r.train(t)
			for i := range want.losses {
				if got.losses[i] != want.losses[i] {
					t.Fatalf("autocast %d, in place %v: step %d has loss %v captured and %v eager", int(autocast), inPlace, i, got.losses[i], want.losses[i])
				}
			}
			last := want.losses[len(want.losses)-1]
			if math.IsNaN(last) || r.steps >= 100 && last > 0.9*want.losses[0] {
				t.Errorf("the loss goes from %v to %v", want.losses[0], last)
			}
			if s := got.stats; r.device.IsCUDA() && (s.Launches < r.steps/2 || s.Launches+s.Eager != r.steps) {
				t.Errorf("%d steps, %d of them of odd shape: %+v", r.steps, got.eager, s)
			}
		}
	}
}
