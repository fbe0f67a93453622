package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
)

var (
	errInterrupted = errors.New("interrupted")
	errStopped     = errors.New("another rank was interrupted")
)

// -trace traces at most traceSteps steps of the run's first epoch, after the first traceAfter
// steps. A short epoch is traced as a whole.
const (
	traceAfter = 10
	traceSteps = 20
)

// trainer holds the settings and objects of one run.
type trainer struct {
	*Config
	group    *distributed.Group // of one rank, unless a launcher has started several
	launch   string             // the launcher's name for the run, or ""
	device   cgotorch.Device
	stream   *cgotorch.Stream
	train    *images
	test     *images // nil if there is no test
	model    nn.Module
	opt      *optim.Optimizer
	backward *distributed.Gradients // reduces the gradients over the ranks
	scaler   *optim.Scaler          // nil unless DType is float16
	step     *cgotorch.Captured     // a training step; it takes images and labels, and returns the loss
	forward  *cgotorch.Captured     // a step of the test; it takes images and labels, and returns loss and logits
	schedule optim.Schedule
	progress Progress
	sums     *cgotorch.Tensor // see add
	images   int              // number of images in sums
	log      *log             // nil unless this is the first rank
	tracer   *trace.Steps     // nil if there is no trace
}

// Progress says how far a run has come. A checkpoint saves it.
type Progress struct {
	Epoch   int               `json:"epoch"` // number of finished epochs
	Step    int               `json:"step"`  // number of finished steps in all epochs
	Loader  imageloader.State `json:"loader"`
	Train   Tally             `json:"train"`   // sums of the epoch that is running
	History []Epoch           `json:"history"` // one entry for each finished epoch
}

func run(ctx context.Context, c *Config) error {
	t := &trainer{Config: c}
	defer t.close()
	if err := t.open(ctx); err != nil {
		return err
	}
	if t.progress.Epoch == t.Epochs && t.first() { // the process ended after the last checkpoint, or nobody knew that the run had ended
		fmt.Fprintf(os.Stderr, "the run in %s has had its %d epochs; raise -epochs to go on\n", t.Out, t.Epochs)
	}
	for t.progress.Epoch < t.Epochs {
		if err := t.epoch(ctx); err != nil {
			return err
		}
	}
	return t.log.finish(t.progress.History)
}

// open makes the objects of a run. A resumed run takes their state from its checkpoint.
func (t *trainer) open(ctx context.Context) (err error) {
	var from *saved
	if t.Resume {
		if from, err = t.findRun(); err != nil {
			return err
		}
	}
	if err := t.check(); err != nil {
		return err
	}
	t.progress.Loader = imageloader.State{Seed: t.Seed} // needed if the run is interrupted before its first step
	if err := t.openDevice(ctx); err != nil {
		return err
	}
	if t.launch = distributed.RunName(); from == nil {
		if from, err = t.findRun(); err != nil {
			return err
		}
	}
	if t.first() {
		if t.log, err = openLog(t.Out); err != nil {
			return err
		}
		if from == nil {
			if err := t.keepInterrupted(); err != nil {
				return err
			}
		}
	}
	if err := t.openData(ctx); err != nil {
		return err
	}
	if err := cgotorch.Seed(t.Seed); err != nil {
		return err
	}
	if err := t.stream.Do(func(x *cgotorch.Exec) error { return t.makeModel(x, from) }); err != nil {
		return err
	}
	settings := *t.Config
	settings.Data, settings.TestData, settings.Device = "", "", "" // these may differ between machines
	err = t.group.Same(struct {
		Config
		Resumed bool     `json:"resumed"`
		Step    int      `json:"step"`
		Steps   int      `json:"steps_per_epoch"`
		Classes []string `json:"classes"`
	}{settings, t.Resume, t.progress.Step, t.train.loader.Batches(), t.train.loader.Classes()})
	if err != nil {
		return err
	}
	step := t.captured()
	step.Agree = t.group.Agree // the test's step asks no other rank: ranks have different numbers of test batches
	t.step, t.forward = cgotorch.NewCaptured(t.trainStep, step), cgotorch.NewCaptured(t.testStep, t.captured())
	if err := t.openTrace(); err != nil {
		return err
	}
	return t.log.begin(t) // this comes last, because `begin` empties the log unless the run is resumed
}

