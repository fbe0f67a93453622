package distributed

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

type maker = func(groups ...optim.Group) (*optim.Optimizer, error)

// oddSizes has parameters whose sizes no number of ranks divides. Image is channels last.
type oddSizes struct{ Matrix, Image, Vector, One, Empty *cgotorch.Tensor }

func newOddSizes(x *cgotorch.Exec, dtype cgotorch.DType) *oddSizes {
	k := 0
	leaf := func(shape ...int64) *cgotorch.Tensor {
		k++
		return x.To(x.Sin(x.AddScalar(x.Reshape(x.Arange(cgotorch.Float64, 0, int(numel(shape)), 1), shape...), k)), dtype)
	}
	m := &oddSizes{Matrix: x.Keep(leaf(7, 5)), Vector: x.Keep(leaf(13)), One: x.Keep(leaf(1)), Empty: x.Keep(leaf(0))}
	m.Image = x.Keep(x.Contiguous(leaf(3, 5, 3, 2), cgotorch.ChannelsLast))
	for _, p := range m.params() {
		if err := p.SetRequiresGrad(true); err != nil {
			panic(err)
		}
	}
	return m
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}

func (m *oddSizes) params() []*cgotorch.Tensor {
	return []*cgotorch.Tensor{m.Matrix, m.Image, m.Vector, m.One, m.Empty}
}

func (m *oddSizes) groups() []optim.Group {
	return []optim.Group{
		{Params: []*cgotorch.Tensor{m.Matrix, m.Image}, WeightDecay: 0.1},
		{},
		{Params: []*cgotorch.Tensor{m.Vector, m.One, m.Empty}, LR: 0.02, NoWeightDecay: true},
	}
}

// setGrads gives the parameters the mean of the gradients of the shares from, … to-1 of 4 in step
// k. In every third step Vector has none.
func (m *oddSizes) setGrads(x *cgotorch.Exec, k, from, to int) {
	for i, p := range m.params() {
		if k%3 == 2 && p == m.Vector {
			_ = p.SetGrad(nil)
			continue
		}
		sum := x.Zeros(cgotorch.Float64, p.Shape()...)
		for share := from; share < to; share++ {
			a := x.Reshape(x.Arange(cgotorch.Float64, 0, int(p.Numel()), 1), p.Shape()...)
			x.AddInPlace(sum, x.Cos(x.AddScalar(x.MulScalar(a, 0.37+float64(share)), 3*k+i)))
		}
		grad := x.To(x.DivScalar(sum, to-from), p.DType())
		if i != 1 || k%2 == 0 { // the gradient of Image is not always channels last
			grad = x.CopyInPlace(x.EmptyLike(p), grad)
		}
		if err := p.SetGrad(grad); err != nil {
			x.Fail("setGrads", err)
		}
	}
}

func (m *oddSizes) values(x *cgotorch.Exec) (all []float64) {
	for _, p := range m.params() {
		all = append(all, cgotorch.ToSlice[float64](x, x.To(x.Detach(p), cgotorch.Float64))...)
	}
	return all
}

var elementwise = map[string]maker{
	"sgd": func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewSGD(optim.SGDOptions{LR: 0.1}, g...) },
	"sgd, nesterov": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01}, g...)
	},
	"sgd, dampening, foreach": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9, Dampening: 0.2, Foreach: true}, g...)
	},
	"adam": func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewAdam(optim.AdamOptions{}, g...) },
	"adamw, amsgrad": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdamW(optim.AdamOptions{LR: 0.01, AMSGrad: true}, g...)
	},
	"adamw, foreach": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdamW(optim.AdamOptions{Foreach: true}, g...)
	},
	"rmsprop": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewRMSprop(optim.RMSpropOptions{}, g...)
	},
	"adagrad": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdagrad(optim.AdagradOptions{}, g...)
	},
	"adadelta": func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdadelta(optim.AdadeltaOptions{}, g...)
	},
	"adamax": func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewAdamax(optim.AdamOptions{}, g...) },
	"nadam":  func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewNAdam(optim.AdamOptions{}, g...) },
	"radam":  func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewRAdam(optim.AdamOptions{}, g...) },
	"lion":   func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewLion(optim.AdamOptions{}, g...) },
}

