package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
)

// trainer holds the settings and objects of one run.
type trainer struct {
	saved                       // settings and progress
	group    *distributed.Group // of one rank, unless a launcher has started several
	stream   *cgotorch.Stream
	dtype    cgotorch.DType // of autocast; Float32 means none
	train    *images
	test     *images // nil if there is no test
	model    nn.Module
	opt      *optim.Optimizer
	backward *distributed.Gradients // reduces the gradients over the ranks
	scaler   *optim.Scaler          // nil unless dtype is Float16
	step     *cgotorch.Captured     // a training step; it takes images and labels, and returns the loss
	forward  *cgotorch.Captured     // a step of the test; it takes images and labels, and returns loss and logits
	schedule optim.Schedule
	sums     *cgotorch.Tensor // float64 [5] since the last readSums: loss, top 1, top 5, images and skipped ones
	images   int              // number of images in sums
	log      *os.File         // log.jsonl; nil unless this is the first rank
	tracer   *trace.Steps     // nil if there is no trace
}

// train trains a model from the first to the last epoch, or from the place of a checkpoint.
func train(ctx context.Context, c *Config) error {
	t := &trainer{saved: saved{Config: c, Progress: Progress{Loader: imageloader.State{Seed: c.Seed}}}}
	defer t.close()
	if err := t.open(ctx); err != nil {
		return err
	}
	if t.Progress.Epoch == t.Epochs { // the process ended after the last checkpoint, or nobody knew that the run had ended
		t.say(fmt.Sprintf("the run in %s has had its %d epochs; raise -epochs to go on", t.Out, t.Epochs))
	}
	for t.Progress.Epoch < t.Epochs {
		if err := t.epoch(ctx); err != nil {
			return err
		}
	}
	if !t.first() {
		return nil
	}
	return json.NewEncoder(os.Stdout).Encode(t.Progress.Last)
}

// open makes the objects of a run. A resumed run takes their state from its checkpoint.
func (t *trainer) open(ctx context.Context) (err error) {
	if err := t.join(ctx); err != nil {
		return err
	}
	if err := t.findRun(); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if t.first() {
		if err := t.openLog(); err != nil {
			return err
		}
	}
	if err := t.openData(); err != nil {
		return err
	}
	if err := cgotorch.Seed(t.Seed); err != nil {
		return err
	}
	if err := t.stream.Do(t.makeModel); err != nil {
		return err
	}
	if err := t.compare(); err != nil {
		return err
	}
	t.step = cgotorch.NewCaptured(t.trainStep, cgotorch.CapturedOptions{Agree: t.group.Agree, Log: t.say})
	t.forward = cgotorch.NewCaptured(t.testStep, cgotorch.CapturedOptions{Log: t.say}) // asks no other rank, which may have fewer batches
	epoch := t.train.loader.Batches()
	t.tracer, err = trace.NewSteps(t.Trace, trace.StepsOptions{From: 10, Count: 20, Steps: epoch - t.Progress.Step%epoch, Ranks: t.group, Log: t.say})
	if err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	return t.begin()
}

// join joins the other ranks, if there are any. They choose the device and its stream.
func (t *trainer) join(ctx context.Context) (err error) {
	if t.group, err = distributed.Join(ctx, distributed.Options{Device: t.Device, Timeout: t.Timeout}); err != nil {
		return err
	}
	t.stream = cgotorch.DefaultStream(t.group.Device())
	return nil
}

// prepare checks the settings, and makes those that hold for the process.
func (t *trainer) prepare(ctx context.Context) (err error) {
	if err := t.check(); err != nil {
		return err
	}
	if t.dtype, err = cgotorch.ParseDType(t.DType); err != nil {
		return fmt.Errorf("-dtype: %w", err)
	}
	if err := errors.Join(cgotorch.SetCuDNNBenchmark(t.group.Device().IsCUDA()), cgotorch.SetTF32(t.TF32)); err != nil {
		return err
	}
	return t.chooseCrop(ctx)
}

