package optim

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func newScaler(t *testing.T, x *cgotorch.Exec, o ScalerOptions) *Scaler {
	t.Helper()
	s, err := NewScaler(x, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNewScaler_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		for _, c := range []struct {
			o    ScalerOptions
			want string
		}{
			{ScalerOptions{InitScale: -1}, "a factor of -1"},
			{ScalerOptions{InitScale: 1e39}, "a factor of 1e+39"},
			{ScalerOptions{InitScale: math.NaN()}, "a factor of NaN"},
			{ScalerOptions{GrowthFactor: 1}, "a growth factor of 1"},
			{ScalerOptions{GrowthFactor: math.Inf(1)}, "a growth factor of +Inf"},
			{ScalerOptions{BackoffFactor: 1}, "a backoff factor of 1"},
			{ScalerOptions{BackoffFactor: -0.5}, "a backoff factor of -0.5"},
			{ScalerOptions{GrowthInterval: -1}, "a growth interval of -1"},
		} {
			if _, err := NewScaler(x, c.o); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "optim: scaler: "+c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}

// With a nil Scaler a step is that of the optimizer alone.
func TestScaler_Nil(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p := x.Ones(cgotorch.Float32, 2)
		if err := p.SetRequiresGrad(true); err != nil {
			return err
		}
		opt, err := NewSGD(SGDOptions{LR: 0.5}, Group{Params: []*cgotorch.Tensor{p}})
		if err != nil {
			return err
		}
		defer opt.Close()
		var s *Scaler
		x.Backward(s.Scale(x, x.Sum(p)))
		s.Unscale(x, opt)
		s.Step(x, opt)
		s.Update(x)
		if got := cgotorch.ToSlice[float32](x, x.Detach(p)); !slices.Equal(got, []float32{0.5, 0.5}) {
			t.Errorf("got %v", got)
		}
		return s.Close()
	})
}

// A scaled step of float16 parameters with masters equals a step of float32 parameters. The
// gradient of this test is 0 in float16 without the factor.
func TestScaler_Float16(t *testing.T) {
	for name, new := range masterRules {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			s := newScaler(t, x, ScalerOptions{})
			defer s.Close()
			half := x.Ones(cgotorch.Float16, 20)
			full := x.Ones(cgotorch.Float32, 20)
			a := cgotorch.Must(new(false, true, Group{Params: []*cgotorch.Tensor{half}}))
			defer a.Close()
			b := cgotorch.Must(new(false, false, Group{Params: []*cgotorch.Tensor{full}}))
			defer b.Close()
			const gradient = 1.0 / (1 << 26) // the smallest float16 above 0 is 2^-24
			for range 3 {
				setGrad(x, half, gradient*65536)
				s.Step(x, a)
				s.Update(x)
				setGrad(x, full, gradient)
				b.Step(x)
			}
			setGrad(x, half, math.Inf(1))
			s.Step(x, a)
			s.Update(x)
			if !x.Equal(a.parameters[0].master, full) || !x.Equal(half, x.To(full, cgotorch.Float16)) {
				t.Errorf("%s: the masters are %v, want %v", name, values(x, a.parameters[0].master)[0], values(x, full)[0])
			}
			if got := s.State(x); got != (ScalerState{Scale: 32768, Skipped: 1}) {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
}

// A skipped first step leaves no state, so the next step is a first step.
func TestScaler_FirstStepSkipped(t *testing.T) {
	for name, new := range masterRules {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			s := newScaler(t, x, ScalerOptions{})
			defer s.Close()
			p, q, none := param(x, 1, 2), param(x, 1, 2), x.Ones(cgotorch.Float32)
			a := cgotorch.Must(new(false, false, Group{Params: []*cgotorch.Tensor{p, none}}))
			defer a.Close()
			b := cgotorch.Must(new(false, false, Group{Params: []*cgotorch.Tensor{q}}))
			defer b.Close()
			setGrad(x, p, math.NaN())
			s.Step(x, a)
			s.Update(x)
			if state := a.State(x); name != "sgd" && (!slices.Equal(state.Steps, []int64{0, 0}) || len(state.Tensors) > 0) {
				t.Errorf("%s: the state of a skipped step is %+v", name, state)
			}
			for range 3 {
				setGrad(x, p, 32768)
				s.Step(x, a)
				b.Step(x)
				s.Update(x)
			}
			if !x.Equal(p, q) {
				t.Errorf("%s: %v, want %v", name, values(x, p), values(x, q))
			}
			if state := a.State(x); name != "sgd" && !slices.Equal(state.Steps, []int64{3, 0}) {
				t.Errorf("%s: steps %v", name, state.Steps)
			}
			if what := a.skipped; what {
				t.Errorf("%s: State has not read the counts", name)
			}
		})
	}
}

