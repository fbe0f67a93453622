package optim

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestNew_RefusesOptionsOfListRules(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		g := Group{Params: []*cgotorch.Tensor{param(x, 1, 2)}}
		high := cgotorch.Set([2]float64{0.9, 1})
		for _, c := range []struct {
			make func() (*Optimizer, error)
			want string
		}{
			{func() (*Optimizer, error) { return NewRMSprop(RMSpropOptions{Alpha: cgotorch.Set(1.0)}, g) }, "rmsprop: Alpha is 1"},
			{func() (*Optimizer, error) { return NewRMSprop(RMSpropOptions{Momentum: -1}, g) }, "Momentum is -1"},
			{func() (*Optimizer, error) { return NewRMSprop(RMSpropOptions{LR: math.NaN()}, g) }, "a learning rate of NaN"},
			{func() (*Optimizer, error) { return NewRMSprop(RMSpropOptions{}) }, "there are no parameters"},
			{func() (*Optimizer, error) { return NewAdagrad(AdagradOptions{LRDecay: -1}, g) }, "adagrad: LRDecay is -1"},
			{func() (*Optimizer, error) { return NewAdagrad(AdagradOptions{Initial: math.NaN()}, g) }, "Initial is NaN"},
			{func() (*Optimizer, error) { return NewAdadelta(AdadeltaOptions{Rho: cgotorch.Set(-0.1)}, g) }, "adadelta: Rho is -0.1"},
			{func() (*Optimizer, error) { return NewAdamax(AdamOptions{Eps: -1}, g) }, "adamax: Eps is -1"},
			{func() (*Optimizer, error) { return NewNAdam(AdamOptions{MomentumDecay: -1}, g) }, "nadam: MomentumDecay is -1"},
			{func() (*Optimizer, error) { return NewRAdam(AdamOptions{Betas: high}, g) }, "radam: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewLion(AdamOptions{Betas: high}, g) }, "lion: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewLAMB(AdamOptions{Betas: high}, g) }, "lamb: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewLion(AdamOptions{Eps: 1e-8}, g) }, "lion: the option Eps is set"},
			{func() (*Optimizer, error) { return NewAdamax(AdamOptions{AMSGrad: true}, g) }, "adamax: the option AMSGrad is set"},
			{func() (*Optimizer, error) { return NewLAMB(AdamOptions{Foreach: true}, g) }, "lamb: the option Foreach is set"},
			{func() (*Optimizer, error) { return NewAdamW(AdamOptions{Decoupled: true}, g) }, "adamw: the option Decoupled is set"},
			{func() (*Optimizer, error) { return NewRAdam(AdamOptions{MomentumDecay: 1}, g) }, "radam: the option MomentumDecay is set"},
			{func() (*Optimizer, error) { return NewNAdam(AdamOptions{WeightDecay: 1, NoWeightDecay: true}, g) }, "nadam: both a weight decay of 1"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{}, g) }, "muon: parameter 0 is float32[2], want a matrix"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{Iterations: 100}, g) }, "Iterations is 100"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{WeightDecay: 1, NoWeightDecay: true}, g) }, "both a weight decay of 1"},
		} {
			if _, err := c.make(); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}

// Of a rule on lists, nothing but learning rate and weight decay can be changed. The device cannot
// skip its steps of parameters of 16 bits, and such steps cannot be captured.
func TestListRule_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		o := cgotorch.Must(NewRMSprop(RMSpropOptions{Momentum: 0.9}, Group{Params: []*cgotorch.Tensor{param(x, 1)}}))
		defer o.Close()
		if o.LR(0) != 0.01 {
			t.Errorf("the learning rate is %v, want 0.01", o.LR(0))
		}
		for _, err := range []error{o.SetMomentum(0.5), o.SetBetas(0.5, 0.5)} {
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "rmsprop: only SGD, Adam and AdamW")
		}
		half := cgotorch.Must(NewRMSprop(RMSpropOptions{}, Group{Params: []*cgotorch.Tensor{x.Ones(cgotorch.BFloat16, 2)}}))
		defer half.Close()
		if why := half.unskippable() + half.uncapturable(); strings.Count(why, "set MasterWeights") != 2 {
			t.Errorf("a step of bfloat16 can be captured, or skipped: %q", why)
		}
	})
}