// unsharded makes steps in one process, with the gradients of all shares.
func unsharded(t *testing.T, dtype cgotorch.DType, rule maker, steps int, clip float64) (values, norms []float64, state map[string][]float64) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := newOddSizes(x, dtype)
		defer nn.Close(m)
		opt := cgotorch.Must(rule(m.groups()...))
		defer opt.Close()
		for k := range steps {
			m.setGrads(x, k, 0, 4)
			if clip > 0 {
				norms = append(norms, x.Item(optim.ClipGradNorm(x, m.params(), clip)))
			}
			opt.SetScale(1 / float64(k+1))
			opt.Step(x)
		}
		values, state = m.values(x), flatState(x, opt.State(x))
	})
	return values, norms, state
}

// flatState returns the tensors of a state by name and parameter.
func flatState(x *cgotorch.Exec, s optim.State) map[string][]float64 {
	all := map[string][]float64{"steps": {s.LR, s.Scale}}
	for i, n := range s.Steps {
		if i != 4 { // the empty parameter has no state where it is sharded
			all["steps"] = append(all["steps"], float64(n))
		}
	}
	for _, r := range s.Tensors {
		t := r.Tensor
		if r.Load != nil {
			var err error
			if t, err = r.Load(x); err != nil {
				x.Fail("flatState", err)
			}
		}
		if t.Numel() > 0 {
			all[fmt.Sprint(r.Name, " of ", r.Param)] = cgotorch.ToSlice[float64](x, x.To(t, cgotorch.Float64))
		}
	}
	return all
}

