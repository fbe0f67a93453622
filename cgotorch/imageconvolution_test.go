package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// An imageConvolution is one call of streamtorch::image_convolution.
type imageConvolution struct {
	autocast              DType // 0: the call runs without autocast
	input, weight         DType
	kernel, padding       int64
	channels              int64
	height, width         int64
	inputFrom, weightFrom layout
}

// A layout says how a tensor of a test lies in memory.
type layout int

const (
	contiguous layout = iota
	channelsLast
	sliced // every other column of a larger tensor
	layouts
)

// of returns a copy of t in the layout.
func (l layout) of(x *Exec, t *Tensor) *Tensor {
	switch l {
	case channelsLast:
		return x.Contiguous(t, ChannelsLast)
	case sliced:
		s := t.Shape()
		pairs := x.Stack([]*Tensor{x.FullLike(t, 1e4), t}, 4)
		wide := x.Reshape(pairs, s[0], s[1], s[2], 2*s[3])
		return x.Slice(wide, 3, SliceOptions{Start: 1, Step: 2})
	}
	return x.Clone(t)
}

// dtype returns the dtype of the result.
func (c imageConvolution) dtype() DType {
	if c.autocast != 0 {
		return c.autocast
	}
	return c.input
}

// cells reports whether the library's kernels do the work on CUDA for sure. With one channel, no
// layout is channels last for sure.
func (c imageConvolution) cells() bool {
	return (c.dtype() == BFloat16 || c.dtype() == Float16) && c.channels > 1 && (c.inputFrom == channelsLast || c.weightFrom == channelsLast && c.kernel > 1)
}

func (c imageConvolution) run(x *Exec, in, weight *Tensor) *Tensor {
	if c.autocast != 0 {
		x = x.Autocast(c.autocast)
	}
	return x.Call1("streamtorch::image_convolution", in, weight, c.padding)
}

// leafOf returns a leaf that requires a gradient. It has the memory of v.
func leafOf(t *testing.T, x *Exec, v *Tensor) *Tensor {
	t.Helper()
	v = x.Detach(v)
	must.Do(t, v.SetRequiresGrad(true))
	return v
}

// check compares the result and the gradients with those of LibTorch's convolution in float64.
func (c imageConvolution) check(t *testing.T, x *Exec, inputGradient bool) {
	t.Helper()
	in := c.inputFrom.of(x, x.To(x.Randn(Float32, 2, c.channels, c.height, c.width), c.input))
	weight := leafOf(t, x, c.weightFrom.of(x, x.To(x.Randn(Float32, 5, c.channels, c.kernel, c.kernel), c.weight)))
	rounded := func(v *Tensor) *Tensor { return leafOf(t, x, x.To(x.To(x.Detach(v), c.dtype()), Float64)) }
	wantIn, wantWeight := rounded(in), rounded(weight)
	if inputGradient {
		in = leafOf(t, x, in)
	}
	got := c.run(x, in, weight)
	want := x.Conv2d(wantIn, wantWeight, nil, Conv2dOptions{Stride: []int64{2, 2}, Padding: []int64{c.padding, c.padding}})
	if got.DType() != c.dtype() || !slices.Equal(got.Shape(), want.Shape()) {
		t.Errorf("%+v: the result is %v %v, want %v %v", c, got.DType(), got.Shape(), c.dtype(), want.Shape())
		return
	}
	if c.cells() && !inputGradient && x.Device().IsCUDA() {
		if got.Strides()[1] != 1 {
			t.Errorf("%+v: the result has the strides %v, want channels last", c, got.Strides())
		}
	}
	gradient := x.To(x.Randn(Float32, want.Shape()...), c.dtype())
	x.BackwardWith(BackwardOptions{Grads: []*Tensor{gradient}}, got)
	x.BackwardWith(BackwardOptions{Grads: []*Tensor{x.To(gradient, Float64)}}, want)
	compare := func(name string, got, want *Tensor) {
		t.Helper()
		difference, largest := x.Item(x.Max(x.Abs(x.Sub(x.To(x.Detach(got), Float64), x.Detach(want))))), x.Item(x.Max(x.Abs(x.Detach(want))))
		allowed := map[DType]float64{BFloat16: 4.0 / 256, Float16: 4.0 / 2048, Float32: 3e-5}[c.dtype()]
		if bound := allowed * max(largest, 1); !(difference <= bound) {
			t.Errorf("%+v: the %s is %g off, of at most %g, allowed %g", c, name, difference, largest, bound)
		}
	}
	compare("result", got, want)
	of := weight.Grad()
	if of.DType() != c.weight || !slices.Equal(of.Shape(), weight.Shape()) {
		t.Errorf("%+v: the weight's gradient is %v %v", c, of.DType(), of.Shape())
		return
	}
	if c.weightFrom != sliced && c.kernel > 1 && !slices.Equal(of.Strides(), weight.Strides()) {
		t.Errorf("%+v: the weight's gradient has the strides %v, want %v", c, of.Strides(), weight.Strides())
	}
	compare("weight's gradient", of, wantWeight.Grad())
	if inputGradient {
		compare("input's gradient", in.Grad(), wantIn.Grad())
	}
}