// listRules are the rules on lists, with options that use all of their code.
var listRules = map[string]func(masters bool, g ...Group) (*Optimizer, error){
	"rmsprop": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewRMSprop(RMSpropOptions{Momentum: 0.5, Centered: true, WeightDecay: 0.1, Eps: 1e-3, MasterWeights: masters}, g...)
	},
	"adagrad": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewAdagrad(AdagradOptions{LRDecay: 0.2, Initial: 0.3, WeightDecay: 0.1, MasterWeights: masters}, g...)
	},
	"adadelta": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewAdadelta(AdadeltaOptions{LR: 0.5, MasterWeights: masters}, g...)
	},
	"adamax": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewAdamax(AdamOptions{WeightDecay: 0.1, MasterWeights: masters}, g...)
	},
	"nadam": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewNAdam(AdamOptions{WeightDecay: 0.1, Decoupled: true, Eps: 1e-3, MasterWeights: masters}, g...)
	},
	"radam": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewRAdam(AdamOptions{WeightDecay: 0.1, Eps: 1e-3, MasterWeights: masters}, g...)
	},
	"lamb": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewLAMB(AdamOptions{WeightDecay: 0.1, Eps: 1e-3, MasterWeights: masters}, g...)
	},
	"lion": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewLion(AdamOptions{LR: 0.01, WeightDecay: 0.1, MasterWeights: masters}, g...)
	},
	"muon": func(masters bool, g ...Group) (*Optimizer, error) {
		return NewMuon(MuonOptions{MasterWeights: masters}, g...)
	},
}

// With the coefficients 1, 0 and 0 the iteration of Muon leaves the gradient as it is, with the
// norm 1.
func TestMuon_Coefficients(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := x.Zeros(cgotorch.Float32, 2, 2)
		o := cgotorch.Must(NewMuon(MuonOptions{LR: 1, Momentum: cgotorch.Set(0.0), NoNesterov: true, NoWeightDecay: true, Coefficients: cgotorch.Set([3]float64{1, 0, 0})}, Group{Params: []*cgotorch.Tensor{p}}))
		defer o.Close()
		cgotorch.Check(p.SetGrad(cgotorch.FromSlice(x, []float32{3, 4, 0, 0}, 2, 2)))
		o.Step(x)
		torchtest.Equal(t, x, x.Round(x.MulScalar(p, 100)), []float32{-60, -80, 0, 0}, 2, 2)
	})
}

// The two forms of a step on lists differ only by rounding. The second form is that of captures. It
// runs here without one. Parameter 1 has no gradient in some steps, so its count differs.
func TestListRule_TwoForms(t *testing.T) {
	const steps = 12
	for name, new := range listRules {
		for _, c := range []struct {
			dtype cgotorch.DType
			limit float64
		}{{cgotorch.Float64, 1e-7}, {cgotorch.Float32, 1e-5}, {cgotorch.BFloat16, 0.01}} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				train := func(onDevice func(step int) bool) (got []float64, counts []int64) {
					var params []*cgotorch.Tensor
					for i := range 2 {
						params = append(params, x.To(x.Reshape(x.Sin(x.Arange(cgotorch.Float64, i, i+12, nil)), 3, 4), c.dtype))
					}
					o := cgotorch.Must(new(c.dtype == cgotorch.BFloat16, Group{Params: params}))
					defer o.Close()
					for step := range steps {
						for i, p := range params {
							var grad *cgotorch.Tensor
							if i == 0 || step%3 != 1 {
								grad = x.To(x.Reshape(x.Cos(x.Arange(cgotorch.Float64, step, step+12, nil)), 3, 4), c.dtype)
							}
							must.Do(t, p.SetGrad(grad))
						}
						o.onDevice = onDevice(step)
						o.SetScale(1 / float64(1+step))
						o.Step(x)
					}
					state := o.State(x)
					for _, r := range state.Tensors {
						got = append(got, cgotorch.ToSlice[float64](x, x.To(r.Tensor, cgotorch.Float64))...)
					}
					for _, p := range params {
						got = append(got, cgotorch.ToSlice[float64](x, x.To(p, cgotorch.Float64))...)
					}
					return got, state.Steps
				}
				want, _ := train(func(int) bool { return false })
				for how, onDevice := range map[string]func(int) bool{
					"all on the device": func(int) bool { return true },
					"in turn":           func(step int) bool { return step/2%2 == 1 },
				} {
					got, counts := train(onDevice)
					if counts[0] != steps || counts[1] != steps-4 || len(got) != len(want) {
						t.Fatalf("%s: %v steps, and %d numbers of %d", name, counts, len(got), len(want))
					}
					for i := range want {
						if !(math.Abs(got[i]-want[i]) <= c.limit*(0.1+math.Abs(want[i]))) {
							t.Errorf("%s of %v, %s: number %d is %v, want %v", name, c.dtype, how, i, got[i], want[i])
							break
						}
					}
				}
			})
		}
	}
}

