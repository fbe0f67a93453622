package optim

import (
	"encoding/json"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// uneven sets the gradients of one step. It leaves out parameter 1 at every third step, and
// parameter 2 before step 5. So the parameters differ in their numbers of steps.
func uneven(x *cgotorch.Exec, params []*cgotorch.Tensor, step int) {
	for i, p := range params {
		if i == 1 && step%3 == 0 || i == 2 && step < 5 {
			p.SetGrad(nil)
			continue
		}
		setGrad(x, p, float64(i)-0.1*float64(step))
	}
}

// throughFile returns the state as a file gives it back: with contiguous tensors.
func throughFile(x *cgotorch.Exec, state State) (loaded State, err error) {
	text, err := json.Marshal(state)
	if err != nil {
		return loaded, err
	}
	if err := json.Unmarshal(text, &loaded); err != nil {
		return loaded, err
	}
	for _, r := range state.Tensors {
		read := x.Contiguous(x.Clone(r.Tensor), cgotorch.Contiguous)
		if err := read.SetRequiresGrad(true); err != nil {
			return loaded, err
		}
		loaded.Tensors = append(loaded.Tensors, RememberedTensor{Param: r.Param, Name: r.Name, Tensor: read})
	}
	return loaded, nil
}

// A second optimizer that continues from the state of a first optimizer does the same steps as
// the first, to the bit.
func TestRestore_GoesOn(t *testing.T) {
	for _, foreach := range []bool{false, true} {
		for name, new := range map[string]func(g Group) (*Optimizer, error){
			"sgd":      func(g Group) (*Optimizer, error) { return NewSGD(SGDOptions{Foreach: foreach}, g) },
			"momentum": func(g Group) (*Optimizer, error) { return NewSGD(SGDOptions{Momentum: 0.9, Foreach: foreach}, g) },
			"adamw": func(g Group) (*Optimizer, error) {
				return NewAdamW(AdamOptions{AMSGrad: true, Foreach: foreach}, g)
			},
		} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				a := []*cgotorch.Tensor{x.Randn(cgotorch.Float32, 2, 3, 4, 5), x.Randn(cgotorch.Float32, 7), x.Randn(cgotorch.Float32)}
				a[0] = x.Contiguous(a[0], cgotorch.ChannelsLast)
				first := cgotorch.Must(new(Group{Params: a}))
				defer first.Close()
				for step := range 5 {
					uneven(x, a, step)
					first.SetLR(0.01)
					first.SetScale(0.5)
					first.Step(x)
				}
				b := []*cgotorch.Tensor{x.Clone(a[0]), x.Clone(a[1]), x.Clone(a[2])}
				second := cgotorch.Must(new(Group{Params: b}))
				defer second.Close()
				uneven(x, b, 7)
				second.Step(x) // the second optimizer now has tensors that Restore must overwrite
				for i := range b {
					x.CopyInPlace(b[i], a[i])
				}
				loaded := cgotorch.Must(throughFile(x, first.State(x)))
				cgotorch.Check(second.Restore(x, loaded))
				for _, r := range second.State(x).Tensors {
					if r.Tensor.RequiresGrad() {
						t.Errorf("%s: %s is recorded for backward", name, r.Name)
					}
				}
				for step := 5; step < 10; step++ {
					uneven(x, a, step)
					uneven(x, b, step)
					first.Step(x)
					second.Step(x)
				}
				for i := range a {
					if !x.Equal(a[i], b[i]) {
						t.Errorf("%s: parameter %d differs", name, i)
					}
				}
				if got, want := second.State(x).Steps, []int64{10, 6, 5}; !slices.Equal(got, want) {
					t.Errorf("%s: steps %v, want %v", name, got, want)
				}
			})
		}
	}
}

