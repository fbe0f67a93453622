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
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

var (
	errInterrupted = errors.New("interrupted")
	errStopped     = errors.New("another rank was interrupted")
)

// trainer holds the settings and objects of one run.
type trainer struct {
	Config
	group    *distributed.Group // of one rank, unless a launcher has started several
	launch   string             // the launcher's name for the run, or ""
	device   cgotorch.Device
	stream   *cgotorch.Stream
	jpeg     *kernels.JPEGDecoder // nil if the CPU decodes all images
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
	sums     sums
	log      *log
	tracer   *tracer // nil if there is no trace
	stop     stopper
}

// Progress says how far a run has come. A checkpoint saves it.
type Progress struct {
	Epoch   int               `json:"epoch"` // number of finished epochs
	Step    int               `json:"step"`  // number of finished steps in all epochs
	Loader  imageloader.State `json:"loader"`
	Train   Tally             `json:"train"`   // sums of the epoch that is running
	History []Epoch           `json:"history"` // one entry for each finished epoch
}

// Tally holds sums over the batches of one epoch. Loss and the counts are those of all ranks.
type Tally struct {
	Images  int           `json:"images"`
	Loss    float64       `json:"loss"`    // sum over the images
	Top1    float64       `json:"top1"`    // number of images whose label came first
	Top5    float64       `json:"top5"`    // number of images whose label was among the first five
	Skipped int           `json:"skipped"` // unreadable images that were left out
	Seconds float64       `json:"seconds"`
	Stall   time.Duration `json:"stall"` // time for which the device waited for data
	BoundBy string        `json:"bound_by"`
}

// Epoch holds the results of one epoch, as a line of the log.
type Epoch struct {
	Epoch           int     `json:"epoch"` // counted from 1
	Step            int     `json:"step"`
	LR              float64 `json:"lr"`
	TrainLoss       float64 `json:"train_loss"`
	*Tested                 // nil if there was no test
	Skipped         int     `json:"skipped"`           // unreadable images that were left out, as -skip-rate allows
	ImagesPerSecond float64 `json:"images_per_second"` // of training
	DataWaitShare   float64 `json:"data_wait_share"`   // share of the training time for which the device waited for data, 0 to 1
	Seconds         float64 `json:"seconds"`           // training time
	// BoundBy names the part of the loader that the batches waited for. It also says how many cores
	// the loader used.
	BoundBy string `json:"bound_by"`
}

// Tested holds the results of an epoch's test.
type Tested struct {
	TestLoss float64 `json:"test_loss"`
	Top1     float64 `json:"top1"` // share of the test images whose label came first, 0 to 1
	Top5     float64 `json:"top5"`
}

