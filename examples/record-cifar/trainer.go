package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// warmUp is the number of eager steps before the capture. They are steps of the training.
const warmUp = 2

// trainer trains one network.
type trainer struct {
	Config
	clock  *clock
	device cgotorch.Device
	stream *cgotorch.Stream
	to     target

	views    *views
	net      *network
	opt      *optim.Optimizer
	schedule optim.Schedule
	ahead    *lookahead
	step     *cgotorch.Captured
	train    *pictures

	batches int              // in an epoch; images that fill no batch are left out
	steps   int              // in the training
	flips   *cgotorch.Tensor // bool [N]: the images that are mirrored in this epoch
	order   *cgotorch.Tensor // int64 [N]: the order of this epoch
	frozen  bool             // the whitening layer's bias is not trained any more
	loss    float64          // of the last batch, for each image
}

// result is the outcome of one seed.
type result struct {
	Seed     uint64  `json:"seed"`
	Accuracy float64 `json:"accuracy"`
	Images   int     `json:"images"`  // that were tested
	Seconds  float64 `json:"seconds"` // from the start of the process to the line with the accuracy
	Open     float64 `json:"open"`    // seconds until the device was open
	Steps    int     `json:"steps"`
	Loss     float64 `json:"loss"`     // of the last batch, for each image
	Captures int     `json:"captures"` // of the training step
	Eager    string  `json:"eager"`    // why steps ran eagerly; empty if only for warm-up
	Clock    string  `json:"clock"`    // where the start of the process comes from
	Phases   []phase `json:"phases"`
}

// run trains and tests one network. It prints the accuracy, and the time until then.
func run(ctx context.Context, c *clock, config Config) (r *result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &trainer{Config: config, clock: c, to: target{opened: make(chan struct{})}}
	train, test := readBoth(ctx, c, source{t.Data, "train", t.Limit}, source{t.Data, "test", t.Limit}, &t.to)
	defer func() {
		cancel()
		err = errors.Join(err, train.close(), test.close(), t.close())
	}()

	if err := t.open(); err != nil {
		return nil, err
	}
	open := c.seconds()
	end := c.begin("network and optimizer")
	if err := t.make(); err != nil {
		return nil, err
	}
	end()
	if t.train, err = train.wait(ctx); err != nil {
		return nil, err
	}
	end = c.begin("whitening")
	if err := t.prepare(); err != nil {
		return nil, err
	}
	end()
	if err := t.all(ctx); err != nil {
		return nil, err
	}
	tested, err := test.wait(ctx)
	if err != nil {
		return nil, err
	}
	end = c.begin("evaluation")
	right, err := t.evaluate(tested)
	if err != nil {
		return nil, err
	}
	end()
	accuracy, seconds, stats := float64(right)/float64(tested.n), c.seconds(), t.step.Stats()
	fmt.Printf("seed %d: %.2f %% of %d images, %.3f s after the start of the process\n", t.Seed, 100*accuracy, tested.n, seconds)
	return &result{
		Seed: t.Seed, Accuracy: accuracy, Images: tested.n, Seconds: seconds, Open: open,
		Steps: t.steps, Loss: t.loss, Captures: stats.Captures, Eager: stats.Why, Clock: c.from, Phases: c.table(),
	}, nil
}

// open opens the device and lets the reader copy to it.
func (t *trainer) open() (err error) {
	end := t.clock.begin("opening the device's libraries")
	if t.device, err = cgotorch.ParseDevice(t.Device); err != nil {
		return err
	}
	if err := t.device.Check(); err != nil {
		return err
	}
	end()
	end = t.clock.begin("opening the device")
	defer end()
	if t.to.copies, err = cgotorch.NewStream(t.device, cgotorch.StreamOptions{Name: "copies"}); err != nil {
		return err
	}
	t.stream = cgotorch.DefaultStream(t.device)
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		x.Zeros(cgotorch.Float32, 1)
		return nil
	})
	if err != nil {
		return err
	}
	close(t.to.opened)
	return t.stream.Synchronize()
}

// make makes what does not depend on the images.
func (t *trainer) make() error {
	if err := cgotorch.Seed(t.Seed); err != nil {
		return err
	}
	if err := cgotorch.SetCuDNNBenchmark(t.Benchmark); err != nil {
		return err
	}
	return t.stream.Do(func(x *cgotorch.Exec) (err error) {
		t.views = newViews(x, t.dtype())
		t.net = newNetwork(x, t.widths)
		nn.SetFused(t.net.Sequential, t.Fused)
		t.opt, err = newOptimizer(t.net, t.LR, t.Batch)
		return err
	})
}

// dtype returns the dtype of images and activations. Weights are float32, under autocast.
func (t *trainer) dtype() cgotorch.DType {
	switch {
	case t.DType == "float16":
		return cgotorch.Float16
	case t.DType == "bfloat16" || t.DType == "" && t.device.IsCUDA():
		return cgotorch.BFloat16
	}
	return cgotorch.Float32
}

func (t *trainer) autocast(x *cgotorch.Exec) *cgotorch.Exec {
	if dtype := t.dtype(); dtype != cgotorch.Float32 {
		return x.Autocast(dtype)
	}
	return x
}

