package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A layerCase is a convolution with random settings.
type layerCase struct {
	dims                                      int
	input, weight                             []int64
	bias                                      bool
	stride, padding, dilation, output_padding []int64
	transposed                                bool
	groups                                    int64
	channelsLast                              bool
}

func (c layerCase) String() string {
	type plain layerCase
	return fmt.Sprintf("%+v", plain(c))
}

// randomLayer returns a convolution with random settings.
func randomLayer(r *rand.Rand) layerCase {
	c := layerCase{dims: 1 + r.IntN(3), groups: 1, bias: r.IntN(2) == 0, transposed: r.IntN(4) == 0}
	in, out := int64(1+r.IntN(6)), int64(1+r.IntN(6))
	switch r.IntN(4) {
	case 0: // depthwise
		c.groups = in
		out = in * int64(1+r.IntN(2))
	case 1:
		c.groups = 2
		in, out = 2*in, 2*out
	}
	c.input = []int64{int64(1 + r.IntN(4)), in}
	c.weight = []int64{out, in / c.groups}
	if c.transposed {
		c.weight = []int64{in, out / c.groups}
	}
	for range c.dims {
		kernel, dilation, stride := int64(1+r.IntN(3)), int64(1+r.IntN(2)), int64(1+r.IntN(2))
		c.weight = append(c.weight, kernel)
		c.dilation = append(c.dilation, dilation)
		c.stride = append(c.stride, stride)
		c.padding = append(c.padding, int64(r.IntN(int(dilation*(kernel-1)/2)+1)))
		c.output_padding = append(c.output_padding, 0)
		c.input = append(c.input, dilation*(kernel-1)+1+int64(r.IntN(8)))
	}
	if c.transposed && c.stride[0] == 2 {
		c.output_padding[0] = 1
	}
	c.channelsLast = c.dims == 2 && r.IntN(2) == 0
	return c
}

// gradients multiplies the layer's result by a fixed tensor and sums the product. It returns the
// gradients of this sum with respect to the layer's input, weights and bias.
func (c layerCase) gradients(t *testing.T, x *Exec, dtype DType, o BackwardOptions, seed int) [][]float64 {
	t.Helper()
	draw := func(n int, shape []int64) *Tensor {
		r := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
		count := int64(1)
		for _, s := range shape {
			count *= s
		}
		values := make([]float32, count)
		for i := range values {
			values[i] = float32(r.NormFloat64())
		}
		y := x.To(FromSlice(x, values, shape...), dtype)
		if c.channelsLast && len(shape) == 4 {
			y = x.Contiguous(y, ChannelsLast)
		}
		return x.Detach(y)
	}
	leaves := []*Tensor{draw(1, c.input), draw(2, c.weight)}
	var bias any
	if c.bias {
		out := c.weight[0]
		if c.transposed {
			out = c.weight[1] * c.groups
		}
		leaves = append(leaves, draw(3, []int64{out}))
		bias = leaves[2]
	}
	for _, l := range leaves {
		must.Do(t, l.SetRequiresGrad(true))
	}
	y := x.Call1("aten::convolution", leaves[0], leaves[1], bias, c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups)
	o.Grads = []*Tensor{draw(4, y.Shape())}
	x.BackwardWith(o, y)
	var all [][]float64
	for _, l := range leaves {
		all = append(all, ToSlice[float64](x, x.To(l.Grad(), Float64)))
	}
	return all
}

func newOverlap(t *testing.T, o OverlapOptions) *Overlap {
	t.Helper()
	p := Must(NewOverlap(o))
	return p
}

// Gradients of convolutions of every kind have the same bits on two streams as on one. They are
// near the gradients in float64. The checker finds no race.
func TestOverlap_Gradients(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		if d.IsCUDA() {
			SetDeterministic(true)
			defer SetDeterministic(false)
		}
		must.Do(t, SetTF32(false))
		layers := 200
		if testing.Short() {
			layers = 60
		}
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			overlap := newOverlap(t, OverlapOptions{Always: true})
			r := rand.New(rand.NewPCG(1, 2))
			for i := range layers {
				c := randomLayer(r)
				torchtest.DoOn(t, s, func(x *Exec) {
					want := c.gradients(t, x, Float32, BackwardOptions{}, i)
					for range 2 { // the first call is serial
						if got := c.gradients(t, x, Float32, BackwardOptions{Overlap: overlap}, i); !slices.EqualFunc(got, want, slices.Equal) {
							t.Errorf("%v: the gradients differ", c)
						}
					}
					for k, oracle := range c.gradients(t, x, Float64, BackwardOptions{}, i) {
						for j, v := range oracle {
							if math.Abs(want[k][j]-v) > 1e-4*(1+math.Abs(v)) {
								t.Fatalf("%v: gradient %d has %v at %d, want %v", c, k, want[k][j], j, v)
							}
						}
					}
				})
			}
			if stats := OverlapCounts(overlap); stats.Parallel < layers || stats.Layers > layers || stats.ShortOfMemory != 0 {
				t.Errorf("%v of %d layers", stats, layers)
			}
		})
	})
}

