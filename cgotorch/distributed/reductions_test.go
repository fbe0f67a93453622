package distributed

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// ranked is one rank of a training, for stepCases.
type ranked struct {
	t      *testing.T
	x      *cgotorch.Exec
	g      *Group
	m      *nn.Linear
	params []*cgotorch.Tensor
	r      *Gradients
	opt    *optim.Optimizer
	closes []func() error
}

// loss is another one on each rank.
func (r *ranked) loss() *cgotorch.Tensor {
	in := r.x.Full(cgotorch.Float32, r.g.Rank()+1, 4, 3)
	return r.x.Mean(r.x.Square(r.m.Forward(r.x, in)))
}

func (r *ranked) reduce() { r.r.Backward(r.x, r.loss()) }
func (r *ranked) plain()  { r.x.Backward(r.loss()) }
func (r *ranked) step()   { r.opt.Step(r.x) }

// with makes an optimizer that the case closes.
func (r *ranked) with(o *optim.Optimizer, err error) *optim.Optimizer {
	if err != nil {
		r.t.Fatal(err)
	}
	r.closes = append(r.closes, o.Close)
	return o
}

func (r *ranked) sgd(params ...*cgotorch.Tensor) *optim.Optimizer {
	return r.with(optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: params}))
}

func (r *ranked) sharded(o ShardedOptions) *Sharded {
	s := cgotorch.Must(NewSharded(r.x, r.g, o, func(groups ...optim.Group) (*optim.Optimizer, error) {
		return optim.NewSGD(optim.SGDOptions{LR: 0.1}, groups...)
	}, optim.Group{Params: r.params}))
	r.closes = append(r.closes, s.Close)
	return s
}

func (r *ranked) scaler() *optim.Scaler {
	s := cgotorch.Must(optim.NewScaler(r.x, optim.ScalerOptions{}))
	r.closes = append(r.closes, s.Close)
	return s
}