func compareStates(t *testing.T, rule string, got, want map[string][]float64, most float64) {
	t.Helper()
	for name := range want {
		if d := farthest(got[name], want[name]); !(d <= most) {
			t.Errorf("%s: %s differs by %g: got %v, want %v", rule, name, d, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: the state has %d tensors, want %d", rule, len(got), len(want))
	}
}

// Every elementwise rule gives the weights, the norms and the state of the unsharded optimizer.
func TestSharded_EqualsUnsharded(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		world  int
		clip   float64
		bucket int64
		reduce bool
		rules  []string
	}{
		{4, 1.5, 0, false, slices.Sorted(maps.Keys(elementwise))},
		{4, 0, 200, false, []string{"adam", "sgd, dampening, foreach", "nadam"}},
		{2, 1.5, 0, true, []string{"adam", "sgd, nesterov", "radam"}},
	} {
		t.Run(fmt.Sprintf("%d/clip=%v/reduced=%v", c.world, c.clip, c.reduce), func(t *testing.T) {
			type result struct {
				values, norms []float64
				state         map[string][]float64
			}
			want := map[string]result{}
			for _, name := range c.rules {
				values, norms, state := unsharded(t, cgotorch.Float64, elementwise[name], 7, c.clip)
				want[name] = result{values, norms, state}
			}
			succeed(t, c.world, func(g *Group, x *cgotorch.Exec) {
				for _, name := range c.rules {
					m := newOddSizes(x, cgotorch.Float64)
					defer nn.Close(m)
					if g.Rank() > 0 { // NewSharded gives all ranks the weights of rank 0
						x.NoGrad().FillInPlace(m.Matrix, 7)
					}
					s := cgotorch.Must(NewSharded(x, g, ShardedOptions{BucketBytes: c.bucket, Reduced: c.reduce}, elementwise[name], m.groups()...))
					defer s.Close()
					var norms []float64
					for k := range 7 {
						s.ZeroGrad()
						if c.reduce {
							m.setGrads(x, k, 0, 4)
						} else {
							m.setGrads(x, k, g.Rank()*4/c.world, (g.Rank()+1)*4/c.world)
						}
						if c.clip > 0 {
							norms = append(norms, x.Item(s.ClipGradNorm(x, c.clip)))
						}
						s.SetScale(1 / float64(k+1))
						s.Step(x)
					}
					if d := farthest(m.values(x), want[name].values); !(d <= 1e-12) {
						t.Errorf("%s: rank %d: the weights differ by %g", name, g.Rank(), d)
					}
					if d := farthest(norms, want[name].norms); !(d <= 1e-12) {
						t.Errorf("%s: rank %d: the norms differ by %g", name, g.Rank(), d)
					}
					got := s.State(x)
					if g.Rank() == 0 {
						compareStates(t, name, flatState(x, got), want[name].state, 1e-12)
					} else if len(got.Tensors) > 0 {
						t.Errorf("%s: rank %d has %d tensors of the state", name, g.Rank(), len(got.Tensors))
					}
				}
			})
		})
	}
}

// With one rank, and with gradients that all ranks share, the bits are those of the unsharded step.
func TestSharded_EqualBits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
		for _, world := range []int{1, 4} {
			t.Run(fmt.Sprint(dtype, "/", world), func(t *testing.T) {
				rule := func(g ...optim.Group) (*optim.Optimizer, error) {
					return optim.NewAdamW(optim.AdamOptions{LR: 0.01, MasterWeights: true, Foreach: world > 1}, g...)
				}
				want, _, state := unsharded(t, dtype, rule, 5, 0)
				succeed(t, world, func(g *Group, x *cgotorch.Exec) {
					m := newOddSizes(x, dtype)
					defer nn.Close(m)
					s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, rule, m.groups()...))
					defer s.Close()
					for k := range 5 {
						m.setGrads(x, k, 0, 4)
						s.SetScale(1 / float64(k+1))
						s.Step(x)
					}
					if got := m.values(x); !slices.Equal(got, want) {
						t.Errorf("rank %d: the weights differ by %g", g.Rank(), farthest(got, want))
					}
					if got := s.State(x); g.Rank() == 0 {
						compareStates(t, "adamw", flatState(x, got), state, 0)
					}
				})
			})
		}
	}
}

// The norm of float16 gradients may be above the largest float16.
func TestSharded_ClipsFloat16(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
		p := x.Zeros(cgotorch.Float16, 401)
		s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, func(groups ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewSGD(optim.SGDOptions{LR: 1, MasterWeights: true}, groups...)
		}, optim.Group{Params: []*cgotorch.Tensor{p}}))
		defer s.Close()
		if err := p.SetGrad(x.Full(cgotorch.Float16, 30000, 401)); err != nil {
			t.Error(err)
		}
		want := 30000 * math.Sqrt(401)
		if norm := x.Item(s.ClipGradNorm(x, 20)); math.Abs(norm-want) > 1e-4*want {
			t.Errorf("the norm is %v, want %v", norm, want)
		}
		s.Step(x)
		for i, got := range cgotorch.ToSlice[float64](x, x.To(p, cgotorch.Float64)) {
			if want := -20 / math.Sqrt(401); math.Abs(got-want) > 1e-3 {
				t.Fatalf("element %d is %v, want %v", i, got, want)
			}
		}
	})
}

