package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// roundings is the largest relative error of one rounding in a dtype, with some room for float32's
// own errors.
func roundings(dtype DType) float64 {
	return map[DType]float64{Float32: 1e-5, BFloat16: 1.0 / 200, Float16: 1.0 / 1600}[dtype]
}

// farOff returns the largest difference of two tensors, as a part of max(1, the largest element of
// want).
func farOff(x *Exec, got, want *Tensor) float64 {
	got, want = x.To(got, Float64), x.To(want, Float64)
	return x.Item(x.Max(x.Abs(x.Sub(got, want)))) / max(1, x.Item(x.Max(x.Abs(want))))
}

// streamtorch::channel_affine computes as LibTorch's operators in float64 do, up to one rounding.
func TestChannelAffine(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	activations := map[string]func(x *Exec, in *Tensor) *Tensor{
		"none": func(_ *Exec, in *Tensor) *Tensor { return in }, "relu": (*Exec).ReLU, "silu": (*Exec).SiLU, "hardswish": (*Exec).HardSwish,
		"relu6": func(x *Exec, in *Tensor) *Tensor { return x.Clamp(in, 0.0, 6.0) },
		"gelu":  func(x *Exec, in *Tensor) *Tensor { return x.Call1("aten::gelu", in) },
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			for _, shape := range [][]int64{{2, 8, 5, 7}, {1, 144, 1, 1}, {3, 24, 9, 1}, {1, 6, 3, 3}, {0, 8, 2, 2}, {5, 16, 33, 31}} {
				for name, activation := range activations {
					t.Run(fmt.Sprint(dtype, shape, name), func(t *testing.T) {
						torchtest.Do(t, d, func(x *Exec) {
							for given := range 64 {
								of := func(bit int, dtype DType, format MemoryFormat, shape ...int64) *Tensor {
									if bit != 0 && given&bit == 0 {
										return nil
									}
									return x.Contiguous(x.To(x.MulScalar(x.Randn(Float32, shape...), 3), dtype), format)
								}
								format, parameter := ChannelsLast, Float32
								if given&8 != 0 {
									parameter = dtype
								}
								in, addend := of(0, dtype, format, shape...), of(4, dtype, format, shape...)
								scale, bias, shift := of(1, parameter, Contiguous, shape[1]), of(2, parameter, Contiguous, shape[1]), of(16, parameter, Contiguous, shape[1])
								want, reuse := x.To(in, Float64), given%3 == 0
								var got *Tensor
								if given&32 != 0 { // the channels are the last dimension
									rows := func(t *Tensor) *Tensor {
										if t == nil {
											return nil
										}
										return x.Permute(t, 0, 2, 3, 1)
									}
									got = x.Permute(x.Call1("streamtorch::channel_affine", rows(in), shift, scale, bias, rows(addend), name, true, reuse), 0, 3, 1, 2)
								} else {
									got = x.Call1("streamtorch::channel_affine", in, shift, scale, bias, addend, name, false, reuse)
								}
								if got.DType() != dtype || fmt.Sprint(got.Shape()) != fmt.Sprint(shape) {
									t.Fatalf("got %v", got)
								}
								if shape[0] == 0 {
									continue
								}
								// The operators of LibTorch on the tensors as they are, and in float64.
								steps, exact := in, want
								add := func(t, wide *Tensor) { steps, exact = x.Add(steps, t), x.Add(exact, wide) }
								ofChannels := func(t *Tensor) *Tensor { return x.Reshape(t, 1, shape[1], 1, 1) }
								if shift != nil {
									add(ofChannels(shift), ofChannels(x.To(shift, Float64)))
								}
								if scale != nil {
									steps, exact = x.Mul(steps, ofChannels(scale)), x.Mul(exact, ofChannels(x.To(scale, Float64)))
								}
								if bias != nil {
									add(ofChannels(bias), ofChannels(x.To(bias, Float64)))
								}
								if addend != nil {
									add(addend, x.To(addend, Float64))
								}
								if isFused := d.IsCUDA() && shape[1]%8 == 0; !isFused {
									if given&32 != 0 { // LibTorch's GELU has other bits in another order of dimensions
										steps, got = x.Permute(steps, 0, 2, 3, 1), x.Permute(got, 0, 2, 3, 1)
									}
									if !x.Equal(got, x.To(activation(x, steps), dtype)) {
										t.Errorf("given %b: other bits than LibTorch's operators", given)
									}
									if given >= 16 {
										continue // with a shift, roundings before a cancellation may be larger than the result
									}
								}
								want = exact
								most := roundings(dtype)
								if !d.IsCUDA() || shape[1]%8 != 0 {
									most *= 4 // LibTorch rounds each step in the dtype of its operands
								}
								if far := farOff(x, got, activation(x, want)); !(far <= most) {
									t.Errorf("given %b: %g off", given, far)
								}
							}
						})
					})
				}
			}
		}
	})
}

