package optim

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

var masterRules = map[string]func(foreach bool, masters bool, g Group) (*Optimizer, error){
	"sgd": func(foreach bool, masters bool, g Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 0.01, Momentum: 0.9, Nesterov: true, WeightDecay: 0.1, MasterWeights: masters, Foreach: foreach}, g)
	},
	"adam": func(foreach bool, masters bool, g Group) (*Optimizer, error) {
		return NewAdam(AdamOptions{LR: 0.001, WeightDecay: 0.1, MasterWeights: masters, Foreach: foreach}, g)
	},
	"adamw": func(foreach bool, masters bool, g Group) (*Optimizer, error) {
		return NewAdamW(AdamOptions{LR: 0.001, AMSGrad: true, MasterWeights: masters, Foreach: foreach}, g)
	},
}

// trainTo does steps with the gradient p - target, rounded to p's dtype.
func trainTo(x *cgotorch.Exec, o *Optimizer, p, target *cgotorch.Tensor, steps int) error {
	for range steps {
		cgotorch.Check(p.SetGrad(x.To(x.Sub(x.To(p, cgotorch.Float32), target), p.DType())))
		o.Step(x)
	}
	return nil
}

func largestDifference(x *cgotorch.Exec, a, b *cgotorch.Tensor) float64 {
	return x.Item(x.Max(x.Abs(x.Sub(x.To(a, cgotorch.Float64), x.To(b, cgotorch.Float64)))))
}

// With MasterWeights, training in 16 bits gives the values of training in float32, except for one
// rounding. Without MasterWeights the values differ more.
func TestMasterWeights_FollowFloat32(t *testing.T) {
	for name, new := range masterRules {
		for _, foreach := range []bool{false, true} {
			for dtype, epsilon := range map[cgotorch.DType]float64{cgotorch.BFloat16: 1.0 / 256, cgotorch.Float16: 1.0 / 2048} {
				torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
					start := x.To(x.To(x.Linspace(cgotorch.Float32, 1, 2, 100), dtype), cgotorch.Float32)
					target := x.Linspace(cgotorch.Float32, 0.5, 1, 100)
					train := func(dtype cgotorch.DType, masters bool) (*cgotorch.Tensor, error) {
						p := x.Clone(x.To(start, dtype))
						o, err := new(foreach, masters, Group{Params: []*cgotorch.Tensor{p}})
						if err != nil {
							return nil, err
						}
						defer o.Close()
						if err := trainTo(x, o, p, target, 50); err != nil {
							return nil, err
						}
						for _, r := range o.State(x).Tensors {
							if want := map[bool]cgotorch.DType{false: dtype, true: cgotorch.Float32}[masters]; r.Tensor.DType() != want {
								t.Errorf("%s: %s is %v", name, r.Name, r.Tensor)
							}
						}
						return p, nil
					}
					want, err := train(cgotorch.Float32, true) // masters change nothing for float32
					if err != nil {
						return err
					}
					with := cgotorch.Must(train(dtype, true))
					without := cgotorch.Must(train(dtype, false))
					near, far := largestDifference(x, with, want), largestDifference(x, without, want)
					// The values are below 2, so one rounding is at most epsilon. Gradients are
					// rounded too, so the limit is 2*epsilon.
					if !(near <= 2*epsilon) || !(far > near) {
						t.Errorf("%s, foreach %v, %v: off by %v, and by %v without masters", name, foreach, dtype, near, far)
					}
					return nil
				})
			}
		}
	}
}

// Changes that are too small for a bfloat16 add up in the master.
func TestMasterWeights_SmallSteps(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := x.Ones(cgotorch.BFloat16, 3)
		setGrad(x, p, 1)
		o := cgotorch.Must(NewSGD(SGDOptions{LR: 1.0 / 1024, MasterWeights: true}, Group{Params: []*cgotorch.Tensor{p}}))
		defer o.Close()
		for range 256 {
			o.Step(x)
		}
		if got := values(x, p)[0]; got != 0.75 {
			t.Errorf("256 steps of 1/1024 from 1 lead to %v", got)
		}
		x.FillInPlace(p, 2)
		o.Step(x)
		if got := values(x, p)[0]; math.Abs(float64(got)-0.75) > 0.01 {
			t.Errorf("the step began from the parameter: %v", got)
		}
		x.FillInPlace(p, 2)
		o.ResetMasters()
		for range 256 {
			o.Step(x)
		}
		if got := values(x, p)[0]; got != 1.75 {
			t.Errorf("after ResetMasters, 256 steps from 2 lead to %v", got)
		}
	})
}

// If an optimizer continues from a state with masters, it does the same steps to the bit. If it
// continues from a state without masters, it begins from the parameters.
func TestMasterWeights_Restore(t *testing.T) {
	for name, new := range masterRules {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			target := x.Linspace(cgotorch.Float32, 0.5, 1, 10)
			p := x.Ones(cgotorch.BFloat16, 10)
			first := cgotorch.Must(new(false, true, Group{Params: []*cgotorch.Tensor{p}}))
			defer first.Close()
			cgotorch.Check(trainTo(x, first, p, target, 7))
			state := first.State(x)
			if last := state.Tensors[len(state.Tensors)-1]; last.Name != "master" || last.Tensor.DType() != cgotorch.Float32 || last.Param != 0 {
				t.Errorf("%s: the last tensor is %+v", name, last)
			}
			q := x.Clone(p)
			second := cgotorch.Must(new(false, true, Group{Params: []*cgotorch.Tensor{q}}))
			defer second.Close()
			cgotorch.Check(second.Restore(x, state))
			cgotorch.Check(trainTo(x, first, p, target, 5))
			cgotorch.Check(trainTo(x, second, q, target, 5))
			if !x.Equal(p, q) || !x.Equal(first.parameters[0].master, second.parameters[0].master) {
				t.Errorf("%s: differs after Restore", name)
			}

			old := first.State(x)
			old.Tensors = old.Tensors[:len(old.Tensors)-1]
			cgotorch.Check(second.Restore(x, old))
			if n := len(second.State(x).Tensors); n != len(old.Tensors) {
				t.Errorf("%s: %d tensors where the master is still to be made, want %d", name, n, len(old.Tensors))
			}
			x.FillInPlace(q, 1.5) // the parameter changes after Restore, as when a program loads the optimizer before the model
			cgotorch.Check(trainTo(x, second, q, target, 1))
			if got := values(x, second.parameters[0].master)[0]; math.Abs(float64(got)-1.5) > 0.2 {
				t.Errorf("%s: the master is %v, want about the parameter's 1.5", name, got)
			}

			none := cgotorch.Must(new(false, false, Group{Params: []*cgotorch.Tensor{x.Clone(p)}}))
			defer none.Close()
			if err := none.Restore(x, state); err == nil {
				t.Errorf("%s: masters were restored by an optimizer that keeps none", name)
			}
		})
	}
}
