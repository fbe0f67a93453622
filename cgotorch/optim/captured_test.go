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

// learner trains two linear layers on a made-up function. Its method `step` can be captured.
type learner struct {
	params []*cgotorch.Tensor
	opt    *Optimizer
	scaler *Scaler
	ema    *EMA
	clip   float64
}

// capturedCase is a way of training that must give the same bits eagerly and captured.
type capturedCase struct {
	name      string
	dtype     cgotorch.DType // dtype of the parameters
	new       func(g ...Group) (*Optimizer, error)
	scaler    bool
	ema       bool
	clip      float64
	overflows []int
	between   func(x *cgotorch.Exec, step int, l *learner) error // runs before each step
	captures  int
	matrices  bool // only the matrices are trained
	near      bool // eager and captured steps differ by rounding: see Note [Two forms of a step on lists]
}

var capturedCases = []capturedCase{
	{name: "sgd", new: func(g ...Group) (*Optimizer, error) { return NewSGD(SGDOptions{LR: 0.1}, g...) }},
	{name: "sgd/nesterov,decay,clip", clip: 0.5, new: func(g ...Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01}, g...)
	}},
	{name: "sgd/dampening", new: func(g ...Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9, Dampening: 0.3}, g...)
	}},
	{name: "adam/clip", clip: 0.5, new: func(g ...Group) (*Optimizer, error) {
		return NewAdam(AdamOptions{LR: 0.01, WeightDecay: 0.01}, g...)
	}},
	{name: "adamw/amsgrad,ema", ema: true, new: func(g ...Group) (*Optimizer, error) { return NewAdamW(AdamOptions{LR: 0.01, AMSGrad: true}, g...) }},
	{name: "sgd/scaler", scaler: true, overflows: []int{0, 7, 8, 15}, new: func(g ...Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9}, g...)
	}},
	{name: "adam/scaler,clip,ema", scaler: true, clip: 0.5, ema: true, overflows: []int{0, 7, 8, 15}, new: func(g ...Group) (*Optimizer, error) {
		return NewAdam(AdamOptions{LR: 0.01}, g...)
	}},
	{name: "adamw/scaler", scaler: true, overflows: []int{0, 1, 2, 9}, new: func(g ...Group) (*Optimizer, error) {
		return NewAdamW(AdamOptions{LR: 0.01}, g...)
	}},
	{name: "sgd/masters", dtype: cgotorch.BFloat16, ema: true, new: func(g ...Group) (*Optimizer, error) {
		return NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9, MasterWeights: true}, g...)
	}},
	{name: "adamw/masters,scaler", dtype: cgotorch.Float16, scaler: true, overflows: []int{0, 6, 11}, new: func(g ...Group) (*Optimizer, error) {
		return NewAdamW(AdamOptions{LR: 0.01, MasterWeights: true}, g...)
	}},
	{name: "momentum", captures: 2, new: func(g ...Group) (*Optimizer, error) { return NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9}, g...) },
		between: func(x *cgotorch.Exec, step int, l *learner) error {
			if step < 10 {
				return nil
			}
			return l.opt.SetMomentum(0.8) // is called at each step, but the momentum changes once
		}},
	{name: "betas, decay", captures: 3, new: func(g ...Group) (*Optimizer, error) { return NewAdamW(AdamOptions{LR: 0.01}, g...) },
		between: func(x *cgotorch.Exec, step int, l *learner) error {
			switch step {
			case 8:
				return l.opt.SetBetas(0.8, 0.99)
			case 14:
				return l.opt.SetWeightDecay(1, 0.5)
			}
			return nil
		}},
	{name: "restored", scaler: true, ema: true, overflows: []int{9, 12}, new: func(g ...Group) (*Optimizer, error) { return NewAdam(AdamOptions{LR: 0.01}, g...) },
		between: func(x *cgotorch.Exec, step int, l *learner) error {
			if step != 10 {
				return nil
			}
			if err := l.opt.Restore(x, l.opt.State(x)); err != nil {
				return err
			}
			if err := l.scaler.Restore(x, l.scaler.State(x)); err != nil {
				return err
			}
			l.ema.Swap(x)
			l.ema.Swap(x)
			return l.ema.Restore(x, l.ema.Averages())
		}},
	{name: "restored to nothing", new: func(g ...Group) (*Optimizer, error) { return NewAdam(AdamOptions{LR: 0.01}, g...) },
		between: func(x *cgotorch.Exec, step int, l *learner) error {
			if step != 10 {
				return nil
			}
			return l.opt.Restore(x, State{Rule: "adam", LR: 0.01, Scale: 1, Steps: make([]int64, len(l.params))})
		}},
}