// The norm of bfloat16 gradients is the one of their exact squares, and a step without gradients
// does nothing.
func TestSharded_ClipsCasts(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 3, func(g *Group, x *cgotorch.Exec) {
		m := newOddSizes(x, cgotorch.BFloat16)
		defer nn.Close(m)
		s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, elementwise["sgd"], m.groups()...))
		defer s.Close()
		before := m.values(x)
		if norm := x.Item(s.ClipGradNorm(x, 1)); norm != 0 {
			t.Errorf("rank %d: the norm of no gradients is %v", g.Rank(), norm)
		}
		s.Step(x)
		if after := m.values(x); !slices.Equal(after, before) {
			t.Errorf("rank %d: a step without gradients has changed weights", g.Rank())
		}
		m.setGrads(x, 0, 0, 4)
		squares := 0.0
		for _, p := range m.params() {
			squares += x.Item(x.Sum(x.Square(x.To(p.Grad(), cgotorch.Float64))))
		}
		want := math.Sqrt(squares)
		norm := s.ClipGradNorm(x, want/2)
		if got := x.Item(norm); norm.DType() != cgotorch.Float32 || math.Abs(got-want) > want/100 {
			t.Errorf("rank %d: the norm is %v %v, want %v", g.Rank(), norm.DType(), got, want)
		}
		if again := x.Item(s.ClipGradNorm(x, want)); math.Abs(again-want/2) > want/100 {
			t.Errorf("rank %d: after clipping the norm is %v, want %v", g.Rank(), again, want/2)
		}
	})
}

// A gradient of one rank that is not finite makes all ranks skip the step of a Scaler.
func TestSharded_Scaler(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, clip := range []float64{0, 1.5} {
		train := func(x *cgotorch.Exec, g *Group) (values []float64, scale optim.ScalerState, steps []int64) {
			m := newOddSizes(x, cgotorch.Float32)
			defer nn.Close(m)
			scaler, err := optim.NewScaler(x, optim.ScalerOptions{InitScale: 1024})
			if err != nil {
				t.Error(err)
				return
			}
			defer scaler.Close()
			var opt *optim.Optimizer
			var s *Sharded
			if g == nil {
				opt, err = elementwise["adam"](m.groups()...)
			} else {
				s, err = NewSharded(x, g, ShardedOptions{}, elementwise["adam"], m.groups()...)
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer opt.Close()
			defer s.Close()
			for k := range 6 {
				m.setGrads(x, k, 0, 4)
				for _, p := range m.params() {
					if grad := p.Grad(); grad != nil {
						x.MulInPlace(grad, scaler.Scale(x, x.Ones(cgotorch.Float32)))
					}
				}
				if (k == 0 || k == 3) && (g == nil || g.Rank() == 1) {
					x.FillInPlace(m.One.Grad(), math.Inf(1))
				}
				switch {
				case g == nil && clip > 0:
					scaler.Unscale(x, opt)
					optim.ClipGradNorm(x, m.params(), clip)
				case clip > 0:
					s.Unscale(x, scaler)
					s.ClipGradNorm(x, clip)
				}
				if g == nil {
					scaler.Step(x, opt)
				} else {
					s.StepScaled(x, scaler)
				}
				scaler.Update(x)
			}
			if g == nil {
				return m.values(x), scaler.State(x), opt.State(x).Steps
			}
			return m.values(x), scaler.State(x), s.State(x).Steps
		}
		var want []float64
		var wantScale optim.ScalerState
		var wantSteps []int64
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) { want, wantScale, wantSteps = train(x, nil) })
		if wantScale.Skipped != 2 {
			t.Fatalf("%+v, want 2 skipped steps", wantScale)
		}
		succeed(t, 4, func(g *Group, x *cgotorch.Exec) {
			got, scale, steps := train(x, g)
			if d := farthest(got, want); !(d <= 1e-6) || scale != wantScale || !slices.Equal(steps[:4], wantSteps[:4]) {
				t.Errorf("rank %d: the weights differ by %g, %+v and %v, want %+v and %v", g.Rank(), d, scale, steps, wantScale, wantSteps)
			}
		})
	}
}

