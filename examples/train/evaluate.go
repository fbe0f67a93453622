package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// evaluate tests a model without training it. It prints one line and one JSON object, and writes
// no file.
func evaluate(ctx context.Context, c *Config) error {
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
	if err := t.openDevice(ctx); err != nil {
		return err
	}
	if err := t.chooseCrop(ctx); err != nil {
		return err
	}
	if t.test, err = t.openImages(t.Data, t.TestPart, false, classes); err != nil {
		return err
	}
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		if err := t.newModel(x, len(t.test.loader.Classes())); err != nil {
			return err
		}
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
	tested := sum.tested()
	if math.IsNaN(tested.TestLoss) || math.IsInf(tested.TestLoss, 0) {
		return fmt.Errorf("-evaluate: the test loss of %s is %v: its run has diverged", t.Evaluate, tested.TestLoss)
	}
	if !t.first() {
		return nil
	}
	rate := float64(sum.Images) / time.Since(began).Seconds()
	fmt.Printf("%s: %v  %d images of %s  %.0f images/s\n", t.Model, tested, sum.Images, t.Data, rate)
	return printJSON(struct {
		Tested
		Images          int     `json:"images"`
		Skipped         int     `json:"skipped"`
		ImagesPerSecond float64 `json:"images_per_second"`
	}{*tested, sum.Images, sum.Skipped, rate})
}

// readEvaluated takes the settings from the checkpoint, except for those that the command line
// gives. It returns the model's classes, or nil if the file does not name them.
func (t *trainer) readEvaluated() (classes []string, err error) {
	s, err := peek(t.Evaluate)
	if err != nil {
		return nil, fmt.Errorf("-evaluate: %w", err)
	}
	may := []string{"data", "test-data", "test-part", "batch", "device", "dtype", "tf32", "skip-rate"}
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if s == nil { // the form of the model is in no file
		if !given["model"] {
			return nil, fmt.Errorf("-evaluate: %s has weights alone: name its model with -model", t.Evaluate)
		}
		s, may = &saved{Config: t.Config}, append(may, "model", "size")
	}
	refused, err := s.adopt(t.Config, may...)
	if len(refused) > 0 {
		return nil, fmt.Errorf("-evaluate trains nothing, and takes the model from %s: leave out %s", t.Evaluate, strings.Join(refused, ", "))
	}
	if given["data"] && !given["test-data"] {
		t.TestData = ""
	}
	return s.Classes, err
}

func printJSON(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Println(string(text))
	}
	return err
}
