package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestSet_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		group := Group{Params: []*cgotorch.Tensor{param(x, 1)}}
		sgd, _ := NewSGD(SGDOptions{Momentum: 0.9}, group)
		plain, _ := NewSGD(SGDOptions{}, group)
		adam, _ := NewAdam(AdamOptions{}, group)
		for _, c := range []struct {
			err  error
			want string
		}{
			{sgd.SetMomentum(0), "sgd: a momentum of 0"},
			{sgd.SetMomentum(-1), "sgd: a momentum of -1"},
			{sgd.SetMomentum(math.NaN()), "sgd: a momentum of NaN"},
			{plain.SetMomentum(0.9), "sgd: it was made without momentum"},
			{adam.SetMomentum(0.9), "adam: it has no momentum: use SetBetas"},
			{sgd.SetBetas(0.9, 0.9), "sgd: it has no betas: use SetMomentum"},
			{adam.SetBetas(1, 0.9), "adam: betas 1 and 0.9"},
			{adam.SetBetas(0.9, math.NaN()), "adam: betas 0.9 and NaN"},
			{sgd.SetWeightDecay(1, 0.1), "sgd: there is no group 1 of 1"},
			{sgd.SetWeightDecay(-1, 0.1), "sgd: there is no group -1 of 1"},
			{adam.SetWeightDecay(0, -1), "adam: a weight decay of -1"},
			{adam.SetGroupLR(1, 0.1), "adam: there is no group 1 of 1"},
			{adam.SetGroupLR(-1, 0.1), "adam: there is no group -1 of 1"},
			{adam.SetGroupLR(0, math.Inf(1)), "adam: group 0: a learning rate of +Inf"},
			{adam.Restore(x, State{Rule: "adam", LR: 1, Scale: 1, Steps: []int64{0}, GroupLRs: map[int]float64{1: 1}}), "a learning rate of 1 for group 1"},
		} {
			if !errors.Is(c.err, cgotorch.ErrInvalidArgument) || !strings.HasPrefix(c.err.Error(), "optim: ") || !strings.Contains(c.err.Error(), c.want) {
				t.Errorf("got %v, want %q", c.err, c.want)
			}
		}
	})
}

// SetGroupLR changes the steps of one group alone. The learning rate goes with the state, and 0 is
// one.
func TestSetGroupLR(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		params := []*cgotorch.Tensor{param(x, 1), param(x, 1), param(x, 1)}
		fresh := func() *Optimizer {
			o := cgotorch.Must(NewSGD(SGDOptions{LR: 0.5}, Group{Params: params[:1]}, Group{Params: params[1:2], LR: 0.25}, Group{Params: params[2:]}))
			return o
		}
		o := fresh()
		defer o.Close()
		cgotorch.Check(errors.Join(o.SetGroupLR(1, 0.125), o.SetGroupLR(2, 0)))
		o.SetScale(0.5)
		other := fresh()
		defer other.Close()
		cgotorch.Check(errors.Join(other.SetGroupLR(0, 7), other.Restore(x, o.State(x))))
		for _, o := range []*Optimizer{o, other} {
			if o.LR(0) != 0.25 || o.LR(1) != 0.0625 || o.LR(2) != 0 {
				t.Errorf("the learning rates are %v, %v and %v", o.LR(0), o.LR(1), o.LR(2))
			}
		}
		for _, p := range params {
			setGrad(x, p, 1)
		}
		o.Step(x)
		for i, want := range []float32{0.75, 0.9375, 1} {
			if got := values(x, params[i])[0]; got != want {
				t.Errorf("parameter %d is %v, want %v", i, got, want)
			}
		}
	})
}

// change is a test case: a hyperparameter that changes after the first step.
type change struct {
	new  func(changed bool, g ...Group) (*Optimizer, error)
	set  func(o *Optimizer) error
	want string // the text that watch returns for the change
}

func changes(foreach bool) map[string]change {
	return map[string]change{
		"momentum": {
			func(changed bool, g ...Group) (*Optimizer, error) {
				return NewSGD(SGDOptions{LR: 0.1, Momentum: map[bool]float64{false: 0.9, true: 0.5}[changed], Foreach: foreach}, g...)
			},
			func(o *Optimizer) error { return o.SetMomentum(0.5) }, "the momentum has changed from 0.9 to 0.5",
		},
		"betas": {
			func(changed bool, g ...Group) (*Optimizer, error) {
				betas := map[bool][2]float64{false: {0.9, 0.999}, true: {0.8, 0.9}}[changed]
				return NewAdam(AdamOptions{LR: 0.1, Betas: cgotorch.Set(betas), Foreach: foreach}, g...)
			},
			func(o *Optimizer) error { return o.SetBetas(0.8, 0.9) }, "the betas have changed from 0.9 and 0.999 to 0.8 and 0.9",
		},
		"weight decay": {
			func(changed bool, g ...Group) (*Optimizer, error) {
				if changed {
					g[1].WeightDecay = 0.5
				}
				return NewAdamW(AdamOptions{LR: 0.1, WeightDecay: 0.25, Foreach: foreach}, g...)
			},
			func(o *Optimizer) error { return o.SetWeightDecay(1, 0.5) }, "the weight decay of group 1 has changed from 0.25 to 0.5",
		},
	}
}

// train does two steps and returns the parameters. If `remade` is false, the hyperparameter of one
// optimizer is set between the steps. If `remade` is true, a second optimizer has the new value
// from the beginning, and does the second step after a Restore.
func (c change) train(t *testing.T, x *cgotorch.Exec, remade bool) ([]float32, error) {
	p, q := param(x, 1, 2), param(x, 3)
	groups := []Group{{Params: []*cgotorch.Tensor{p}}, {Params: []*cgotorch.Tensor{q}}}
	o, err := c.new(false, groups...)
	if err != nil {
		return nil, err
	}
	defer func() { o.Close() }()
	o.Step(x)
	changed := o.watch()
	if what := changed(); what != "" {
		t.Errorf("unchanged, and yet %q", what)
	}
	if remade {
		again, err := c.new(true, groups...)
		if err != nil {
			return nil, err
		}
		defer again.Close()
		if err := again.Restore(x, o.State(x)); err != nil {
			return nil, err
		}
		again.Step(x)
	} else {
		if err := c.set(o); err != nil {
			return nil, err
		}
		if what := changed(); what != c.want {
			t.Errorf("%q, want %q", what, c.want)
		}
		o.Step(x)
		o.Close()
		if what := changed(); what != "the optimizer was closed" {
			t.Errorf("closed, and yet %q", what)
		}
	}
	return append(values(x, p), values(x, q)...), nil
}

// A hyperparameter that is set holds from the next step on. The result equals that of an
// optimizer that was made with the new value and restored. The function that the method `watch`
// returns describes the change.
func TestSet(t *testing.T) {
	for _, foreach := range []bool{false, true} {
		for name, c := range changes(foreach) {
			t.Run(fmt.Sprintf("%s, foreach %v", name, foreach), func(t *testing.T) {
				torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
					got := cgotorch.Must(c.train(t, x, false))
					want := cgotorch.Must(c.train(t, x, true))
					if !slices.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
				})
			})
		}
	}
}
