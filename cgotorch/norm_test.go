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

// A normCase is one call of streamtorch::batch_norm_act.
type normCase struct {
	dtype      DType
	activation string
	channels   int64
	rows       [3]int64 // N, H, W
	addend     bool
	affine     bool
	evaluate   bool
	format     MemoryFormat
	kernels    string // "one" or "two": whether statistics and result come from one kernel or from two
	loose      bool   // rounding changes the gradient of the input a lot, so it is not compared
}

func (c normCase) String() string {
	return fmt.Sprintf("%v %s %d channels %v addend=%v affine=%v eval=%v format=%d kernels=%s",
		c.dtype, c.activation, c.channels, c.rows, c.addend, c.affine, c.evaluate, c.format, c.kernels)
}

// normResult holds the results of one call in float64.
type normResult struct {
	names  []string
	values [][]float64
}

func (r *normResult) add(x *Exec, name string, t *Tensor) {
	r.names = append(r.names, name)
	r.values = append(r.values, ToSlice[float64](x, x.Contiguous(x.To(x.Detach(t), Float64), Contiguous)))
}

// run runs forward and backward of one call, and returns the results. If `reference` is true,
// LibTorch's operators run in float64. Otherwise streamtorch::batch_norm_act runs. The argument
// `gradient` is the gradient with respect to the forward's result.
func (c normCase) run(t *testing.T, x *Exec, in, addend, gradient *Tensor, reference bool) *normResult {
	t.Helper()
	dtype, parameters := c.dtype, Float32
	if reference {
		dtype, parameters = Float64, Float64
	}
	leafOf := func(v *Tensor, dtype DType) *Tensor {
		v = x.Clone(x.To(x.Detach(v), dtype))
		must.Do(t, v.SetRequiresGrad(true))
		return v
	}
	of := func(first, step float64) *Tensor {
		v := make([]float32, c.channels)
		for i := range v {
			v[i] = float32(first + step*float64(i%7))
		}
		return x.To(FromSlice(x, v), parameters)
	}
	input := leafOf(in, dtype)
	var weight, bias, other *Tensor
	if c.affine {
		weight, bias = leafOf(of(0.7, 0.1), parameters), leafOf(of(-0.3, 0.1), parameters)
	}
	if c.addend {
		other = leafOf(addend, dtype)
	}
	mean, variance := of(0.1, 0.05), of(0.5, 0.2)
	var out *Tensor
	if !reference {
		out = x.Call1("streamtorch::batch_norm_act", input, other, weight, bias, mean, variance, !c.evaluate, 0.1, 1e-5, c.activation, c.kernels)
	} else {
		out = x.BatchNorm(input, weight, bias, mean, variance, BatchNormOptions{Training: !c.evaluate})
		if other != nil {
			out = x.Add(out, other)
		}
		switch c.activation {
		case "relu":
			out = x.ReLU(out)
		case "relu6":
			out = x.ReLU6(out)
		case "silu":
			out = x.SiLU(out)
		case "hardswish":
			out = x.HardSwish(out)
		case "gelu":
			out = x.GELU(out)
		}
	}
	x.BackwardWith(BackwardOptions{Grads: []*Tensor{x.To(gradient, dtype)}}, out)
	r := &normResult{}
	r.add(x, "result", out)
	r.add(x, "gradient of the input", input.Grad())
	if c.addend {
		r.add(x, "gradient of the addend", other.Grad())
	}
	if c.affine {
		r.add(x, "gradient of the weight", weight.Grad())
		r.add(x, "gradient of the bias", bias.Grad())
	}
	if !c.evaluate {
		r.add(x, "running mean", mean)
		r.add(x, "running variance", variance)
	}
	return r
}

