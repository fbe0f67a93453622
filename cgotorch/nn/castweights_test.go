package nn_test

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// ownCasts returns an Exec with which CastWeights does nothing, because the Exec has casts of
// another module. So each layer casts its own weights.
func ownCasts(t *testing.T, x *cgotorch.Exec) *cgotorch.Exec {
	t.Helper()
	other := nn.NewLinear(x, 1, 1, nn.LinearOptions{})
	t.Cleanup(func() { nn.Close(other) })
	y, _ := nn.CastWeights(x, other)
	if y == x {
		t.Fatal("CastWeights has done nothing")
	}
	return y
}

// castNet has every layer of this package that takes part, and a part of each kind that holds
// layers. It maps [N, 3, 8, 8] to [N, 6].
func castNet(x *cgotorch.Exec) *nn.Sequential {
	conv := func(in, out, kernel int, o nn.Conv2dOptions) *nn.Conv2d {
		o.Padding = nn.Square(kernel / 2)
		return nn.NewConv2d(x, in, out, nn.Square(kernel), o)
	}
	tied := nn.NewLinear(x, 6, 6, nn.LinearOptions{})
	return nn.NewSequential(
		conv(3, 8, 3, nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{},
		&nn.Residual{Body: nn.NewSequential(conv(8, 8, 3, nn.Conv2dOptions{Groups: 2, PaddingMode: "reflect"}), &nn.ReLU{}), Shortcut: conv(8, 8, 1, nn.Conv2dOptions{NoBias: true})},
		nn.NewParallel(conv(8, 4, 1, nn.Conv2dOptions{}), nn.NewSequential(conv(8, 4, 3, nn.Conv2dOptions{}), &nn.ReLU{})),
		nn.NewConvTranspose2d(x, 8, 6, nn.Square(2), nn.ConvTranspose2dOptions{Stride: nn.Square(2)}),
		nn.NewSequential(
			&nn.Unflatten{Dim: 1, Sizes: []int64{6, 1}},
			nn.NewConv3d(x, 6, 4, nn.Cube(1), nn.Conv3dOptions{}), nn.NewConvTranspose3d(x, 4, 6, nn.Cube(1), nn.ConvTranspose3dOptions{}),
			&nn.Flatten{Start: 2},
			nn.NewConv1d(x, 6, 4, 1, nn.Conv1dOptions{}), nn.NewConvTranspose1d(x, 4, 6, 1, nn.ConvTranspose1dOptions{}),
			nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Transpose(in, 1, 2) }),
		),
		nn.NewMultiheadAttention(x, 6, 2, nn.AttentionOptions{}), tied, &nn.GELU{}, tied, &nn.ReLU{}, tied,
		nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
			return x.MeanDim(in, []int64{1}, cgotorch.SumOptions{})
		}),
	)
}

// freeze makes the parameters whose names are in `frozen` require no gradient. It makes all others
// require one.
func freeze(t *testing.T, m any, frozen ...string) {
	t.Helper()
	for _, n := range nn.NamedParameters(m) {
		must.Do(t, n.Tensor.SetRequiresGrad(!slices.Contains(frozen, n.Name)))
	}
}

// A step is the loss and the gradients of one or more forwards and backwards.
type step struct {
	loss      []float32
	gradients [][]float32
}

func (s step) equal(other step) bool {
	return slices.Equal(s.loss, other.loss) && slices.EqualFunc(s.gradients, other.gradients, slices.Equal)
}

// without returns the step without the gradients of m's parameters whose names begin with the
// prefix.
func (s step) without(m any, prefix string) step {
	var gradients [][]float32
	for i, p := range nn.NamedParameters(m) {
		if !strings.HasPrefix(p.Name, prefix) {
			gradients = append(gradients, s.gradients[i])
		}
	}
	return step{s.loss, gradients}
}