// imageDTypes are the dtypes of the tests.
var imageDTypes = []imageConvolution{
	{input: Float32, weight: Float32},
	{input: BFloat16, weight: BFloat16},
	{input: Float16, weight: Float16},
	{autocast: BFloat16, input: Float32, weight: Float32},
	{autocast: BFloat16, input: Float16, weight: Float32},
	{autocast: Float16, input: Float32, weight: Float16},
}

// streamtorch::image_convolution equals LibTorch's convolution in float64, up to the rounding of
// the dtype. The test compares the result and the gradient of the weight.
func TestImageConvolution(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.NoTF32(t)
		for _, c := range imageDTypes {
			t.Run(fmt.Sprintf("%v of %v by %v", c.dtype(), c.input, c.weight), func(t *testing.T) {
				torchtest.Do(t, d, func(x *Exec) {
					count := 0
					kernels := [][2]int64{{7, 3}, {3, 1}, {3, 0}, {4, 1}, {5, 2}, {2, 0}}
					if d.IsCUDA() {
						// On Intel's CPUs the gradient of such a weight in LibTorch 2.11 destroys memory
						// (https://github.com/uxlfoundation/oneDNN/issues/6035).
						kernels = append(kernels, [2]int64{1, 0})
					}
					for _, kernel := range kernels {
						for _, channels := range []int64{1, 3, 4} {
							for _, size := range [][2]int64{{12, 10}, {11, 13}, {8, 15}} {
								for in := range layouts {
									c := c
									c.kernel, c.padding, c.channels, c.height, c.width = kernel[0], kernel[1], channels, size[0], size[1]
									c.inputFrom, c.weightFrom = in, layout(count)%layouts
									x.Tidy(func() *Tensor { c.check(t, x, false); return nil })
									count++
								}
								count++ // so that each layout of the weight meets each layout of the input
							}
						}
					}
				})
			})
		}
	})
}

// Some calls have no kernels of the library. Then LibTorch's operator runs, with the same results
// and the gradient of the input.
func TestImageConvolution_LibTorch(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.NoTF32(t)
		torchtest.Do(t, d, func(x *Exec) {
			for _, c := range imageDTypes {
				c.kernel, c.padding, c.channels, c.height, c.width, c.inputFrom = 3, 1, 3, 9, 8, channelsLast
				c.check(t, x, true)
			}
			weight := x.Randn(Float32, 5, 3, 3, 3)
			c := imageConvolution{padding: 1}
			image := x.Randn(Float32, 3, 9, 8)
			got := c.run(x, image, weight)
			want := x.Conv2d(image, weight, nil, Conv2dOptions{Stride: []int64{2, 2}, Padding: []int64{1, 1}})
			if !slices.Equal(got.Shape(), want.Shape()) || !x.Equal(got, want) {
				t.Errorf("one image without a batch gives %v, want %v", got.Shape(), want.Shape())
			}
		})
	})
}

// On CUDA, images and weight of 16 bits, or under autocast, go through the library's kernels.
func TestImageConvolution_Kernel(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.Do(t, d, func(x *Exec) {
		ours := []string{"image_cells", "image_cells_paired", "weight_cells"}
		for _, test := range []struct {
			c    imageConvolution
			want []string
		}{
			{imageConvolution{autocast: BFloat16, input: Float32, weight: Float32, inputFrom: channelsLast, channels: 3}, []string{"image_cells_paired", "weight_cells"}},
			{imageConvolution{input: Float16, weight: Float16, weightFrom: channelsLast, channels: 4}, []string{"image_cells", "weight_cells"}},
			{imageConvolution{input: Float16, weight: Float16, channels: 4}, nil},
			{imageConvolution{input: Float32, weight: Float32, inputFrom: channelsLast, channels: 3}, nil},
			{imageConvolution{autocast: BFloat16, input: Float32, weight: Float32, inputFrom: channelsLast, channels: 5}, nil},
		} {
			c := test.c
			c.padding = 3
			in := c.inputFrom.of(x, x.To(x.Randn(Float32, 2, c.channels, 16, 16), c.input))
			weight := c.weightFrom.of(x, x.To(x.Randn(Float32, 8, c.channels, 7, 7), c.weight))
			c.run(x, in, weight) // compiles the kernels
			running := Must(trace.Start())
			c.run(x, in, weight)
			r := Must(running.Stop())
			var got []string
			for _, w := range r.Work {
				if slices.Contains(ours, w.Name) {
					got = append(got, w.Name)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%+v ran %v of the library's kernels, want %v", c, got, test.want)
			}
		}
	})
}

// Wrong arguments give LibTorch's error, with the name of the operator.
func TestImageConvolution_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, test := range []struct {
			channels, kernel int64
			weight           DType
			padding          int64
			want             string
		}{
			{3, 11, BFloat16, 1, "Kernel size can't be greater than actual input size"},
			{4, 3, BFloat16, 1, "to have 4 channels, but got 3 channels instead"},
			{3, 3, BFloat16, -1, "negative padding is not supported"},
			{3, 3, Float32, 1, "BFloat16"}, // the rest of LibTorch's text depends on the processor
		} {
			err := torchtest.TryDo(t, d, func(x *Exec) {
				imageConvolution{padding: test.padding}.run(x, x.Ones(BFloat16, 2, 3, 8, 8), x.Ones(test.weight, 5, test.channels, test.kernel, test.kernel))
			})
			torchtest.WantError(t, err, ErrInvalidArgument, "streamtorch::image_convolution", test.want)
		}
	})
}