// capturedListCases are the rules on lists: alone, with a scaler, and with masters.
func capturedListCases() (cases []capturedCase) {
	for name, new := range listRules {
		matrices := name == "muon"
		cases = append(cases,
			capturedCase{name: name, matrices: matrices, near: true, new: func(g ...Group) (*Optimizer, error) { return new(false, g...) }},
			capturedCase{name: name + "/scaler", matrices: matrices, scaler: true, overflows: []int{0, 7, 8, 15}, new: func(g ...Group) (*Optimizer, error) {
				return new(false, g...)
			}},
			capturedCase{name: name + "/masters,scaler", matrices: matrices, dtype: cgotorch.BFloat16, scaler: true, overflows: []int{3}, new: func(g ...Group) (*Optimizer, error) {
				return new(true, g...)
			}})
	}
	return cases
}

func (c capturedCase) learner(x *cgotorch.Exec) (*learner, error) {
	dtype := cgotorch.Float32
	if c.dtype != 0 {
		dtype = c.dtype
	}
	l := &learner{clip: c.clip}
	for i, shape := range [][]int64{{32, 8}, {32}, {4, 32}, {4}} {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		values := x.MulScalar(x.Sin(x.Arange(cgotorch.Float32, i, i+int(n), nil)), 0.3)
		p := x.Keep(x.Clone(x.To(x.Reshape(values, shape...), dtype)))
		if err := p.SetRequiresGrad(true); err != nil {
			return nil, err
		}
		l.params = append(l.params, p)
	}
	var err error
	first, second := l.params[:2], l.params[2:]
	if c.matrices {
		first, second = first[:1], second[:1]
	}
	if l.opt, err = c.new(Group{Params: first}, Group{Params: second, LR: 0.02}); err != nil {
		return nil, err
	}
	if c.scaler {
		if l.scaler, err = NewScaler(x, ScalerOptions{InitScale: 1000, GrowthInterval: 4}); err != nil {
			return nil, err
		}
	}
	if c.ema {
		l.ema, err = NewEMA(x, l.params, 0.9)
	}
	return l, err
}

func (l *learner) close() {
	for _, p := range l.params {
		p.Close()
	}
	l.opt.Close()
	if l.scaler != nil {
		l.scaler.Close()
	}
	if l.ema != nil {
		l.ema.Close()
	}
}

// step is one training step. `in` holds inputs, targets and a factor that multiplies the loss.
func (l *learner) step(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	l.opt.ZeroGrad()
	hidden := x.ReLU(x.Linear(x.To(in[0], l.params[0].DType()), l.params[0], l.params[1]))
	out := x.To(x.Linear(hidden, l.params[2], l.params[3]), cgotorch.Float32)
	loss := x.Mul(x.MSELoss(out, in[1], cgotorch.LossOptions{}), in[2])
	switch {
	case l.scaler == nil:
		x.Backward(loss)
		if l.clip != 0 {
			ClipGradNorm(x, l.params, l.clip)
			ClipGradValue(x, l.params, l.clip/4)
		}
		l.opt.Step(x)
	default:
		x.Backward(l.scaler.Scale(x, loss))
		if l.clip != 0 {
			l.scaler.Unscale(x, l.opt)
			ClipGradNorm(x, l.params, l.clip)
		}
		l.scaler.Step(x, l.opt)
		l.scaler.Update(x)
	}
	if l.ema != nil {
		l.ema.Update(x)
	}
	return []*cgotorch.Tensor{loss}
}