// stepCases are steps of two ranks with a Gradients. Where the ranks would train apart, the step
// fails. A new case is one line.
var stepCases = []struct {
	name  string
	apart bool
	run   func(r *ranked)
}{
	{"Minimize", true, func(r *ranked) { r.opt.Minimize(r.x, r.loss()) }},
	{"Exec.Backward and Step", true, func(r *ranked) { r.plain(); r.step() }},
	{"the second step is not reduced", true, func(r *ranked) { r.reduce(); r.step(); r.opt.ZeroGrad(); r.plain(); r.step() }},
	{"the second step is a Minimize", true, func(r *ranked) { r.reduce(); r.step(); r.opt.Minimize(r.x, r.loss()) }},
	{"no ZeroGrad, and the second is not reduced", true, func(r *ranked) { r.reduce(); r.step(); r.plain(); r.step() }},
	{"accumulation without a reduction", true, func(r *ranked) { r.plain(); r.plain(); r.step() }},
	{"accumulation, reduced at the first", true, func(r *ranked) { r.reduce(); r.plain(); r.step() }},
	{"accumulation, reduced in the middle", true, func(r *ranked) { r.plain(); r.reduce(); r.plain(); r.step() }},
	{"a clipped gradient of one rank", true, func(r *ranked) { r.plain(); optim.ClipGradNorm(r.x, r.params, 0.1); r.step() }},
	{"a Scaler's step", true, func(r *ranked) { s := r.scaler(); r.x.Backward(s.Scale(r.x, r.loss())); s.Step(r.x, r.opt) }},
	{"a Scaler's step, unscaled", true, func(r *ranked) {
		s := r.scaler()
		r.x.Backward(s.Scale(r.x, r.loss()))
		s.Unscale(r.x, r.opt)
		s.Step(r.x, r.opt)
	}},
	{"parts of a step", true, func(r *ranked) { r.plain(); r.opt.StepInParts(r.x, [][]int{{0}, {1}}, func(int) {}) }},
	{"Foreach", true, func(r *ranked) {
		r.with(optim.NewAdamW(optim.AdamOptions{Foreach: true}, optim.Group{Params: r.params})).Minimize(r.x, r.loss())
	}},
	{"a rule on lists", true, func(r *ranked) {
		r.with(optim.NewRMSprop(optim.RMSpropOptions{}, optim.Group{Params: r.params})).Minimize(r.x, r.loss())
	}},
	{"a new optimizer", true, func(r *ranked) {
		r.reduce()
		r.step()
		r.opt.ZeroGrad()
		o := r.sgd(r.params...)
		r.plain()
		o.Step(r.x)
	}},
	{"one optimizer of two", true, func(r *ranked) {
		a, b := r.sgd(r.params[0]), r.sgd(r.params[1])
		r.reduce()
		a.Step(r.x)
		b.Step(r.x)
		a.ZeroGrad()
		b.ZeroGrad()
		r.plain()
		b.Step(r.x)
	}},
	{"a gradient that the program sets", true, func(r *ranked) {
		for i, g := range r.x.Gradients([]*cgotorch.Tensor{r.loss()}, r.params, cgotorch.GradientOptions{}) {
			must.Do(r.t, r.params[i].SetGrad(g))
		}
		r.step()
	}},
	{"a sum over ranks of one gradient alone", true, func(r *ranked) { r.plain(); r.g.AllReduce(r.x, r.params[0].Grad(), Mean); r.step() }},
	{"a sum over ranks, then another backward", true, func(r *ranked) {
		r.plain()
		r.g.allReduceList(r.x, []*cgotorch.Tensor{r.params[0].Grad(), r.params[1].Grad()}, Mean)
		r.plain()
		r.step()
	}},
	{"another Gradients", true, func(r *ranked) {
		r.reduce()
		r.step()
		r.r.Close()
		r.r = newGradients(r)
		r.opt.ZeroGrad()
		r.plain()
		r.step()
	}},
	{"no step yet, and nothing reduced", true, func(r *ranked) { r.r.Close(); r.plain(); r.r = newGradients(r); r.step() }},
	{"a sharded step that says Reduced", true, func(r *ranked) { s := r.sharded(ShardedOptions{Reduced: true}); r.plain(); s.Step(r.x) }},
	{"a sharded step, reduced only once", true, func(r *ranked) {
		s := r.sharded(ShardedOptions{Reduced: true})
		r.reduce()
		s.Step(r.x)
		s.ZeroGrad()
		r.plain()
		s.ClipGradNorm(r.x, 1)
	}},
	{"a recomputed forward", true, func(r *ranked) {
		y := r.x.Recompute(r.x.Ones(cgotorch.Float32, 4, 3), r.m.Forward)
		r.x.Backward(r.x.Sum(y))
		r.step()
	}},
	{"a captured function", true, func(r *ranked) {
		c := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			r.opt.Minimize(x, x.Sum(r.m.Forward(x, in[0])))
			return nil
		}, cgotorch.CapturedOptions{})
		r.closes = append(r.closes, c.Close)
		c.Run(r.x, r.x.Ones(cgotorch.Float32, 4, 3))
	}},

	{"Backward and Step", false, func(r *ranked) {
		for range 3 {
			r.opt.ZeroGrad()
			r.reduce()
			r.step()
		}
	}},
	{"accumulation, reduced at the last", false, func(r *ranked) {
		for range 2 {
			r.opt.ZeroGrad()
			r.plain()
			r.plain()
			r.reduce()
			r.step()
		}
	}},
	{"accumulation, each reduced", false, func(r *ranked) { r.reduce(); r.reduce(); r.step() }},
	{"clipped before the reduction", false, func(r *ranked) { r.plain(); optim.ClipGradNorm(r.x, r.params, 0.1); r.reduce(); r.step() }},
	{"clipped after the reduction", false, func(r *ranked) { r.reduce(); optim.ClipGradNorm(r.x, r.params, 0.1); r.step() }},
	{"set after the reduction", false, func(r *ranked) {
		r.reduce()
		for _, p := range r.params {
			must.Do(r.t, p.SetGrad(r.x.MulScalar(p.Grad(), 0.5)))
		}
		r.step()
	}},
	{"a Scaler", false, func(r *ranked) {
		s := r.scaler()
		for range 3 {
			r.opt.ZeroGrad()
			r.r.Backward(r.x, s.Scale(r.x, r.loss()))
			s.Unscale(r.x, r.opt)
			s.Step(r.x, r.opt)
			s.Update(r.x)
		}
	}},
	{"parts of a step", false, func(r *ranked) { r.reduce(); r.opt.StepInParts(r.x, [][]int{{1}, {0}}, func(int) {}) }},
	{"two optimizers", false, func(r *ranked) {
		a, b := r.sgd(r.params[0]), r.sgd(r.params[1])
		for range 2 {
			a.ZeroGrad()
			b.ZeroGrad()
			r.reduce()
			a.Step(r.x)
			b.Step(r.x)
		}
	}},
	{"an optimizer of other parameters", false, func(r *ranked) {
		other := r.x.Ones(cgotorch.Float32, 2)
		must.Do(r.t, other.SetRequiresGrad(true))
		r.sgd(other).Minimize(r.x, r.x.Sum(other))
	}},
	{"an optimizer of some of the parameters", false, func(r *ranked) { r.reduce(); r.sgd(r.params[1]).Step(r.x) }},
	{"sums over ranks by the program", false, func(r *ranked) {
		for range 2 {
			r.opt.ZeroGrad()
			r.plain()
			for _, p := range r.params {
				r.g.AllReduce(r.x, p.Grad(), Mean)
			}
			r.step()
		}
	}},
	{"gradients of one rank for all", false, func(r *ranked) {
		r.plain()
		r.g.broadcastList(r.x, []*cgotorch.Tensor{r.params[0].Grad(), r.params[1].Grad()}, 1)
		r.step()
	}},
	{"no gradients", false, func(r *ranked) { r.plain(); r.opt.ZeroGrad(); r.step() }},
	{"another Gradients", false, func(r *ranked) {
		r.reduce()
		r.step()
		r.r.Close()
		r.r = newGradients(r)
		r.opt.ZeroGrad()
		r.reduce()
		r.step()
	}},
	{"averages of the weights", false, func(r *ranked) {
		e := cgotorch.Must(optim.NewEMA(r.x, r.params, 0.9))
		r.closes = append(r.closes, e.Close)
		r.reduce()
		r.step()
		e.Update(r.x)
		CheckEqual(r.x, r.g, e)
	}},
	{"a sharded step that says Reduced", false, func(r *ranked) {
		s := r.sharded(ShardedOptions{Reduced: true})
		for range 2 {
			s.ZeroGrad()
			r.reduce()
			s.ClipGradNorm(r.x, 1)
			s.Step(r.x)
		}
	}},
	{"a sharded step that reduces", false, func(r *ranked) { s := r.sharded(ShardedOptions{}); r.plain(); s.Step(r.x) }},
	{"a captured function", false, func(r *ranked) {
		c := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			r.opt.ZeroGrad()
			r.r.Backward(x, x.Sum(r.m.Forward(x, in[0])))
			r.opt.Step(x)
			return nil
		}, cgotorch.CapturedOptions{})
		r.closes = append(r.closes, c.Close)
		for range 5 {
			c.Run(r.x, r.x.Full(cgotorch.Float32, r.g.Rank()+1, 4, 3))
		}
	}},
}

