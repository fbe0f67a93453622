package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// evaluate tests a model without training it. It prints one line and one JSON object, and writes
// no file.
func evaluate(ctx context.Context, c Config) error {
	t := &trainer{Config: c}
	defer t.close()
	classes, err := t.readEvaluated()
	if err != nil {
		return err
	}
	if t.TestPart == "" && t.TestData == "" {
		return fmt.Errorf("-evaluate: the run of %s had no test: name the images with -test-part or -test-data", t.Evaluate)
	}
	t.Data = cmp.Or(t.TestData, t.Data)
	if t.Config, err = t.Config.complete(ctx); err != nil {
		return err
	}
	if err := t.openDevice(ctx); err != nil {
		return err
	}
	if t.test, err = t.openImages(t.Data, t.TestPart, false, classes); err != nil {
		return err
	}
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		if err := t.newModel(x, len(t.test.loader.Classes())); err != nil {
			return err
		}
		t.sums = newSums(x)
		return checkpoint.LoadModel(x, t.Evaluate, t.model, nn.LoadOptions{})
	})
	if err != nil {
		return fmt.Errorf("-evaluate: %w", err)
	}
	t.forward = cgotorch.NewCaptured(t.testStep, t.captured())
	began := time.Now()
	sum, err := t.testEpoch(ctx)
	if err != nil {
		return err
	}
	n, seconds := float64(sum.Images), time.Since(began).Seconds()
	result := struct {
		Tested
		Images          int     `json:"images"`
		Skipped         int     `json:"skipped"`
		ImagesPerSecond float64 `json:"images_per_second"`
	}{Tested{sum.Loss / n, sum.Top1 / n, sum.Top5 / n}, sum.Images, sum.Skipped, n / seconds}
	if math.IsNaN(result.TestLoss) || math.IsInf(result.TestLoss, 0) {
		return fmt.Errorf("-evaluate: the test loss of %s is %v: its run has diverged", t.Evaluate, result.TestLoss)
	}
	if !t.first() {
		return nil
	}
	fmt.Printf("%s: test loss %.4f  top-1 %.2f %%  top-5 %.2f %%  %d images of %s  %.0f images/s\n",
		t.Model, result.TestLoss, 100*result.Top1, 100*result.Top5, sum.Images, t.Data, result.ImagesPerSecond)
	text, err := json.Marshal(result)
	if err == nil {
		fmt.Println(string(text))
	}
	return err
}

// Flags that go with -evaluate. Those of the model's form are only for files that this program has
// not saved.
var (
	evaluationFlags = []string{"evaluate", "data", "test-data", "test-part", "batch", "device", "dtype", "tf32", "skip-rate", "allow-truncated", "workers", "jpeg-engines", "contiguous", "graph", "timeout"}
	formFlags       = []string{"model", "size", "crop"}
)

// readEvaluated takes the settings from the checkpoint, except for those that the command line
// gives. It returns the model's classes, or nil if the file does not name them.
func (t *trainer) readEvaluated() (classes []string, err error) {
	info, err := checkpoint.Inspect(t.Evaluate)
	if err != nil {
		return nil, fmt.Errorf("-evaluate: %w", err)
	}
	allowed := evaluationFlags
	var s saved
	known := json.Unmarshal(info.Config, &s) == nil && s.Config.Model != ""
	if !known {
		allowed = slices.Concat(evaluationFlags, formFlags)
	}
	var given, fixed []string
	flag.Visit(func(f *flag.Flag) {
		given = append(given, f.Name)
		if !slices.Contains(allowed, f.Name) {
			fixed = append(fixed, "-"+f.Name)
		}
	})
	switch {
	case len(fixed) > 0 && known:
		return nil, fmt.Errorf("-evaluate trains nothing, and takes the model from %s: leave out %s", t.Evaluate, strings.Join(fixed, ", "))
	case len(fixed) > 0:
		return nil, fmt.Errorf("-evaluate trains nothing: leave out %s", strings.Join(fixed, ", "))
	case !known && !slices.Contains(given, "model"):
		return nil, fmt.Errorf("-evaluate: %s has weights alone: name its model with -model", t.Evaluate)
	case !known:
		return nil, nil
	}
	now := t.Config
	t.Config = s.Config
	t.Evaluate, t.Out, t.Workers, t.Engines, t.Graph, t.Timeout = now.Evaluate, now.Out, now.Workers, now.Engines, now.Graph, now.Timeout
	for _, name := range given {
		switch name {
		case "data":
			t.Data = now.Data
			if !slices.Contains(given, "test-data") {
				t.TestData = ""
			}
		case "test-data":
			t.TestData = now.TestData
		case "test-part":
			t.TestPart = now.TestPart
		case "batch":
			t.BatchSize = now.BatchSize
		case "device":
			t.Device = now.Device
		case "dtype":
			t.DType = now.DType
		case "tf32":
			t.TF32 = now.TF32
		case "skip-rate":
			t.SkipRate = now.SkipRate
		case "allow-truncated":
			t.Truncated = now.Truncated
		case "contiguous":
			t.Contiguous = now.Contiguous
		}
	}
	return s.Classes, nil
}