// outcome holds all values that a training changes.
type outcome struct {
	losses []float32
	values map[string][]float32
	steps  []int64
	scaler ScalerState
}

func (c capturedCase) train(t *testing.T, stream *cgotorch.Stream, o cgotorch.CapturedOptions) (got outcome, stats cgotorch.CapturedStats) {
	t.Helper()
	const steps = 20
	var l *learner
	in := func(fn func(x *cgotorch.Exec) error) {
		t.Helper()
		if err := stream.Do(fn); err != nil {
			t.Fatal(err)
		}
	}
	in(func(x *cgotorch.Exec) (err error) { l, err = c.learner(x); return err })
	defer l.close()
	step := cgotorch.NewCaptured(l.step, o)
	defer step.Close()
	schedule := Warmup(5, 0.1, Cosine(10, 0.1)) // constant for the last five steps
	for i := range steps {
		in(func(x *cgotorch.Exec) error {
			if c.between != nil {
				if err := c.between(x, i, l); err != nil {
					return err
				}
			}
			l.opt.SetScale(schedule(i))
			inputs := x.Reshape(x.Cos(x.Arange(cgotorch.Float32, i, i+16*8, nil)), 16, 8)
			targets := x.Narrow(x.Sin(x.MulScalar(inputs, 2)), 1, 0, 4)
			factor := x.Ones(cgotorch.Float32)
			if slices.Contains(c.overflows, i) {
				x.FillInPlace(factor, math.Inf(1))
			}
			loss := step.Run(x, inputs, x.Contiguous(targets, cgotorch.Contiguous), factor)[0]
			got.losses = append(got.losses, values(x, x.Reshape(loss, 1))...)
			return nil
		})
	}
	in(func(x *cgotorch.Exec) error {
		got.values = map[string][]float32{}
		for i, p := range l.params {
			got.values["parameter "+string(rune('0'+i))] = values(x, p)
		}
		state := l.opt.State(x)
		got.steps = state.Steps
		for _, r := range state.Tensors {
			got.values[r.Name+" "+string(rune('0'+r.Param))] = values(x, r.Tensor)
		}
		if l.ema != nil {
			for i, average := range l.ema.Averages() {
				got.values["average "+string(rune('0'+i))] = values(x, average)
			}
		}
		if l.scaler != nil {
			got.scaler = l.scaler.State(x)
		}
		return nil
	})
	return got, step.Stats()
}

func (got outcome) compare(t *testing.T, want outcome, near bool) {
	t.Helper()
	same := func(what string, got, want []float32) {
		for i := range want {
			if near && math.Abs(float64(got[i]-want[i])) < 1e-4*(math.Abs(float64(want[i]))+0.1) {
				continue
			}
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Errorf("%s: element %d is %v, eagerly %v", what, i, got[i], want[i])
				return
			}
		}
	}
	same("loss", got.losses, want.losses)
	if len(got.values) != len(want.values) {
		t.Errorf("%d tensors, eagerly %d", len(got.values), len(want.values))
	}
	for name, w := range want.values {
		if len(got.values[name]) != len(w) {
			t.Errorf("%s has %d elements, eagerly %d", name, len(got.values[name]), len(w))
			continue
		}
		same(name, got.values[name], w)
	}
	if !slices.Equal(got.steps, want.steps) {
		t.Errorf("steps are %v, eagerly %v", got.steps, want.steps)
	}
	if got.scaler != want.scaler {
		t.Errorf("the scaler is %+v, eagerly %+v", got.scaler, want.scaler)
	}
}