func newGradients(r *ranked) *Gradients {
	made := cgotorch.Must(NewGradients(r.x, r.g, r.m, GradientsOptions{}))
	return made
}

// onRanks runs steps on the ranks of one group, one after another. It returns the errors of
// each step, by rank.
func onRanks(t *testing.T, world int, runs ...func(r *ranked)) [][]error {
	errs := make([][]error, len(runs))
	for i := range errs {
		errs[i] = make([]error, world)
	}
	wantErrors(t, together(t, world, Options{}, func(g *Group, s *cgotorch.Stream) error {
		for i, run := range runs {
			errs[i][g.Rank()] = s.Do(func(x *cgotorch.Exec) error { onRank(t, x, g, run); return nil })
		}
		return nil
	}), nil)
	return errs
}

func onRank(t *testing.T, x *cgotorch.Exec, g *Group, run func(r *ranked)) {
	r := &ranked{t: t, x: x, g: g, m: nn.NewLinear(x, 3, 2, nn.LinearOptions{})}
	defer nn.Close(r.m)
	r.params = nn.Parameters(r.m)
	r.opt = r.sgd(r.params...) // before the Gradients; cases make others after it
	r.r = newGradients(r)
	defer func() {
		r.r.Close()
		for _, c := range r.closes {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}()
	run(r)
	CheckEqual(x, g, r.m)
}

// A step by gradients that were not reduced fails on all ranks, and no other step fails.
func TestStep_Reduced(t *testing.T) {
	torchtest.CheckLeaks(t)
	var runs []func(r *ranked)
	for _, c := range stepCases {
		runs = append(runs, c.run)
	}
	for i, errs := range onRanks(t, 2, runs...) {
		t.Run(stepCases[i].name, func(t *testing.T) {
			if stepCases[i].apart {
				wantErrors(t, errs, cgotorch.ErrInvalidArgument, "were not reduced since the last step")
			} else {
				wantErrors(t, errs, nil)
			}
		})
	}
}

// One rank alone has nothing to reduce, and a closed Gradients asks for nothing.
func TestStep_Reduced_NotAsked(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, onRanks(t, 1, func(r *ranked) { r.opt.Minimize(r.x, r.loss()) })[0], nil)
	closed := onRanks(t, 2, func(r *ranked) { r.r.Close(); r.opt.Minimize(r.x, r.loss()) })[0]
	wantErrors(t, closed, cgotorch.ErrInvalidArgument, "has other values than rank 0") // of CheckEqual
}

