package optim

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// everyRule makes an optimizer with small learning rates and the default Eps. foreach is for the
// rules that have it.
var everyRule = map[string]func(foreach, masters bool, g Group) (*Optimizer, error){
	"sgd": func(foreach, masters bool, g Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 1e-3, Momentum: 0.9, Foreach: foreach, MasterWeights: masters}, g)
	},
	"adam": func(foreach, masters bool, g Group) (*Optimizer, error) {
		return NewAdam(AdamOptions{Foreach: foreach, MasterWeights: masters}, g)
	},
	"adam, amsgrad": func(foreach, masters bool, g Group) (*Optimizer, error) {
		return NewAdam(AdamOptions{AMSGrad: true, Foreach: foreach, MasterWeights: masters}, g)
	},
	"adamw": func(foreach, masters bool, g Group) (*Optimizer, error) {
		return NewAdamW(AdamOptions{NoWeightDecay: true, Foreach: foreach, MasterWeights: masters}, g)
	},
	"rmsprop": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewRMSprop(RMSpropOptions{LR: 1e-3, MasterWeights: masters}, g)
	},
	"rmsprop, momentum": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewRMSprop(RMSpropOptions{LR: 1e-3, Momentum: 0.5, MasterWeights: masters}, g)
	},
	"rmsprop, centered": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewRMSprop(RMSpropOptions{LR: 1e-3, Centered: true, MasterWeights: masters}, g)
	},
	"adagrad": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewAdagrad(AdagradOptions{LR: 1e-3, MasterWeights: masters}, g)
	},
	"adadelta": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewAdadelta(AdadeltaOptions{LR: 0.1, MasterWeights: masters}, g)
	},
	"adamax": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewAdamax(AdamOptions{LR: 1e-3, MasterWeights: masters}, g)
	},
	"nadam": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewNAdam(AdamOptions{LR: 1e-3, MasterWeights: masters}, g)
	},
	"radam": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewRAdam(AdamOptions{MasterWeights: masters}, g)
	},
	"lamb": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewLAMB(AdamOptions{MasterWeights: masters}, g)
	},
	"lion": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewLion(AdamOptions{LR: 1e-3, MasterWeights: masters}, g)
	},
	"muon": func(_, masters bool, g Group) (*Optimizer, error) {
		return NewMuon(MuonOptions{NoWeightDecay: true, MasterWeights: masters}, g)
	},
}

// gradientPatterns are gradients by step and element. A new pattern is one line.
var gradientPatterns = map[string]func(step, element int) float64{
	"zeros":                   func(int, int) float64 { return 0 },
	"zeros in some elements":  func(_, i int) float64 { return float64(i%2) * 0.5 },
	"one, then zeros":         func(k, _ int) float64 { return map[bool]float64{true: 1}[k == 0] },
	"small, then zeros":       func(k, _ int) float64 { return map[bool]float64{true: 1e-3}[k == 0] },
	"ten small, then zeros":   func(k, _ int) float64 { return map[bool]float64{true: -2e-3}[k < 10] },
	"zeros, then small":       func(k, _ int) float64 { return map[bool]float64{true: 1e-4}[k > 3] },
	"the smallest":            func(int, int) float64 { return 0x1p-24 },
	"small":                   func(_, i int) float64 { return 1e-4 * float64(i+1) },
	"constant":                func(int, int) float64 { return 1 },
	"signs in turns":          func(k, _ int) float64 { return float64(1 - k%2*2) },
	"large":                   func(int, int) float64 { return 3000 },
	"the largest":             func(int, int) float64 { return 65504 },
	"the largest, then small": func(k, _ int) float64 { return map[bool]float64{true: 65504, false: 0.01}[k == 0] },
	"large in one element":    func(_, i int) float64 { return map[bool]float64{true: -60000, false: 1e-3}[i == 7] },
}

