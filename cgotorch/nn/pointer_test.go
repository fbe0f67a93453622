package nn_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// dropping is a module whose Forward has a value receiver, so that an interface can hold it by
// value.
type dropping struct{ Drop nn.Dropout }

func (d dropping) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return d.Drop.Forward(x, in)
}

// flagged has a flag of its own.
type flagged struct{ Eval bool }

func (f flagged) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in }

// weighted has a tensor of its own.
type weighted struct{ Weight *cgotorch.Tensor }

func (w weighted) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in }

// doubling has nothing that could be changed.
type doubling struct{ By float64 }

func (d doubling) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.MulScalar(in, d.By)
}

// pair holds its modules by pointer.
type pair struct{ A, B *nn.Dropout }

func (p pair) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in }

// No function of the package changes a copy of a module in silence.
func TestModules_ByValue(t *testing.T) {
	torchtest.CheckLeaks(t)
	device := cgotorch.DefaultStream(cgotorch.CPU)
	entries := map[string]func(x *cgotorch.Exec, m any) error{
		"SetTraining":     func(x *cgotorch.Exec, m any) error { nn.SetTraining(m, false); return nil },
		"SetFused":        func(x *cgotorch.Exec, m any) error { nn.SetFused(m, false); return nil },
		"SetParallelism":  func(x *cgotorch.Exec, m any) error { nn.SetParallelism(m, nn.AlwaysSerial); return nil },
		"SetRanks":        func(x *cgotorch.Exec, m any) error { nn.SetRanks(m, nil); return nil },
		"Apply":           func(x *cgotorch.Exec, m any) error { nn.Apply(m, func(any) {}); return nil },
		"State":           func(x *cgotorch.Exec, m any) error { nn.State(m); return nil },
		"Parameters":      func(x *cgotorch.Exec, m any) error { nn.Parameters(m); return nil },
		"NamedParameters": func(x *cgotorch.Exec, m any) error { nn.NamedParameters(m); return nil },
		"Check":           func(x *cgotorch.Exec, m any) error { return nn.Check(m) },
		"ZeroGrad":        func(x *cgotorch.Exec, m any) error { return nn.ZeroGrad(m) },
		"Close":           func(x *cgotorch.Exec, m any) error { return nn.Close(m) },
		"Load":            func(x *cgotorch.Exec, m any) error { return nn.Load(x, m, nil, nn.LoadOptions{AllowMissing: true}) },
		"To":              func(x *cgotorch.Exec, m any) error { nn.To(x, m, nn.ToOptions{}); return nil },
		"Replace": func(x *cgotorch.Exec, m any) error {
			return nn.Replace(m, func(nn.Named) *cgotorch.Tensor { return nil })
		},
	}
	weight := cgotorch.Must(cgotorch.DoValue(device, func(x *cgotorch.Exec) (*cgotorch.Tensor, error) { return x.Keep(x.Ones(cgotorch.Float32, 2)), nil }))
	defer weight.Close()
	for name, test := range map[string]struct {
		m    any
		want string
	}{
		"a struct":                        {dropping{}, "a nn_test.dropping was given by value, and a copy of it with its drop would be changed: give a pointer, as in &model"},
		"a layer":                         {nn.Linear{}, "a nn.Linear was given by value"},
		"a struct of pointers":            {pair{&nn.Dropout{}, &nn.Dropout{}}, "a nn_test.pair was given by value"},
		"a struct without a name":         {struct{ Drop nn.Dropout }{}, "was given by value"},
		"an array":                        {[2]nn.Dropout{}, "a [2]nn.Dropout was given by value"},
		"a map":                           {map[string]nn.Dropout{"a": {}}, "a map of type map[string]nn.Dropout, has no order"},
		"a map of pointers":               {map[string]*nn.Dropout{"a": {}}, "a map of type map[string]*nn.Dropout, has no order"},
		"a pointer to a map":              {&map[string]*nn.Dropout{"a": {}}, "has no order"},
		"a tensor":                        {weight, "a tensor was given in place of a module"},
		"in a list of modules":            {[]nn.Module{&nn.ReLU{}, dropping{}}, "1, of type nn_test.dropping, is held by value, and a copy of it would be changed: hold a pointer, as in &nn_test.dropping{…}"},
		"in a list of any":                {[]any{flagged{}}, "0, of type nn_test.flagged, is held by value"},
		"in a Sequential":                 {nn.NewSequential(&nn.ReLU{}, flagged{}), "1, of type nn_test.flagged, is held by value"},
		"in a Sequential in a Sequential": {nn.NewSequential(nn.NewSequential(weighted{weight})), "0.0, of type nn_test.weighted, is held by value"},
		"in a Residual":                   {&nn.Residual{Body: dropping{}}, "nn_test.dropping, is held by value"},
		"in a field":                      {&struct{ Body nn.Module }{dropping{}}, "body, of type nn_test.dropping, is held by value"},
		"an array in a field of any":      {&struct{ Body any }{[1]nn.Dropout{}}, "body, of type [1]nn.Dropout, is held by value"},
		"a pointer to an interface":       {func() any { m := nn.Module(dropping{}); return &m }(), "a nn_test.dropping was given by value"},
		"nil":                             {nil, ""},
		"a nil pointer":                   {(*nn.Linear)(nil), ""},
		"a pointer":                       {&dropping{}, ""},
		"a pointer to a pointer":          {func() any { m := &dropping{}; return &m }(), ""},
		"a list of structs":               {[]nn.Dropout{{}, {}}, ""},
		"a pointer to an array":           {&[2]nn.Dropout{}, ""},
		"structs in a pointer":            {&struct{ Layers [2]dropping }{}, ""},
		"a value without anything":        {nn.NewSequential(doubling{2}, nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in })), ""},
		"a value of pointers in a module": {nn.NewSequential(pair{&nn.Dropout{}, &nn.Dropout{}}), ""},
		"a value of pointers in a list":   {[]any{pair{&nn.Dropout{}, &nn.Dropout{}}}, ""},
	} {
		for entry, call := range entries {
			err := device.Do(func(x *cgotorch.Exec) error { return call(x, test.m) })
			switch {
			case test.want == "" && err != nil:
				t.Errorf("%s of %s: %v", entry, name, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, cgotorch.ErrInvalidArgument)):
				t.Errorf("%s of %s: got %v, want %q", entry, name, err, test.want)
			}
		}
	}
	two := pair{&nn.Dropout{}, &nn.Dropout{}}
	nn.SetTraining(nn.NewSequential(two), false)
	if !two.A.Eval || !two.B.Eval {
		t.Error("a dropout behind a pointer is still in training")
	}
}