// The gradients of a layer run on one stream in three cases. The backward has no Overlap, or the
// input of the layer needs no gradient, or the layer is in a branch. Otherwise they run on two
// streams, for example in a backward through gradients.
func TestOverlap_Serial(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			overlap := newOverlap(t, OverlapOptions{Always: true})
			with := BackwardOptions{Overlap: overlap}
			weight := kept(t, s, 1, func(x *Exec) *Tensor { return x.Randn(Float32, 3, 3, 3, 3) })[0]
			must.Do(t, weight.SetRequiresGrad(true))
			conv := func(x *Exec, in *Tensor) *Tensor { return x.Conv2d(in, weight, nil, Conv2dOptions{}) }
			image := func(x *Exec, grad bool) *Tensor {
				in := x.Randn(Float32, 1, 3, 6, 6)
				must.Do(t, in.SetRequiresGrad(grad))
				return in
			}
			for name, c := range map[string]struct {
				work     func(x *Exec)
				parallel bool
			}{
				"plain":      {func(x *Exec) { x.BackwardWith(with, x.Sum(conv(x, image(x, true)))) }, true},
				"twice":      {func(x *Exec) { x.BackwardWith(with, x.Sum(conv(x, conv(x, image(x, true))))) }, true},
				"no option":  {func(x *Exec) { x.Backward(x.Sum(conv(x, image(x, true)))) }, false},
				"no input's": {func(x *Exec) { x.BackwardWith(with, x.Sum(conv(x, image(x, false)))) }, false},
				"in a branch": {func(x *Exec) {
					in := image(x, true)
					out := x.Parallel(ParallelOptions{}, func(x *Exec) *Tensor { return x.Neg(in) }, func(x *Exec) *Tensor { return conv(x, in) })
					x.BackwardWith(with, x.Sum(out[1]))
				}, false},
				"recomputed": {func(x *Exec) { x.BackwardWith(with, x.Sum(x.Recompute(image(x, true), conv))) }, true},
				"double": {func(x *Exec) {
					in := image(x, true)
					g := x.Gradients([]*Tensor{x.Sum(x.Tanh(conv(x, in)))}, []*Tensor{in}, GradientOptions{CreateGraph: true})
					x.BackwardWith(with, x.Sum(x.Mul(g[0], g[0])))
				}, true},
			} {
				if name == "recomputed" && d.IsCUDA() {
					continue // Recompute reads the generators of the CPU and of the device
				}
				for i := range 2 {
					before := OverlapCounts(overlap).Parallel
					if err := s.Do(func(x *Exec) error { c.work(x); return nil }); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					must.Do(t, weight.SetGrad(nil))
					if got := OverlapCounts(overlap).Parallel > before; i > 0 && got != c.parallel {
						t.Errorf("%s: parallel %v, want %v", name, got, c.parallel)
					}
				}
			}
		})
	})
}

// After a backward has failed, the stream can still be used.
func TestOverlap_Failure(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		overlap := newOverlap(t, OverlapOptions{Always: true})
		err := s.Do(func(x *Exec) error {
			in := leaf(t, x, 1, 2)
			loss := x.Sum(x.Mul(in, in))
			x.Backward(loss)
			x.BackwardWith(BackwardOptions{Overlap: overlap}, loss)
			return nil
		})
		torchtest.WantError(t, err, nil, "second time")
		torchtest.DoOn(t, s, func(x *Exec) { x.Ones(Float32, 1) })
	})
}