// Captured steps give the same bits as eager steps. The cases have a schedule, overflows, and
// settings that change.
func TestStep_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
		stream := torchtest.NewStream(t, device)
		for _, c := range append(capturedListCases(), capturedCases...) {
			t.Run(c.name, func(t *testing.T) {
				const warmUp = 2
				want, _ := c.train(t, stream, cgotorch.CapturedOptions{Eager: true})
				got, stats := c.train(t, stream, cgotorch.CapturedOptions{WarmUp: warmUp})
				got.compare(t, want, c.near)
				if len(c.overflows) > 0 && got.scaler.Skipped != int64(len(c.overflows)) {
					t.Errorf("%d steps were skipped, want %d", got.scaler.Skipped, len(c.overflows))
				}
				if !device.IsCUDA() {
					return
				}
				if stats.Launches != len(got.losses)-warmUp || stats.Captures != max(c.captures, 1) || stats.Why != "" {
					t.Errorf("%+v, want %d launches of %d captures", stats, len(got.losses)-warmUp, max(c.captures, 1))
				}
			})
		}
	})
}

// A first step that is captured gives the same result as an eager first step. Before the first
// launch, the tensors that the optimizer remembers become 0, and the masters become copies of the
// parameters.
func TestStep_CapturedFirst(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
		stream := torchtest.NewStream(t, device)
		for name, new := range masterRules {
			for _, scaled := range []bool{false, true} {
				train := func(captured bool) (got []float32, steps []int64) {
					var p, target *cgotorch.Tensor
					var o *Optimizer
					var s *Scaler
					must := func(err error) {
						t.Helper()
						if err != nil {
							t.Fatal(err)
						}
					}
					must(stream.Do(func(x *cgotorch.Exec) (err error) {
						p = x.Keep(x.Ones(cgotorch.BFloat16, 33))
						target = x.Keep(x.Linspace(cgotorch.Float32, -1, 1, 33))
						if s, err = NewScaler(x, ScalerOptions{}); err != nil {
							return err
						}
						o, err = new(false, true, Group{Params: []*cgotorch.Tensor{p}})
						return err
					}))
					defer func() { p.Close(); target.Close(); o.Close(); s.Close() }()
					step := func(x *cgotorch.Exec) error {
						grad := x.Sub(x.To(p, cgotorch.Float32), target)
						if scaled {
							grad = s.Scale(x, grad)
						}
						if err := p.SetGrad(x.To(grad, p.DType())); err != nil {
							return err
						}
						if scaled {
							s.Step(x, o)
							s.Update(x)
						} else {
							o.Step(x)
						}
						return nil
					}
					launch := func() error { return stream.Do(step) }
					if captured {
						g, err := stream.Capture(step, 0)
						must(err)
						defer g.Close()
						must(stream.Do(func(x *cgotorch.Exec) error {
							if state := o.State(x); state.Steps[0] != 0 || len(state.Tensors) > 0 {
								t.Errorf("%s: the state is %+v before the first launch", name, state)
							}
							return nil
						}))
						launch = func() error { return g.Launch(stream) }
					}
					for i := range 6 {
						o.SetScale(1 / float64(1+i/2))
						must(launch())
					}
					must(stream.Do(func(x *cgotorch.Exec) error {
						state := o.State(x)
						for _, r := range state.Tensors {
							got = append(got, values(x, r.Tensor)...)
						}
						got, steps = append(got, values(x, p)...), state.Steps
						return nil
					}))
					return got, steps
				}
				want, steps := train(false)
				got, gotSteps := train(true)
				if !slices.Equal(got, want) || !slices.Equal(gotSteps, steps) || steps[0] != 6 {
					t.Errorf("%s on %v, scaled: %v: %d steps lead to %v, eagerly %d to %v", name, device, scaled, gotSteps, got, steps, want)
				}
			}
		}
	})
}

// capturingStream returns a stream of a GPU. The test fails if handles are left open. Without a
// GPU it is skipped.
func capturingStream(t *testing.T) *cgotorch.Stream {
	t.Helper()
	device := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	return torchtest.NewStream(t, device)
}