// One group has parameters of several dtypes, and one that is frozen until the third step.
// Gradients are summed here.
func TestSharded_Dtypes(t *testing.T) {
	torchtest.CheckLeaks(t)
	const world = 4
	rule := func(g ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewSGD(optim.SGDOptions{LR: 0.125, Momentum: 0.5, MasterWeights: true}, g...)
	}
	succeed(t, world, func(g *Group, x *cgotorch.Exec) {
		var params, copies []*cgotorch.Tensor
		for i, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16, cgotorch.Float32, cgotorch.Float64, cgotorch.BFloat16} {
			for _, list := range []*[]*cgotorch.Tensor{&params, &copies} {
				p := x.Keep(x.Full(dtype, i, int64(3*i+2)))
				defer p.Close()
				if err := p.SetRequiresGrad(i != 2); err != nil {
					t.Error(err)
				}
				*list = append(*list, p)
			}
		}
		s := cgotorch.Must(NewSharded(x, g, ShardedOptions{Sum: true}, rule, optim.Group{Params: params}))
		defer s.Close()
		opt := cgotorch.Must(rule(optim.Group{Params: copies}))
		defer opt.Close()
		for k := range 4 {
			for i, p := range params {
				if i == 2 && k < 2 {
					continue
				}
				_ = p.SetRequiresGrad(true)
				_ = p.SetGrad(x.FullLike(x.Detach(p), float64(g.Rank()+k+i)))
				_ = copies[i].SetGrad(x.FullLike(x.Detach(p), float64(0+1+2+3+world*(k+i))))
			}
			s.Step(x)
			opt.Step(x)
		}
		for i, p := range params {
			got, want := cgotorch.ToSlice[float64](x, x.To(x.Detach(p), cgotorch.Float64)), cgotorch.ToSlice[float64](x, x.To(x.Detach(copies[i]), cgotorch.Float64))
			if !slices.Equal(got, want) {
				t.Errorf("rank %d: parameter %d is %v, want %v", g.Rank(), i, got, want)
			}
		}
		if got := s.State(x); g.Rank() == 0 {
			compareStates(t, "sgd", flatState(x, got), flatState(x, opt.State(x)), 0)
		}
	})
}

// Each rank keeps 1/World of the state, with the masters of 16-bit parameters.
func TestSharded_Memory(t *testing.T) {
	torchtest.CheckLeaks(t)
	const world = 4
	for _, c := range []struct {
		dtype          cgotorch.DType
		bytes, masters int64 // of an element
	}{{cgotorch.Float32, 8, 0}, {cgotorch.BFloat16, 12, 4}} {
		succeed(t, world, func(g *Group, x *cgotorch.Exec) {
			m := classifier(t, x, 3, c.dtype)
			defer nn.Close(m)
			n := int64(0)
			for _, p := range nn.Parameters(m) {
				n += p.Numel()
				if err := p.SetGrad(x.OnesLike(x.Detach(p))); err != nil {
					t.Error(err)
				}
			}
			s := cgotorch.Must(NewSharded(x, g, ShardedOptions{BucketBytes: 1000}, func(groups ...optim.Group) (*optim.Optimizer, error) {
				return optim.NewAdam(optim.AdamOptions{MasterWeights: true}, groups...)
			}, optim.Group{Params: nn.Parameters(m)}))
			defer s.Close()
			s.Step(x)
			bytes := int64(0)
			for _, r := range s.inner.State(x).Tensors {
				bytes += r.Tensor.Numel() * int64(r.Tensor.DType().Size())
			}
			stats := s.Stats()
			if stats.StateBytes != bytes {
				t.Errorf("rank %d: %+v, and the state has %d bytes", g.Rank(), stats, bytes)
			}
			if stats.WholeBytes != n*c.bytes || stats.MasterBytes*c.bytes != stats.StateBytes*c.masters {
				t.Errorf("rank %d: %+v of %d elements", g.Rank(), stats, n)
			}
			if most := float64(stats.WholeBytes) / world * 1.02; float64(bytes) > most {
				t.Errorf("rank %d: the state has %d bytes, more than %.0f", g.Rank(), bytes, most)
			}
			for _, p := range s.inner.Params() {
				if p.Grad() != nil {
					t.Errorf("rank %d: a part keeps its gradient after the step", g.Rank())
				}
			}
		})
	}
}