// The backward of an LBFGS reduces nothing.
func TestLBFGS_Reduced(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, onRanks(t, 2, func(r *ranked) {
		o := cgotorch.Must(optim.NewLBFGS(optim.LBFGSOptions{}, r.params))
		r.closes = append(r.closes, o.Close)
		o.Step(r.x, func(*cgotorch.Exec) *cgotorch.Tensor { return r.loss() })
	})[0], cgotorch.ErrInvalidArgument, "reduces no gradients")
}

// equalCases are states that ranks compare. A new case is one line.
var equalCases = []struct {
	name string
	run  func(r *ranked)
	want string // a part of the error; "" if there is none
}{
	{"an optimizer without steps", func(r *ranked) { CheckEqual(r.x, r.g, r.opt) }, ""},
	{"an optimizer", func(r *ranked) { r.reduce(); r.step(); CheckEqual(r.x, r.g, r.opt) }, ""},
	{"an optimizer of unreduced steps", func(r *ranked) { r.r.Close(); r.plain(); r.step(); CheckEqual(r.x, r.g, r.opt) }, "has other values than rank 0 in momentum_buffer of parameter 0"},
	{"a rule with two moments", func(r *ranked) {
		r.r.Close()
		o := r.with(optim.NewAdamW(optim.AdamOptions{}, optim.Group{Params: r.params}))
		r.plain()
		o.Step(r.x)
		CheckEqual(r.x, r.g, o)
	}, "exp_avg of parameter 0, exp_avg_sq of parameter 0"},
	{"another learning rate", func(r *ranked) { r.opt.SetLR(float64(r.g.Rank() + 1)); CheckEqual(r.x, r.g, r.opt) }, "with the learning rate"},
	{"another scale", func(r *ranked) { r.opt.SetScale(float64(r.g.Rank() + 1)); CheckEqual(r.x, r.g, r.opt) }, "scaled by"},
	{"another number of steps", func(r *ranked) {
		r.reduce()
		o := r.with(optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: r.params}))
		if r.g.Rank() == 1 {
			o.Step(r.x)
		}
		CheckEqual(r.x, r.g, o)
	}, "steps 0, 0"},
	{"a state of one rank", func(r *ranked) {
		if r.reduce(); r.g.Rank() == 1 {
			r.step()
		}
		CheckEqual(r.x, r.g, r.opt)
	}, "momentum_buffer of parameter 0"},
	{"a scaler", func(r *ranked) { CheckEqual(r.x, r.g, r.scaler()) }, ""},
	{"another factor", func(r *ranked) {
		s := r.scaler()
		must.Do(r.t, s.Restore(r.x, optim.ScalerState{Scale: float64(r.g.Rank() + 1)}))
		CheckEqual(r.x, r.g, s)
	}, "a scaler with the state"},
	{"averages", func(r *ranked) {
		e := cgotorch.Must(optim.NewEMA(r.x, r.params, 0.5))
		r.closes = append(r.closes, e.Close)
		r.x.NoGrad().AddScalarInPlace(r.m.Bias, r.g.Rank())
		e.Update(r.x)
		CheckEqual(r.x, r.g, e)
	}, "average 1"},
	{"an LBFGS", func(r *ranked) {
		r.r.Close()
		o := cgotorch.Must(optim.NewLBFGS(optim.LBFGSOptions{Iterations: 2}, r.params))
		r.closes = append(r.closes, o.Close)
		CheckEqual(r.x, r.g, o)
		o.Step(r.x, func(*cgotorch.Exec) *cgotorch.Tensor { return r.loss() })
		CheckEqual(r.x, r.g, o)
	}, "iterations and"},
	{"a sharded optimizer", func(r *ranked) { CheckEqual(r.x, r.g, r.sharded(ShardedOptions{})) }, "*distributed.Sharded has no parameters"},
	{"nothing", func(r *ranked) { CheckEqual(r.x, r.g, nil) }, "has no parameters"},
	{"a model without parameters", func(r *ranked) { CheckEqual(r.x, r.g, &nn.ReLU{}) }, "*nn.ReLU has no parameters"},
	{"a Gradients", func(r *ranked) { CheckEqual(r.x, r.g, r.r) }, "*distributed.Gradients has no parameters"},
	{"a list of models", func(r *ranked) { CheckEqual(r.x, r.g, []any{r.m}) }, ""},
	{"broadcast of an optimizer", func(r *ranked) { Broadcast(r.x, r.g, r.opt) }, "*optim.Optimizer has no tensors"},
	{"broadcast of a Scaler", func(r *ranked) { Broadcast(r.x, r.g, r.scaler()) }, "*optim.Scaler has no tensors"},
	{"broadcast of a sharded optimizer", func(r *ranked) { Broadcast(r.x, r.g, r.sharded(ShardedOptions{})) }, "*distributed.Sharded has no tensors"},
	{"broadcast of nothing", func(r *ranked) { Broadcast(r.x, r.g, nil) }, "has no tensors"},
	{"broadcast of a layer without tensors", func(r *ranked) { Broadcast(r.x, r.g, &nn.Flatten{}) }, "*nn.Flatten has no tensors"},
	{"broadcast of a model", func(r *ranked) { Broadcast(r.x, r.g, r.m) }, ""},
	{"gradients of an optimizer", func(r *ranked) {
		if _, err := NewGradients(r.x, r.g, r.opt, GradientsOptions{}); err != nil {
			r.x.Fail("test", err)
		}
	}, "has no parameters that require gradients"},
}

// What has no tensors is refused, and a state is compared.
func TestCheckEqual_States(t *testing.T) {
	torchtest.CheckLeaks(t)
	var runs []func(r *ranked)
	for _, c := range equalCases {
		runs = append(runs, func(r *ranked) {
			if c.run(r); c.want != "" {
				t.Errorf("%s, rank %d: no error", c.name, r.g.Rank())
			}
		})
	}
	for i, errs := range onRanks(t, 2, runs...) {
		t.Run(equalCases[i].name, func(t *testing.T) {
			want := equalCases[i].want
			if want == "" {
				wantErrors(t, errs, nil)
				return
			}
			wantErrors(t, errs, cgotorch.ErrInvalidArgument)
			if text := fmt.Sprint(errs); !strings.Contains(text, want) {
				t.Errorf("got %s, want %q", text, want)
			}
		})
	}
}
