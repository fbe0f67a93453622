// Package versions tests what may differ between versions of LibTorch. `make versions` runs it with
// each version.
package versions

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/must"
)

// The process has the LibTorch that `make versions` means, and not that of build/lib.
func TestVersion(t *testing.T) {
	want := os.Getenv("CGOTORCH_LIBTORCH")
	if want == "" {
		t.Skip("CGOTORCH_LIBTORCH is not set: it is the version of LibTorch, set by make versions")
	}
	if got, _, _ := strings.Cut(LibTorchVersion(), "+"); got != want {
		t.Errorf("LibTorch is %s, want %s", got, want)
	}
}

// Each operator of the generated functions has the schema from which its function was made. A
// symbolic int is an int for the functions.
func TestSchemas(t *testing.T) {
	generated := must.Get(os.ReadFile("../../cgotorch/internal/opgen/schemas.txt"))(t)
	all := must.Get(Schemas())(t)
	plain := regexp.MustCompile(`\bSymInt\b`)
	read := func(text string) map[string]string {
		schemas := make(map[string]string)
		for line := range strings.Lines(text) {
			if name, _, ok := strings.Cut(line, "("); ok && !strings.HasPrefix(line, "#") {
				schemas[name] = plain.ReplaceAllString(strings.TrimSpace(line), "int")
			}
		}
		return schemas
	}
	have, want := read(all), read(string(generated))
	if len(want) < 600 {
		t.Fatalf("schemas.txt has %d schemas, want 600 or more", len(want))
	}
	for name, schema := range want {
		if have[name] != schema {
			t.Errorf("LibTorch %s has %q, the function was made for %q", LibTorchVersion(), have[name], schema)
		}
	}
}

// A small network learns whether the left half of a picture is the brighter one. Its first layers
// are recomputed in the backward.
func TestTraining(t *testing.T) {
	must.Do(t, Seed(1))
	var losses []float64
	must.Do(t, DefaultStream(CPU).Do(func(x *Exec) error {
		images := x.Rand(Float32, 64, 1, 8, 8)
		left, right := x.MeanDim(x.Narrow(images, 3, 0, 4), []int64{1, 2, 3}, SumOptions{}), x.MeanDim(x.Narrow(images, 3, 4, 4), []int64{1, 2, 3}, SumOptions{})
		labels := x.To(x.Gt(left, right), Int64)
		features := nn.NewSequential(nn.NewConv2d(x, 1, 8, nn.Square(3), nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{})
		head := nn.NewSequential(&nn.Flatten{}, nn.NewLinear(x, 8*6*6, 2, nn.LinearOptions{}))
		defer nn.Close(features)
		defer nn.Close(head)
		opt, err := optim.NewAdamW(optim.AdamOptions{LR: 0.01}, optim.Group{Params: append(nn.Parameters(features), nn.Parameters(head)...)})
		if err != nil {
			return err
		}
		defer opt.Close()
		for range 40 {
			opt.ZeroGrad()
			hidden := x.Recompute(images, features.Forward)
			loss := nn.CrossEntropy(x, head.Forward(x, hidden), labels, nn.CrossEntropyOptions{})
			x.Backward(loss)
			opt.Step(x)
			losses = append(losses, x.Item(loss))
		}
		return nil
	}))
	if first, last := losses[0], losses[len(losses)-1]; !(last < first/4) {
		t.Errorf("the loss went from %v to %v, want less than a quarter", first, last)
	}
}
