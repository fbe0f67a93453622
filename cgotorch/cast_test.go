package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func castWeights(x *Exec, dtype DType, weights ...*Tensor) []*Tensor {
	return x.Call("streamtorch::cast_weights", weights, dtype)[0].([]*Tensor)
}

// weightsOfAllKinds returns weights in float32 that require gradients: of different shapes, in
// row-major order and in channels last, without elements, without dimensions, and not dense.
func weightsOfAllKinds(t *testing.T, x *Exec) []*Tensor {
	all := x.Randn(Float32, 6, 10)
	weights := []*Tensor{
		x.Randn(Float32, 5, 3, 3, 3), x.Contiguous(x.Randn(Float32, 5, 3, 3, 3), ChannelsLast), x.Randn(Float32, 7), x.Randn(Float32),
		x.Randn(Float32, 0, 4), x.Contiguous(x.Randn(Float32, 4, 8, 1, 1), ChannelsLast), x.Transpose(x.Randn(Float32, 3, 4), 0, 1),
		x.Narrow(all, 1, 2, 5), x.Randn(Float32, 300),
	}
	for i, w := range weights {
		weights[i] = leafLike(t, x.Detach(w))
	}
	return weights
}

// numbers returns the elements of any dtype in row-major order.
func numbers(x *Exec, t *Tensor) []float64 {
	return ToSlice[float64](x, x.Contiguous(x.To(x.Detach(t), Float64), Contiguous))
}

// cast_weights has the values, strides and gradients of single casts. All results lie in one
// storage. So do all gradients, which have the strides of the weights. A second backward adds to
// the gradients.
func TestCastWeights(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		withoutRaces(t, func() {
			for _, dtype := range []DType{BFloat16, Float16} {
				torchtest.Do(t, d, func(x *Exec) {
					weights := weightsOfAllKinds(t, x)
					var single []*Tensor
					for _, w := range weights {
						single = append(single, leafLike(t, x.Detach(w)))
					}
					backward := func(casts []*Tensor) {
						var losses []*Tensor
						for i, c := range casts {
							losses = append(losses, x.Sum(x.MulScalar(x.To(x.Mul(c, c), Float32), float64(i)+0.3)))
						}
						x.BackwardWith(BackwardOptions{}, losses...)
					}
					for range 2 {
						casts := castWeights(x, dtype, weights...)
						var want []*Tensor
						for i, w := range single {
							want = append(want, x.To(w, dtype))
							if !slices.Equal(casts[i].Strides(), want[i].Strides()) || casts[i].DType() != dtype || !casts[i].RequiresGrad() {
								t.Errorf("the cast of weight %d is %v with the strides %v, want %v with %v", i, casts[i], casts[i].Strides(), want[i], want[i].Strides())
							}
							if got, want := numbers(x, casts[i]), numbers(x, want[i]); !slices.Equal(got, want) {
								t.Errorf("the cast of weight %d is %v, want %v", i, got, want)
							}
							if casts[i].Numel() > 0 && !casts[i].SharesMemory(casts[0]) {
								t.Errorf("the cast of weight %d has memory of its own", i)
							}
						}
						backward(casts)
						backward(want)
						for i, w := range weights {
							if got, want := w.Grad(), single[i].Grad(); !slices.Equal(got.Strides(), want.Strides()) || !slices.Equal(numbers(x, got), numbers(x, want)) {
								t.Errorf("the gradient of weight %d is %v with the strides %v, want %v with %v", i, numbers(x, got), got.Strides(), numbers(x, want), want.Strides())
							}
							if w.Numel() > 0 && !w.Grad().SharesMemory(weights[0].Grad()) {
								t.Errorf("the gradient of weight %d was copied", i)
							}
						}
					}
				})
			}
		})
	})
}

