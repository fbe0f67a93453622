package checkpoint_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Save refuses NaN and Inf in each tensor of a checkpoint, keeps the old file, and saves them when
// it is told to. A mask of -Inf in a buffer is no fault.
func TestSave_NotFinite(t *testing.T) {
	type net struct {
		Weight *cgotorch.Tensor
		Mask   *cgotorch.Tensor `state:",buffer"`
	}
	nan, inf := math.NaN(), math.Inf(1)
	for name, test := range map[string]struct {
		dtype        cgotorch.DType
		weight, mask float64
		gradient     float64 // of the step before, unless 0
		average      float64 // of the weight when its average is made
		want         string  // "" for what is saved
	}{
		"finite":             {dtype: cgotorch.Float32, weight: 3e38},
		"subnormal":          {dtype: cgotorch.Float32, weight: 1e-45},
		"NaN":                {dtype: cgotorch.Float32, weight: nan, want: "tensor weight: it has 3 NaN and 0 Inf: CGOTORCH_CHECK=finite"},
		"-NaN":               {dtype: cgotorch.Float32, weight: math.Copysign(nan, -1), want: "tensor weight: it has 3 NaN"},
		"Inf":                {dtype: cgotorch.Float32, weight: inf, want: "tensor weight: it has 0 NaN and 3 Inf"},
		"-Inf":               {dtype: cgotorch.Float64, weight: -inf, want: "tensor weight: it has 0 NaN and 3 Inf"},
		"NaN of float64":     {dtype: cgotorch.Float64, weight: nan, want: "3 NaN"},
		"NaN of float16":     {dtype: cgotorch.Float16, weight: nan, want: "3 NaN"},
		"Inf of float16":     {dtype: cgotorch.Float16, weight: inf, want: "3 Inf"},
		"most of float16":    {dtype: cgotorch.Float16, weight: 65504},
		"NaN of bfloat16":    {dtype: cgotorch.BFloat16, weight: nan, want: "3 NaN"},
		"Inf of complex64":   {dtype: cgotorch.Complex64, weight: inf, want: "3 Inf"},
		"mask of -Inf":       {dtype: cgotorch.Float32, weight: 1, mask: -inf},
		"mask with NaN":      {dtype: cgotorch.Float32, weight: 1, mask: nan, want: "tensor mask: it has 3 NaN"},
		"state of optimizer": {dtype: cgotorch.Float32, weight: 1, gradient: 1e30, want: "exp_avg_sq/weight: it has 0 NaN and 3 Inf"},
		"average":            {dtype: cgotorch.Float32, weight: 1, average: nan, want: "weight: it has 3 NaN"},
	} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := &net{x.Keep(x.Full(test.dtype, test.weight, 3)), x.Keep(x.Full(cgotorch.Float32, test.mask, 3))}
			defer nn.Close(m)
			c := checkpoint.Checkpoint{Model: m}
			if test.gradient != 0 {
				cgotorch.Check(m.Weight.SetRequiresGrad(true))
				opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(m)}))
				defer opt.Close()
				cgotorch.Check(m.Weight.SetGrad(x.Full(test.dtype, test.gradient, 3)))
				opt.Step(x)
				c.Optimizer = opt
			}
			if test.average != 0 {
				x.NoGrad().CopyInPlace(m.Weight, x.Full(test.dtype, test.average, 3))
				c.EMA = cgotorch.Must(optim.NewEMA(x, nn.Parameters(m), 0.9))
				defer c.EMA.Close()
				x.NoGrad().CopyInPlace(m.Weight, x.Full(test.dtype, test.weight, 3))
			}
			path := filepath.Join(t.TempDir(), "a.safetensors")
			cgotorch.Check(os.WriteFile(path, []byte("old"), 0o644))
			err := checkpoint.Save(x, path, c)
			if test.want == "" && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) || !errors.Is(err, cgotorch.ErrInvalidArgument) {
					t.Errorf("%s: got %v, want %q", name, err, test.want)
				}
				if old, err := os.ReadFile(path); string(old) != "old" {
					t.Errorf("%s: the old file holds %.20q, %v", name, old, err)
				}
			}
			c.NotFinite = true
			if err := checkpoint.Save(x, path, c); err != nil {
				t.Errorf("%s: told to, Save fails: %v", name, err)
			}
		})
	}
}
