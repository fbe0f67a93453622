package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// evaluate tests a model without training it. It prints one line and one JSON object, and writes
// no file.
func evaluate(ctx context.Context, c *Config) error {
	t := &trainer{saved: saved{Config: c}}
	defer t.close()
	info, err := checkpoint.Inspect(t.Evaluate)
	if err != nil {
		return fmt.Errorf("-evaluate: %w", err)
	}
	_ = t.adopt(info) // a file of weights alone has no settings
	t.Data = cmp.Or(t.TestData, t.Data)
	if err := t.join(ctx); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.openTest(); err != nil {
		return err
	}
	if t.test == nil {
		return fmt.Errorf("-evaluate: the run of %s had no test: name the images with -test-part or -test-data", t.Evaluate)
	}
	t.Classes = t.test.loader.Classes()
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		t.newModel(x)
		return checkpoint.LoadModel(x, t.Evaluate, t.model, nn.LoadOptions{})
	})
	if err != nil {
		return fmt.Errorf("-evaluate: %s, as a -model %s: %w", t.Evaluate, t.Model, err)
	}
	t.forward = cgotorch.NewCaptured(t.testStep, cgotorch.CapturedOptions{Log: t.say})
	sum, err := t.testEpoch(ctx)
	if err != nil || !t.first() {
		return err
	}
	r := sum.result(sum.tested())
	fmt.Printf("%s: %v  %d images of %s  %.0f images/s\n", t.Model, r.Tested, r.Images, t.Data, r.ImagesPerSecond)
	return json.NewEncoder(os.Stdout).Encode(r)
}

// openTest opens the images to test on, if there are any.
func (t *trainer) openTest() (err error) {
	if t.TestPart != "" || t.TestData != "" {
		t.test, err = t.openImages(cmp.Or(t.TestData, t.Data), t.TestPart, false, t.Classes)
	}
	return err
}

// testEpoch measures the model on the test images. It waits for the device.
func (t *trainer) testEpoch(ctx context.Context) (tally Tally, err error) {
	if t.test == nil {
		return tally, nil
	}
	nn.SetTraining(t.model, false)
	began, loaded := time.Now(), t.test.loader.Stats()
	if err := t.test.loader.Restore(imageloader.State{}); err != nil {
		return tally, err
	}
	_, err = cgotorch.DoEach(t.stream, t.test.ahead.Epoch(ctx), func(x *cgotorch.Exec, batch *prefetcher.Batch) {
		x = x.NoGrad()
		pictures, labels := batch.Use(x)
		out := t.forward.Run(x, pictures, labels)
		t.add(x, batch.N, out[0])
		x.AddInPlace(x.Select(t.sums, 0, 1), metric.Correct(x, out[1], labels, 1))
		x.AddInPlace(x.Select(t.sums, 0, 2), metric.Correct(x, out[1], labels, min(5, len(t.Classes))))
	})
	if err != nil && ctx.Err() == nil {
		return tally, err
	}
	if !t.group.Agree(ctx.Err() == nil) {
		return tally, cmp.Or(t.group.Err(), t.interruption(ctx))
	}
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		t.readSums(x, &tally, t.test.loader.Stats().Since(loaded).Unusable())
		return finite("test", tally.Loss)
	})
	tally.Seconds = time.Since(began).Seconds()
	return tally, err
}

// testStep returns the mean loss and the logits of a batch.
func (t *trainer) testStep(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	pictures, labels := in[0], in[1]
	x = x.Autocast(t.dtype)
	logits := t.model.Forward(x, pictures)
	return []*cgotorch.Tensor{nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{}), logits}
}

// interruption returns the signal that ends the run, which another rank may have got.
func (t *trainer) interruption(ctx context.Context) error {
	return cmp.Or(context.Cause(ctx), error(interrupted(syscall.SIGTERM)))
}

// add adds the mean loss of a batch of n images to t.sums. So the host waits in no step.
func (t *trainer) add(x *cgotorch.Exec, n int, loss *cgotorch.Tensor) {
	x.AddScaledInPlace(x.Select(t.sums, 0, 0), loss, n)
	t.images += n
}

// readSums adds the sums of all ranks to `tally` and sets them to 0. `skipped` is the number of
// images that this rank left out. It waits for the stream.
func (t *trainer) readSums(x *cgotorch.Exec, tally *Tally, skipped int) {
	x.FillInPlace(x.Select(t.sums, 0, 3), t.images)
	x.FillInPlace(x.Select(t.sums, 0, 4), skipped)
	t.group.AllReduce(x, t.sums, distributed.Sum)
	v := cgotorch.ToSlice[float64](x, t.sums)
	x.ZeroInPlace(t.sums)
	t.images = 0
	tally.Loss, tally.Top1, tally.Top5 = tally.Loss+v[0], tally.Top1+v[1], tally.Top5+v[2]
	tally.Images, tally.Skipped = tally.Images+int(v[3]), tally.Skipped+int(v[4])
}
