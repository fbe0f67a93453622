package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestNew_RefusesOptionsOfListRules(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
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
			{func() (*Optimizer, error) { return NewAdamax(AdamaxOptions{Eps: -1}, g) }, "adamax: Eps is -1"},
			{func() (*Optimizer, error) { return NewNAdam(NAdamOptions{MomentumDecay: -1}, g) }, "nadam: MomentumDecay is -1"},
			{func() (*Optimizer, error) { return NewRAdam(RAdamOptions{Betas: high}, g) }, "radam: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewLion(LionOptions{Betas: high}, g) }, "lion: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewLAMB(LAMBOptions{Betas: high}, g) }, "lamb: the second of Betas is 1"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{}, g) }, "muon: parameter 0 is float32[2], want a matrix"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{Iterations: 100}, g) }, "Iterations is 100"},
			{func() (*Optimizer, error) { return NewMuon(MuonOptions{WeightDecay: 1, NoWeightDecay: true}, g) }, "both a weight decay of 1"},
		} {
			if _, err := c.make(); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		return nil
	})
}

// The numbers of a rule on lists come from the host. So its step cannot be skipped on the device,
// and nothing but learning rate and weight decay can be changed.
func TestListRule_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		o, err := NewRMSprop(RMSpropOptions{Momentum: 0.9}, Group{Params: []*cgotorch.Tensor{param(x, 1)}})
		if err != nil {
			return err
		}
		defer o.Close()
		if o.LR(0) != 0.01 {
			t.Errorf("the learning rate is %v, want 0.01", o.LR(0))
		}
		for _, err := range []error{o.SetMomentum(0.5), o.SetBetas(0.5, 0.5)} {
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "rmsprop: only SGD, Adam and AdamW") {
				t.Errorf("got %v", err)
			}
		}
		if why := o.unskippable(); !strings.Contains(why, "from the host") {
			t.Errorf("a step can be skipped: %q", why)
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
		o, err := NewLBFGS(LBFGSOptions{}, []*cgotorch.Tensor{p})
		if err != nil {
			return err
		}
		for _, s := range []LBFGSState{{Iterations: 1}, {Iterations: -1}, {Ro: []float64{1}}, {Y: []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 3)}}} {
			if err := o.Restore(x, s); !errors.Is(err, cgotorch.ErrInvalidArgument) {
				t.Errorf("Restore of %+v: got %v", s, err)
			}
		}
		o.Close()
		if err := o.Restore(x, LBFGSState{}); !errors.Is(err, cgotorch.ErrClosed) {
			t.Errorf("after Close: got %v", err)
		}
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
	p, err := NewPlateau(PlateauOptions{Patience: cgotorch.Set(1), Factor: 0.5})
	if err != nil {
		t.Fatal(err)
	}
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
		"exponential, before":   {Exponential(0.5)(-1), 1},
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