// A gradient whose strides differ from the weight's becomes a gradient with the strides of the
// weight.
func TestCastWeights_StridesOfGradients(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		weights := []*Tensor{leafLike(t, x.Randn(Float32, 2, 3, 2, 2)), leafLike(t, x.Randn(Float32, 2, 3, 1, 1))}
		casts := castWeights(x, BFloat16, weights...)
		var gradients []*Tensor
		for _, c := range casts {
			gradients = append(gradients, x.Contiguous(x.RandnLike(x.Detach(c)), ChannelsLast))
		}
		x.BackwardWith(BackwardOptions{Grads: gradients}, casts...)
		for i, w := range weights {
			if got := w.Grad(); !slices.Equal(got.Strides(), w.Strides()) || !slices.Equal(numbers(x, got), numbers(x, gradients[i])) {
				t.Errorf("gradient %d is %v with the strides %v, want %v", i, numbers(x, got), got.Strides(), numbers(x, gradients[i]))
			}
		}
	})
}

// leafLike makes t require a gradient, and returns t.
func leafLike(t *testing.T, of *Tensor) *Tensor {
	t.Helper()
	must.Do(t, of.SetRequiresGrad(true))
	return of
}

// A weight whose cast nobody reads gets no gradient. The cast of a weight that requires no
// gradient requires none. Casts without gradient mode require none.
func TestCastWeights_WithoutGradient(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		read, unread, frozen := leafLike(t, x.Ones(Float32, 2)), leafLike(t, x.Ones(Float32, 3)), x.Ones(Float32, 4)
		casts := castWeights(x, BFloat16, frozen, read, unread)
		if casts[0].RequiresGrad() || !casts[1].RequiresGrad() {
			t.Errorf("the casts require gradients: %v, %v", casts[0].RequiresGrad(), casts[1].RequiresGrad())
		}
		x.Backward(x.Add(x.Sum(casts[0]), x.Sum(casts[1])))
		if read.Grad() == nil || unread.Grad() != nil || frozen.Grad() != nil {
			t.Errorf("the gradients are %v, %v and %v, want only the first", read.Grad(), unread.Grad(), frozen.Grad())
		}
		got := x.Gradients([]*Tensor{x.Sum(castWeights(x, BFloat16, read, unread)[0])}, []*Tensor{read}, GradientOptions{})
		torchtest.Equal(t, x, got[0], []float32{1, 1})
		for _, c := range append(castWeights(x.NoGrad(), BFloat16, read, frozen), castWeights(x, BFloat16, frozen)...) {
			if c.RequiresGrad() {
				t.Error("a cast requires a gradient")
			}
		}
		if got := castWeights(x, BFloat16); len(got) != 0 {
			t.Errorf("no weights have the casts %v", got)
		}
	})
}

// The gradients of cast_weights can be differentiated again.
func TestCastWeights_SecondDerivative(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		w := leafLike(t, FromSlice(x, []float32{1, 2}))
		c := castWeights(x, BFloat16, w)[0]
		first := x.Gradients([]*Tensor{x.Sum(x.Mul(x.Mul(c, c), c))}, []*Tensor{w}, GradientOptions{CreateGraph: true})
		torchtest.Equal(t, x, first[0], []float32{3, 12})
		x.Backward(x.Sum(first[0]))
		torchtest.Equal(t, x, w.Grad(), []float32{6, 12})
	})
}

func TestCastWeights_Refuses(t *testing.T) {
	for _, c := range []struct {
		dtype   DType
		weights func(x *Exec) []*Tensor
		want    string
	}{
		{Int64, func(x *Exec) []*Tensor { return []*Tensor{x.Ones(Float32, 1)} }, "not floating"},
		{BFloat16, func(x *Exec) []*Tensor { return []*Tensor{x.Ones(Float32, 1), x.Ones(Float64, 1)} }, "weight 1 is not a strided tensor of float32"},
	} {
		err := torchtest.TryDo(t, CPU, func(x *Exec) { castWeights(x, c.dtype, c.weights(x)...) })
		torchtest.WantError(t, err, ErrInvalidArgument, c.want)
	}
	t.Run("two devices", func(t *testing.T) {
		err := torchtest.TryDo(t, torchtest.CUDA(t), func(x *Exec) {
			castWeights(x, BFloat16, x.Ones(Float32, 1), x.On(DefaultStream(CPU)).Ones(Float32, 1))
		})
		torchtest.WantError(t, err, ErrInvalidArgument, "all weights must be on one device")
	})
}
