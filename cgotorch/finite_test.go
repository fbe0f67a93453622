package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/fft"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Under CGOTORCH_CHECK=finite the operator that makes the first NaN or Inf fails, with its line and
// that of its forward. All else runs as without the check.
func TestFinite(t *testing.T) {
	if !strings.Contains(os.Getenv("CGOTORCH_CHECK"), "finite") {
		for _, value := range []string{"finite", "streams,finite", " finite, streams"} {
			command := exec.Command("/proc/self/exe", "-test.run", "^TestFinite$", "-test.v")
			command.Env = append(os.Environ(), "CGOTORCH_CHECK="+value)
			if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestFinite") {
				t.Errorf("CGOTORCH_CHECK=%s: %v\n%s", value, err, out)
			}
		}
		return
	}
	inf, nan := math.Inf(1), math.NaN()
	leaf := func(x *Exec, values ...float32) *Tensor {
		t := x.Keep(FromSlice(x, values))
		if err := t.SetRequiresGrad(true); err != nil {
			x.Fail("leaf", err)
		}
		return t
	}
	attend := func(x *Exec, mask *Tensor) {
		q := x.Randn(Float32, 1, 2, 3, 4)
		x.ScaledDotProductAttention(q, q, q, ScaledDotProductAttentionOptions{Mask: mask})
	}
	triangle := func(x *Exec) *Tensor { return x.Triu(x.Ones(Bool, 3, 3), 1) }
	for name, test := range map[string]struct {
		want string // "" for work that must not fail
		run  func(x *Exec)
	}{
		"log of 0":               {"aten::log made the first Inf: 1 of 2 numbers of its result Float[2], and its inputs are finite", func(x *Exec) { x.Log(FromSlice(x, []float32{1, 0})) }},
		"log of -1":              {"aten::log made the first NaN: 1 of 1 numbers", func(x *Exec) { x.Log(FromSlice(x, []float32{-1})) }},
		"0 / 0":                  {"aten::div made the first NaN: 2 of 2 numbers", func(x *Exec) { x.Div(x.Zeros(Float64, 2), x.Zeros(Float64, 2)) }},
		"in place":               {"aten::div_ made the first Inf", func(x *Exec) { x.DivInPlace(x.Ones(Float32, 2), x.Zeros(Float32, 2)) }},
		"by name":                {"aten::rsqrt made the first NaN", func(x *Exec) { x.Call("aten::rsqrt", x.Full(Float32, -1)) }},
		"into out":               {"aten::log made the first Inf", func(x *Exec) { x.Call("aten::log.out", x.Zeros(Float32, 1), x.Full(Float32, nan, 1)) }},
		"float16 overflows":      {"made the first Inf", func(x *Exec) { x.To(x.Full(Float32, 70000), Float16) }},
		"copy to float16":        {"aten::copy_ made the first Inf", func(x *Exec) { x.Call("aten::copy_", x.Full(Float16, nan), x.Full(Float32, 70000)) }},
		"bfloat16":               {"made the first Inf", func(x *Exec) { x.MulScalar(x.Full(BFloat16, 1e38), 1e38) }},
		"complex":                {"made the first", func(x *Exec) { x.Div(x.Ones(Complex64, 1), x.Zeros(Complex64, 1)) }},
		"half complex, a view":   {"made the first Inf", func(x *Exec) { x.Reciprocal(x.Expand(x.Zeros(Float32, 1), 4)) }},
		"list":                   {"made the first Inf", func(x *Exec) { x.ForeachReciprocalInPlace([]*Tensor{x.Ones(Float32, 1), x.Zeros(Float32, 1)}) }},
		"mean of nothing":        {"made the first NaN", func(x *Exec) { x.Mean(x.Empty(Float32, 0)) }},
		"autocast":               {"made the first Inf", func(x *Exec) { x.Autocast(Float16).MM(x.Full(Float32, 60000, 2, 2), x.Full(Float32, 2, 2, 2)) }},
		"two Inf":                {"made the first NaN: 1 of 1 numbers of its result Float[], and its inputs have Inf, but no NaN", func(x *Exec) { m := x.Full(Float32, inf); x.Sub(m, m) }},
		"a row that is all -Inf": {"made the first NaN", func(x *Exec) { x.Softmax(x.Full(Float32, -inf, 1, 3), 1) }},
		"fft":                    {"made the first", func(x *Exec) { fft.FFT(x, x.Full(Float32, 3e38, 8), fft.Options{}) }},
		"loss of a huge logit":   {"made the first Inf", func(x *Exec) { x.MSELoss(x.Full(Float32, 1e30, 2), x.Zeros(Float32, 2), LossOptions{}) }},
		"library kernel":         {"streamtorch::", func(x *Exec) { hugeAdam(x) }},
		"backward of sqrt":       {"made the first Inf: 1 of 2 numbers of its result Float[2], and its inputs are finite; the forward is at ", func(x *Exec) { w := leaf(x, 0, 1); defer w.Close(); x.Backward(x.Sum(x.Sqrt(w))) }},
		"gradients of sqrt": {"made the first Inf", func(x *Exec) {
			w := leaf(x, 0)
			defer w.Close()
			x.Gradients([]*Tensor{x.Sum(x.Sqrt(w))}, []*Tensor{w}, GradientOptions{})
		}},
		"NaN from the host": {"from which the gradients come, has NaN or Inf that no operator has made", func(x *Exec) { w := leaf(x, float32(nan)); defer w.Close(); x.Backward(x.Sum(x.MulScalar(w, 2))) }},
		"recomputed": {"made the first Inf", func(x *Exec) {
			w := leaf(x, 0)
			defer w.Close()
			x.Backward(x.Sum(x.Recompute(w, func(x *Exec, in *Tensor) *Tensor { return x.Sqrt(in) })))
		}},

		"mask by Full":       {"", func(x *Exec) { attend(x, x.Triu(x.Full(Float32, -inf, 3, 3), 1)) }},
		"mask by MaskedFill": {"", func(x *Exec) { attend(x, x.MaskedFill(x.Zeros(Float32, 3, 3), triangle(x), -inf)) }},
		"mask by Where":      {"", func(x *Exec) { attend(x, x.Where(triangle(x), x.Full(Float32, -inf), x.Zeros(Float32, 3, 3))) }},
		"mask of bools":      {"", func(x *Exec) { attend(x, x.LogicalNot(triangle(x))) }},
		"row hidden whole":   {"", func(x *Exec) { attend(x, x.Zeros(Bool, 3, 3)) }},
		"mask, by hand":      {"", func(x *Exec) { x.Softmax(x.Add(x.Randn(Float32, 3, 3), x.Triu(x.Full(Float32, -inf, 3, 3), 1)), 1) }},
		"mask and backward": {"", func(x *Exec) {
			w := leaf(x, 1, 2, 3)
			defer w.Close()
			hidden := x.MaskedFill(x.Expand(w, 3, 3), triangle(x), -inf)
			x.Backward(x.Sum(x.Mul(x.Softmax(hidden, 1), x.Randn(Float32, 3, 3))))
		}},
		"uninitialised": {"", func(x *Exec) {
			bad := x.Full(Float32, nan, 1000)
			bad.Close()
			for range 20 {
				x.Empty(Float32, 1000)
				x.EmptyLike(x.Ones(Float32, 1000))
				x.Call("aten::new_empty", x.Ones(Float32, 3), []int64{1000})
			}
			x.Call("aten::copy_", x.Full(Float32, nan, 3), x.Ones(Float32, 3))
		}},
		"NaN passed on":     {"", func(x *Exec) { x.Sum(x.ReLU(x.Add(FromSlice(x, []float32{1, float32(nan)}), x.Ones(Float32, 2)))) }},
		"Full of NaN":       {"", func(x *Exec) { x.Full(Float32, nan, 2); x.FullLike(x.Ones(Float32, 2), inf) }},
		"norm of order Inf": {"", func(x *Exec) { linalg.VectorNorm(x, x.Ones(Float32, 3), inf, nil, linalg.NormOptions{}) }},
		"derivative of norm at 0": {"", func(x *Exec) {
			w := leaf(x, 0, 0)
			defer w.Close()
			x.Backward(linalg.VectorNorm(x, w, 2, nil, linalg.NormOptions{}))
		}},
		"power of 0":  {"", func(x *Exec) { w := leaf(x, 0, 1); defer w.Close(); x.Backward(x.Sum(x.Pow(w, x.Zeros(Float32, 2)))) }},
		"integers":    {"", func(x *Exec) { x.Add(FromSlice(x, []int64{math.MaxInt64}), FromSlice(x, []int64{1})) }},
		"no elements": {"", func(x *Exec) { x.Log(x.Empty(Float32, 0)) }},
		"a view of NaN": {"", func(x *Exec) {
			x.AsStrided(x.Narrow(x.Cat([]*Tensor{x.Ones(Float32, 1), x.Full(Float32, nan, 1)}, 0), 0, 0, 1), []int64{2}, []int64{1}, 0)
		}},
		"without waits": {"", func(x *Exec) { y := x.NoWaits(); y.Add(y.Ones(Float32, 2), y.Ones(Float32, 2)) }},
		"training": {"", func(x *Exec) {
			model := nn.NewSequential(nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 4, nn.BatchNormOptions{}), &nn.ReLU{}, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, nn.NewLinear(x, 4, 2, nn.LinearOptions{}))
			defer nn.Close(model)
			opt := Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(model)}))
			defer opt.Close()
			for range 3 {
				opt.Minimize(x, x.CrossEntropy(model.Forward(x, x.Randn(Float32, 2, 3, 8, 8)), FromSlice(x, []int64{0, 1})))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.CheckLeaks(t)
			err := DefaultStream(CPU).Do(func(x *Exec) error { test.run(x); return nil })
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && err == nil:
				t.Errorf("no error, want %q", test.want)
			case test.want != "" && !strings.Contains(err.Error(), test.want):
				t.Errorf("error %q, want %q in it", err, test.want)
			case test.want != "" && !strings.Contains(err.Error(), "finite_test.go:"):
				t.Errorf("error %q names no line of this file", err)
			}
		})
	}
	// A captured function runs eagerly, and each of its runs is checked.
	fn := NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor { return []*Tensor{x.Log(in[0])} }, CapturedOptions{WarmUp: 1})
	defer fn.Close()
	for i, v := range []float64{1, 2, 3, 0, 1} {
		err := DefaultStream(CPU).Do(func(x *Exec) error { fn.Run(x, x.Full(Float32, v)); return nil })
		if (err != nil) != (v == 0) {
			t.Errorf("run %d: %v", i, err)
		}
	}
}

// hugeAdam takes a step whose second moment is above the largest float32.
func hugeAdam(x *Exec) {
	w := x.Keep(x.Ones(Float32, 4))
	defer w.Close()
	Check(w.SetRequiresGrad(true))
	opt := Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*Tensor{w}}))
	defer opt.Close()
	Check(w.SetGrad(x.Full(Float32, 1e30, 4)))
	opt.Step(x)
}
