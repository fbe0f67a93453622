package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A pooling has random settings for a max or average pooling.
type pooling struct {
	shape                             []int64
	dtype                             DType
	kernel, stride, padding, dilation []int64
	ceil, excludePadding              bool
	divisor                           any
}

func (p pooling) String() string {
	type plain pooling
	return fmt.Sprintf("%+v", plain(p))
}

func randomPooling(r *rand.Rand) pooling {
	dtypes := []DType{Float32, Float16, BFloat16, Float64}
	p := pooling{shape: []int64{int64(1 + r.IntN(3)), int64([]int{1, 3, 8, 16, 20}[r.IntN(5)])}, dtype: dtypes[r.IntN(len(dtypes))],
		ceil: r.IntN(2) == 0, excludePadding: r.IntN(2) == 0}
	if r.IntN(4) == 0 {
		p.divisor = 1 + r.IntN(5)
	}
	three := r.IntN(2) == 0
	for range 2 {
		kernel := 1 + r.IntN(4)
		dilation := 1 + r.IntN(2)
		if three {
			kernel, dilation = 3, 1
		}
		p.kernel = append(p.kernel, int64(kernel))
		p.stride = append(p.stride, int64(1+r.IntN(3)))
		p.padding = append(p.padding, int64(r.IntN(kernel/2+1)))
		p.dilation = append(p.dilation, int64(dilation))
		p.shape = append(p.shape, int64(1+dilation*(kernel-1)+r.IntN(12)))
	}
	return p
}

// Without a gradient, the library's pooling operators have the same bits as LibTorch's operators.
// The inputs have infinities and NaN, and every memory layout.
func TestPool2d(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		r := rand.New(rand.NewPCG(5, 6))
		for range 300 {
			p := randomPooling(r)
			channelsLast, offset := r.IntN(4) > 0, r.IntN(8) == 0
			if err := s.Do(func(x *Exec) error {
				count := int64(1)
				for _, n := range p.shape {
					count *= n
				}
				values := make([]float32, count)
				for i := range values {
					switch v := r.IntN(60); v {
					case 0:
						values[i] = float32(math.Inf(1))
					case 1:
						values[i] = float32(math.Inf(-1))
					case 2:
						values[i] = float32(math.NaN())
					default:
						values[i] = float32(r.NormFloat64())
					}
				}
				in := x.To(FromSlice(x, values, p.shape...), p.dtype)
				if channelsLast {
					in = x.Contiguous(in, ChannelsLast)
				}
				if offset { // the input begins one element after the start of its memory: the vectors are not aligned
					all := x.Cat([]*Tensor{x.Zeros(p.dtype, 1), x.Reshape(x.Permute(in, 0, 2, 3, 1), -1)}, 0)
					in = x.Permute(x.View(x.Narrow(all, 0, 1, int(count)), p.shape[0], p.shape[2], p.shape[3], p.shape[1]), 0, 3, 1, 2)
				}
				for _, op := range []string{"max_pool2d", "avg_pool2d"} {
					arguments := []any{in, p.kernel, p.stride, p.padding, p.dilation, p.ceil}
					if op == "avg_pool2d" {
						arguments = []any{in, p.kernel, p.stride, p.padding, p.ceil, !p.excludePadding, p.divisor}
					}
					// The reference always has the NCHW layout. For channels last, LibTorch would run different
					// kernels.
					want := x.Call1("aten::"+op, append([]any{x.Contiguous(in, Contiguous)}, arguments[1:]...)...)
					got := x.Call1("streamtorch::"+op, arguments...)
					theirs := x.Call1("aten::"+op, arguments...)
					if !slices.Equal(got.Shape(), theirs.Shape()) || !slices.Equal(got.Strides(), theirs.Strides()) || got.DType() != theirs.DType() {
						t.Errorf("%s, %v: %v %v %v, want %v %v %v", op, p, got.DType(), got.Shape(), got.Strides(), theirs.DType(), theirs.Shape(), theirs.Strides())
						continue
					}
					a, b := ToSlice[float64](x, x.To(got, Float64)), ToSlice[float64](x, x.To(want, Float64))
					for i := range a {
						if math.Float64bits(a[i]) != math.Float64bits(b[i]) && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
							t.Errorf("%s, %v, channels last %v, offset %v: %v at %d, want %v", op, p, channelsLast, offset, a[i], i, b[i])
							break
						}
					}
				}
				return nil
			}); err != nil {
				t.Fatalf("%v: %v", p, err)
			}
		}
	})
}