// A step with a gradient that is not finite changes nothing: a run with such steps equals a run
// without them, to the bit.
func TestListRule_Skips(t *testing.T) {
	for name, new := range listRules {
		for _, unscale := range []bool{false, true} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				train := func(bad ...int) (got []float32, counts []int64) {
					p := x.Reshape(x.Sin(x.Arange(cgotorch.Float32, 0, 12, nil)), 3, 4)
					o := cgotorch.Must(new(false, Group{Params: []*cgotorch.Tensor{p}}))
					defer o.Close()
					s := cgotorch.Must(NewScaler(x, ScalerOptions{InitScale: 1 << 40}))
					defer s.Close()
					for step, number := 0, 0.0; step < 8+len(bad); step++ {
						scale := s.State(x).Scale
						if slices.Contains(bad, step) {
							scale = math.Inf(1)
						} else {
							number++
						}
						grad := x.Reshape(x.Cos(x.AddScalar(x.Arange(cgotorch.Float32, 0, 12, nil), number)), 3, 4)
						must.Do(t, p.SetGrad(x.MulScalar(grad, scale)))
						if unscale {
							s.Unscale(x, o)
						}
						s.Step(x, o)
						s.Update(x)
					}
					state := o.State(x)
					for _, r := range state.Tensors {
						got = append(got, values(x, r.Tensor)...)
					}
					return append(got, values(x, p)...), state.Steps
				}
				want, steps := train()
				got, gotSteps := train(0, 3, 4, 9)
				if !slices.Equal(got, want) || !slices.Equal(gotSteps, steps) || steps[0] != 8 {
					t.Errorf("%s: %d steps lead to %v, want %d to %v", name, gotSteps, got, steps, want)
				}
			})
		}
	}
}

// A loss function that fails once leaves a state from which the training goes on, and a checkpoint.
func TestLBFGS_LossFailsOnce(t *testing.T) {
	torchtest.CheckLeaks(t)
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	var p *cgotorch.Tensor
	var o *LBFGS
	must.Do(t, stream.Do(func(x *cgotorch.Exec) (err error) {
		p = x.Keep(cgotorch.FromSlice(x, []float32{3, -2}))
		if err := p.SetRequiresGrad(true); err != nil {
			return err
		}
		o, err = NewLBFGS(LBFGSOptions{Iterations: 3, LR: 0.1}, []*cgotorch.Tensor{p})
		return err
	}))
	defer p.Close()
	defer o.Close()
	calls, failAt := 0, 2
	failed := errors.New("no more batches")
	step := func() error {
		return stream.Do(func(x *cgotorch.Exec) error {
			o.Step(x, func(x *cgotorch.Exec) *cgotorch.Tensor {
				if calls++; calls == failAt {
					x.Fail("loss", failed)
				}
				return x.Sum(x.Square(p))
			})
			return nil
		})
	}
	torchtest.WantError(t, step(), failed)
	if s := o.State(); s.Iterations > 0 && (s.Direction == nil || s.Gradient == nil) {
		t.Errorf("the state after it: %+v", s)
	}
	for range 20 {
		must.Do(t, step())
	}
	_ = stream.Do(func(x *cgotorch.Exec) error {
		if loss := x.Item(x.Sum(x.Square(p))); loss > 0.1 {
			t.Errorf("the loss is %v", loss)
		}
		return nil
	})
}