func stepOf(t *testing.T, x *cgotorch.Exec, m any, backward func(loss *cgotorch.Tensor), forwards ...func() *cgotorch.Tensor) (s step) {
	t.Helper()
	must.Do(t, nn.ZeroGrad(m))
	for _, forward := range forwards {
		loss := x.Mean(x.To(forward(), cgotorch.Float32))
		backward(loss)
		s.loss = append(s.loss, values(x, loss)...)
	}
	for _, p := range nn.Parameters(m) {
		var gradient []float32
		if g := p.Grad(); g != nil {
			gradient = values(x, x.Contiguous(g, cgotorch.Contiguous))
		}
		s.gradients = append(s.gradients, gradient)
	}
	return s
}

// sharedGradients returns how many gradients of m lie in the memory of another gradient of m.
func sharedGradients(m any) (count int) {
	parameters := nn.Parameters(m)
	for i, p := range parameters {
		if p.Grad() != nil && slices.ContainsFunc(parameters, func(q *cgotorch.Tensor) bool {
			return q != parameters[i] && q.Grad() != nil && q.Grad().SharesMemory(p.Grad())
		}) {
			count++
		}
	}
	return count
}

// With CastWeights, losses and gradients have the bits that they have without it: with weights
// in row-major order and in channels last, with frozen weights, with a weight of three readers,
// with gradients that add up over two backwards, with an Overlap, and with Recompute.
func TestCastWeights_SameBits(t *testing.T) {
	torchtest.ForEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		if d.IsCUDA() {
			torchtest.Deterministic(t)
		}
		overlap := cgotorch.Must(cgotorch.NewOverlap(cgotorch.OverlapOptions{Always: true}))
		for _, dtype := range []cgotorch.DType{cgotorch.BFloat16, cgotorch.Float16} {
			for _, channelsLast := range []bool{false, true} {
				torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
					m := castNet(x)
					defer nn.Close(m)
					nn.To(x, m, nn.ToOptions{ChannelsLast: channelsLast})
					in := x.Randn(cgotorch.Float32, 2, 3, 8, 8)
					if channelsLast {
						in = x.Contiguous(in, cgotorch.ChannelsLast)
					}
					y := x.Autocast(dtype)
					own := ownCasts(t, y)
					for _, c := range []struct {
						name      string
						frozen    []string
						recompute int
						backward  func(loss *cgotorch.Tensor)
					}{
						{"plain", nil, 0, x.Backward},
						{"frozen", []string{"0.weight", "5.bias", "8.weight"}, 0, x.Backward},
						{"overlap", nil, 0, func(loss *cgotorch.Tensor) { x.BackwardWith(cgotorch.BackwardOptions{Overlap: overlap}, loss) }},
						{"recompute", nil, 3, x.Backward},
						{"one segment", nil, 1, x.Backward},
					} {
						name := fmt.Sprintf("%s, %v, channels last %v", c.name, dtype, channelsLast)
						freeze(t, m, c.frozen...)
						m.Recompute = 0
						with := func(x *cgotorch.Exec) func() *cgotorch.Tensor {
							return func() *cgotorch.Tensor { return m.Forward(x, in) }
						}
						want := stepOf(t, x, m, x.Backward, with(own), with(own))
						if n := sharedGradients(m); n != 0 {
							t.Errorf("%s: without CastWeights %d gradients share memory", name, n)
						}
						m.Recompute = c.recompute
						got := stepOf(t, x, m, c.backward, with(y), with(y))
						if c.recompute > 0 { // the gradients of the linear layer of three readers are added in another order
							got, want = got.without(m, "8."), want.without(m, "8.")
						}
						if !got.equal(want) {
							t.Errorf("%s: loss %v, want %v, or the gradients differ", name, got.loss, want.loss)
						}
						if n, least := sharedGradients(m), 12-2*c.recompute; n < least {
							t.Errorf("%s: %d gradients share memory, want at least %d: CastWeights has done nothing", name, n, least)
						}
					}
				})
			}
		}
	})
}

