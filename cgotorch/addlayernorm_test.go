package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A layerNormCase is one call of streamtorch::add_layer_norm.
type layerNormCase struct {
	in, addend, out DType // an addend of dtype 0 is absent; out 0: the dtype of the sum
	rows            []int64
	channels        int64
	affine          bool
	noSum, noNormed bool // backward has no gradient of this result
}

func (c layerNormCase) String() string {
	return fmt.Sprintf("%v + %v to %v, %v rows of %d, affine=%v, gradients of sum=%v normed=%v", c.in, c.addend, c.out, c.rows, c.channels, c.affine, !c.noSum, !c.noNormed)
}

// run runs forward and backward of one call, and returns the results. If `reference` is true,
// LibTorch's operators run in float64. The tensors `gradients` are the gradients with respect to
// the two results.
func (c layerNormCase) run(t *testing.T, x *Exec, in, addend *Tensor, gradients [2]*Tensor, reference bool) *normResult {
	t.Helper()
	leafOf := func(v *Tensor, dtype DType) *Tensor {
		if reference {
			dtype = Float64
		}
		v = x.Clone(x.To(x.Detach(v), dtype))
		must.Do(t, v.SetRequiresGrad(true))
		return v
	}
	of := func(first, step float64) *Tensor {
		v := make([]float32, c.channels)
		for i := range v {
			v[i] = float32(first + step*float64(i%7))
		}
		return leafOf(FromSlice(x, v), Float32)
	}
	input := leafOf(in, c.in)
	var other, weight, bias, sum, normed *Tensor
	if c.addend != 0 {
		other = leafOf(addend, c.addend)
	}
	if c.affine {
		weight, bias = of(0.7, 0.1), of(-0.3, 0.1)
	}
	if reference {
		sum = input
		if other != nil {
			sum = x.Add(input, other)
		}
		normed = x.LayerNorm(sum, []int64{c.channels}, weight, bias, LayerNormOptions{})
	} else {
		var dtype any
		if c.out != 0 {
			dtype = c.out
		}
		results := x.Call("streamtorch::add_layer_norm", input, other, weight, bias, 1e-5, dtype)
		sum, normed = results[0].(*Tensor), results[1].(*Tensor)
	}
	var roots, grads []*Tensor
	if !c.noSum {
		roots, grads = append(roots, sum), append(grads, x.To(gradients[0], sum.DType()))
	}
	if !c.noNormed {
		roots, grads = append(roots, normed), append(grads, x.To(gradients[1], normed.DType()))
	}
	x.BackwardWith(BackwardOptions{Grads: grads}, roots...)
	r := &normResult{}
	r.add(x, "sum", sum)
	r.add(x, "result of the norm", normed)
	r.add(x, "gradient of the input", input.Grad())
	if other != nil {
		r.add(x, "gradient of the addend", other.Grad())
	}
	if c.affine && !c.noNormed {
		r.add(x, "gradient of the weight", weight.Grad())
		r.add(x, "gradient of the bias", bias.Grad())
	}
	return r
}

func (c layerNormCase) random(x *Exec, dtype DType) *Tensor {
	shape := append(slices.Clone(c.rows), c.channels)
	if dtype == 0 {
		dtype = Float32
	}
	return x.To(x.AddScalar(x.Randn(Float32, shape...), 0.5), dtype)
}

// check compares streamtorch::add_layer_norm with LibTorch's operators in float64.
func (c layerNormCase) check(t *testing.T, x *Exec) {
	t.Helper()
	in, addend := c.random(x, c.in), c.random(x, c.addend)
	// The values of a gradient fit into both dtypes of 16 bits, so that all runs get equal gradients.
	gradients := [2]*Tensor{x.To(c.random(x, BFloat16), Float32), x.To(c.random(x, BFloat16), Float32)}
	got, want := c.run(t, x, in, addend, gradients, false), c.run(t, x, in, addend, gradients, true)
	allowed := 2e-5
	for _, dtype := range []DType{c.in, c.addend, c.out} {
		allowed = max(allowed, map[DType]float64{BFloat16: 5.0 / 256, Float16: 5.0 / 2048}[dtype])
	}
	for i, name := range want.names {
		largest, worst := 0.0, 0.0
		for k, w := range want.values[i] {
			largest, worst = max(largest, math.Abs(w)), max(worst, math.Abs(got.values[i][k]-w))
		}
		if bound := allowed * c.steepest(want.values[0]) * max(largest, 1); !(worst <= bound) {
			t.Errorf("%v: the %s is %g off, of at most %g, allowed %g", c, name, worst, largest, bound)
		}
	}
}

// steepest returns the largest 1 / deviation of the rows of sum, and at least 1. The norm
// multiplies the rounding of a row's values by it.
func (c layerNormCase) steepest(sum []float64) float64 {
	steepest := 1.0
	for row := range slices.Chunk(sum, int(c.channels)) {
		var mean, variance float64
		for _, v := range row {
			mean += v / float64(len(row))
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(len(row))
		}
		steepest = max(steepest, 1/math.Sqrt(variance+1e-5))
	}
	return steepest
}

// layerNormDTypes are dtypes of the input, the addend and the norm's result.
var layerNormDTypes = [][3]DType{
	{Float32, BFloat16, BFloat16}, {Float32, Float16, Float16}, {Float32, Float32, Float32}, {Float32, 0, BFloat16}, {Float32, 0, Float16},
	{Float32, 0, 0}, {BFloat16, BFloat16, BFloat16}, {Float16, 0, 0}, {BFloat16, Float16, Float32}, {BFloat16, Float32, BFloat16},
}