// On CUDA a pooling runs one kernel of the library's own, or LibTorch's kernels for inputs that
// this kernel does not support.
func TestPool2d_Kernel(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, d)
	for _, c := range []struct {
		op, want string
		dtype    DType
		format   MemoryFormat
		channels int64
	}{
		{"max_pool2d", "max_bfloat16_8_3", BFloat16, ChannelsLast, 16},
		{"max_pool2d", "max_half_1_0", Float16, ChannelsLast, 3},
		{"avg_pool2d", "avg_float_4_3", Float32, ChannelsLast, 16},
		{"max_pool2d", "", Float64, ChannelsLast, 16},
		{"avg_pool2d", "", Float32, Contiguous, 16},
	} {
		torchtest.DoOn(t, s, func(x *Exec) {
			in := x.Contiguous(x.To(x.Randn(Float32, 2, c.channels, 9, 9), c.dtype), c.format)
			arguments := []any{in, []int64{3, 3}, []int64{2, 2}, []int64{1, 1}}
			if c.op == "max_pool2d" {
				arguments = append(arguments, []int64{1, 1})
			}
			x.Call("streamtorch::"+c.op, append(arguments, false)...) // compiles the kernel
			running := Must(trace.Start())
			x.Call("streamtorch::"+c.op, append(arguments, false)...)
			r := Must(running.Stop())
			var names []string
			for _, w := range r.Work {
				names = append(names, w.Name)
			}
			if ours := len(names) == 1 && names[0] == c.want; ours != (c.want != "") {
				t.Errorf("%+v ran %v", c, names)
			}
		})
	}
}

// If the input requires a gradient, LibTorch's operator runs, and the gradients must be right. If
// LibTorch refuses the arguments, the call must fail.
func TestPool2d_Gradient(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *Exec) {
			in := x.Detach(x.Contiguous(x.Randn(Float32, 2, 8, 6, 6), ChannelsLast))
			must.Do(t, in.SetRequiresGrad(true))
			y := x.Call1("streamtorch::max_pool2d", in, []int64{2, 2}, []int64{2, 2}, []int64{0, 0}, []int64{1, 1}, false)
			x.Backward(x.Sum(y))
			if got := x.Item(x.Sum(in.Grad())); got != 2*8*3*3 {
				t.Errorf("the gradients' sum is %v, want %v", got, 2*8*3*3)
			}
		})
		for _, padding := range []int64{2, -1} {
			if err := s.Do(func(x *Exec) error {
				in := x.Contiguous(x.Randn(Float32, 2, 8, 6, 6), ChannelsLast)
				x.Call("streamtorch::max_pool2d", in, []int64{2, 2}, []int64{2, 2}, []int64{padding, padding}, []int64{1, 1}, false)
				return nil
			}); err == nil {
				t.Errorf("padding %d of a kernel of 2 is no error", padding)
			}
		}
	})
}

// The mean of each channel, its gradient and its second derivative have LibTorch's bits.
func TestGlobalAvgPool2d(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		torchtest.Do(t, d, func(x *Exec) {
			for _, shape := range [][]int64{{2, 16, 7, 7}, {3, 24, 1, 5}, {1, 8, 3, 2}, {2, 5, 4, 4}, {2, 2048, 7, 7}} {
				for _, dtype := range []DType{Float32, BFloat16, Float16} {
					for _, format := range []MemoryFormat{ChannelsLast, Contiguous} {
						images := x.Contiguous(x.To(x.Randn(Float32, shape...), dtype), format)
						with := x.To(x.Randn(Float32, shape[0], shape[1], 1, 1), dtype)
						run := func(pool func(*Tensor) *Tensor) (all [][]float64) {
							in := x.Clone(images)
							must.Do(t, in.SetRequiresGrad(true))
							out := pool(in)
							first := x.Gradients([]*Tensor{x.Sum(x.Mul(x.Mul(out, out), with))}, []*Tensor{in}, GradientOptions{CreateGraph: true})[0]
							second := x.Gradients([]*Tensor{x.Sum(x.Mul(first, first))}, []*Tensor{in}, GradientOptions{})[0]
							again := pool(in)
							plain := x.Gradients([]*Tensor{x.Sum(x.Mul(again, with))}, []*Tensor{in}, GradientOptions{})[0]
							for _, r := range []*Tensor{out, first, second, plain} {
								all = append(all, ToSlice[float64](x, x.To(x.Contiguous(r, Contiguous), Float64)))
							}
							return all
						}
						got := run(func(in *Tensor) *Tensor { return x.Call1("streamtorch::global_avg_pool2d", in) })
						want := run(func(in *Tensor) *Tensor { return x.AdaptiveAvgPool2d(in, []int64{1, 1}) })
						for i := range want {
							if !slices.Equal(got[i], want[i]) {
								t.Errorf("%v %v %v: result %d differs", shape, dtype, format, i)
							}
						}
					}
				}
			}
		})
	})
}

