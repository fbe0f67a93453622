package modules_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

type newOptimizer func(g optim.Group) (*optim.Optimizer, error)

var (
	otherBetas = cgotorch.Set([2]float64{0.8, 0.95})
)

// The map `optimizers` has the optimizers of OPTIMIZERS in make.py, except LBFGS.
var optimizers = map[string]newOptimizer{
	"rmsprop": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewRMSprop(optim.RMSpropOptions{}, g) },
	"rmsprop_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewRMSprop(optim.RMSpropOptions{LR: 0.02, Alpha: cgotorch.Set(0.9), Eps: 1e-4, WeightDecay: 0.1, Momentum: 0.5, Centered: true}, g)
	},
	"adagrad": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewAdagrad(optim.AdagradOptions{}, g) },
	"adagrad_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdagrad(optim.AdagradOptions{LR: 0.1, LRDecay: 0.2, WeightDecay: 0.1, Initial: 0.3, Eps: 1e-4}, g)
	},
	"adadelta": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewAdadelta(optim.AdadeltaOptions{}, g) },
	"adadelta_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdadelta(optim.AdadeltaOptions{LR: 0.5, Rho: cgotorch.Set(0.8), Eps: 1e-3, WeightDecay: 0.1}, g)
	},
	"adamax": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewAdamax(optim.AdamOptions{}, g) },
	"adamax_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewAdamax(optim.AdamOptions{LR: 0.02, Betas: otherBetas, Eps: 1e-4, WeightDecay: 0.1}, g)
	},
	"nadam": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewNAdam(optim.AdamOptions{}, g) },
	"nadam_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewNAdam(optim.AdamOptions{LR: 0.02, Betas: otherBetas, Eps: 1e-4, WeightDecay: 0.1, MomentumDecay: 0.01}, g)
	},
	"nadam_decoupled": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewNAdam(optim.AdamOptions{WeightDecay: 0.1, Decoupled: true}, g)
	},
	"radam": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewRAdam(optim.AdamOptions{}, g) },
	"radam_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewRAdam(optim.AdamOptions{LR: 0.02, Betas: otherBetas, Eps: 1e-4, WeightDecay: 0.1}, g)
	},
	"radam_decoupled": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewRAdam(optim.AdamOptions{WeightDecay: 0.1, Decoupled: true}, g)
	},
	"lion": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewLion(optim.AdamOptions{}, g) },
	"lion_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewLion(optim.AdamOptions{LR: 0.01, Betas: otherBetas, WeightDecay: 0.1}, g)
	},
	"lamb": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewLAMB(optim.AdamOptions{}, g) },
	"lamb_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewLAMB(optim.AdamOptions{LR: 0.02, Betas: otherBetas, Eps: 1e-4, WeightDecay: 0.1}, g)
	},
	"muon": func(g optim.Group) (*optim.Optimizer, error) { return optim.NewMuon(optim.MuonOptions{}, g) },
	"muon_options": func(g optim.Group) (*optim.Optimizer, error) {
		return optim.NewMuon(optim.MuonOptions{LR: 0.02, WeightDecay: 0.3, Momentum: cgotorch.Set(0.8), NoNesterov: true, Iterations: 3, MatchAdamW: true}, g)
	},
}

var lbfgs = map[string]optim.LBFGSOptions{
	"lbfgs":         {Iterations: 2},
	"lbfgs_options": {LR: 0.3, Iterations: 3, Evaluations: 4, GradTolerance: 1e-9, ChangeTolerance: 1e-12, History: 4},
	"lbfgs_wolfe":   {Iterations: 2, StrongWolfe: true},

	"lbfgs_wolfe_rough":        {Iterations: 3, Evaluations: 12, StrongWolfe: true},
	"lbfgs_wolfe_long_rough":   {LR: 4, Iterations: 3, Evaluations: 9, StrongWolfe: true},
	"lbfgs_wolfe_longer_rough": {LR: 30, Iterations: 4, Evaluations: 30, StrongWolfe: true},
	"lbfgs_wolfe_middle_rough": {LR: 2, Iterations: 4, Evaluations: 30, StrongWolfe: true},
	"lbfgs_wolfe_short_rough":  {LR: 0.02, Iterations: 3, Evaluations: 6, StrongWolfe: true},
}

type optimizerFixture struct {
	Params           []stateEntry
	Losses, Losses32 []float64
}

// problem has the parameters of make.py. The loss pulls each of them to aim/factor. A rough loss
// has several minima.
type problem struct {
	params, factors, aims []*cgotorch.Tensor
	rough                 bool
}