// streamtorch::add_layer_norm and LibTorch's operators in float64 are equal up to the rounding of
// the dtypes. The test compares the results and the gradients, for gradients of one or of both
// results.
func TestAddLayerNorm(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for i, dtypes := range layerNormDTypes {
			t.Run(fmt.Sprint(dtypes), func(t *testing.T) {
				torchtest.Do(t, d, func(x *Exec) {
					channels := []int64{8, 24, 64, 200, 768, 1024, 1032, 4096, 8192}
					if !d.IsCUDA() { // the call then runs LibTorch's operators
						channels = []int64{8, 72}
					} else if i > 0 { // the first dtypes are those of autocast
						channels = []int64{8, 72, 768, 1032}
					}
					for n, channels := range channels {
						for k := range 6 {
							c := layerNormCase{in: dtypes[0], addend: dtypes[1], out: dtypes[2], channels: channels, rows: [][]int64{{3, 5}, {1}, {2, 197}, {1031}}[(n+k)%4],
								affine: k&1 == 0, noSum: k%3 == 1, noNormed: k%3 == 2}
							if !d.IsCUDA() && c.affine && c.in != Float32 {
								continue // LibTorch's norm on the CPU rejects some of these dtypes
							}
							x.Tidy(func() *Tensor { c.check(t, x); return nil })
						}
					}
					c := layerNormCase{in: dtypes[0], addend: dtypes[1], out: dtypes[2], channels: 6, rows: []int64{5}} // LibTorch's operators do the work
					x.Tidy(func() *Tensor { c.check(t, x); return nil })
				})
			})
		}
	})
}

// Weights alone, biases alone and frozen weights have the right gradients. So have an input without
// a gradient, and an addend without one.
func TestAddLayerNorm_SomeGradients(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		const channels = 64
		values := [4]*Tensor{x.Randn(Float32, 33, channels), x.Randn(Float32, 33, channels), x.Randn(Float32, channels), x.Randn(Float32, channels)}
		gradient := x.Randn(Float32, 33, channels)
		for mask := 1; mask < 16; mask++ {
			run := func(dtype DType, fused bool) (result [][]float64) {
				var tensors [4]*Tensor
				for i, v := range values {
					if i == 3 && mask == 5 {
						continue // without a bias
					}
					tensors[i] = x.Clone(x.To(v, dtype))
					if mask>>i&1 != 0 {
						must.Do(t, tensors[i].SetRequiresGrad(true))
					}
				}
				results := x.Call("streamtorch::add_layer_norm", tensors[0], tensors[1], tensors[2], tensors[3], 1e-5, nil, fused)
				normed := results[1].(*Tensor)
				x.BackwardWith(BackwardOptions{Grads: []*Tensor{x.To(gradient, dtype)}}, normed)
				for i, v := range tensors {
					if mask>>i&1 != 0 {
						result = append(result, ToSlice[float64](x, x.To(v.Grad(), Float64)))
					}
				}
				return result
			}
			got, want := run(Float32, true), run(Float64, false)
			for i := range want {
				for k, w := range want[i] {
					if !(math.Abs(got[i][k]-w) <= 1e-4) {
						t.Fatalf("mask %b: gradient %d is %v at %d, want %v", mask, i, got[i][k], k, w)
					}
				}
			}
		}
	})
}

// Tensors with gaps and tensors that begin at an odd address have the results of LibTorch's
// operators.
func TestAddLayerNorm_Views(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		wide := x.Randn(Float32, 9, 48)
		long := x.Randn(Float32, 9*16+1)
		for name, in := range map[string]*Tensor{
			"gaps":      x.Slice(wide, 1, SliceOptions{Start: 3, End: Set(19)}),
			"transpose": x.Transpose(x.Randn(Float32, 16, 9), 0, 1),
			"address":   x.Reshape(x.Slice(long, 0, SliceOptions{Start: 1}), 9, 16),
			"expanded":  x.Expand(x.Randn(Float32, 1, 16), 9, 16),
		} {
			leaf := x.Detach(in)
			must.Do(t, leaf.SetRequiresGrad(true))
			addend := x.Ones(Float32, 9, 16)
			results := x.Call("streamtorch::add_layer_norm", leaf, addend, nil, nil, 1e-5)
			want := x.LayerNorm(x.Add(in, addend), []int64{16}, nil, nil, LayerNormOptions{})
			// A gradient with gaps: every other column.
			gradient := x.Slice(x.Randn(Float32, 9, 32), 1, SliceOptions{Step: 2})
			g := x.Gradients([]*Tensor{results[1].(*Tensor)}, []*Tensor{leaf}, GradientOptions{Grads: []*Tensor{gradient}})[0]
			again := x.Detach(x.Clone(in))
			must.Do(t, again.SetRequiresGrad(true))
			normed := x.LayerNorm(x.Add(again, addend), []int64{16}, nil, nil, LayerNormOptions{})
			wantG := x.Gradients([]*Tensor{normed}, []*Tensor{again}, GradientOptions{Grads: []*Tensor{gradient}})[0]
			for what, pair := range map[string][2]*Tensor{"result": {results[1].(*Tensor), want}, "gradient": {g, wantG}} {
				if off := x.Item(x.Max(x.Abs(x.Sub(pair[0], pair[1])))); !(off < 1e-5) {
					t.Errorf("%s: the %s is %v off", name, what, off)
				}
			}
		}
	})
}