// first reports whether this rank writes the log and the checkpoints.
func (t *trainer) first() bool { return t.group.Rank() == 0 }

// say prints a line to standard error, on the first rank.
func (t *trainer) say(text string) {
	if t.first() {
		fmt.Fprintln(os.Stderr, text)
	}
}

func (t *trainer) openData() (err error) {
	if t.train, err = t.openImages(t.Data, t.TrainPart, true, t.Classes); err != nil {
		return err
	}
	if t.Classes = t.train.loader.Classes(); len(t.Classes) < 2 {
		return fmt.Errorf("%s: there is only one class, %s, and a classifier needs two: look at the labels with go run ./examples/inspect", t.Data, strings.Join(t.Classes, ", "))
	}
	return t.openTest()
}

// makeModel makes the model and what trains it.
func (t *trainer) makeModel(x *cgotorch.Exec) error {
	t.newModel(x)
	if t.Weights != "" && !t.Resume { // before NewGradients, which gives all ranks those of rank 0
		if err := checkpoint.LoadModel(x, t.Weights, t.model, nn.LoadOptions{AllowOtherClasses: true}); err != nil {
			return fmt.Errorf("-weights: %w", err)
		}
	}
	o := optim.SGDOptions{LR: t.LR, Momentum: 0.9, WeightDecay: 5e-4, Nesterov: true}
	t.opt = cgotorch.Must(optim.NewSGD(o, optim.Group{Params: nn.Parameters(t.model)}))
	if t.dtype == cgotorch.Float16 {
		t.scaler = cgotorch.Must(optim.NewScaler(x, optim.ScalerOptions{}))
	}
	t.backward = cgotorch.Must(distributed.NewGradients(x, t.group, t.model, distributed.GradientsOptions{}))
	t.schedule = optim.OneCycle(t.Epochs*t.train.loader.Batches(), optim.OneCycleOptions{})
	if !t.Resume {
		return nil
	}
	return checkpoint.Resume(x, t.checkpointPath(), &checkpoint.Checkpoint{Model: t.model, Optimizer: t.opt, Scaler: t.scaler, Loader: t.train.ahead})
}

func (t *trainer) newModel(x *cgotorch.Exec) {
	t.model = cgotorch.Must(vision.New(x, t.Model, vision.Options{Classes: len(t.Classes), ImageSize: nn.Square(t.Size)}))
	nn.To(x, t.model, nn.ToOptions{ChannelsLast: true})
	t.sums = x.Keep(x.Zeros(cgotorch.Float64, 5))
}

// compare fails unless all ranks have the same settings.
func (t *trainer) compare() error {
	settings := *t.Config
	settings.Data, settings.TestData = "", "" // these may differ between machines
	return t.group.Same(struct {
		Config
		Step    int      `json:"step"`
		Steps   int      `json:"steps_per_epoch"`
		Classes []string `json:"classes"`
	}{settings, t.Progress.Step, t.train.loader.Batches(), t.Classes})
}

// epoch trains through the rest of the current epoch. It then tests, logs and saves.
func (t *trainer) epoch(ctx context.Context) error {
	p := &t.Progress
	nn.SetTraining(t.model, true)
	if t.group.World() > 1 { // each rank draws other random numbers, and the same ones when it is resumed here
		if err := cgotorch.Seed(t.Seed + uint64(p.Step)<<20 + uint64(t.group.Rank())<<48); err != nil {
			return err
		}
	}
	began, before, loaded := time.Now(), t.train.ahead.Stats(), t.train.loader.Stats()
	stopped, err := t.trainEpoch(ctx)
	if err != nil {
		return err
	}
	loaded = t.train.loader.Stats().Since(loaded)
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		t.readSums(x, &p.Train, loaded.Unusable()) // waits for the device, so that all work is in the time
		distributed.Broadcast(x, t.group, t.model) // each rank's batch norms have collected statistics of its own batches
		return finite("training", p.Train.Loss)
	})
	if err != nil {
		return err
	}
	p.Train.Seconds += time.Since(began).Seconds()
	p.Train.Stall += (t.train.ahead.Stats().Stall - before.Stall).Seconds()
	p.Train.BoundBy = loaded.Bottleneck()
	if stopped {
		return t.saveInterrupted(ctx)
	}
	test, err := t.testEpoch(ctx)
	if errors.As(err, new(interrupted)) { // a resumed run tests again
		return t.saveInterrupted(ctx)
	}
	if err != nil {
		return err
	}
	if err := t.finishEpoch(test); err != nil {
		return err
	}
	return t.save()
}