// A step is captured with the decisions of its warm-up runs. Its losses equal the losses of the
// serial step.
func TestOverlap_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		if d.IsCUDA() {
			SetDeterministic(true)
			defer SetDeterministic(false)
		}
		s := torchtest.NewStream(t, d)
		in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Randn(Float32, 2, 16, 14, 14) })[0]
		first := kept(t, s, 2, func(x *Exec) *Tensor { return x.MulScalar(x.Randn(Float32, 16, 16, 3, 3), 0.1) })
		run := func(o *Overlap, always bool) (losses []float64) {
			ws := trainable(t, s, first)
			step := NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor {
				for _, w := range ws {
					must.Do(t, w.SetGrad(nil))
				}
				h := in[0]
				for _, w := range ws {
					h = x.Tanh(x.Conv2d(h, w, nil, Conv2dOptions{Padding: []int64{1, 1}}))
				}
				loss := x.Mean(x.Mul(h, h))
				x.BackwardWith(BackwardOptions{Overlap: o}, loss)
				for _, w := range ws {
					x.NoGrad().SubInPlace(w, x.NoGrad().MulScalar(w.Grad(), 0.5))
				}
				return []*Tensor{loss}
			}, CapturedOptions{WarmUp: 2})
			defer step.Close()
			for range 40 {
				torchtest.DoOn(t, s, func(x *Exec) {
					losses = append(losses, x.Item(step.Run(x, in)[0]))
				})
			}
			if stats := step.Stats(); d.IsCUDA() && (stats.Graphs != 1 || always && stats.Eager != 2) {
				t.Errorf("%+v", stats)
			}
			return losses
		}
		want := run(nil, true)
		for _, always := range []bool{true, false} {
			overlap := newOverlap(t, OverlapOptions{Always: always})
			if got := run(overlap, always); !slices.Equal(got, want) {
				t.Errorf("always=%v: losses %v, want %v", always, got, want)
			}
			if stats := OverlapCounts(overlap); always && stats.Parallel == 0 {
				t.Errorf("%v", stats)
			}
			if n := len(DecisionsOf(overlap)); d.IsCUDA() && !always && n == 0 {
				t.Error("nothing was decided")
			}
		}
	})
}

// checkSecondDerivative differentiates a linear layer twice, the second time with the Overlap.
func checkSecondDerivative(t *testing.T, s *Stream, overlap *Overlap) {
	torchtest.DoOn(t, s, func(x *Exec) {
		in, w := leaf(t, x, 3), leaf(t, x, 2)
		in2, w2 := x.Reshape(in, 1, 1), x.Reshape(w, 1, 1)
		y := x.Linear(in2, w2, nil)
		g := x.Gradients([]*Tensor{x.Sum(x.Mul(y, y))}, []*Tensor{in}, GradientOptions{CreateGraph: true})[0] // g is 2 * in * w^2
		x.BackwardWith(BackwardOptions{Overlap: overlap}, x.Sum(g))
		if got := ToSlice[float32](x, w.Grad()); got[0] != 4*3*2 {
			t.Errorf("the second derivative is %v, want 24", got)
		}
	})
}

// The gradients of a linear layer have the same bits on two streams, on one stream, and with
// LibTorch's own products. This also holds under autocast.
func TestOverlap_Linear(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			overlap := newOverlap(t, OverlapOptions{Always: true})
			r := rand.New(rand.NewPCG(3, 4))
			const layers = 40
			for i := range layers {
				in, out := int64(1+r.IntN(9)), int64(1+r.IntN(9))
				shape := []int64{int64(1 + r.IntN(5)), in}
				if r.IntN(2) == 0 {
					shape = append([]int64{int64(1 + r.IntN(3))}, shape...)
				}
				withBias, autocast := r.IntN(2) == 0, r.IntN(3) == 0
				gradients := func(x *Exec, o BackwardOptions, plain bool) (all [][]float32) {
					seed(t)
					leaves := []*Tensor{x.Randn(Float32, shape...), x.Randn(Float32, out, in), x.Randn(Float32, out)}
					for _, l := range leaves {
						must.Do(t, l.SetRequiresGrad(true))
					}
					y := x
					if autocast {
						y = x.Autocast(BFloat16)
					}
					bias := leaves[2]
					if !withBias {
						bias = nil
						leaves = leaves[:2]
					}
					var result *Tensor
					if plain {
						rows := x.Reshape(leaves[0], -1, in)
						if result = y.MatMul(rows, x.Transpose(leaves[1], 0, 1)); bias != nil {
							result = y.Call1("aten::addmm", bias, rows, x.Transpose(leaves[1], 0, 1), 1, 1)
						}
						result = x.Reshape(result, append(slices.Clone(shape[:len(shape)-1]), out)...)
					} else {
						result = y.Linear(leaves[0], leaves[1], bias)
					}
					o.Grads = []*Tensor{x.To(x.Randn(Float32, result.Shape()...), result.DType())}
					x.BackwardWith(o, result)
					for _, l := range leaves {
						all = append(all, ToSlice[float32](x, l.Grad()))
					}
					return all
				}
				torchtest.DoOn(t, s, func(x *Exec) {
					want := gradients(x, BackwardOptions{}, true)
					for k, o := range []BackwardOptions{{}, {Overlap: overlap}, {Overlap: overlap}} {
						if got := gradients(x, o, false); !slices.EqualFunc(got, want, slices.Equal) {
							t.Errorf("layer %d, %v by %d, bias %v, autocast %v, form %d: %v, want %v", i, shape, out, withBias, autocast, k, got, want)
						}
					}
				})
			}
			if stats := OverlapCounts(overlap); stats.Parallel < layers {
				t.Errorf("%v of %d layers", stats, layers)
			}
			t.Run("second derivative", func(t *testing.T) { checkSecondDerivative(t, s, overlap) })
		})
	})
}