// There are more ranks than elements, so some ranks own nothing.
func TestSharded_MoreRanksThanElements(t *testing.T) {
	torchtest.CheckLeaks(t)
	rule := elementwise["adam"]
	succeed(t, 4, func(g *Group, x *cgotorch.Exec) {
		leaf := func() *cgotorch.Tensor { return x.Keep(x.Arange(cgotorch.Float64, 0, 2, 1)) }
		p, q := leaf(), leaf()
		defer p.Close()
		defer q.Close()
		s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, rule, optim.Group{Params: []*cgotorch.Tensor{p}}))
		defer s.Close()
		opt := cgotorch.Must(rule(optim.Group{Params: []*cgotorch.Tensor{q}}))
		defer opt.Close()
		step := func(k int) {
			_ = p.SetGrad(x.Full(cgotorch.Float64, float64(k), 2))
			_ = q.SetGrad(x.Full(cgotorch.Float64, float64(k), 2))
			a, b := x.Item(s.ClipGradNorm(x, 1)), x.Item(optim.ClipGradNorm(x, []*cgotorch.Tensor{q}, 1))
			if math.Abs(a-b) > 1e-12 {
				t.Errorf("rank %d: the norm is %v, want %v", g.Rank(), a, b)
			}
			s.Step(x)
			opt.Step(x)
		}
		step(1)
		step(-3)
		if err := s.Restore(x, opt.State(x)); err != nil {
			t.Error(err)
		}
		step(2)
		if d := farthest(cgotorch.ToSlice[float64](x, p), cgotorch.ToSlice[float64](x, q)); !(d <= 1e-12) {
			t.Errorf("rank %d: the weights differ by %g", g.Rank(), d)
		}
		if got := s.State(x); g.Rank() == 0 {
			compareStates(t, "adamw", flatState(x, got), flatState(x, opt.State(x)), 1e-12)
		}
	})
}

// A checkpoint of 4 ranks goes on in one process, and one of that process on 2 ranks.
func TestSharded_Checkpoints(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		dtype cgotorch.DType
		most  float64
	}{{cgotorch.Float64, 1e-12}, {cgotorch.BFloat16, 0}} {
		t.Run(c.dtype.String(), func(t *testing.T) {
			rule := func(g ...optim.Group) (*optim.Optimizer, error) {
				return optim.NewAdamW(optim.AdamOptions{LR: 0.01, MasterWeights: true, Foreach: true}, g...)
			}
			shares := func(g *Group) (from, to int) { // bfloat16 gradients are equal on all ranks: their sums would be rounded
				if g == nil || c.dtype == cgotorch.BFloat16 {
					return 0, 4
				}
				return g.Rank() * 4 / g.World(), (g.Rank() + 1) * 4 / g.World()
			}
			folder := t.TempDir()
			file := func(step int) string { return filepath.Join(folder, fmt.Sprint(step, ".safetensors")) }
			type steps interface {
				checkpoint.Optimizer
				Step(x *cgotorch.Exec)
				SetScale(factor float64)
			}
			run := func(x *cgotorch.Exec, g *Group, m *oddSizes, opt steps, first int) {
				if first > 0 {
					c := checkpoint.Checkpoint{Model: m, Optimizer: opt}
					if err := checkpoint.Resume(x, file(first), &c); err != nil || c.Step != first {
						t.Errorf("step %d, %v", c.Step, err)
						return
					}
				}
				for k := first; k < first+3; k++ {
					from, to := shares(g)
					m.setGrads(x, k, from, to)
					opt.SetScale(1 / float64(k+1))
					opt.Step(x)
				}
				must.Do(t, checkpoint.Save(x, file(first+3), checkpoint.Checkpoint{Model: m, Optimizer: opt, Step: first + 3}))
			}
			onRanks := func(world, first int) {
				want, _, state := unsharded(t, c.dtype, rule, first+3, 0)
				succeed(t, world, func(g *Group, x *cgotorch.Exec) {
					m := newOddSizes(x, c.dtype)
					defer nn.Close(m)
					s := cgotorch.Must(NewSharded(x, g, ShardedOptions{BucketBytes: 300}, rule, m.groups()...))
					defer s.Close()
					run(x, g, m, s, first)
					if d := farthest(m.values(x), want); !(d <= c.most) {
						t.Errorf("rank %d of %d: the weights differ by %g", g.Rank(), world, d)
					}
					if got := s.State(x); g.Rank() == 0 {
						compareStates(t, "adamw", flatState(x, got), state, c.most)
					}
					g.Barrier(x)
				})
			}
			onRanks(4, 0)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				m := newOddSizes(x, c.dtype)
				defer nn.Close(m)
				opt := cgotorch.Must(rule(m.groups()...))
				defer opt.Close()
				run(x, nil, m, opt, 3)
			})
			onRanks(2, 6)
		})
	}
}

