package optim

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestClipGradNorm(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, none := param(x, 0, 0), x.Zeros(cgotorch.Float32, 2)
		half := x.To(param(x, 0), cgotorch.BFloat16) // so the common norm spans two dtypes
		for _, c := range []struct {
			grad, half float64
			norm, max  float64
			want       float64 // an element of p's gradient after the clipping
		}{
			{1, 1, math.Sqrt(3), 10, 1},
			{2, 1, 3, 1.5, 1},
			{2, 1, 3, 0, 0},
			{0, 0, 0, 1, 0},
			{math.Inf(1), 1, math.Inf(1), 1, math.NaN()},
		} {
			setGrad(x, p, c.grad)
			setGrad(x, half, c.half)
			norm := ClipGradNorm(x, []*cgotorch.Tensor{p, none, half}, c.max)
			if got := x.Item(norm); math.Abs(got-c.norm) > 1e-6 && got != c.norm {
				t.Errorf("gradients %v, %v: norm %v, want %v", c.grad, c.half, got, c.norm)
			}
			for _, got := range values(x, p.Grad()) {
				if math.Abs(float64(got)-c.want) > 1e-5 || math.IsNaN(c.want) != math.IsNaN(float64(got)) {
					t.Errorf("gradients %v, %v: clipped to %v, want %v", c.grad, c.half, got, c.want)
				}
			}
		}
		if got := x.Item(ClipGradNorm(x, []*cgotorch.Tensor{none}, 1)); got != 0 {
			t.Errorf("norm of no gradients is %v", got)
		}
	})
}

func TestClipGradNorm_Refuses(t *testing.T) {
	for _, limit := range []float64{-1, math.NaN()} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			ClipGradNorm(x, []*cgotorch.Tensor{param(x, 1)}, limit)
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "a largest norm of")
	}
}

// A parameter that is nil or closed is no parameter without a gradient.
func TestClip_RefusesParameters(t *testing.T) {
	for name, clip := range map[string]func(x *cgotorch.Exec, params []*cgotorch.Tensor){
		"ClipGradNorm":  func(x *cgotorch.Exec, params []*cgotorch.Tensor) { ClipGradNorm(x, params, 1) },
		"ClipGradValue": func(x *cgotorch.Exec, params []*cgotorch.Tensor) { ClipGradValue(x, params, 1) },
	} {
		closed := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			p := param(x, 1)
			p.Close()
			clip(x, []*cgotorch.Tensor{param(x, 1), p})
		})
		none := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { clip(x, []*cgotorch.Tensor{nil}) })
		if !errors.Is(closed, cgotorch.ErrClosed) || !strings.Contains(closed.Error(), name) || !strings.Contains(closed.Error(), "parameter 1") {
			t.Errorf("closed: %v", closed)
		}
		if !errors.Is(none, cgotorch.ErrInvalidArgument) || !strings.Contains(none.Error(), "parameter 0 is nil") {
			t.Errorf("nil: %v", none)
		}
	}
}

func TestClipGradValue(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, half, none := param(x, 1, 1, 1), x.To(param(x, 1), cgotorch.BFloat16), x.Zeros(cgotorch.Float32)
		cgotorch.Check(p.SetGrad(cgotorch.FromSlice(x, []float32{-3, 0.5, 2})))
		setGrad(x, half, -2)
		ClipGradValue(x, []*cgotorch.Tensor{p, none, half}, 0.75)
		if got := append(values(x, p.Grad()), values(x, half.Grad())...); !slices.Equal(got, []float32{-0.75, 0.5, 0.75, -0.75}) {
			t.Errorf("clipped to %v", got)
		}
	})
	for _, limit := range []float64{-1, math.NaN()} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			ClipGradValue(x, []*cgotorch.Tensor{param(x, 1)}, limit)
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "a limit of")
	}
}

// clipCases are gradients of parameters, with the norm of each case in float64. A new case is one
// line.
var clipCases = []struct {
	name  string
	grads []clipGrad
	max   float64
}{
	{"float16, above its largest number", []clipGrad{{cgotorch.Float16, 400, 60000}}, 1},
	{"float16, one element at its largest number", []clipGrad{{cgotorch.Float16, 1, 65504}}, 1},
	{"float16, two", []clipGrad{{cgotorch.Float16, 2, -65504}}, 1000},
	{"float16, no clipping of a large norm", []clipGrad{{cgotorch.Float16, 400, 60000}}, 1e9},
	{"float16, a small largest norm", []clipGrad{{cgotorch.Float16, 10000, 60000}}, 10},
	{"float16, lists of tensors", []clipGrad{{cgotorch.Float16, 3, 60000}, {cgotorch.Float16, 100, 30000}, {cgotorch.Float16, 7, 1}}, 5},
	{"float16, subnormal elements", []clipGrad{{cgotorch.Float16, 1000, 0x1p-24}}, 1},
	{"float16, zeros", []clipGrad{{cgotorch.Float16, 10, 0}}, 1},
	{"bfloat16, above the largest float16", []clipGrad{{cgotorch.BFloat16, 400, 59904}}, 1},
	{"bfloat16, large", []clipGrad{{cgotorch.BFloat16, 4, 0x1p60}}, 2},
	{"float16 and float32", []clipGrad{{cgotorch.Float16, 400, 60000}, {cgotorch.Float32, 5, 1e6}}, 1},
	{"float16, bfloat16 and float64", []clipGrad{{cgotorch.Float16, 400, 60000}, {cgotorch.BFloat16, 9, 65536}, {cgotorch.Float64, 2, 1e5}}, 3},
	{"float32", []clipGrad{{cgotorch.Float32, 400, 1e15}}, 1},
	{"float64", []clipGrad{{cgotorch.Float64, 400, 1e100}}, 1},
	{"float16, largest norm of 0", []clipGrad{{cgotorch.Float16, 400, 60000}}, 0},
	{"float16, no bound", []clipGrad{{cgotorch.Float16, 400, 60000}}, math.Inf(1)},
}