// Steps of every rule, dtype and form leave finite numbers, whatever finite gradients are. They
// move a parameter hardly farther than in float64. A parameter that never had another gradient than
// 0 stays.
func TestStep_GradientPatterns(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	const elements, steps = 18, 60
	for name, rule := range everyRule {
		for what, pattern := range gradientPatterns {
			run := func(x *cgotorch.Exec, dtype cgotorch.DType, foreach, masters bool) (moved []float64, err error) {
				p := x.Full(dtype, 0.5, 3, elements/3)
				o, err := rule(foreach, masters, Group{Params: []*cgotorch.Tensor{p}})
				if err != nil {
					return nil, err
				}
				defer o.Close()
				for k := range steps {
					grad := make([]float64, elements)
					for i := range grad {
						grad[i] = pattern(k, i)
					}
					if err := p.SetGrad(x.To(cgotorch.FromSlice(x, grad, 3, elements/3), dtype)); err != nil {
						return nil, err
					}
					o.Step(x)
				}
				for _, s := range o.State(x).Tensors {
					if dtype != cgotorch.Float64 && !x.Equal(x.IsFinite(s.Tensor), x.Ones(cgotorch.Bool, s.Tensor.Shape()...)) {
						t.Errorf("%s, %s, %v, foreach %v, masters %v: %s is %s", name, what, dtype, foreach, masters, s.Name, x.Format(s.Tensor))
					}
				}
				for _, v := range cgotorch.ToSlice[float64](x, x.To(p, cgotorch.Float64)) {
					moved = append(moved, v-0.5)
				}
				return moved, nil
			}
			torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
				torchtest.Do(t, device, func(x *cgotorch.Exec) error {
					want := cgotorch.Must(run(x, cgotorch.Float64, true, false))
					for _, v := range want {
						if name == "sgd" && math.Abs(v) > 1000 {
							return nil // the right momentum is beyond float16
						}
					}
					for _, dtype := range []cgotorch.DType{cgotorch.Float16, cgotorch.BFloat16, cgotorch.Float32} {
						for _, form := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
							got := cgotorch.Must(run(x, dtype, form[0], form[1]))
							for i, v := range got {
								never := true
								for k := range steps {
									never = never && pattern(k, i) == 0
								}
								if most := 40*math.Abs(want[i]) + 0.02; math.IsNaN(v) || math.Abs(v) > most || never && v != 0 && name != "muon" {
									t.Errorf("%s", fmt.Sprintf("%s, %s, %v, foreach %v, masters %v: element %d has moved by %v, in float64 by %v", name, what, dtype, form[0], form[1], i, v, want[i]))
									break
								}
							}
						}
					}
					return nil
				})
			})
		}
	}
}

// A gradient that is not finite is not taken for a large one.
func TestStep_Float16_NotFinite(t *testing.T) {
	for name, rule := range everyRule {
		if name == "lion" { // it takes the sign
			continue
		}
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				p := x.Ones(cgotorch.Float16, 2, 2)
				o := cgotorch.Must(rule(false, false, Group{Params: []*cgotorch.Tensor{p}}))
				defer o.Close()
				setGrad(x, p, bad)
				o.Step(x)
				o.Step(x)
				if got := float64(values(x, p)[0]); !math.IsNaN(got) && !math.IsInf(got, 0) {
					t.Errorf("%s: after a gradient of %v the parameter is %v", name, bad, got)
				}
			})
		}
	}
}

// The device skips a step of float16 parameters without masters, and unscales its gradients.
func TestStep_Float16_Scaler(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		s := newScaler(t, x, ScalerOptions{InitScale: 1024})
		defer s.Close()
		p, q := x.Ones(cgotorch.Float16, 20), x.Ones(cgotorch.Float16, 20)
		a := cgotorch.Must(NewAdam(AdamOptions{}, Group{Params: []*cgotorch.Tensor{p}}))
		defer a.Close()
		b := cgotorch.Must(NewAdam(AdamOptions{}, Group{Params: []*cgotorch.Tensor{q}}))
		defer b.Close()
		for _, grad := range []float64{0.5, 2, 0} {
			setGrad(x, p, grad*s.State(x).Scale)
			s.Step(x, a)
			s.Update(x)
			setGrad(x, q, grad)
			b.Step(x)
		}
		setGrad(x, p, math.Inf(1))
		s.Step(x, a)
		s.Update(x)
		if !x.Equal(p, q) || !x.Equal(a.parameters[0].state[1], b.parameters[0].state[1]) {
			t.Errorf("got %v, want %v", values(x, p)[0], values(x, q)[0])
		}
	})
}

// An Eps that float32 does not hold would be 0.
func TestNew_RefusesEps(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		g := Group{Params: []*cgotorch.Tensor{x.Ones(cgotorch.Float32, 2, 2)}}
		const eps = 1e-50
		for name, make := range map[string]func() (*Optimizer, error){
			"adam":     func() (*Optimizer, error) { return NewAdam(AdamOptions{Eps: eps}, g) },
			"adamw":    func() (*Optimizer, error) { return NewAdamW(AdamOptions{Eps: eps}, g) },
			"rmsprop":  func() (*Optimizer, error) { return NewRMSprop(RMSpropOptions{Eps: eps}, g) },
			"adagrad":  func() (*Optimizer, error) { return NewAdagrad(AdagradOptions{Eps: eps}, g) },
			"adadelta": func() (*Optimizer, error) { return NewAdadelta(AdadeltaOptions{Eps: eps}, g) },
			"adamax":   func() (*Optimizer, error) { return NewAdamax(AdamOptions{Eps: eps}, g) },
			"nadam":    func() (*Optimizer, error) { return NewNAdam(AdamOptions{Eps: eps}, g) },
			"radam":    func() (*Optimizer, error) { return NewRAdam(AdamOptions{Eps: eps}, g) },
			"lamb":     func() (*Optimizer, error) { return NewLAMB(AdamOptions{Eps: eps}, g) },
			"muon":     func() (*Optimizer, error) { return NewMuon(MuonOptions{Eps: eps}, g) },
		} {
			if _, err := make(); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "1e-50") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