// A model trains as with one process, with gradients of a plain backward and of Gradients.
func TestSharded_Model(t *testing.T) {
	torchtest.CheckLeaks(t)
	const steps, n = 10, 16
	rule := elementwise["adamw, amsgrad"]
	train := func(x *cgotorch.Exec, g *Group, m nn.Module, k int, backward func(loss *cgotorch.Tensor)) {
		rank, world := 0, 1
		if g != nil {
			rank, world = g.Rank(), g.World()
		}
		images, labels := batches(t, x, k, n, cgotorch.Float64)
		images, labels = x.Narrow(images, 0, rank*n/world, n/world), x.Narrow(labels, 0, rank*n/world, n/world)
		backward(nn.CrossEntropy(x, m.Forward(x, images), labels, nn.CrossEntropyOptions{}))
	}
	weights := func(x *cgotorch.Exec, m nn.Module) (all []float64) {
		for _, p := range nn.State(m) {
			all = append(all, cgotorch.ToSlice[float64](x, x.To(p.Tensor, cgotorch.Float64))...)
		}
		return all
	}
	var want []float64
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := classifier(t, x, 7, cgotorch.Float64)
		defer nn.Close(m)
		opt := cgotorch.Must(rule(optim.Group{Params: nn.Parameters(m)}))
		defer opt.Close()
		for k := range steps {
			train(x, nil, m, k, func(loss *cgotorch.Tensor) { opt.Minimize(x, loss) })
		}
		want = weights(x, m)
	})
	for _, reduced := range []bool{false, true} {
		succeed(t, 4, func(g *Group, x *cgotorch.Exec) {
			m := classifier(t, x, 7, cgotorch.Float64)
			defer nn.Close(m)
			SyncBatchNorm(g, m)
			backward := x.Backward
			if reduced {
				gradients := cgotorch.Must(NewGradients(x, g, m, GradientsOptions{BucketBytes: 2000}))
				defer gradients.Close()
				backward = func(loss *cgotorch.Tensor) { gradients.Backward(x, loss) }
			}
			s := cgotorch.Must(NewSharded(x, g, ShardedOptions{Reduced: reduced}, rule, optim.Group{Params: nn.Parameters(m)}))
			defer s.Close()
			for k := range steps {
				train(x, g, m, k, func(loss *cgotorch.Tensor) {
					s.ZeroGrad()
					backward(loss)
					s.Step(x)
				})
			}
			if d := farthest(weights(x, m), want); !(d <= 1e-9) {
				t.Errorf("rank %d, reduced=%v: the weights differ by %g", g.Rank(), reduced, d)
			}
		})
	}
}