// Images times a number for each channel of each image have LibTorch's bits. So have their gradient
// and their second derivative. The kernel rounds the gradient of the numbers once.
func TestScaleChannels(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		torchtest.Do(t, d, func(x *Exec) {
			shapes := [][]int64{{2, 16, 7, 7}, {2, 5, 4, 4}, {3, 24, 1, 5}, {1, 8, 31, 2}, {5, 1152, 7, 7}, {2, 2056, 3, 3}, {70, 32, 12, 12}, {1, 2048, 9, 9}}
			if d == CPU {
				shapes = shapes[:2] // there the operator is LibTorch's
			}
			for _, shape := range shapes {
				for _, dtype := range []DType{Float32, BFloat16, Float16} {
					for _, format := range []MemoryFormat{ChannelsLast, Contiguous} {
						images := x.Contiguous(x.To(x.Randn(Float32, shape...), dtype), format)
						scale, with := x.To(x.Rand(Float32, shape[0], shape[1], 1, 1), dtype), x.To(x.Randn(Float32, shape...), dtype)
						run := func(multiply func(in, scale *Tensor) *Tensor) (all [][]float64) {
							in, by := x.Clone(images), x.Clone(scale)
							for _, leaf := range []*Tensor{in, by} {
								must.Do(t, leaf.SetRequiresGrad(true))
							}
							out := multiply(in, by)
							plain := x.Gradients([]*Tensor{x.Sum(x.Mul(out, with))}, []*Tensor{in, by}, GradientOptions{})
							again := multiply(in, by)
							first := x.Gradients([]*Tensor{x.Sum(x.Mul(x.Mul(again, again), with))}, []*Tensor{in, by}, GradientOptions{CreateGraph: true})
							second := x.Gradients([]*Tensor{x.Add(x.Sum(x.Mul(first[0], first[0])), x.Sum(first[1]))}, []*Tensor{in, by}, GradientOptions{})
							for _, r := range []*Tensor{out, multiply(x.Detach(in), by), plain[0], first[0], first[1], second[0], second[1], plain[1]} {
								all = append(all, ToSlice[float64](x, x.To(x.Contiguous(r, Contiguous), Float64)))
							}
							return all
						}
						got := run(func(in, scale *Tensor) *Tensor { return x.Call1("streamtorch::scale_channels", in, scale) })
						want := run(func(in, scale *Tensor) *Tensor { return x.Mul(in, scale) })
						ulp := map[DType]float64{Float32: 1e-6, BFloat16: 1.0 / 128, Float16: 1.0 / 1024}[dtype]
						last := len(want) - 1
						for i := range last {
							near := 0.0
							if i >= 5 { // second derivatives: sums over pixels in another order
								near = 8 * ulp * max(slices.Max(want[i]), -slices.Min(want[i]))
							}
							for k := range want[i] {
								if !(math.Abs(got[i][k]-want[i][k]) <= near) {
									t.Errorf("%v %v %v: number %d of result %d is %v, want %v", shape, dtype, format, k, i, got[i][k], want[i][k])
									break
								}
							}
						}
						exact := ToSlice[float64](x, x.SumDim(x.Mul(x.To(images, Float64), x.To(with, Float64)), []int64{2, 3}, SumOptions{}))
						size := math.Sqrt(float64(shape[2] * shape[3]))
						for i, v := range exact {
							if !(math.Abs(got[last][i]-v) <= ulp*math.Abs(v)+1e-6*size) && !slices.Equal(got[last], want[last]) {
								t.Errorf("%v %v %v: the gradient of number %d is %v, want %v", shape, dtype, format, i, got[last][i], v)
								break
							}
						}
					}
				}
			}
		})
	})
}