func run(ctx context.Context, c Config) error {
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
func (t *trainer) open(ctx context.Context) error {
	var saved *saved
	var err error
	if t.Resume {
		if saved, err = t.readSaved(false); err != nil {
			return err
		}
	}
	if t.Config, err = t.Config.complete(ctx); err != nil {
		return err
	}
	t.progress.Loader = imageloader.State{Seed: t.Seed} // needed if the run is interrupted before its first step
	if err := t.openDevice(ctx); err != nil {
		return err
	}
	if t.launch = launchName(); !t.Resume {
		if again, err := t.startedAgain(); err != nil {
			return err
		} else if again {
			if saved, err = t.readSaved(true); err != nil {
				return err
			}
		}
	}
	if t.first() {
		if err := os.MkdirAll(t.Out, 0o755); err != nil {
			return fmt.Errorf("-out: %w", err)
		}
		if t.log, err = openLog(t.Out); err != nil {
			return err
		}
		if saved == nil {
			if err := t.keepInterrupted(); err != nil {
				return err
			}
		}
	}
	if t.train, err = t.openImages(t.Data, t.TrainPart, true, nil); err != nil {
		return err
	}
	if classes := t.train.loader.Classes(); len(classes) < 2 {
		return fmt.Errorf("%s: there is only one class, %s, and a classifier needs two: look at the labels with go run ./examples/inspect", t.Data, strings.Join(classes, ", "))
	}
	if t.TestPart != "" || t.TestData != "" {
		if t.test, err = t.openImages(cmp.Or(t.TestData, t.Data), t.TestPart, false, t.train.loader.Classes()); err != nil {
			return err
		}
	}
	if err := cgotorch.Seed(t.Seed); err != nil {
		return err
	}
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		if err := t.newModel(x, len(t.train.loader.Classes())); err != nil {
			return err
		}
		if saved == nil && t.Weights != "" { // before NewGradients, which gives all ranks those of rank 0
			if err := t.loadWeights(x); err != nil {
				return err
			}
		}
		var err error
		t.opt, err = optim.NewSGD(optim.SGDOptions{LR: t.LR, Momentum: t.Momentum, WeightDecay: t.Decay, Nesterov: t.Momentum > 0},
			optim.Group{Params: nn.Parameters(t.model)})
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
		t.schedule = optim.OneCycle(t.Epochs*t.stepsPerEpoch(), optim.OneCycleOptions{})
		t.sums = newSums(x)
		if saved != nil {
			return saved.restore(x, t)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := t.sameRun(); err != nil {
		return err
	}
	step := t.captured()
	step.Agree = t.group.Agree
	t.step = cgotorch.NewCaptured(t.trainStep, step)
	t.forward = cgotorch.NewCaptured(t.testStep, t.captured())
	if t.tracer, err = newTracer(t.tracePath(), t.stepsPerEpoch()-t.progress.Step%t.stepsPerEpoch()); err != nil {
		return err
	}
	if t.tracer != nil {
		t.tracer.merge, t.tracer.quiet = t.mergeTraces, !t.first()
	}
	return t.log.begin(t) // this comes last, because `begin` empties the log unless the run is resumed
}

// openDevice joins the other ranks, if there are any. It chooses the device, its stream and its
// settings.
func (t *trainer) openDevice(ctx context.Context) (err error) {
	if t.group, err = t.join(ctx); err != nil {
		return err
	}
	t.stop.group = t.group
	t.device = t.group.Device()
	if err := t.device.Check(); err != nil {
		return err
	}
	t.stream = cgotorch.DefaultStream(t.device)
	if t.Engines && t.Crop != "pad" { // the engines' way always resizes
		if t.jpeg, err = newJPEGDecoder(t.device); err != nil {
			return err
		}
	}
	if t.device.IsCUDA() {
		if err := cgotorch.SetCuDNNBenchmark(!t.Deterministic); err != nil {
			return err
		}
		if err := cgotorch.SetDeterministic(t.Deterministic); err != nil {
			return err
		}
	}
	if t.TF32 {
		return cgotorch.SetTF32(true)
	}
	return nil
}

func (t *trainer) newModel(x *cgotorch.Exec, classes int) (err error) {
	if t.model, err = vision.New(x, t.Model, vision.Options{Classes: classes, ImageSize: nn.Size{t.Size, t.Size}}); err != nil {
		return fmt.Errorf("-model: %w", err)
	}
	nn.To(x, t.model, nn.ToOptions{ChannelsLast: !t.Contiguous})
	return nil
}

func (t *trainer) stepsPerEpoch() int { return t.train.loader.Batches() }

// epoch trains through the rest of the current epoch. It then tests, logs and saves.
func (t *trainer) epoch(ctx context.Context) error {
	nn.SetTraining(t.model, true)
	if err := t.drawApart(); err != nil {
		return err
	}
	bar := t.log.startBar(t)
	began, before, loaded, skipped := time.Now(), t.train.ahead.Stats(), t.train.loader.Stats(), t.train.skipped()
	err := t.trainEpoch(ctx, func(n int) { bar.Add(n) })
	bar.Finish()
	t.progress.Train.BoundBy = t.train.loader.Stats().Since(loaded).Bottleneck()
	if err == nil || interrupted(ctx, err) {
		if err := t.tally(began, before, t.train.skipped()-skipped); err != nil {
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
		if err := t.save(); err != nil {
			return err
		}
		return errInterrupted
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

// tally adds the training since the time `began` to the sums of the epoch. `skipped` is the number
// of images that this rank left out. tally waits for the device, so that the measured time includes
// all of the work.
func (t *trainer) tally(began time.Time, before prefetcher.Stats, skipped int) error {
	tally := &t.progress.Train
	if err := t.sums.read(t.stream, t.group, skipped, tally); err != nil {
		return err
	}
	tally.Seconds += time.Since(began).Seconds()
	tally.Stall += t.train.ahead.Stats().Stall - before.Stall
	if loss := tally.Loss; math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("epoch %d: the training loss is %v: the run has diverged; lower -lr or set -clip-norm, and begin anew or from an earlier checkpoint", t.progress.Epoch+1, loss)
	}
	return nil
}

// trainEpoch is the loop of a training program. For each batch that the prefetcher has copied to
// the device, the loop makes one step.
func (t *trainer) trainEpoch(ctx context.Context, done func(images int)) (err error) {
	var losses lossLog // writes each loss one step later, so that the device always has work
	defer func() {
		all := err == nil || interrupted(ctx, err) // the other ranks come here too
		err = errors.Join(err, losses.close(t), t.tracer.finish(all))
	}()
	for batch, err := range t.train.ahead.Epoch(t.untilAll(ctx)) {
		if err != nil {
			return withFlag(err)
		}
		t.opt.SetScale(t.schedule(t.progress.Step))
		traced, err := t.tracer.begin(t.progress.Step)
		if err != nil {
			return err
		}
		var loss *cgotorch.HostRead
		err = t.stream.Do(func(x *cgotorch.Exec) error {
			pictures, labels := batch.Use(x)
			l := t.step.Run(x, pictures, labels)[0]
			t.sums.add(x.NoGrad(), batch.N, l, nil, nil)
			if t.StepLog && t.first() {
				loss = x.ReadAsync(l)
			}
			t.stop.add(x, ctx.Err() != nil)
			return nil
		})
		if err != nil {
			return fmt.Errorf("step %d: %w", t.progress.Step, err)
		}
		if err := traced(); err != nil {
			return err
		}
		if err := losses.next(t, t.progress.Step, loss); err != nil {
			return err
		}
		t.progress.Step++
		t.progress.Loader = batch.State
		done(batch.N * t.group.World())
		if stopped, err := t.stop.next(ctx); err != nil {
			return err
		} else if stopped {
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
	switch t.DType {
	case "bfloat16":
		return cgotorch.BFloat16
	case "float16":
		return cgotorch.Float16
	}
	return 0
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
			return tally, withFlag(err)
		}
		err = t.stream.Do(func(x *cgotorch.Exec) error {
			pictures, labels := batch.Use(x)
			out := t.forward.Run(x, pictures, labels)
			t.sums.add(x.NoGrad(), batch.N, out[0], out[1], labels)
			return nil
		})
		if err != nil {
			return tally, err
		}
	}
	if !t.group.Agree(ctx.Err() == nil) {
		return tally, cmp.Or(t.group.Err(), context.Cause(ctx), errStopped)
	}
	err := t.sums.read(t.stream, t.group, t.test.skipped()-skipped, &tally)
	return tally, err
}

// finishEpoch turns the sums of an epoch into a line of the log, and writes the line.
func (t *trainer) finishEpoch(test Tally) error {
	p := &t.progress
	if p.Train.Images == 0 { // can happen if a run is resumed after the training and before the test of an empty epoch
		return fmt.Errorf("%s: no image to train on", t.Data)
	}
	e := Epoch{
		Epoch: p.Epoch + 1, Step: p.Step, LR: t.LR * t.schedule(p.Step-1),
		TrainLoss:       p.Train.Loss / float64(p.Train.Images),
		ImagesPerSecond: float64(p.Train.Images) / p.Train.Seconds,
		DataWaitShare:   min(1, p.Train.Stall.Seconds()/p.Train.Seconds),
		Seconds:         p.Train.Seconds,
		Skipped:         p.Train.Skipped,
		BoundBy:         p.Train.BoundBy,
	}
	if test.Images > 0 {
		n := float64(test.Images)
		if math.IsNaN(test.Loss) || math.IsInf(test.Loss, 0) {
			return fmt.Errorf("epoch %d: the test loss is %v: the run has diverged; lower -lr or set -clip-norm, and begin anew or from an earlier checkpoint", e.Epoch, test.Loss)
		}
		e.Tested = &Tested{test.Loss / n, test.Top1 / n, test.Top5 / n}
	}
	p.History = append(p.History, e)
	p.Epoch++
	p.Train = Tally{}
	p.Loader = p.Loader.NextEpoch()
	return t.log.epoch(e, t)
}

func (t *trainer) close() {
	if t.train != nil {
		t.train.close()
	}
	if t.test != nil {
		t.test.close()
	}
	t.jpeg.Close()
	t.step.Close()
	t.forward.Close()
	t.backward.Close()
	if t.scaler != nil {
		t.scaler.Close()
	}
	if t.opt != nil {
		t.opt.Close()
	}
	if t.model != nil {
		nn.Close(t.model)
	}
	t.sums.close()
	t.tracer.close()
	t.stop.close()
	if t.log != nil {
		t.log.close()
	}
	t.group.Close()
	if t.stream != nil {
		t.stream.Close()
	}
}

// images holds one part of the data: its loader, and the prefetcher that reads from the loader.
type images struct {
	loader *imageloader.Loader
	ahead  *prefetcher.Prefetcher
}

// openImages opens a part of the data. If `classes` is nil, the classes are those of the data.
func (t *trainer) openImages(data, part string, training bool, classes []string) (*images, error) {
	o := imageloader.Options{
		Train: training, BatchSize: t.share(), Split: cmp.Or(part, "."), Limit: t.Limit, Seed: t.Seed, Workers: t.workers(),
		Labels:  imageloader.Labels{Classes: classes},
		Crop:    imageloader.Crop{Transform: t.transform(training)},
		Reading: imageloader.Reading{MaxSkipRate: t.SkipRate, AllowTruncated: t.Truncated},
		Ranks:   imageloader.Ranks{World: t.group.World(), Rank: t.group.Rank(), EachOnce: !training},
	}
	if t.Only != "" {
		o.Labels.Only = strings.Split(t.Only, ",")
	}
	if t.jpeg != nil {
		o.JPEGDevice = t.jpeg
	}
	loader, err := imageloader.Open(data, o)
	if err != nil {
		return nil, withFlag(err)
	}
	onDevice := prefetcher.Options{Contiguous: t.Contiguous, DType: t.autocastTo()} // autocast would convert images to this dtype in the first layer
	if training {
		onDevice.TrivialAugmentWide = t.Trivial
		onDevice.ColorJitter = prefetcher.ColorJitter{Brightness: t.Jitter, Contrast: t.Jitter, Saturation: t.Jitter}
		onDevice.RandomErasing = prefetcher.RandomErasing{Probability: t.Erase}
		onDevice.MixUp, onDevice.CutMix = prefetcher.MixUp{Alpha: t.MixUp}, prefetcher.CutMix{Alpha: t.CutMix}
		onDevice.Classes = len(loader.Classes())
	}
	ahead, err := prefetcher.New(loader, t.device, onDevice)
	if err != nil {
		loader.Close()
		return nil, err
	}
	return &images{loader, ahead}, nil
}

// withFlag adds to an error of the loader the name of the flag that can avoid the error.
func withFlag(err error) error {
	switch {
	case errors.Is(err, imageloader.ErrNoImages):
		return fmt.Errorf("%w (the parts are named by -train-part and -test-part)", err)
	case errors.Is(err, imageloader.ErrTruncated):
		return fmt.Errorf("%w (or use what there is, with -allow-truncated)", err)
	}
	return err
}

// skipped returns the number of images that were left out so far.
func (i *images) skipped() int {
	n := 0
	for _, count := range i.loader.Stats().Skipped {
		n += count
	}
	return n
}

func (i *images) close() {
	i.ahead.Close()
	i.loader.Close()
}