// Gradients of bfloat16 are checked and unscaled as gradients of other dtypes are.
func TestScaler_BFloat16(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		s := newScaler(t, x, ScalerOptions{InitScale: 1024})
		defer s.Close()
		p := x.Ones(cgotorch.BFloat16, 2, 3)
		o := cgotorch.Must(NewAdam(AdamOptions{LR: 0.5, MasterWeights: true}, Group{Params: []*cgotorch.Tensor{p}}))
		defer o.Close()
		for _, c := range []struct {
			grad    float64
			unscale bool
			want    float32 // the parameter after the step
		}{{math.Inf(-1), false, 1}, {512, false, 0.5}, {math.NaN(), true, 0.5}, {128, true, 0}} {
			setGrad(x, p, c.grad)
			if c.unscale {
				scale := s.State(x).Scale
				s.Unscale(x, o)
				if got := values(x, p.Grad())[5]; float64(got) != c.grad/scale && !math.IsNaN(c.grad) {
					t.Errorf("a gradient of %v, divided by %v, is %v", c.grad, scale, got)
				}
			}
			s.Step(x, o)
			s.Update(x)
			if got := values(x, p)[5]; math.Abs(float64(got-c.want)) > 0.1 {
				t.Errorf("after a gradient of %v the parameter is %v, want %v", c.grad, got, c.want)
			}
		}
		if got := s.State(x); got != (ScalerState{Scale: 256, Growth: 1, Skipped: 2}) {
			t.Errorf("%+v", got)
		}
	})
}

func TestScaler_Restore(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		s := newScaler(t, x, ScalerOptions{GrowthInterval: 3})
		defer s.Close()
		o, err := NewSGD(SGDOptions{}, Group{Params: []*cgotorch.Tensor{param(x, 1)}})
		if err != nil {
			return err
		}
		defer o.Close()
		for range 2 {
			s.Step(x, o)
			s.Update(x)
		}
		text, err := json.Marshal(s.State(x))
		if want := `{"scale":65536,"growth_tracker":2,"skipped":0}`; err != nil || string(text) != want {
			t.Errorf("the state is %s, %v, want %s", text, err, want)
		}
		r := newScaler(t, x, ScalerOptions{GrowthInterval: 3, InitScale: 7})
		defer r.Close()
		var state ScalerState
		cgotorch.Check(json.Unmarshal(text, &state))
		cgotorch.Check(r.Restore(x, state))
		r.Step(x, o)
		r.Update(x)
		if got := r.State(x).Scale; got != 131072 || r.State(x).Skipped != 0 {
			t.Errorf("the factor is %v after the third step, want 131072", got)
		}
		for _, state := range []ScalerState{{}, {Scale: math.NaN()}, {Scale: 1, Growth: -1}, {Scale: 1, Skipped: -1}} {
			torchtest.WantError(t, r.Restore(x, state), cgotorch.ErrInvalidArgument)
		}
		r.Close()
		torchtest.WantError(t, r.Restore(x, state), cgotorch.ErrClosed)
		return nil
	})
}

func TestScaler_Fails(t *testing.T) {
	type made struct {
		s *Scaler
		o *Optimizer
	}
	for _, c := range map[string]struct {
		dtype cgotorch.DType
		o     SGDOptions
		spoil func(x *cgotorch.Exec, m made)
		is    error
		want  string
	}{
		"unscaled twice":     {spoil: func(x *cgotorch.Exec, m made) { m.s.Unscale(x, m.o); m.s.Unscale(x, m.o) }, is: cgotorch.ErrInvalidArgument, want: "have been unscaled"},
		"unscaled behind":    {spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o); m.s.Unscale(x, m.o) }, is: cgotorch.ErrInvalidArgument, want: "have been unscaled, or used"},
		"two steps":          {spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o); m.s.Step(x, m.o) }, is: cgotorch.ErrInvalidArgument, want: "call Update first"},
		"no step":            {spoil: func(x *cgotorch.Exec, m made) { m.s.Update(x) }, is: cgotorch.ErrInvalidArgument, want: "there was no Step"},
		"two updates":        {spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o); m.s.Update(x); m.s.Update(x) }, is: cgotorch.ErrInvalidArgument, want: "there was no Step"},
		"float16":            {dtype: cgotorch.Float16, o: SGDOptions{MasterWeights: true}, spoil: func(x *cgotorch.Exec, m made) { m.s.Unscale(x, m.o) }, is: cgotorch.ErrUnsupported, want: "under autocast"},
		"foreach":            {o: SGDOptions{Foreach: true}, spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o) }, is: cgotorch.ErrUnsupported, want: "leave Foreach out"},
		"dampening":          {o: SGDOptions{Momentum: 0.9, Dampening: 0.1}, spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o) }, is: cgotorch.ErrUnsupported, want: "Dampening"},
		"16 bits on the CPU": {dtype: cgotorch.BFloat16, spoil: func(x *cgotorch.Exec, m made) { m.s.Step(x, m.o) }, is: cgotorch.ErrUnsupported, want: "set MasterWeights"},
		"closed":             {spoil: func(x *cgotorch.Exec, m made) { m.s.Close(); m.s.Step(x, m.o) }, is: cgotorch.ErrClosed, want: "the scaler: closed"},
		"closed optimizer":   {spoil: func(x *cgotorch.Exec, m made) { m.o.Close(); m.s.Step(x, m.o) }, is: cgotorch.ErrClosed, want: "sgd: the optimizer: closed"},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			p := param(x, 1)
			if c.dtype != 0 {
				p = x.To(p, c.dtype)
				setGrad(x, p, 1)
			}
			s := newScaler(t, x, ScalerOptions{})
			defer s.Close()
			o := cgotorch.Must(NewSGD(c.o, Group{Params: []*cgotorch.Tensor{p}}))
			defer o.Close()
			c.spoil(x, made{s, o})
		})
		torchtest.WantError(t, err, c.is, c.want, "scaler_test.go:")
	}
}