// An operation that cannot be captured fails with an error that says what to do.
func TestStep_NotCapturable_CUDA(t *testing.T) {
	stream := capturingStream(t)
	var half *cgotorch.Tensor
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
		half = x.Keep(x.Ones(cgotorch.BFloat16, 2))
		setGrad(x, half, 1)
		return nil
	})
	defer half.Close()
	for _, c := range []struct {
		new  func(g Group) (*Optimizer, error)
		want string
	}{
		{func(g Group) (*Optimizer, error) { return NewSGD(SGDOptions{Foreach: true}, g) }, "sgd: a step by Foreach takes its numbers from the host: leave Foreach out"},
		{func(g Group) (*Optimizer, error) { return NewAdam(AdamOptions{Foreach: true}, g) }, "adam: a step by Foreach"},
		{func(g Group) (*Optimizer, error) { return NewSGD(SGDOptions{Momentum: 0.9, Dampening: 0.1}, g) }, "do one before"},
		{func(g Group) (*Optimizer, error) {
			return NewRMSprop(RMSpropOptions{}, Group{Params: []*cgotorch.Tensor{half}})
		}, "rmsprop: a step of bfloat16 takes its numbers from the host: set MasterWeights"},
	} {
		var p *cgotorch.Tensor
		var o *Optimizer
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) (err error) {
			p = x.Keep(param(x, 1, 2))
			o, err = c.new(Group{Params: []*cgotorch.Tensor{p}})
			return err
		})
		g, err := stream.Capture(func(x *cgotorch.Exec) error { o.Step(x); return nil }, 0)
		if !errors.Is(err, cgotorch.ErrNotCapturable) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "captured_test.go:") {
			t.Errorf("got %v, want %q", err, c.want)
		}
		g.Close()
		if err := stream.Do(func(x *cgotorch.Exec) error { o.Step(x); return nil }); err != nil { // the stream still works
			t.Error(err)
		}
		o.Close()
		p.Close()
	}
	var p *cgotorch.Tensor
	var e *EMA
	if err := stream.Do(func(x *cgotorch.Exec) (err error) {
		p = x.Keep(param(x, 1))
		e, err = NewEMA(x, []*cgotorch.Tensor{p}, 0.9)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer e.Close()
	for _, fn := range []func(x *cgotorch.Exec) error{
		func(x *cgotorch.Exec) error { e.Swap(x); return nil },
		func(x *cgotorch.Exec) error { _, err := NewEMA(x, []*cgotorch.Tensor{p}, 0.9); return err },
		func(x *cgotorch.Exec) error { _, err := NewScaler(x, ScalerOptions{}); return err },
	} {
		if _, err := stream.Capture(fn, 0); !errors.Is(err, cgotorch.ErrNotCapturable) {
			t.Error(err)
		}
	}
}

// A graph is out of date after its optimizer, its scaler, its EMA or a parameter was closed.
// Between two Swaps of the EMA, the graph is out of date. A graph is not launched with an illegal
// learning rate.
func TestStep_CapturedStale_CUDA(t *testing.T) {
	stream := capturingStream(t)
	for _, c := range []struct {
		spoil func(x *cgotorch.Exec, l *learner)
		is    error
		want  string
	}{
		{func(x *cgotorch.Exec, l *learner) { l.opt.Close() }, cgotorch.ErrStale, "the optimizer was closed since the graph was captured"},
		{func(x *cgotorch.Exec, l *learner) { l.scaler.Close() }, cgotorch.ErrStale, "the scaler was closed"},
		{func(x *cgotorch.Exec, l *learner) { l.ema.Close() }, cgotorch.ErrStale, "the averages were closed"},
		{func(x *cgotorch.Exec, l *learner) { l.ema.Swap(x) }, cgotorch.ErrStale, "the averages were put in the parameters' place"},
		{func(x *cgotorch.Exec, l *learner) { l.params[1].Close() }, cgotorch.ErrStale, "parameter 1 was closed"},
		{func(x *cgotorch.Exec, l *learner) { l.opt.SetLR(-1) }, cgotorch.ErrInvalidArgument, "group 0: a learning rate of -1"},
	} {
		var l *learner
		in := make([]*cgotorch.Tensor, 3)
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) (err error) {
			l, err = capturedCase{scaler: true, ema: true, new: func(g ...Group) (*Optimizer, error) { return NewAdam(AdamOptions{}, g...) }}.learner(x)
			in = []*cgotorch.Tensor{x.Keep(x.Ones(cgotorch.Float32, 16, 8)), x.Keep(x.Ones(cgotorch.Float32, 16, 4)), x.Keep(x.Ones(cgotorch.Float32))}
			return err
		})
		g, err := stream.Capture(func(x *cgotorch.Exec) error { l.step(x, in...); return nil }, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Launch(stream); err != nil {
			t.Error(err)
		}
		if err := stream.Do(func(x *cgotorch.Exec) error { c.spoil(x, l); return nil }); err != nil {
			t.Error(err)
		}
		if err := g.Launch(stream); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		g.Close()
		l.close()
		for _, t := range in {
			t.Close()
		}
	}
}