// A tensor without dimensions does not change the dtype of a sum.
func TestChannelAffine_ScalarAddend(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtype := range []DType{Float32, BFloat16} {
			torchtest.Do(t, d, func(x *Exec) {
				in, addend := x.Contiguous(x.Randn(dtype, 2, 8, 3, 3), ChannelsLast), x.Full(Float64, 0.5)
				got := x.Call1("streamtorch::channel_affine", in, nil, x.Ones(Float32, 8), nil, addend, "none", false, false)
				if want := x.AddScalar(in, 0.5); got.DType() != dtype || !x.Equal(got, want) {
					t.Errorf("%v: got %v", dtype, got)
				}
			})
		}
	})
}

// Where a gradient is needed, and for images that are not channels last, LibTorch's operators do
// the work.
func TestChannelAffine_Gradients(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		in := x.Randn(Float32, 2, 8, 3, 3)
		Check(in.SetRequiresGrad(true))
		scale := x.Randn(Float32, 8)
		x.Backward(x.Sum(x.Call1("streamtorch::channel_affine", in, nil, scale, nil, nil, "none")))
		if far := farOff(x, in.Grad(), x.Expand(x.Reshape(scale, 1, 8, 1, 1), 2, 8, 3, 3)); !(far <= 1e-6) {
			t.Errorf("the gradient is %g off", far)
		}
	})
}

// streamtorch::channel_means are the means over the pixels, rounded once.
func TestChannelMeans(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			for _, shape := range [][]int64{{2, 8, 5, 7}, {1, 144, 1, 1}, {3, 24, 9, 1}, {8, 32, 112, 112}, {8, 1152, 7, 7}, {1, 6, 3, 3}, {300, 2048, 2, 2}} {
				t.Run(fmt.Sprint(dtype, shape), func(t *testing.T) {
					torchtest.Do(t, d, func(x *Exec) {
						in := x.Contiguous(x.To(x.AddScalar(x.Randn(Float32, shape...), 2), dtype), ChannelsLast)
						got := x.Call1("streamtorch::channel_means", in)
						want := x.MeanDim(x.To(in, Float64), []int64{2, 3}, SumOptions{KeepDim: true})
						if far := farOff(x, got, want); !(far <= roundings(dtype)) || got.DType() != dtype || fmt.Sprint(got.Shape()) != fmt.Sprint(want.Shape()) {
							t.Errorf("%v is %g off", got, far)
						}
						if again := x.Call1("streamtorch::channel_means", in); !x.Equal(again, got) {
							t.Error("a second call gives other bits")
						}
					})
				})
			}
		}
	})
}

// streamtorch::squeeze_excite computes as LibTorch's operators do. Its factors are rounded where
// LibTorch's are.
func TestSqueezeExcite(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			for _, c := range []struct{ count, channels, squeezed, side int64 }{{1, 8, 1, 5}, {2, 32, 8, 112}, {8, 96, 4, 56}, {3, 1152, 48, 7}, {2, 24, 6, 1}, {2, 6, 3, 4}} {
				for _, activation := range []string{"silu", "relu"} {
					t.Run(fmt.Sprint(dtype, c, activation), func(t *testing.T) {
						torchtest.Do(t, d, func(x *Exec) {
							of := func(scale float64, shape ...int64) *Tensor {
								return x.To(x.MulScalar(x.Randn(Float32, shape...), scale), dtype)
							}
							in := x.Contiguous(of(2, c.count, c.channels, c.side, c.side), ChannelsLast)
							first, second := of(0.3, c.squeezed, c.channels, 1, 1), x.Contiguous(of(1, c.channels, c.squeezed, 1, 1), ChannelsLast)
							biases := [2]*Tensor{of(1, c.squeezed), of(1, c.channels)}
							for given := range 4 {
								b1, b2 := biases[0], biases[1]
								if given&1 != 0 {
									b1 = nil
								}
								if given&2 != 0 {
									b2 = nil
								}
								got := x.Call1("streamtorch::squeeze_excite", in, first, b1, second, b2, activation)
								wide := func(t *Tensor) *Tensor {
									if t == nil {
										return nil
									}
									return x.To(t, Float64)
								}
								hidden := x.Conv2d(x.MeanDim(wide(in), []int64{2, 3}, SumOptions{KeepDim: true}), wide(first), wide(b1), Conv2dOptions{})
								if activation == "silu" {
									hidden = x.SiLU(hidden)
								} else {
									hidden = x.ReLU(hidden)
								}
								want := x.Mul(wide(in), x.Sigmoid(x.Conv2d(hidden, wide(second), wide(b2), Conv2dOptions{})))
								if far := farOff(x, got, want); !(far <= 8*roundings(dtype)) || got.DType() != dtype {
									t.Errorf("without %b: %g off", given, far)
								}
							}
						})
					})
				}
			}
		}
	})
}