// Late gradients have the same bits as the gradients on one stream, and cause no race. The cases
// are gradients without a cast, with a cast for each use of a weight, and with one operator for
// all casts. The gradients are also added to existing gradients. Some weights are used twice. One
// autograd graph is kept and runs again without the Overlap.
func TestOverlap_Late(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		if d.IsCUDA() {
			SetDeterministic(true)
			defer SetDeterministic(false)
		}
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			n, size := int64(4), int64(20)
			if d.IsCUDA() { // then the inputs of late gradients have more bytes than may be kept alive
				n, size = 64, 40
			}
			in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Randn(Float32, n, 16, size, size) })[0]
			weights := kept(t, s, 5, func(x *Exec) *Tensor { return x.MulScalar(x.Randn(Float32, 16, 16, 3, 3), 0.1) })
			weights = append(weights, kept(t, s, 1, func(x *Exec) *Tensor { return x.Randn(Float32, 10, 16) })...)
			for _, w := range append(weights, in) {
				must.Do(t, w.SetRequiresGrad(true))
			}
			forward := func(x *Exec, weights []*Tensor) *Tensor {
				h := in
				for i := range 8 { // the first three weights are used twice
					h = x.ReLU(x.Conv2d(h, weights[i%5], nil, Conv2dOptions{Padding: []int64{1, 1}}))
				}
				return x.Mean(x.To(x.Linear(x.MeanDim(h, []int64{2, 3}, SumOptions{}), weights[5], nil), Float32))
			}
			run := func(autocast, together bool, o *Overlap) (all [][]float32) {
				for _, w := range append(weights, in) {
					must.Do(t, w.SetGrad(nil))
				}
				torchtest.DoOn(t, s, func(x *Exec) {
					y := x
					if autocast {
						y = x.Autocast(BFloat16)
					}
					used := func() []*Tensor {
						if together {
							return castWeights(y, BFloat16, weights...)
						}
						return weights
					}
					x.BackwardWith(BackwardOptions{Overlap: o}, forward(y, used()))
					loss := forward(y, used())
					x.BackwardWith(BackwardOptions{Overlap: o, RetainGraph: true}, loss)
					x.Backward(loss)
					for _, w := range append(weights, in) {
						all = append(all, ToSlice[float32](x, w.Grad()))
					}
				})
				return all
			}
			for _, c := range []struct {
				streams            int
				autocast, together bool
			}{{0, false, false}, {3, false, false}, {2, true, false}, {2, true, true}, {4, true, true}} {
				overlap := newOverlap(t, OverlapOptions{Always: true, Streams: c.streams}) // made before the forward of the linear layer
				want := run(c.autocast, c.together, nil)
				for range 3 {
					if got := run(c.autocast, c.together, overlap); !slices.EqualFunc(got, want, slices.Equal) {
						t.Errorf("%+v: the gradients differ", c)
					}
				}
				if stats := OverlapCounts(overlap); d.IsCUDA() && (stats.Late == 0 || !c.autocast && stats.Late == stats.Parallel) || !d.IsCUDA() && stats.Late != 0 {
					t.Errorf("%+v: %v", c, stats)
				}
			}
		})
	})
}