// prepare sets the whitening layer and all else that depends on the images.
func (t *trainer) prepare() error {
	if t.batches = t.train.n / t.Batch; t.batches == 0 {
		return fmt.Errorf("-batch %d: there are only %d images to train on", t.Batch, t.train.n)
	}
	t.steps = int(math.Ceil(t.Epochs * float64(t.batches)))
	t.schedule = triangle(t.steps)
	var covariance []float32
	err := t.stream.Do(func(x *cgotorch.Exec) error {
		covariance = cgotorch.ToSlice[float32](x, patchCovariance(x, t.train.use(x), whiteningFrom))
		return nil
	})
	if err != nil {
		return err
	}
	weights, err := whitening(covariance)
	if err != nil {
		return err
	}
	return t.stream.Do(func(x *cgotorch.Exec) error {
		t.net.setWhitening(x, weights)
		t.ahead = newLookahead(x, t.net.averaged())
		t.flips = x.Keep(x.LtScalar(x.Rand(cgotorch.Float32, int64(t.train.n)), 0.5))
		t.order = x.Keep(x.Empty(cgotorch.Int64, int64(t.train.n)))
		t.step = cgotorch.NewCaptured(t.trainStep, cgotorch.CapturedOptions{WarmUp: warmUp, Eager: !t.Graph, Log: t.log})
		return nil
	})
}

// all does all steps. It waits for the device after the first ones, so that their time shows, and
// at the end.
func (t *trainer) all(ctx context.Context) error {
	const firstSteps = warmUp + 1 // the last of them captures and launches
	end := t.clock.begin(fmt.Sprintf("warm-up and capture, %d steps", firstSteps))
	for step := range t.steps {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		err := t.stream.Do(func(x *cgotorch.Exec) error {
			t.report(x, step, t.once(x, step))
			return nil
		})
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if step+1 == firstSteps {
			if err := t.stream.Synchronize(); err != nil {
				return err
			}
			end()
			end = t.clock.begin("training, the other steps")
		}
	}
	if err := t.stream.Synchronize(); err != nil {
		return err
	}
	end()
	if math.IsNaN(t.loss) || math.IsInf(t.loss, 0) {
		return fmt.Errorf("the loss of the last step is %v: the run has diverged; lower -lr", t.loss)
	}
	return nil
}

// once does one step, and what comes before and after it outside of the graph. It returns the sum
// of the losses of the batch.
func (t *trainer) once(x *cgotorch.Exec, step int) *cgotorch.Tensor {
	epoch, at := step/t.batches, step%t.batches
	if at == 0 {
		t.beginEpoch(x, epoch)
	}
	t.opt.SetScale(t.schedule(step))
	loss := t.step.Run(x, x.Narrow(t.order, 0, at*t.Batch, t.Batch))[0]
	done := step + 1
	if done%lookaheadEvery == 0 {
		t.ahead.update(x, lookaheadDecay(done, t.steps))
	}
	if done == t.steps {
		t.ahead.update(x, 1)
	}
	return loss
}

// report reads the loss of the last step. It also prints the losses that -losses asks for. Each of
// them waits for the device.
func (t *trainer) report(x *cgotorch.Exec, step int, loss *cgotorch.Tensor) {
	if step < t.Losses || step+1 == t.steps {
		t.loss = x.Item(loss) / float64(t.Batch)
	}
	if step < t.Losses {
		fmt.Fprintln(os.Stderr, step, t.loss)
	}
}

// beginEpoch draws the epoch's order. In each epoch after the first it mirrors the images that it
// did not mirror in the epoch before. So two epochs show each image both ways.
func (t *trainer) beginEpoch(x *cgotorch.Exec, epoch int) {
	x.CopyInPlace(t.order, x.RandPerm(t.train.n))
	if epoch > 0 {
		x.CopyInPlace(t.flips, x.LogicalNot(t.flips))
	}
	if epoch == whiteningPart {
		t.frozen = true
		t.net.freeze(x, t.net.whiten.Bias)
	}
}

// trainStep trains on the images whose numbers in[0] has. It returns the sum of their losses. On a
// GPU it is captured as a graph, and once more when the whitening layer's bias is frozen.
func (t *trainer) trainStep(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	frozen := t.frozen
	x.DependsOn(func() string {
		if t.frozen != frozen {
			return "the whitening layer's bias is frozen"
		}
		return ""
	})
	indices := in[0]
	t.opt.ZeroGrad()
	pictures := t.views.batch(x.NoGrad(), t.train, indices, randomShifts(x, indices.Numel()), x.IndexSelect(t.flips, 0, indices))
	ax := t.autocast(x)
	logits := t.net.Forward(ax, pictures)
	loss := nn.CrossEntropy(ax, logits, x.IndexSelect(t.train.labels, 0, indices),
		nn.CrossEntropyOptions{LabelSmoothing: smoothing, Reduction: cgotorch.ReductionSum})
	x.Backward(loss)
	t.opt.Step(x)
	return []*cgotorch.Tensor{loss}
}

func (t *trainer) close() error {
	var errs []error
	if t.step != nil {
		errs = append(errs, t.step.Close())
	}
	t.ahead.close()
	errs = append(errs, t.opt.Close(), t.views.close(), t.flips.Close(), t.order.Close())
	if t.net != nil {
		errs = append(errs, nn.Close(t.net.Sequential))
	}
	if t.to.copies != nil {
		errs = append(errs, t.to.copies.Close())
	}
	if t.stream != nil {
		errs = append(errs, t.stream.Close())
	}
	return errors.Join(errs...)
}
