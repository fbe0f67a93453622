package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A linearCase is one call of streamtorch::linear, linear_gelu or linear_heads.
type linearCase struct {
	op          string // "linear", "none" or "tanh" for the two GELUs, or "heads"
	dtype, bias DType
	rows        [2]int64
	in, out     int64
	heads       int
	noBias      bool
}

func (c linearCase) String() string {
	return fmt.Sprintf("%s in %v, bias %v (absent: %v), %v rows from %d to %d, heads %d", c.op, c.dtype, c.bias, c.noBias, c.rows, c.in, c.out, c.heads)
}

// run runs forward and backward of one call, and returns the results. If `reference` is true,
// LibTorch's operators run in float64.
func (c linearCase) run(t *testing.T, x *Exec, in, weight, bias, gradient *Tensor, reference bool) *normResult {
	t.Helper()
	leafOf := func(v *Tensor, dtype DType) *Tensor {
		if reference {
			dtype = Float64
		}
		v = x.Clone(x.To(x.Detach(v), dtype))
		must.Do(t, v.SetRequiresGrad(true))
		return v
	}
	input, w, b := leafOf(in, c.dtype), leafOf(weight, c.dtype), (*Tensor)(nil)
	if !c.noBias {
		b = leafOf(bias, c.bias)
	}
	bOf := b
	y := x
	if !reference && c.bias != c.dtype { // LibTorch's layer has one dtype without autocast
		y = x.Autocast(c.dtype)
	}
	var outs []*Tensor
	switch {
	case reference && c.op == "heads":
		all := x.Reshape(x.Linear(input, w, bOf), c.rows[0], c.rows[1], 3, int64(c.heads), c.out/int64(3*c.heads))
		outs = x.Unbind(x.Permute(all, 2, 0, 3, 1, 4), 0)
	case reference && c.op == "linear":
		outs = []*Tensor{x.Linear(input, w, bOf)}
	case reference && c.op == "none":
		outs = []*Tensor{x.GELU(x.Linear(input, w, bOf))}
	case reference:
		outs = []*Tensor{x.GELUTanh(x.Linear(input, w, bOf))}
	case c.op == "heads":
		for _, out := range y.Call("streamtorch::linear_heads", input, w, bOf, c.heads) {
			outs = append(outs, out.(*Tensor))
		}
	case c.op == "linear":
		outs = []*Tensor{y.Call1("streamtorch::linear", input, w, bOf)}
	default:
		outs = []*Tensor{y.Call1("streamtorch::linear_gelu", input, w, bOf, c.op)}
	}
	r := &normResult{}
	var grads []*Tensor
	for i, out := range outs {
		r.add(x, "result", out)
		g := gradient
		if c.op == "heads" { // the gradients of the three parts lie in different orders
			g = x.Select(x.Reshape(gradient, 3, c.rows[0], int64(c.heads), c.rows[1], c.out/int64(3*c.heads)), 0, i)
			if i > 0 {
				g = x.Transpose(x.Contiguous(x.Transpose(g, 1, 2), Contiguous), 1, 2)
			}
		}
		grads = append(grads, x.To(g, out.DType()))
	}
	if c.op == "heads" && c.heads == 1 { // nobody reads the values
		outs, grads = outs[:2], grads[:2]
	}
	x.BackwardWith(BackwardOptions{Grads: grads}, outs...)
	r.add(x, "gradient of the input", input.Grad())
	r.add(x, "gradient of the weight", w.Grad())
	if b != nil {
		r.add(x, "gradient of the bias", b.Grad())
	}
	return r
}