// awayFromJumps returns a copy of `gradient` with some elements set to 0. At these elements the
// input of the activation is close to a jump of the activation's derivative. There the rounding
// of this input would decide the gradients.
func (c normCase) awayFromJumps(t *testing.T, x *Exec, in, addend, gradient *Tensor) *Tensor {
	t.Helper()
	plain := c
	plain.activation = "none"
	before := plain.run(t, x, in, addend, gradient, true).values[0]
	values := ToSlice[float32](x, x.Contiguous(x.To(gradient, Float32), Contiguous))
	for i, z := range before {
		for _, jump := range []float64{-3, 0, 3, 6} {
			if math.Abs(z-jump) < 1e-4 {
				values[i] = 0
			}
		}
	}
	return x.Contiguous(x.To(FromSlice(x, values, gradient.Shape()...), c.dtype), c.format)
}

// check compares streamtorch::batch_norm_act with LibTorch's operators in float64.
func (c normCase) check(t *testing.T, x *Exec) {
	t.Helper()
	shape := []int64{c.rows[0], c.channels, c.rows[1], c.rows[2]}
	random := func() *Tensor {
		return x.Contiguous(x.To(x.AddScalar(x.Randn(Float32, shape...), 0.5), c.dtype), c.format)
	}
	in, addend := random(), random()
	gradient := c.awayFromJumps(t, x, in, addend, random())
	want := c.run(t, x, in, addend, gradient, true)
	for _, c.kernels = range []string{"one", "two"} {
		c.compare(t, c.run(t, x, in, addend, gradient, false), want, x.Device().IsCUDA())
	}
}

func (c normCase) compare(t *testing.T, got, want *normResult, cuda bool) {
	t.Helper()
	// A gradient is rounded to the dtype up to three times. For example, the gradient before the
	// activation is rounded, and so is the final gradient.
	allowed := map[DType]float64{BFloat16: 3.0 / 256, Float16: 3.0 / 2048, Float32: 3e-5}[c.dtype]
	fused := cuda && c.format == ChannelsLast && c.channels%8 == 0
	if !fused { // LibTorch rounds the result of each operator to the dtype
		allowed *= 6
	}
	for i, name := range want.names {
		if !fused && c.dtype != Float32 && i > 0 {
			break // rounding can move a value across a jump of the derivative, and its gradient is then another one
		}
		if c.loose && name == "gradient of the input" {
			continue
		}
		largest, worst := 0.0, 0.0
		for k, w := range want.values[i] {
			largest, worst = max(largest, math.Abs(w)), max(worst, math.Abs(got.values[i][k]-w))
		}
		if bound := allowed * max(largest, 1); !(worst <= bound) {
			t.Errorf("%v: the %s is %g off, of at most %g, allowed %g", c, name, worst, largest, bound)
		}
	}
}

// streamtorch::batch_norm_act and LibTorch's operators in float64 are equal up to the rounding of
// the dtype. The test compares the result, the gradients and the running statistics.
func TestBatchNormAct(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		if d.IsCUDA() {
			compileNorms(t, d)
		}
		for _, dtype := range []DType{BFloat16, Float16, Float32} {
			for _, activation := range []string{"none", "relu", "relu6", "silu", "hardswish", "gelu"} {
				t.Run(fmt.Sprintf("%v/%s", dtype, activation), func(t *testing.T) {
					torchtest.Do(t, d, func(x *Exec) {
						channels := []int64{8, 24, 64, 144, 960}
						if !d.IsCUDA() { // the call then runs LibTorch's operators
							channels = channels[:2]
						}
						for i, channels := range channels {
							for k := range 8 {
								c := normCase{dtype: dtype, activation: activation, channels: channels, rows: [][3]int64{{3, 5, 7}, {1, 9, 3}, {2, 17, 33}}[(i+k)%3],
									addend: k&1 != 0, affine: k&2 == 0, evaluate: k&4 != 0, format: ChannelsLast}
								x.Tidy(func() *Tensor { c.check(t, x); return nil })
							}
						}
						for _, c := range []normCase{
							{channels: 16, rows: [3]int64{2, 5, 7}, affine: true, addend: true, format: Contiguous},
							{channels: 12, rows: [3]int64{2, 5, 7}, affine: true, format: ChannelsLast},
						} {
							c.dtype, c.activation = dtype, activation
							x.Tidy(func() *Tensor { c.check(t, x); return nil })
						}
					})
				})
			}
		}
	})
}