// conv3x3 is a convolution with a window of 3 by 3 that keeps height and width.
func conv3x3(x *Exec, h, w *Tensor) *Tensor {
	return x.Conv2d(h, w, nil, Conv2dOptions{Padding: []int64{1, 1}})
}

// kernelsByStream runs two backwards through the function `forward`: one with the options warmUp,
// then one with the options o. It returns the number of kernels that the second backward ran on
// each stream.
func kernelsByStream(t *testing.T, s *Stream, forward func(x *Exec, in *Tensor) *Tensor, o, warmUp BackwardOptions) map[string]int {
	t.Helper()
	found := map[string]int{}
	torchtest.DoOn(t, s, func(x *Exec) {
		in := x.Randn(Float32, 8, 64, 20, 20)
		must.Do(t, in.SetRequiresGrad(true))
		loss := x.Sum(forward(x, in))
		warmUp.RetainGraph = true
		x.BackwardWith(warmUp, loss)
		must.Do(t, s.Device().Synchronize())
		running := Must(trace.Start())
		x.BackwardWith(o, loss)
		r := Must(running.Stop())
		for _, w := range r.Work {
			if w.Kind == trace.Kernel {
				found[w.StreamName]++
			}
		}
	})
	return found
}

// Late gradients use as many streams as OverlapOptions.Streams says. If the graph is kept, its
// next backward without the Overlap uses only the stream of its forward. Layers in side branches
// run serially, on streams without late gradients.
func TestOverlap_Late_Streams(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, d)
	weights := kept(t, s, 6, func(x *Exec) *Tensor { return x.Randn(Float32, 64, 64, 3, 3) })
	for _, w := range weights {
		must.Do(t, w.SetRequiresGrad(true))
	}
	streams := func(forward func(x *Exec, in *Tensor) *Tensor, o, warmUp BackwardOptions) map[string]int {
		return kernelsByStream(t, s, forward, o, warmUp)
	}
	chain := func(x *Exec, in *Tensor) *Tensor {
		for _, w := range weights {
			in = conv3x3(x, in, w)
		}
		return in
	}
	branches := func(x *Exec, in *Tensor) *Tensor {
		in = conv3x3(x, conv3x3(x, in, weights[0]), weights[1])
		out := x.Parallel(ParallelOptions{},
			func(x *Exec) *Tensor { return conv3x3(x, in, weights[2]) },
			func(x *Exec) *Tensor { return conv3x3(x, in, weights[3]) },
			func(x *Exec) *Tensor { return conv3x3(x, conv3x3(x, in, weights[4]), weights[5]) })
		return x.Add(x.Add(out[0], out[1]), out[2])
	}
	for _, n := range []int{2, 3} {
		overlap := BackwardOptions{Overlap: newOverlap(t, OverlapOptions{Always: true, Streams: n})}
		if got := streams(chain, overlap, overlap); len(got) != n {
			t.Errorf("%d streams: kernels ran on %v", n, got)
		}
		if got := streams(chain, BackwardOptions{}, overlap); len(got) != 1 {
			t.Errorf("without the Overlap kernels ran on %v", got)
		}
	}
	overlap := BackwardOptions{Overlap: newOverlap(t, OverlapOptions{Always: true})}
	late := func(kernels map[string]int) (sum int) {
		for name, count := range kernels {
			if strings.Contains(name, "late gradients") {
				sum += count
			}
		}
		return sum
	}
	// The first branch runs on the Do's stream, and so do the two layers before the branches. So
	// there are as many late gradients as with a chain of three layers on the Do's stream.
	want := streams(func(x *Exec, in *Tensor) *Tensor {
		return conv3x3(x, conv3x3(x, conv3x3(x, in, weights[0]), weights[1]), weights[2])
	}, overlap, overlap)
	got := streams(branches, overlap, overlap)
	if len(got) != 4 || late(got) == 0 || late(got) != late(want) { // the Do's stream, two streams of side branches, and one of late gradients
		t.Errorf("with branches kernels ran on %v, want %d for late gradients, as of a chain of the three layers on the Do's stream", got, late(want))
	}
}

func TestNewOverlap_Streams(t *testing.T) {
	for _, n := range []int{-1, 1, 17} {
		if _, err := NewOverlap(OverlapOptions{Streams: n}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Streams is %d,", n)) {
			t.Errorf("%d streams gave %v", n, err)
		}
	}
}