func TestLBFGS_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, closed := param(x, 1, 2), param(x, 1)
		closed.Close()
		for _, c := range []struct {
			o      LBFGSOptions
			params []*cgotorch.Tensor
			want   string
		}{
			{LBFGSOptions{}, nil, "there are no parameters"},
			{LBFGSOptions{LR: -1}, []*cgotorch.Tensor{p}, "LR is -1"},
			{LBFGSOptions{History: -1}, []*cgotorch.Tensor{p}, "History is -1"},
			{LBFGSOptions{}, []*cgotorch.Tensor{p, nil}, "parameter 1 is nil"},
			{LBFGSOptions{}, []*cgotorch.Tensor{closed}, "parameter 0 is closed"},
			{LBFGSOptions{}, []*cgotorch.Tensor{p, x.Zeros(cgotorch.Float64, 2)}, "one floating dtype"},
		} {
			if _, err := NewLBFGS(c.o, c.params); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		o := cgotorch.Must(NewLBFGS(LBFGSOptions{}, []*cgotorch.Tensor{p}))
		for _, s := range []LBFGSState{{Iterations: 1}, {Iterations: -1}, {Ro: []float64{1}}, {Y: []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 3)}}} {
			torchtest.WantError(t, o.Restore(x, s), cgotorch.ErrInvalidArgument)
		}
		o.Close()
		torchtest.WantError(t, o.Restore(x, LBFGSState{}), cgotorch.ErrClosed)
		return o.Close()
	})
}

func TestPlateau_Refuses(t *testing.T) {
	for _, o := range []PlateauOptions{{Factor: 1}, {Factor: -1}, {Patience: cgotorch.Set(-1)}, {Cooldown: -1}, {Threshold: math.NaN()}} {
		if _, err := NewPlateau(o); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
}

// A metric that is not a number is no progress, also as the first one.
func TestPlateau_NotANumber(t *testing.T) {
	p := cgotorch.Must(NewPlateau(PlateauOptions{Patience: cgotorch.Set(1), Factor: 0.5}))
	for i, c := range []struct{ metric, want float64 }{{math.NaN(), 1}, {math.Inf(1), 0.5}, {3, 0.5}, {2, 0.5}, {math.NaN(), 0.5}, {2, 0.25}} {
		if got := p.Update(c.metric); got != c.want {
			t.Errorf("update %d: %v, want %v", i, got, c.want)
		}
	}
	if !p.Known || p.Best != 2 {
		t.Errorf("the best metric is %v", p.Best)
	}
}

// The schedules give factors also before step 0, and without steps.
func TestSchedules_MoreEdges(t *testing.T) {
	for name, c := range map[string]struct {
		got, want float64
	}{
		"exponential, before":   {StepDecay(1, 0.5)(-1), 1},
		"linear of no steps":    {Linear(0, 0.5, 2)(0), 2},
		"polynomial, after":     {Polynomial(3, 2)(9), 0},
		"cyclic, before":        {Cyclic(CyclicOptions{Floor: 0.25})(-3), 0.25},
		"sequential, none":      {Sequential(nil)(3), 1},
		"sequential, one":       {Sequential(nil, StepDecay(2, 0.5))(3), 0.5},
		"sequential, few":       {Sequential([]int{2}, Constant(), StepDecay(1, 0.5))(5), 0.125},
		"product of no factors": {Product()(3), 1},
	} {
		if math.Abs(c.got-c.want) > 1e-15 {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}