// Without a gradient the rows of an addend may lie in another order, and weights may have 16 bits.
func TestAddLayerNorm_Evaluation(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		d := x.Device()
		x = x.NoGrad()
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			if !d.IsCUDA() && dtype == Float16 {
				continue // LibTorch's norm on the CPU has other roundings there
			}
			random := func(shape ...int64) *Tensor { return x.To(x.Randn(Float32, shape...), dtype) }
			for name, c := range map[string]struct{ in, addend *Tensor }{
				"dense":            {random(3, 7, 96), random(3, 7, 96)},
				"turned":           {random(3, 7, 96), x.Transpose(random(7, 3, 96), 0, 1)},
				"turned, four":     {random(3, 7, 2, 96), x.Transpose(random(7, 3, 2, 96), 0, 1)},
				"turned inside":    {random(3, 7, 2, 96), x.Transpose(random(3, 2, 7, 96), 1, 2)},
				"gaps in the rows": {random(3, 7, 96), x.Narrow(random(3, 7, 128), 2, 16, 96)},
				"odd gaps":         {random(3, 7, 96), x.Narrow(random(3, 7, 97), 2, 0, 96)},
				"one row":          {random(3, 7, 96), x.Expand(random(96), 3, 7, 96)},
				"two dimensions":   {random(5, 96), x.Narrow(random(5, 104), 1, 0, 96)},
			} {
				weight, bias := random(96), random(96)
				results := x.Call("streamtorch::add_layer_norm", c.in, c.addend, weight, bias, 1e-5)
				sum := x.Add(c.in, c.addend)
				wide := func(t *Tensor) *Tensor { return x.To(t, Float64) }
				want := x.LayerNorm(wide(sum), []int64{96}, wide(weight), wide(bias), LayerNormOptions{})
				if far := max(farOff(x, results[0].(*Tensor), sum), farOff(x, results[1].(*Tensor), want)); !(far <= roundings(dtype)) {
					t.Errorf("%v, %s: %g off", dtype, name, far)
				}
			}
			in, row, weight, bias := random(3, 7, 96), random(96), random(96), random(96)
			got := x.Call1("streamtorch::bias_layer_norm", in, row, weight, bias, 1e-5)
			want := x.LayerNorm(x.Add(in, row), []int64{96}, weight, bias, LayerNormOptions{})
			if far := farOff(x, got, want); !(far <= 2*roundings(dtype)) {
				t.Errorf("%v, bias_layer_norm: %g off", dtype, far)
			}
		}
	})
}

// streamtorch::scale_channels with `sigmoid` is the product with the sigmoid of the factors.
func TestScaleChannels_Sigmoid(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			in, factors := x.Contiguous(x.To(x.Randn(Float32, 3, 16, 5, 5), dtype), ChannelsLast), x.To(x.Randn(Float32, 3, 16, 1, 1), dtype)
			got, want := x.Call1("streamtorch::scale_channels", in, factors, true), x.Mul(in, x.Sigmoid(factors))
			if far := farOff(x, got, want); !(far <= 2*roundings(dtype)) {
				t.Errorf("%v: %g off", dtype, far)
			}
		}
	})
}

// A linear layer whose weight requires a gradient is one product, also without grad mode and for an
// input with gaps, as in PyTorch. The result is that of a dense input, to the bit.
func TestLinear_GapsWithoutGrad(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		in, weight := x.Transpose(x.Randn(Float32, 8, 197, 96), 0, 1), x.Randn(Float32, 40, 96)
		Check(weight.SetRequiresGrad(true))
		y := x.NoGrad()
		got, want := y.Linear(in, weight, nil), y.Linear(y.Contiguous(in, Contiguous), weight, nil)
		if !y.Equal(got, want) {
			t.Errorf("%g off", farOff(y, got, want))
		}
	})
}