func TestRestore_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		params := []*cgotorch.Tensor{param(x, 1, 2), param(x, 3)}
		opt := cgotorch.Must(NewAdam(AdamOptions{}, Group{Params: params}))
		defer opt.Close()
		opt.Step(x)
		closed := x.Zeros(cgotorch.Float32, 1)
		closed.Close()
		for _, c := range []struct {
			spoil func(s *State)
			want  string
		}{
			{func(s *State) { s.Rule = "sgd" }, `the state is one of "sgd"`},
			{func(s *State) { s.LR = math.NaN() }, "a learning rate of NaN"},
			{func(s *State) { s.Scale = -1 }, "scaled by -1"},
			{func(s *State) { s.Steps = s.Steps[:1] }, "the state is of 1 parameters, the optimizer has 2"},
			{func(s *State) { s.Steps[1] = -1 }, "parameter 1 has done -1 steps"},
			{func(s *State) { s.Steps[1] = 0 }, "parameter 1 has done 0 steps, and its exp_avg is float32[1]"},
			{func(s *State) { s.Tensors = s.Tensors[1:] }, "parameter 0 has done 1 steps, and its exp_avg is nil"},
			{func(s *State) { s.Tensors[0].Param = 2 }, "exp_avg is of parameter 2, and there are 2"},
			{func(s *State) { s.Tensors[0].Param = -1 }, "exp_avg is of parameter -1"},
			{func(s *State) { s.Tensors[0].Name = "momentum_buffer" }, "momentum_buffer of parameter 0 is not kept with these options"},
			{func(s *State) { s.Tensors[0].Name = "exp_avg_sq" }, "exp_avg_sq of parameter 0 is there twice"},
			{func(s *State) { s.Tensors[0].Tensor = params[1] }, "exp_avg of parameter 0 is float32[1], the parameter is float32[2]"},
			{func(s *State) { s.Tensors[3].Tensor = nil }, "exp_avg_sq of parameter 1: closed"},
			{func(s *State) { s.Tensors[3].Tensor = closed }, "exp_avg_sq of parameter 1: closed"},
		} {
			s := opt.State(x)
			c.spoil(&s)
			if err := opt.Restore(x, s); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "optim: adam: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		s := opt.State(x)
		params[0].Close()
		torchtest.WantError(t, opt.Restore(x, s), cgotorch.ErrClosed, "parameter 0: closed")
		opt.Close()
		torchtest.WantError(t, opt.Restore(x, s), cgotorch.ErrClosed, "the optimizer: closed")
	})
}

func stateOf(t *testing.T, stream *cgotorch.Stream, o *Optimizer) (s State) {
	t.Helper()
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) { s = o.State(x) })
	return s
}

// A first step that fails after it has made its tensors leaves no state to save. After a second
// step and Close, no handle is open.
func TestStep_FirstFails(t *testing.T) {
	for name, new := range map[string]func(g Group) (*Optimizer, error){
		"sgd": func(g Group) (*Optimizer, error) {
			return NewSGD(SGDOptions{Momentum: 0.9, Foreach: true}, g)
		},
		"adamw": func(g Group) (*Optimizer, error) { return NewAdamW(AdamOptions{Foreach: true}, g) },
	} {
		before := cgotorch.LiveHandles()
		stream := cgotorch.Must(cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{}))
		var good, bad *cgotorch.Tensor
		var o *Optimizer
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
			good = x.Keep(param(x, 1, 2))
			bad = x.Keep(x.Expand(cgotorch.FromSlice(x, []float32{1}), 3)) // an expanded tensor cannot be changed in place
			setGrad(x, good, 1)
			setGrad(x, bad, 1)
			var err error
			o, err = new(Group{Params: []*cgotorch.Tensor{good, bad}})
			return err
		})
		for range 2 {
			if err := stream.Do(func(x *cgotorch.Exec) error { o.Step(x); return nil }); err == nil || !strings.Contains(err.Error(), "single memory location") {
				t.Fatalf("%s: got error %v, want one of the step's last operator", name, err)
			}
			if s := stateOf(t, stream, o); len(s.Tensors) != 0 || !slices.Equal(s.Steps, []int64{0, 0}) {
				t.Errorf("%s: the state has the steps %v and %d tensors, want none", name, s.Steps, len(s.Tensors))
			}
		}
		if err := stream.Do(func(x *cgotorch.Exec) error {
			cgotorch.Check(o.Restore(x, o.State(x)))
			bad.SetGrad(nil)
			o.Step(x)
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s := stateOf(t, stream, o); !slices.Equal(s.Steps, []int64{1, 0}) || len(s.Tensors) != len(o.rule.remembers()) {
			t.Errorf("%s: after a step of one parameter the state has the steps %v and %d tensors", name, s.Steps, len(s.Tensors))
		}
		for _, close := range []func() error{o.Close, good.Close, bad.Close, stream.Close} {
			must.Do(t, close())
		}
		if after := cgotorch.LiveHandles(); !maps.Equal(before, after) {
			t.Errorf("%s: handles: %v before, %v after", name, before, after)
		}
	}
}