// compileNorms makes CUDA compile the kernels of TestBatchNormAct, on all cores. One after another
// they take minutes.
func compileNorms(t *testing.T, d Device) {
	t.Run("compile", func(t *testing.T) {
		for _, dtype := range []DType{BFloat16, Float16, Float32} {
			for _, activation := range []string{"none", "relu", "relu6", "silu", "hardswish", "gelu"} {
				for _, channels := range []int64{8, 24, 64, 144, 960} {
					for _, addend := range []bool{false, true} {
						c := normCase{dtype: dtype, activation: activation, channels: channels, rows: [3]int64{2, 17, 33}, addend: addend, affine: true, format: ChannelsLast}
						t.Run(c.String(), func(t *testing.T) {
							t.Parallel()
							torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *Exec) {
								ones := x.Contiguous(x.Ones(dtype, 2, channels, 17, 33), ChannelsLast)
								for _, c.kernels = range []string{"one", "two"} {
									for _, c.evaluate = range []bool{false, true} {
										c.run(t, x, ones, ones, ones, false)
									}
								}
							})
						})
					}
				}
			}
		}
	})
}

// Images of extreme shapes: two values for each channel, the most channels, and more rows than the
// one kernel keeps in shared memory.
func TestBatchNormAct_Shapes(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		cases := []normCase{
			{channels: 8, rows: [3]int64{2, 1, 1}}, {channels: 64, rows: [3]int64{1, 2, 1}, addend: true},
			{channels: 4096, rows: [3]int64{2, 3, 3}}, {channels: 4096, rows: [3]int64{1, 3, 3}, addend: true}, {channels: 4104, rows: [3]int64{2, 3, 3}},
		}
		if d.IsCUDA() {
			cases = append(cases, normCase{channels: 64, rows: [3]int64{1, 340, 340}}, normCase{channels: 64, rows: [3]int64{1, 340, 340}, addend: true})
		}
		for _, c := range cases {
			c.dtype, c.activation, c.affine, c.format = Float32, "relu", true, ChannelsLast
			c.loose = c.rows[0]*c.rows[1]*c.rows[2] == 2 // then the gradient of the input is almost 0
			torchtest.Do(t, d, func(x *Exec) { c.check(t, x) })
		}
	})
}

// The statistics are accurate if the mean is 1,000 times the deviation, and if the first row is
// far from all others.
func TestBatchNormAct_Outlier(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for _, kernels := range []string{"one", "two"} {
			in := x.Contiguous(x.AddScalar(x.Randn(Float32, 8, 16, 28, 28), 1000), ChannelsLast)
			x.FillInPlace(x.Narrow(x.Narrow(x.Narrow(in, 0, 0, 1), 2, 0, 1), 3, 0, 1), 0)
			of := func(in *Tensor, parameters DType) []float64 {
				mean, variance := x.Zeros(parameters, 16), x.Zeros(parameters, 16)
				x.Call("streamtorch::batch_norm_act", in, nil, nil, nil, mean, variance, true, 1.0, 1e-5, "none", kernels)
				return ToSlice[float64](x, x.To(variance, Float64))
			}
			got, want := of(in, Float32), of(x.To(in, Float64), Float64)
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-4*want[i] {
					t.Fatalf("kernels %s: the variance of channel %d is %v, want %v", kernels, i, got[i], want[i])
				}
			}
		}
	})
}