// A trouble is a course of a training with a Scaler: the gradients of its steps, before the factor.
type trouble struct {
	name  string
	o     ScalerOptions
	grads []float64 // of the steps; each is multiplied by the factor, as a backward does
	least float64   // bounds of the factor at the end
	most  float64
}

func repeated(n int, v float64) []float64 { return slices.Repeat([]float64{v}, n) }

var troubles = []trouble{
	{"infinite losses", ScalerOptions{}, append(repeated(200, math.Inf(1)), 1), leastScale, leastScale},
	{"NaN losses", ScalerOptions{}, append(repeated(200, math.NaN()), 1), leastScale, leastScale},
	{"a small first factor", ScalerOptions{InitScale: 0x1p-20}, append(repeated(300, math.Inf(1)), 1, 1), 0x1p-20, 0x1p-20},
	{"the least first factor", ScalerOptions{InitScale: 0x1p-126}, append(repeated(3, math.Inf(-1)), 1), 0x1p-126, 0x1p-126},
	{"a steep backoff", ScalerOptions{BackoffFactor: 1e-30}, append(repeated(5, math.Inf(1)), 1), leastScale, leastScale},
	{"a backoff of nearly nothing", ScalerOptions{BackoffFactor: 1e-300}, append(repeated(2, math.NaN()), 2), leastScale, leastScale},
	{"infinite and finite in turns", ScalerOptions{GrowthInterval: 1}, slices.Repeat([]float64{math.Inf(1), 1}, 60), 16384, 65536},
	{"growth to the end of float32", ScalerOptions{GrowthInterval: 1}, repeated(300, 0x1p-30), 0x1p126, math.MaxFloat32},
	{"steep growth", ScalerOptions{GrowthInterval: 1, GrowthFactor: 1e30}, repeated(4, 0x1p-60), 65536, math.MaxFloat32},
	{"the largest first factor", ScalerOptions{InitScale: math.MaxFloat32, GrowthInterval: 1}, repeated(5, 0x1p-100), math.MaxFloat32, math.MaxFloat32},
	{"growth, then infinite", ScalerOptions{GrowthInterval: 1}, append(repeated(200, 0x1p-60), append(repeated(300, math.Inf(1)), 1)...), 2 * leastScale, 2 * leastScale},
}

// Whatever the gradients are, the factor stays a positive finite number. A finite step leaves
// finite weights, and a Scaler takes the state of another.
func TestScaler_Troubles(t *testing.T) {
	for _, c := range troubles {
		for _, unscale := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
					s := newScaler(t, x, c.o)
					defer s.Close()
					p := param(x, 1)
					want := 1.0
					o := cgotorch.Must(NewSGD(SGDOptions{LR: 0.25}, Group{Params: []*cgotorch.Tensor{p}}))
					defer o.Close()
					for _, grad := range c.grads {
						scale := s.State(x).Scale
						setGrad(x, p, grad*scale)
						if unscale {
							s.Unscale(x, o)
						}
						s.Step(x, o)
						s.Update(x)
						if !math.IsInf(grad*scale, 0) && !math.IsNaN(grad) {
							want -= 0.25 * grad
						}
					}
					if got := float64(values(x, p)[0]); math.Abs(got-want) > 1e-5 || math.IsNaN(got) {
						t.Errorf("the weight is %v, want %v", got, want)
					}
					state := s.State(x)
					if !(state.Scale >= c.least && state.Scale <= c.most) {
						t.Errorf("the factor is %v, want from %v to %v", state.Scale, c.least, c.most)
					}
					other := newScaler(t, x, ScalerOptions{})
					defer other.Close()
					for _, to := range []*Scaler{s, other} {
						if err := to.Restore(x, state); err != nil {
							t.Errorf("its own state: %v", err)
						}
						if got := to.State(x); got.Scale != state.Scale || got.Skipped != state.Skipped {
							t.Errorf("restored to %+v, want %+v", got, state)
						}
					}
				})
			})
		}
	}
}

// A state that is saved with a longer GrowthInterval does not stop the growth.
func TestScaler_Restore_GrowthInterval(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		s := newScaler(t, x, ScalerOptions{GrowthInterval: 100})
		defer s.Close()
		o := cgotorch.Must(NewSGD(SGDOptions{}, Group{Params: []*cgotorch.Tensor{param(x, 1)}}))
		defer o.Close()
		cgotorch.Check(s.Restore(x, ScalerState{Scale: 8, Growth: 1999}))
		s.Step(x, o)
		s.Update(x)
		if got := s.State(x); got != (ScalerState{Scale: 16}) {
			t.Errorf("got %+v, want a factor of 16", got)
		}
	})
}