// A Forward leaves no tensor but its result, although some of the casts have no reader.
func TestCastWeights_Releases(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		m := nn.NewSequential(nn.NewLinear(x, 2, 3, nn.LinearOptions{}), unread{nn.NewLinear(x, 3, 3, nn.LinearOptions{})})
		defer nn.Close(m)
		in := x.Ones(cgotorch.Float32, 1, 2)
		before := cgotorch.LiveHandles()["tensor"]
		out := m.Forward(x.Autocast(cgotorch.BFloat16), in)
		if n := cgotorch.LiveHandles()["tensor"] - before; n != 1 {
			t.Errorf("Forward leaves %d tensors, want 1", n)
		}
		x.Backward(x.Sum(x.To(out, cgotorch.Float32)))
	})
}

// unread is a module whose weights are not read.
type unread struct{ Linear *nn.Linear }

func (m unread) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Alias(in) }

// A layer reads its own weight wherever the cast does not fit.
func TestCastWeights_Fits(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		other := torchtest.NewStream(t, d)
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			half := x.Autocast(cgotorch.BFloat16)
			m := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
			defer nn.Close(m)
			w := m.Weight
			is := func(name string, y *cgotorch.Exec, cast bool) {
				t.Helper()
				if got := nn.CastOf(y, w); (got != w) != cast || cast && got.DType() != cgotorch.BFloat16 {
					t.Errorf("%s: the layer reads %v, want a cast: %v", name, got, cast)
				}
			}
			for name, z := range map[string]*cgotorch.Exec{"no autocast": x, "no gradients": half.NoGrad()} {
				if y, release := nn.CastWeights(z, m); y != z {
					t.Errorf("%s: CastWeights has cast", name)
				} else {
					release()
				}
				is(name, z, false)
			}
			for name, none := range map[string]any{"no weights": nn.NewSequential(&nn.ReLU{}, nn.Func(nil)), "nothing": nil} {
				if y, release := nn.CastWeights(half, none); y != half {
					t.Errorf("%s: CastWeights has cast", name)
				} else {
					release()
				}
			}
			y, release := nn.CastWeights(half, m)
			if again, release := nn.CastWeights(y, m); again != y {
				t.Error("a second CastWeights has cast")
			} else {
				release()
			}
			is("NoGrad", y.NoGrad(), true)
			is("NoAutocast", y.NoAutocast(), false)
			is("Autocast to float16", y.Autocast(cgotorch.Float16), false)
			is("On", y.On(other), false)
			y.Parallel(cgotorch.ParallelOptions{}, func(x *cgotorch.Exec) *cgotorch.Tensor {
				is("the first branch", x.NoGrad(), true)
				return x.Ones(cgotorch.Float32)
			}, func(x *cgotorch.Exec) *cgotorch.Tensor {
				is("the second branch", x.NoGrad(), true)
				is("On in a branch", x.On(other), false)
				return x.Ones(cgotorch.Float32)
			})
			is("the first reader", y, true)
			is("the second reader", y, false)
			is("a reader without gradients", y.NoGrad(), true)
			nn.Constant(x, w, 3)
			is("a weight that was written", y.NoGrad(), false)
			release()
			release()
			is("after release", y, false)

			y, release = nn.CastWeights(half, m)
			must.Do(t, w.SetRequiresGrad(false))
			is("a weight that was frozen", y, false)
			release()
			y, release = nn.CastWeights(half, m)
			is("a frozen weight", y, true)
			is("a frozen weight, again", y, true)
			must.Do(t, w.SetRequiresGrad(true))
			is("a weight that was thawed", y, false)
			release()

			y, release = nn.CastWeights(half, m)
			nn.To(x, m, nn.ToOptions{DType: cgotorch.Float64})
			w = m.Weight
			is("a weight that was replaced", y, false)
			release()
			if y, release := nn.CastWeights(half, m); y != half {
				t.Error("CastWeights has cast weights of float64")
			} else {
				release()
			}
		})
	})
}