type clipGrad struct {
	dtype cgotorch.DType
	count int64
	value float64
}

// The norm of 16-bit gradients is a float32, so finite gradients stay what the contract says.
func TestClipGradNorm_Dtypes(t *testing.T) {
	for _, c := range clipCases {
		t.Run(c.name, func(t *testing.T) {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				var params []*cgotorch.Tensor
				squares, want := 0.0, cgotorch.Float32
				for _, g := range c.grads {
					p := x.Zeros(g.dtype, g.count)
					cgotorch.Check(p.SetGrad(x.Full(g.dtype, g.value, g.count)))
					params, squares = append(params, p), squares+float64(g.count)*g.value*g.value
					if g.dtype == cgotorch.Float64 {
						want = g.dtype
					}
				}
				norm := ClipGradNorm(x, params, c.max)
				right := math.Sqrt(squares)
				if got := x.Item(norm); math.Abs(got-right) > 1e-5*right || norm.DType() != want {
					t.Errorf("the norm is %v, %v, want %v, %v", got, norm.DType(), right, want)
				}
				factor := min(1, c.max/(right+1e-6))
				for i, g := range c.grads {
					most := map[cgotorch.DType]float64{cgotorch.Float16: 0x1p-10, cgotorch.BFloat16: 0x1p-7, cgotorch.Float32: 1e-5, cgotorch.Float64: 1e-5}[g.dtype]
					least := map[cgotorch.DType]float64{cgotorch.Float16: 0x1p-24}[g.dtype] // the smallest number above 0
					for _, got := range cgotorch.ToSlice[float64](x, x.To(params[i].Grad(), cgotorch.Float64)) {
						if right := g.value * factor; !(math.Abs(got-right) <= most*math.Abs(right)+least) {
							t.Fatalf("gradient %d is %v, want %v", i, got, right)
						}
					}
				}
			})
		})
	}
}

// A norm that is not finite leaves no gradient that looks like one.
func TestClipGradNorm_NotFinite(t *testing.T) {
	for _, dtype := range []cgotorch.DType{cgotorch.Float16, cgotorch.BFloat16, cgotorch.Float32, cgotorch.Float64} {
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				a, b := x.Zeros(dtype, 2), x.Zeros(dtype, 3)
				setGrad(x, a, bad)
				setGrad(x, b, 1)
				ClipGradNorm(x, []*cgotorch.Tensor{a, b}, 1)
				for _, got := range append(values(x, a.Grad()), values(x, b.Grad())...) {
					if !math.IsNaN(float64(got)) {
						t.Errorf("%v, %v: a gradient is %v", dtype, bad, got)
					}
				}
			})
		}
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := x.Zeros(cgotorch.Float32, 400)
		setGrad(x, p, 1e20) // finite, but float32 does not hold the squares
		if norm := x.Item(ClipGradNorm(x, []*cgotorch.Tensor{p}, 1)); !math.IsInf(norm, 1) || !math.IsNaN(float64(values(x, p.Grad())[0])) {
			t.Errorf("the norm is %v, the gradient %v", norm, values(x, p.Grad())[0])
		}
	})
}

// A limit that a dtype does not hold is no error.
func TestClipGradValue_Dtypes(t *testing.T) {
	for _, dtype := range []cgotorch.DType{cgotorch.Float16, cgotorch.BFloat16, cgotorch.Float32, cgotorch.Float64} {
		for _, limit := range []float64{0, 1e-30, 0.5, 60000, 1e5, 1e39, 1e300, math.Inf(1)} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				p := x.Zeros(dtype, 3)
				setGrad(x, p, 30000)
				ClipGradValue(x, []*cgotorch.Tensor{p}, limit)
				want := min(30000, limit)
				if got := values(x, p.Grad())[1]; math.Abs(float64(got)-want) > 1e-2*want+0x1p-24 {
					t.Errorf("%v, limit %v: got %v, want %v", dtype, limit, got, want)
				}
			})
		}
	}
}