// openDevice joins the other ranks, if there are any. It chooses the device and its stream.
func (t *trainer) openDevice(ctx context.Context) error {
	device, err := cgotorch.ParseDevice(t.Device)
	if err != nil {
		return err
	}
	o := distributed.Options{OnCPU: t.Device == "cpu", Timeout: t.Timeout}
	if strings.HasPrefix(t.Device, "cuda:") { // plain "cuda" and "auto" mean the GPU of this rank
		o.Device = device
	}
	if t.Device == "cuda" {
		if err := cgotorch.CUDA(0).Check(); err != nil {
			return err
		}
	}
	if t.group, err = distributed.Join(ctx, o); err != nil {
		return err
	}
	if all := t.share() * t.group.World(); all != t.BatchSize && t.first() {
		fmt.Fprintf(os.Stderr, "-batch %d does not divide among %d ranks: each takes %d images, %d a step in all\n", t.BatchSize, t.group.World(), t.share(), all)
	}
	t.device = t.group.Device()
	if err := t.device.Check(); err != nil {
		return err
	}
	t.stream = cgotorch.DefaultStream(t.device)
	if t.device.IsCUDA() {
		if err := cgotorch.SetCuDNNBenchmark(true); err != nil {
			return err
		}
	}
	return cgotorch.SetTF32(t.TF32)
}

// first reports whether this rank writes the log and the checkpoints.
func (t *trainer) first() bool { return t.group.Rank() == 0 }

func (t *trainer) openData(ctx context.Context) (err error) {
	if err := t.chooseCrop(ctx); err != nil {
		return err
	}
	if t.train, err = t.openImages(t.Data, t.TrainPart, true, nil); err != nil {
		return err
	}
	classes := t.train.loader.Classes()
	if len(classes) < 2 {
		return fmt.Errorf("%s: there is only one class, %s, and a classifier needs two: look at the labels with go run ./examples/inspect", t.Data, strings.Join(classes, ", "))
	}
	if t.TestPart != "" || t.TestData != "" {
		t.test, err = t.openImages(cmp.Or(t.TestData, t.Data), t.TestPart, false, classes)
	}
	return err
}

// makeModel makes the model and what trains it. `from` is the run that goes on, or nil.
func (t *trainer) makeModel(x *cgotorch.Exec, from *saved) (err error) {
	if err := t.newModel(x, len(t.train.loader.Classes())); err != nil {
		return err
	}
	if from == nil && t.Weights != "" { // before NewGradients, which gives all ranks those of rank 0
		if err := t.loadWeights(x); err != nil {
			return err
		}
	}
	t.opt, err = optim.NewSGD(optim.SGDOptions{LR: t.LR, Momentum: 0.9, WeightDecay: 5e-4, Nesterov: true}, optim.Group{Params: nn.Parameters(t.model)})
	if err != nil {
		return err
	}
	if t.DType == "float16" {
		if t.scaler, err = optim.NewScaler(x, optim.ScalerOptions{}); err != nil {
			return err
		}
	}
	if t.backward, err = distributed.NewGradients(x, t.group, t.model, distributed.GradientsOptions{}); err != nil {
		return err
	}
	t.schedule = optim.OneCycle(t.Epochs*t.train.loader.Batches(), optim.OneCycleOptions{})
	if from != nil {
		return from.restore(x, t)
	}
	return nil
}

func (t *trainer) newModel(x *cgotorch.Exec, classes int) (err error) {
	if t.model, err = vision.New(x, t.Model, vision.Options{Classes: classes, ImageSize: nn.Size{t.Size, t.Size}}); err != nil {
		return fmt.Errorf("-model: %w", err)
	}
	nn.To(x, t.model, nn.ToOptions{ChannelsLast: true})
	t.sums = x.Keep(x.Zeros(cgotorch.Float64, 5))
	return nil
}