func TestNewSharded_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for what, c := range map[string]struct {
		text string
		rule maker
		make func(g *Group, x *cgotorch.Exec) []*cgotorch.Tensor
	}{
		"LAMB": {"lamb looks at whole tensors", func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewLAMB(optim.AdamOptions{}, g...) }, nil},
		"Muon": {"muon looks at whole tensors", func(g ...optim.Group) (*optim.Optimizer, error) { return optim.NewMuon(optim.MuonOptions{}, g...) }, nil},
		"gaps": {"parameter 0 of group 0: float32[3 2] has strides [4 1] and is not dense", elementwise["adam"], func(_ *Group, x *cgotorch.Exec) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{x.Narrow(x.Zeros(cgotorch.Float32, 3, 4), 1, 0, 2)}
		}},
		"another model": {"different models|another model", elementwise["adam"], func(g *Group, x *cgotorch.Exec) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, int64(3+g.Rank()))}
		}},
		"no parameters": {"there are no parameters", elementwise["adam"], func(*Group, *cgotorch.Exec) []*cgotorch.Tensor { return nil }},
	} {
		t.Run(what, func(t *testing.T) {
			succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
				params := []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 3, 4)}
				if c.make != nil {
					params = c.make(g, x)
				}
				s, err := NewSharded(x, g, ShardedOptions{}, c.rule, optim.Group{Params: params})
				has := err != nil && slices.ContainsFunc(strings.Split(c.text, "|"), func(text string) bool { return strings.Contains(err.Error(), text) })
				if !errors.Is(err, cgotorch.ErrInvalidArgument) || !has {
					t.Errorf("rank %d: got %v, want %q", g.Rank(), err, c.text)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A parameter that has a gradient on one rank alone is named.
func TestSharded_GradientsDiffer(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{Timeout: 3 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			m := newOddSizes(x, cgotorch.Float32)
			defer nn.Close(m)
			s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, elementwise["adam"], m.groups()...))
			defer s.Close()
			m.setGrads(x, 0, 0, 4)
			if g.Rank() == 1 {
				_ = m.Vector.SetGrad(nil)
			}
			s.Step(x)
			<-g.failed
			return g.Err()
		})
	}), cgotorch.ErrGroupFailed, "without gradients of parameter 0 of group 2")
}

// Restore refuses states that do not fit, and changes nothing then.
func TestSharded_RestoreRefused(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
		m := newOddSizes(x, cgotorch.Float32)
		defer nn.Close(m)
		s := cgotorch.Must(NewSharded(x, g, ShardedOptions{}, elementwise["adam"], m.groups()...))
		defer s.Close()
		opt := cgotorch.Must(elementwise["adam"](m.groups()...))
		defer opt.Close()
		m.setGrads(x, 0, 0, 4)
		opt.Step(x)
		for _, c := range map[string]struct {
			text   string
			change func(s *optim.State)
		}{
			"rule":     {`one of "sgd"`, func(s *optim.State) { s.Rule = "sgd" }},
			"steps":    {"of 2 parameters, the optimizer has 5", func(s *optim.State) { s.Steps = s.Steps[:2] }},
			"number":   {"exp_avg is of parameter 9", func(s *optim.State) { s.Tensors[0].Param = 9 }},
			"name":     {"master of parameter 0 of group 0 is not kept", func(s *optim.State) { s.Tensors[0].Name = "master" }},
			"twice":    {"is there twice", func(s *optim.State) { s.Tensors[1] = s.Tensors[0] }},
			"missing":  {"has done 1 steps, and its exp_avg does not fit", func(s *optim.State) { s.Tensors = s.Tensors[1:] }},
			"shape":    {"exp_avg of parameter 0 of group 0 is float32[2]", func(s *optim.State) { s.Tensors[0].Tensor = x.Zeros(cgotorch.Float32, 2) }},
			"no steps": {"has done 0 steps", func(s *optim.State) { s.Steps[0] = 0 }},
		} {
			state := opt.State(x)
			state.Tensors = slices.Clone(state.Tensors)
			c.change(&state)
			torchtest.WantError(t, s.Restore(x, state), cgotorch.ErrInvalidArgument, c.text)
		}
		if got := s.inner.State(x); len(got.Tensors) > 0 {
			t.Errorf("rank %d: %d tensors are there", g.Rank(), len(got.Tensors))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for i, err := range []error{s.Close(), s.Restore(x, opt.State(x))} {
			if i == 1 && !errors.Is(err, cgotorch.ErrClosed) || i == 0 && err != nil {
				t.Errorf("after Close: %v", err)
			}
		}
	})
}