// A value that is infinite or NaN makes its whole channel NaN, and no other channel.
func TestBatchNormAct_NaN(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for _, kernels := range []string{"one", "two"} {
			for _, bad := range []float64{math.Inf(1), math.NaN()} {
				in := x.Contiguous(x.Randn(Float32, 2, 16, 5, 5), ChannelsLast)
				x.FillInPlace(x.Narrow(x.Narrow(x.Narrow(x.Narrow(in, 0, 1, 1), 1, 3, 1), 2, 2, 1), 3, 2, 1), bad)
				mean, variance := x.Zeros(Float32, 16), x.Ones(Float32, 16)
				out := x.Call1("streamtorch::batch_norm_act", in, nil, nil, nil, mean, variance, true, 0.1, 1e-5, "relu", kernels)
				sums := ToSlice[float32](x, x.SumDim(out, []int64{0, 2, 3}, SumOptions{}))
				for c, v := range ToSlice[float32](x, variance) {
					if isBad := c == 3; isBad != math.IsNaN(float64(v)) || isBad != math.IsNaN(float64(sums[c])) {
						t.Errorf("kernels %s, a value of %v in channel 3: channel %d has the running variance %v and the sum %v", kernels, bad, c, v, sums[c])
					}
				}
			}
		}
	})
}

// The gradient of the result may be absent, or lie at any address.
func TestBatchNormAct_Gradients(t *testing.T) {
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *Exec) {
			in := leafOf(t, x, x.Contiguous(x.Randn(Float32, 2, 8, 3, 3), ChannelsLast))
			norm := func() *Tensor {
				return x.Call1("streamtorch::batch_norm_act", in, nil, nil, nil, nil, nil, true, 0.1, 1e-5, "relu")
			}
			// The function given to Recompute does not read its input, so the input has no gradient.
			x.Backward(x.Sum(x.Recompute(norm(), func(x *Exec, in *Tensor) *Tensor { return leafOf(t, x, x.Ones(Float32, 2)) })))
			flat := x.Randn(Float32, 2*3*3*8+1)
			at := x.Permute(x.Reshape(x.Narrow(flat, 0, 1, 2*3*3*8), 2, 3, 3, 8), 0, 3, 1, 2)
			got := x.Gradients([]*Tensor{norm()}, []*Tensor{in}, GradientOptions{Grads: []*Tensor{at}})[0]
			want := x.Gradients([]*Tensor{norm()}, []*Tensor{in}, GradientOptions{Grads: []*Tensor{x.Clone(at)}})[0]
			torchtest.Equal(t, x, x.Contiguous(got, Contiguous), ToSlice[float32](x, x.Contiguous(want, Contiguous)), 2, 8, 3, 3)
		})
	})
}

// A call with an unknown activation or group fails, and the error names it.
func TestBatchNormAct_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		err := torchtest.TryDo(t, d, func(x *Exec) {
			x.Call("streamtorch::batch_norm_act", x.Ones(Float32, 2, 8, 4, 4), nil, nil, nil, nil, nil, true, 0.1, 1e-5, "mish")
		})
		torchtest.WantError(t, err, ErrInvalidArgument, `the activation is "mish"`)
		err = torchtest.TryDo(t, d, func(x *Exec) {
			in := x.Contiguous(x.Ones(Float32, 2, 8, 4, 4), ChannelsLast)
			x.Call("streamtorch::batch_norm_act", in, nil, nil, nil, nil, nil, true, 0.1, 1e-5, "none", "faster", int64(1)<<40)
		})
		text := "a norm over ranks"
		if d.IsCUDA() {
			text = "no group of processes with number"
		}
		torchtest.WantError(t, err, ErrInvalidArgument, text)
	})
}