// With the Exec that NoAutocast returns, a layer computes in float32.
func TestCastWeights_NoAutocast(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		l := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		m := nn.NewSequential(nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return l.Forward(x.NoAutocast(), in) }), l)
		defer nn.Close(m)
		in := x.Randn(cgotorch.Float32, 3, 2)
		got := m.Forward(x.Autocast(cgotorch.BFloat16), in)
		want := x.Autocast(cgotorch.BFloat16).Linear(l.Forward(x, in), l.Weight, l.Bias)
		torchtest.Equal(t, x, x.To(got, cgotorch.Float32), values(x, x.To(want, cgotorch.Float32)), 3, 2)
	})
}

// Between two forwards of one Do the weights change: by an optimizer, and by Load. The second
// forward reads the new weights. If a weight changes between CastWeights and its reader, the
// reader sees the change.
func TestCastWeights_WeightsChange(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		y := x.Autocast(cgotorch.BFloat16)
		run := func(x, y *cgotorch.Exec) (all []step) {
			cgotorch.Seed(1)
			l := nn.NewLinear(x, 3, 3, nn.LinearOptions{})
			m := nn.NewSequential(nn.NewLinear(x, 3, 3, nn.LinearOptions{}), nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
				x.NoGrad().MulScalarInPlace(l.Weight, 2).Close()
				return x.Alias(in)
			}), l)
			defer nn.Close(m)
			opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.5}, optim.Group{Params: nn.Parameters(m)})
			if err != nil {
				t.Fatal(err)
			}
			defer opt.Close()
			in := x.Randn(cgotorch.Float32, 4, 3)
			for range 3 {
				all = append(all, stepOf(t, x, m, x.Backward, func() *cgotorch.Tensor { return m.Forward(y, in) }))
				opt.Step(x)
			}
			return all
		}
		own := ownCasts(t, y)
		if got, want := run(x, y), run(x, own); !slices.EqualFunc(got, want, step.equal) {
			t.Errorf("got the steps %v, want %v", got, want)
		} else if got[0].equal(got[1]) {
			t.Error("the optimizer changed nothing")
		}
	})
}

// A captured step has the bits of an eager step without CastWeights.
func TestCastWeights_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if d.IsCUDA() {
			torchtest.Deterministic(t)
		}
		for _, recompute := range []int{0, 2} {
			train := func(eager bool) (losses []float32) {
				s := torchtest.NewStream(t, d)
				var m *nn.Sequential
				var opt *optim.Optimizer
				torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
					cgotorch.Seed(1)
					m = castNet(x)
					m.Recompute = recompute
					nn.SetParallelism(m, nn.AlwaysSerial) // otherwise the first runs measure, and none is captured
					var err error
					if opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)}); err != nil {
						t.Fatal(err)
					}
				})
				defer nn.Close(m)
				defer opt.Close()
				captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
					opt.ZeroGrad()
					y := x.Autocast(cgotorch.BFloat16)
					if eager {
						y = ownCasts(t, y)
					}
					loss := x.Mean(x.To(m.Forward(y, in[0]), cgotorch.Float32))
					x.Backward(loss)
					opt.Step(x)
					return []*cgotorch.Tensor{loss}
				}, cgotorch.CapturedOptions{Eager: eager})
				defer captured.Close()
				var in *cgotorch.Tensor
				torchtest.DoOn(t, s, func(x *cgotorch.Exec) { in = x.Keep(x.Randn(cgotorch.Float32, 2, 3, 8, 8)) })
				defer in.Close()
				for range 8 {
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) { losses = append(losses, values(x, captured.Run(x, in)[0])...) })
				}
				if stats := captured.Stats(); d.IsCUDA() && !eager && stats.Launches == 0 {
					t.Errorf("nothing is captured: %+v", stats)
				}
				return losses
			}
			if got, want := train(false), train(true); !slices.Equal(got, want) {
				t.Errorf("recompute %d: the losses are %v, want %v", recompute, got, want)
			}
		}
	})
}
