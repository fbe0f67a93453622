package nn_test

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Functions that square numbers give in float16 what they give in float64, if float16 holds the
// result. A new one is one line.
func TestSquares_Float16(t *testing.T) {
	functions := map[string]func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor{
		"CosineSimilarity": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return nn.CosineSimilarity(x, in(2, 30), x.Neg(in(2, 30)), nn.CosineSimilarityOptions{})
		},
		"LocalResponseNorm": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return (&nn.LocalResponseNorm{Neighbours: 3}).Forward(x, in(2, 4, 3, 3))
		},
		"LPPool1d": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return (&nn.LPPool1d{Norm: 2, Kernel: 2}).Forward(x, in(1, 2, 6))
		},
		"LPPool2d": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return (&nn.LPPool2d{Norm: 3, Kernel: nn.Size{2, 2}}).Forward(x, in(1, 2, 4, 4))
		},
		"LayerNorm": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return x.LayerNorm(in(2, 30), []int64{30}, nil, nil, cgotorch.LayerNormOptions{})
		},
		"GroupNorm": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return x.GroupNorm(in(2, 4, 6), 2, nil, nil, cgotorch.GroupNormOptions{})
		},
		"PairwiseDistance": func(x *cgotorch.Exec, in func(shape ...int64) *cgotorch.Tensor) *cgotorch.Tensor {
			return nn.PairwiseDistance(x, in(2, 4), x.MulScalar(in(2, 4), 2), nn.PairwiseDistanceOptions{})
		},
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for name, fn := range functions {
			for _, scale := range []float64{0.01, 1, 300, 5000, 20000} {
				t.Run(fmt.Sprint(name, "/", scale), func(t *testing.T) {
					torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
						run := func(dtype cgotorch.DType) (out, grad []float32) {
							var leaf *cgotorch.Tensor
							y := fn(x, func(shape ...int64) *cgotorch.Tensor {
								n := int64(1)
								for _, s := range shape {
									n *= s
								}
								leaf = x.To(x.To(x.MulScalar(x.Reshape(x.Linspace(cgotorch.Float64, 0.5, 1, int(n)), shape...), scale), cgotorch.Float16), dtype)
								must.Do(t, leaf.SetRequiresGrad(true))
								return leaf
							})
							if y.DType() != dtype {
								t.Errorf("the result is %v, want %v", y.DType(), dtype)
							}
							x.Backward(x.Sum(x.To(y, cgotorch.Float32)))
							return values(x, x.To(y, cgotorch.Float32)), values(x, x.To(leaf.Grad(), cgotorch.Float32))
						}
						out, grad := run(cgotorch.Float16)
						wantOut, wantGrad := run(cgotorch.Float64)
						for i := range out {
							if d := math.Abs(float64(out[i] - wantOut[i])); !(d <= 0.01*math.Abs(float64(wantOut[i]))+0.01) {
								t.Fatalf("got %v, want %v", out, wantOut)
							}
						}
						for i := range grad {
							if math.IsNaN(float64(grad[i])) || math.IsInf(float64(grad[i]), 0) {
								t.Fatalf("the gradient is %v, want %v", grad, wantGrad)
							}
						}
					})
				})
			}
		}
	})
}