func (f optimizerFixture) problem(t *testing.T, x *cgotorch.Exec, dtype cgotorch.DType) problem {
	var p problem
	for i, e := range f.Params {
		param := leaf(t, x, dtype, 100*i, e.Shape...)
		p.params = append(p.params, param)
		p.factors = append(p.factors, x.AddScalar(more(x, param, 1000+100*i, e.Shape...), 1))
		p.aims = append(p.aims, more(x, param, 2000+100*i, e.Shape...))
	}
	return p
}

func (p problem) loss(x *cgotorch.Exec) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		loss := x.Zeros(p.params[0].DType())
		for i, param := range p.params {
			part := x.Sum(x.Square(x.Sub(x.Mul(param, p.factors[i]), p.aims[i])))
			loss = x.Add(loss, x.Add(part, x.MulScalar(x.Sum(x.Square(x.Square(param))), 0.1)))
			if p.rough {
				loss = x.Add(loss, x.Sum(x.Cos(x.MulScalar(param, 3))))
			}
		}
		return loss
	})
}

// optimize does the steps of an optimizer and returns the losses. In the middle another optimizer
// takes over, with the state of the first. With `scaled` the steps are those of a Scaler, which
// take their numbers from the device as captured steps do.
func optimize(t *testing.T, x *cgotorch.Exec, name string, p problem, scaled bool) []float64 {
	t.Helper()
	var losses []float64
	scaler := must.Get(optim.NewScaler(x, optim.ScalerOptions{InitScale: 1024}))(t)
	defer scaler.Close()
	var opt *optim.Optimizer
	for i := range steps {
		if i%(steps/2) == 0 {
			next := must.Get(optimizers[name](optim.Group{Params: p.params}))(t)
			defer next.Close()
			if opt != nil {
				must.Do(t, next.Restore(x, opt.State(x)))
			}
			opt = next
		}
		opt.ZeroGrad()
		loss := p.loss(x)
		if scaled {
			x.Backward(scaler.Scale(x, loss))
			scaler.Step(x, opt)
			scaler.Update(x)
		} else {
			x.Backward(loss)
			opt.Step(x)
		}
		losses = append(losses, x.Item(loss))
	}
	return losses
}

func search(t *testing.T, x *cgotorch.Exec, name string, p problem) []float64 {
	t.Helper()
	var losses []float64
	var opt *optim.LBFGS
	for i := range steps {
		if i%(steps/2) == 0 {
			next := must.Get(optim.NewLBFGS(lbfgs[name], p.params))(t)
			defer next.Close()
			if opt != nil {
				state := opt.State()
				text, err := json.Marshal(state)
				if err == nil {
					err = json.Unmarshal(text, &state)
				}
				if err == nil {
					err = next.Restore(x, state)
				}
				must.Do(t, err)
			}
			opt = next
		}
		losses = append(losses, opt.Step(x, p.loss))
	}
	return losses
}

func TestOptimizers_EqualPyTorch(t *testing.T) {
	var fixtures map[string]optimizerFixture
	read(t, "optimizers", &fixtures)
	have := append(slices.Collect(maps.Keys(optimizers)), slices.Collect(maps.Keys(lbfgs))...)
	slices.Sort(have)
	if want := slices.Sorted(maps.Keys(fixtures)); !slices.Equal(have, want) {
		t.Fatalf("the optimizers here are\n%v\nand in the fixture\n%v", have, want)
	}
	w, exact, single := openWeights(t), &worst{}, &worst{}
	for name, want := range fixtures {
		for _, scaled := range []bool{false, true} {
			if _, ok := lbfgs[name]; ok && scaled {
				continue
			}
			t.Run(fmt.Sprintf("%s/scaled=%v", name, scaled), func(t *testing.T) {
				torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
					run := func(dtype cgotorch.DType) (problem, []float64) {
						p := want.problem(t, x, dtype)
						p.rough = strings.HasSuffix(name, "rough")
						if _, ok := lbfgs[name]; ok {
							return p, search(t, x, name, p)
						}
						return p, optimize(t, x, name, p, scaled)
					}
					p, losses := run(cgotorch.Float32)
					limit, final := roughly, tolerance
					if p.rough { // near the minimum, rounding changes which points a search tries
						limit, final = 0.05, 1e-5
					}
					single.compare(t, name+", float32", losses, want.Losses32, limit)
					p, losses = run(cgotorch.Float64)
					whole := tolerance
					if scaled && strings.HasPrefix(name, "nadam") { // PyTorch has its product of momenta in float32, and the device in float64
						whole, final = 1e-8, 1e-8
					}
					exact.compare(t, name, losses, want.Losses, whole)
					for i, e := range want.Params {
						exact.compare(t, name+": "+e.Name, values(x, p.params[i]), values(x, w.tensor(x, name+"/final/"+e.Name)), final)
					}
				})
			})
		}
	}
	t.Logf("largest differences: %.2g (%s), in float32 %.2g (%s)", exact.difference, exact.where, single.difference, single.where)
}