// epoch trains through the rest of the current epoch. It then tests, logs and saves.
func (t *trainer) epoch(ctx context.Context) error {
	nn.SetTraining(t.model, true)
	if t.group.World() > 1 { // each rank draws other random numbers, and the same ones when it is resumed here
		if err := cgotorch.Seed(t.Seed + uint64(t.progress.Step)<<20 + uint64(t.group.Rank())<<48); err != nil {
			return err
		}
	}
	began, before, loaded, skipped := time.Now(), t.train.ahead.Stats(), t.train.loader.Stats(), t.train.skipped()
	err := t.trainEpoch(ctx)
	t.progress.Train.BoundBy = t.train.loader.Stats().Since(loaded).Bottleneck()
	if err == nil || interrupted(ctx, err) {
		tally := &t.progress.Train
		if err := t.readSums(t.train.skipped()-skipped, tally); err != nil { // waits for the device, so that all work is in the time
			return err
		}
		tally.Seconds += time.Since(began).Seconds()
		tally.Stall += t.train.ahead.Stats().Stall - before.Stall
		if err := finite(t.progress.Epoch+1, "training", tally.Loss); err != nil {
			return err
		}
		if err := t.joinModels(); err != nil {
			return err
		}
	}
	var test Tally
	if err == nil {
		test, err = t.testEpoch(ctx) // if the test is interrupted, a resumed run tests again
	}
	if interrupted(ctx, err) {
		return cmp.Or(t.save(), errInterrupted)
	}
	if err != nil {
		return err
	}
	if err := t.finishEpoch(test); err != nil {
		return err
	}
	return t.save()
}

// interrupted reports whether the error is only that ctx has ended, of this rank or of another one.
func interrupted(ctx context.Context, err error) bool {
	return errors.Is(err, errStopped) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// trainEpoch is the loop of a training program. For each batch that the prefetcher has copied to
// the device, the loop makes one step.
func (t *trainer) trainEpoch(ctx context.Context) (err error) {
	var losses lossLog // writes each loss one step later, so that the device always has work
	defer func() {
		all := err == nil || interrupted(ctx, err) // the other ranks come here too
		err = errors.Join(err, losses.close(t), t.finishTrace(all))
	}()
	until := ctx
	if t.group.World() > 1 { // a signal ends the epoch of all ranks after one step: see Group.Stop
		until = context.WithoutCancel(ctx)
	}
	for batch, err := range t.train.ahead.Epoch(until) {
		if err != nil {
			return err
		}
		t.opt.SetScale(t.schedule(t.progress.Step))
		mark, last, err := t.tracer.Begin(fmt.Sprintf("step %d", t.progress.Step))
		if err != nil {
			return fmt.Errorf("-trace: %w", err)
		}
		var loss *cgotorch.HostRead
		var stop bool
		err = t.stream.Do(func(x *cgotorch.Exec) error {
			pictures, labels := batch.Use(x)
			l := t.step.Run(x, pictures, labels)[0]
			t.add(x.NoGrad(), batch.N, l, nil, nil)
			if t.StepLog && t.first() {
				loss = x.ReadAsync(l)
			}
			stop = t.group.Stop(x, ctx.Err() != nil)
			return nil
		})
		if err != nil {
			return fmt.Errorf("step %d: %w", t.progress.Step, err)
		}
		if mark(); last {
			if err := t.finishTrace(true); err != nil {
				return err
			}
		}
		if err := losses.next(t, t.progress.Step, loss); err != nil {
			return err
		}
		t.progress.Step++
		t.progress.Loader = batch.State
		if stop || t.group.World() == 1 && ctx.Err() != nil {
			return cmp.Or(context.Cause(ctx), errStopped)
		}
	}
	return nil
}

// trainStep trains on one batch and returns the batch's mean loss. On a GPU the step is captured
// as a graph. Later steps launch the graph and do not run this function again.
func (t *trainer) trainStep(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	pictures, labels := in[0], in[1]
	t.opt.ZeroGrad()
	ax := t.autocast(x)
	logits := t.model.Forward(ax, pictures)
	loss := nn.CrossEntropy(ax, logits, labels, nn.CrossEntropyOptions{LabelSmoothing: t.Smoothing})
	scaled := loss
	if t.scaler != nil {
		scaled = t.scaler.Scale(x, loss)
	}
	t.backward.Backward(x, scaled)
	if t.ClipNorm > 0 {
		if t.scaler != nil {
			t.scaler.Unscale(x, t.opt)
		}
		optim.ClipGradNorm(x, t.opt.Params(), t.ClipNorm)
	}
	if t.scaler != nil {
		t.scaler.Step(x, t.opt)
		t.scaler.Update(x)
	} else {
		t.opt.Step(x)
	}
	return []*cgotorch.Tensor{loss}
}

// testStep returns the mean loss and the logits of a batch.
func (t *trainer) testStep(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	pictures, labels := in[0], in[1]
	x = t.autocast(x.NoGrad())
	logits := t.model.Forward(x, pictures)
	return []*cgotorch.Tensor{nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{}), logits}
}