// The operators that begin with a linear layer and LibTorch's operators in float64 are equal up to
// the rounding of the dtype. The test compares the results and the gradients.
func TestLinear_Gradients(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtypes := range [][2]DType{{BFloat16, BFloat16}, {BFloat16, Float32}, {Float16, Float16}, {Float16, Float32}, {Float32, Float32}} {
			for _, op := range []string{"linear", "none", "tanh", "heads"} {
				t.Run(fmt.Sprint(dtypes, op), func(t *testing.T) {
					if d.IsCUDA() {
						torchtest.NoTF32(t)
					}
					torchtest.Do(t, d, func(x *Exec) {
						for i, size := range [][3]int64{{24, 8, 1}, {16, 48, 2}, {40, 264, 11}, {64, 2304, 12}, {8, 12, 2}} {
							c := linearCase{op: op, dtype: dtypes[0], bias: dtypes[1], rows: [][2]int64{{3, 5}, {1, 1}, {2, 197}}[i%3], in: size[0], out: size[1],
								heads: int(size[2]), noBias: i == 1}
							if op == "heads" && c.out%int64(3*c.heads) != 0 {
								continue
							}
							random := func(shape ...int64) *Tensor { return x.To(x.To(x.Randn(Float32, shape...), c.dtype), Float32) }
							in, weight, bias := random(c.rows[0], c.rows[1], c.in), x.MulScalar(random(c.out, c.in), 0.125), random(c.out)
							gradient := random(c.rows[0], c.rows[1], c.out)
							got, want := c.run(t, x, in, weight, bias, gradient, false), c.run(t, x, in, weight, bias, gradient, true)
							allowed := map[DType]float64{BFloat16: 4.0 / 256, Float16: 4.0 / 2048, Float32: 3e-5}[c.dtype]
							for k, name := range want.names {
								largest, worst := 0.0, 0.0
								for n, w := range want.values[k] {
									largest, worst = max(largest, math.Abs(w)), max(worst, math.Abs(got.values[k][n]-w))
								}
								if bound := allowed * max(largest, 1); !(worst <= bound) {
									t.Errorf("%v: the %s is %g off, of at most %g, allowed %g", c, name, worst, largest, bound)
								}
							}
						}
					})
				})
			}
		}
	})
}

// The second derivatives of the operators are those of LibTorch's operators. An operator in place
// can overwrite the result of streamtorch::linear.
func TestLinear_SecondDerivative(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		if d.IsCUDA() {
			torchtest.NoTF32(t)
		}
		torchtest.Do(t, d, func(x *Exec) {
			values := [3]*Tensor{x.Randn(Float64, 2, 5, 8), x.Randn(Float64, 24, 8), x.Randn(Float64, 24)}
			for _, op := range []string{"linear", "linear_gelu", "linear_heads"} {
				run := func(dtype DType, fused bool) []float64 {
					var leaves []*Tensor
					for _, v := range values {
						v = x.Clone(x.To(v, dtype))
						must.Do(t, v.SetRequiresGrad(true))
						leaves = append(leaves, v)
					}
					args := []any{leaves[0], leaves[1], leaves[2]}
					switch op {
					case "linear_gelu":
						args = append(args, "none")
					case "linear_heads":
						args = append(args, 1)
					}
					outs := x.Call("streamtorch::"+op, append(args, fused)...)
					out := outs[0].(*Tensor)
					if op == "linear" {
						out = x.ReLUInPlace(out)
					}
					loss := x.Sum(x.Mul(x.Mul(out, out), out))
					first := x.Gradients([]*Tensor{loss}, leaves, GradientOptions{CreateGraph: true})
					squares := x.Sum(x.Mul(first[0], first[0]))
					for _, g := range first[1:] {
						squares = x.Add(squares, x.Sum(x.Mul(g, g)))
					}
					var all []float64
					for _, g := range x.Gradients([]*Tensor{squares}, leaves, GradientOptions{}) {
						all = append(all, ToSlice[float64](x, x.To(g, Float64))...)
					}
					return all
				}
				got, want := run(Float32, true), run(Float64, false)
				largest := 0.0
				for _, w := range want {
					largest = max(largest, math.Abs(w))
				}
				for i, w := range want {
					if !(math.Abs(got[i]-w) <= 1e-3*largest) {
						t.Fatalf("%s: derivative %d is %v, want %v", op, i, got[i], w)
					}
				}
			}
		})
	})
}