// trainEpoch is the loop of a training program. For each batch that the prefetcher has copied to
// the device, the loop makes one step. A signal to any rank stops all after the same step.
func (t *trainer) trainEpoch(ctx context.Context) (stopped bool, err error) {
	p := &t.Progress
	for batch, err := range t.train.ahead.Epoch(context.WithoutCancel(ctx)) {
		if err != nil {
			return false, err
		}
		t.opt.SetScale(t.schedule(p.Step))
		err = t.tracer.Do(fmt.Sprint("step ", p.Step), func() error {
			return t.stream.Do(func(x *cgotorch.Exec) error {
				pictures, labels := batch.Use(x)
				loss := t.step.Run(x, pictures, labels)[0]
				t.add(x.NoGrad(), batch.N, loss)
				stopped = t.group.Stop(x, ctx.Err() != nil)
				if !t.StepLog {
					return nil
				}
				value := x.Item(loss) // waits for the device
				return cmp.Or(finite("training", value), t.write(map[string]any{"step": p.Step, "loss": value}))
			})
		})
		if err != nil {
			return false, fmt.Errorf("step %d: %w", p.Step, err)
		}
		p.Step++
		p.Loader = batch.State
		if stopped {
			break
		}
	}
	return stopped, nil
}

// trainStep trains on one batch and returns the batch's mean loss. On a GPU the step is captured
// as a graph. Later steps launch the graph and do not run this function again.
func (t *trainer) trainStep(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	pictures, labels := in[0], in[1]
	t.opt.ZeroGrad()
	ax := x.Autocast(t.dtype)
	logits := t.model.Forward(ax, pictures)
	loss := nn.CrossEntropy(ax, logits, labels, nn.CrossEntropyOptions{})
	t.backward.Backward(x, t.scaler.Scale(x, loss))
	if t.ClipNorm > 0 {
		t.scaler.Unscale(x, t.opt)
		optim.ClipGradNorm(x, t.opt.Params(), t.ClipNorm)
	}
	t.scaler.Step(x, t.opt)
	t.scaler.Update(x)
	return []*cgotorch.Tensor{loss}
}

// saveInterrupted saves a checkpoint and returns the interruption.
func (t *trainer) saveInterrupted(ctx context.Context) error {
	if err := t.save(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "interrupted; saved in %s, continue with -resume\n", t.Out)
	return t.interruption(ctx)
}

// finishEpoch turns the sums of an epoch into its result, prints the result and logs it.
func (t *trainer) finishEpoch(test Tally) error {
	p := &t.Progress
	p.Epoch++
	p.Last = p.Train.result(test.tested())
	p.Last.Epoch, p.Last.Step, p.Last.LR = p.Epoch, p.Step, t.LR*t.schedule(p.Step-1)
	p.Last.TrainLoss = p.Train.Loss / float64(p.Train.Images)
	p.Train = Tally{}
	p.Loader = p.Loader.NextEpoch()
	if t.first() {
		p.Last.print(t.Epochs)
	}
	return t.write(p.Last)
}

// close ends what other processes and files may wait for. The end of the program frees the rest.
func (t *trainer) close() {
	t.train.close()
	t.test.close()
	t.step.Close()
	t.backward.Close()
	t.tracer.Close()
	t.group.Close()
}