// In a residual net two layers read each result. The fused norms must give the same gradients as
// LibTorch's operators in float64. The last operator of the net adds two norms. The gradient of
// the tensor `middle` is the sum of two parts. The kernels read the two parts separately, but
// Gradients must return the whole sum.
func TestBatchNormAct_Residual(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		const channels = 16
		shape := []int64{2, channels, 6, 5}
		first := x.Contiguous(x.Randn(Float32, shape...), ChannelsLast)
		scale := x.AddScalar(x.MulScalar(x.Randn(Float32, channels), 0.2), 1)
		run := func(dtype DType, kernels string) (values [][]float64) {
			fused := kernels != ""
			leafOf := func(v *Tensor) *Tensor {
				v = x.Clone(x.To(x.Detach(v), dtype))
				must.Do(t, v.SetRequiresGrad(true))
				return v
			}
			in, w := leafOf(first), leafOf(scale)
			norm := func(in, addend *Tensor) *Tensor {
				if fused {
					return x.Call1("streamtorch::batch_norm_act", in, addend, w, nil, nil, nil, true, 0.1, 1e-5, "relu", kernels)
				}
				out := x.BatchNorm(in, w, nil, nil, nil, BatchNormOptions{Training: true})
				if addend != nil {
					out = x.Add(out, addend)
				}
				return x.ReLU(out)
			}
			h := norm(in, nil)
			middle := norm(x.Sin(h), h)
			h = norm(x.Sin(middle), middle)
			if fused {
				h = x.Call1("streamtorch::batch_norms_act", x.Sin(h), x.Cos(h), w, nil, nil, nil, w, nil, nil, nil, true, 0.1, 1e-5, 0.1, 1e-5, "relu", kernels)
			} else {
				o := BatchNormOptions{Training: true}
				h = x.ReLU(x.Add(x.BatchNorm(x.Sin(h), w, nil, nil, nil, o), x.BatchNorm(x.Cos(h), w, nil, nil, nil, o)))
			}
			loss := x.Sum(x.Mul(h, h))
			r := &normResult{}
			r.add(x, "loss", x.Reshape(loss, 1))
			for i, g := range x.Gradients([]*Tensor{loss}, []*Tensor{middle, in, w}, GradientOptions{}) {
				r.add(x, fmt.Sprint(i), g)
			}
			return r.values
		}
		want := run(Float64, "")
		for _, kernels := range []string{"one", "two"} {
			got := run(Float32, kernels)
			for i, name := range []string{"loss", "gradient of the middle", "gradient of the input", "gradient of the weight"} {
				largest := 0.0
				for _, w := range want[i] {
					largest = max(largest, math.Abs(w))
				}
				for k, w := range want[i] {
					if math.Abs(got[i][k]-w) > 1e-4*largest {
						t.Fatalf("kernels %s: the %s is %v at %d, want %v", kernels, name, got[i][k], k, w)
					}
				}
			}
		}
	})
}

// Norm, ReLU and max pooling in one equal LibTorch's operators in float64, for images of even and
// odd sizes. In the dtypes of 16 bits only the result is compared: equal rounded values make
// another pixel the largest.
func TestBatchNormReLUMaxPool(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			for i, shape := range [][]int64{{2, 16, 7, 9}, {1, 8, 8, 6}, {3, 24, 5, 5}, {2, 64, 12, 10}, {4, 8, 3, 1}} {
				in := x.Contiguous(x.To(x.Randn(Float32, shape...), dtype), ChannelsLast)
				evaluate := i == 1
				run := func(dtype DType, fused bool) *normResult {
					parameters := Float32
					if !fused {
						parameters = Float64
					}
					leafOf := func(v *Tensor, dtype DType) *Tensor {
						v = x.Clone(x.To(x.Detach(v), dtype))
						must.Do(t, v.SetRequiresGrad(true))
						return v
					}
					numbers := func(first float64) *Tensor { return x.To(x.Full(Float32, first, shape[1]), parameters) }
					input, weight, bias := leafOf(in, dtype), leafOf(numbers(0.8), parameters), leafOf(numbers(0.2), parameters)
					mean, variance := numbers(0.1), numbers(0.9)
					var out *Tensor
					if fused {
						out = x.Call1("streamtorch::batch_norm_relu_max_pool", input, weight, bias, mean, variance, !evaluate, 0.1, 1e-5)
					} else {
						norm := x.BatchNorm(input, weight, bias, mean, variance, BatchNormOptions{Training: !evaluate})
						out = x.MaxPool2d(x.ReLU(norm), []int64{3, 3}, MaxPool2dOptions{Stride: []int64{2, 2}, Padding: []int64{1, 1}})
					}
					x.Backward(x.Sum(x.Mul(out, out)))
					r := &normResult{}
					r.add(x, "result", out)
					r.add(x, "gradient of the input", input.Grad())
					r.add(x, "gradient of the weight", weight.Grad())
					r.add(x, "gradient of the bias", bias.Grad())
					r.add(x, "running mean", mean)
					r.add(x, "running variance", variance)
					return r
				}
				got, want := run(dtype, true), run(Float64, false)
				allowed := map[DType]float64{BFloat16: 4.0 / 256, Float16: 4.0 / 2048, Float32: 3e-5}[dtype]
				for k, name := range want.names {
					if dtype != Float32 && k > 0 {
						break
					}
					for n, w := range want.values[k] {
						if off := math.Abs(got.values[k][n] - w); !(off <= allowed*max(1, math.Abs(w))) {
							t.Fatalf("%v %v: the %s is %g at %d, want %g", dtype, shape, name, got.values[k][n], n, w)
						}
					}
				}
			}
		}
	})
}