// captured returns the options of a step that each rank captures by itself. A step in which ranks
// wait for each other needs Agree too.
func (t *trainer) captured() cgotorch.CapturedOptions {
	o := cgotorch.CapturedOptions{Eager: !t.Graph}
	if t.Graph && t.device.IsCUDA() && t.first() {
		o.Log = func(text string) { fmt.Fprintln(os.Stderr, text) }
	}
	return o
}

func (t *trainer) autocast(x *cgotorch.Exec) *cgotorch.Exec {
	if dtype := t.autocastTo(); dtype != 0 {
		return x.Autocast(dtype)
	}
	return x
}

// autocastTo returns the dtype that autocast uses for the operators that are safe in it. 0 means
// that there is no autocast.
func (t *trainer) autocastTo() cgotorch.DType {
	return map[string]cgotorch.DType{"bfloat16": cgotorch.BFloat16, "float16": cgotorch.Float16}[t.DType]
}

// joinModels makes the batch norms' running statistics those of rank 0, on all ranks. Each rank
// collects them from its own batches.
func (t *trainer) joinModels() error {
	if t.group.World() == 1 {
		return nil
	}
	return t.stream.Do(func(x *cgotorch.Exec) error {
		distributed.Broadcast(x, t.group, t.model)
		return nil
	})
}

// testEpoch measures the model on the test images. It waits for the device.
func (t *trainer) testEpoch(ctx context.Context) (Tally, error) {
	var tally Tally
	if t.test == nil {
		return tally, nil
	}
	nn.SetTraining(t.model, false)
	skipped := t.test.skipped()
	if err := t.test.loader.Restore(imageloader.State{}); err != nil {
		return tally, err
	}
	for batch, err := range t.test.ahead.Epoch(ctx) {
		if interrupted(ctx, err) {
			break
		}
		if err != nil {
			return tally, err
		}
		err = t.stream.Do(func(x *cgotorch.Exec) error {
			pictures, labels := batch.Use(x)
			out := t.forward.Run(x, pictures, labels)
			t.add(x.NoGrad(), batch.N, out[0], out[1], labels)
			return nil
		})
		if err != nil {
			return tally, err
		}
	}
	if !t.group.Agree(ctx.Err() == nil) {
		return tally, cmp.Or(t.group.Err(), context.Cause(ctx), errStopped)
	}
	return tally, t.readSums(t.test.skipped()-skipped, &tally)
}

// finite fails if a loss is no number.
func finite(epoch int, what string, loss float64) error {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("epoch %d: the %s loss is %v: the run has diverged; lower -lr or set -clip-norm, and begin anew or from an earlier checkpoint", epoch, what, loss)
	}
	return nil
}

// openTrace begins the trace. Each rank has a file of its own until finishTrace.
func (t *trainer) openTrace() (err error) {
	if t.Trace == "" {
		return nil
	}
	from, count, epoch := traceAfter, traceSteps, t.train.loader.Batches()
	if left := epoch - t.progress.Step%epoch; left < from+count {
		from, count = 0, left
	}
	if t.tracer, err = trace.NewSteps(t.tracePath(t.group.Rank()), from, count); err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}

func (t *trainer) tracePath(rank int) string {
	if rank == 0 {
		return t.Trace
	}
	return fmt.Sprintf("%s.rank%d", t.Trace, rank)
}

// finishTrace writes the trace. `all` says that the other ranks come here too, so that their traces
// become one. It does nothing a second time.
func (t *trainer) finishTrace(all bool) error {
	summary, err := t.tracer.Finish()
	if summary != "" && all && t.group.World() > 1 {
		if _, err := t.group.Exchange(""); err != nil { // all files are there
			return err
		}
		var paths []string
		for rank := range t.group.World() {
			paths = append(paths, t.tracePath(rank))
		}
		if t.first() {
			err = trace.Merge(paths)
		}
	}
	if err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	if summary != "" && t.first() {
		fmt.Fprintln(os.Stderr, summary)
	}
	return nil
}

func (t *trainer) close() {
	t.train.close()
	t.test.close()
	t.step.Close()
	t.forward.Close()
	t.backward.Close()
	t.scaler.Close()
	t.opt.Close()
	if t.model != nil {
		nn.Close(t.model)
	}
	t.sums.Close()
	t.tracer.Close()
	t.log.close()
	t.group.Close()
	t.stream.Close()
}