// Steps and averages launch one kernel for a list of parameters, not one kernel for each
// parameter.
func TestStep_CapturedKernels_CUDA(t *testing.T) {
	device := torchtest.CUDA(t)
	for _, c := range []struct {
		name  string
		dtype cgotorch.DType
		make  func(x *cgotorch.Exec, params []*cgotorch.Tensor) (step func(x *cgotorch.Exec), free func() error, err error)
		want  int
	}{
		{"sgd", cgotorch.Float32, func(x *cgotorch.Exec, params []*cgotorch.Tensor) (func(x *cgotorch.Exec), func() error, error) {
			o, err := NewSGD(SGDOptions{Momentum: 0.9}, Group{Params: params})
			return o.Step, o.Close, err
		}, 1},
		{"adam", cgotorch.Float32, func(x *cgotorch.Exec, params []*cgotorch.Tensor) (func(x *cgotorch.Exec), func() error, error) {
			o, err := NewAdam(AdamOptions{}, Group{Params: params})
			return o.Step, o.Close, err
		}, 2}, // one kernel changes the counts
		{"adamw with masters", cgotorch.BFloat16, func(x *cgotorch.Exec, params []*cgotorch.Tensor) (func(x *cgotorch.Exec), func() error, error) {
			o, err := NewAdamW(AdamOptions{MasterWeights: true}, Group{Params: params})
			return o.Step, o.Close, err
		}, 4}, // one kernel changes the counts, and two copy gradients and masters
		{"ema", cgotorch.Float32, func(x *cgotorch.Exec, params []*cgotorch.Tensor) (func(x *cgotorch.Exec), func() error, error) {
			e, err := NewEMA(x, params, 0.9)
			return e.Update, e.Close, err
		}, 1},
		{"ema of bfloat16", cgotorch.BFloat16, func(x *cgotorch.Exec, params []*cgotorch.Tensor) (func(x *cgotorch.Exec), func() error, error) {
			e, err := NewEMA(x, params, 0.9)
			return e.Update, e.Close, err
		}, 2},
	} {
		torchtest.Do(t, device, func(x *cgotorch.Exec) error {
			var params []*cgotorch.Tensor
			for range 20 {
				p := x.Ones(c.dtype, 3, 5)
				setGrad(x, p, 1)
				params = append(params, p)
			}
			step, free, err := c.make(x, params)
			if err != nil {
				return err
			}
			defer free()
			var log string
			captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, _ ...*cgotorch.Tensor) []*cgotorch.Tensor { step(x); return nil },
				cgotorch.CapturedOptions{WarmUp: 1, Log: func(text string) { log = text }})
			defer captured.Close()
			captured.Run(x)
			captured.Run(x)
			if want := fmt.Sprintf("%d nodes, %d kernels", c.want, c.want); !strings.HasSuffix(log, want) {
				t.Errorf("%s: %q, want %s", c.name, log, want)
			}
			return nil
		})
	}
}