// Equal inputs give equal bits.
func TestKernels_SameBits(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.Do(t, d, func(x *Exec) {
		in := x.Contiguous(x.To(x.Randn(Float32, 8, 256, 28, 28), BFloat16), ChannelsLast)
		layer := layerNormCase{in: Float32, addend: BFloat16, out: BFloat16, channels: 768, rows: []int64{16, 197}, affine: true}
		rows, addend := layer.random(x, layer.in), layer.random(x, layer.addend)
		gradient := x.To(x.Randn(Float32, 3001, 768), BFloat16)
		norm := func(kernels string) func() [][]float64 {
			c := normCase{dtype: BFloat16, activation: "relu", channels: 256, rows: [3]int64{8, 28, 28}, addend: true, affine: true, format: ChannelsLast, kernels: kernels}
			return func() [][]float64 { return c.run(t, x, in, in, in, false).values }
		}
		for name, run := range map[string]func() [][]float64{
			"batch_norm_act, one kernel": norm("one"), "batch_norm_act, two kernels": norm("two"),
			"add_layer_norm": func() [][]float64 { return layer.run(t, x, rows, addend, [2]*Tensor{rows, rows}, false).values },
			"bias_gradient": func() [][]float64 {
				return [][]float64{numbers(x, x.Call1("streamtorch::bias_gradient", gradient, Float32))}
			},
		} {
			want := run()
			for range 20 {
				if !slices.EqualFunc(run(), want, slices.Equal) {
					t.Errorf("%s: the second run has other bits", name)
					break
				}
			}
		}
	})
}

// The kernels have no second derivative. So Gradients with CreateGraph fails, and the error names
// the operator.
func TestKernels_SecondDerivative(t *testing.T) {
	d := torchtest.CUDA(t)
	for want, run := range map[string]func(x *Exec) (in, out *Tensor){
		"streamtorch::batch_norm_act has no second derivative": func(x *Exec) (in, out *Tensor) {
			in = leafOf(t, x, x.Contiguous(x.Randn(Float32, 2, 8, 4, 4), ChannelsLast))
			return in, x.Call1("streamtorch::batch_norm_act", in, nil, nil, nil, nil, nil, true, 0.1, 1e-5, "relu")
		},
		"streamtorch::add_layer_norm has no second derivative": func(x *Exec) (in, out *Tensor) {
			in = leafOf(t, x, x.Randn(Float32, 2, 8))
			return in, x.Call("streamtorch::add_layer_norm", in, nil, nil, nil, 1e-5)[1].(*Tensor)
		},
		"streamtorch::image_convolution has no second derivative: use Exec.Conv2d": func(x *Exec) (in, out *Tensor) {
			in = leafOf(t, x, x.Contiguous(x.Randn(BFloat16, 8, 3, 3, 3), ChannelsLast))
			return in, imageConvolution{padding: 1}.run(x, x.Randn(BFloat16, 2, 3, 8, 8), in)
		},
	} {
		torchtest.WantError(t, torchtest.TryDo(t, d, func(x *Exec) {
			in, out := run(x)
			x.Gradients([]*Tensor{x.Sum(out)}, []*Tensor{in}, GradientOptions{CreateGraph: true})
		}), nil, want)
	}
}
