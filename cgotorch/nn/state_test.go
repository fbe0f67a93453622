package nn_test

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// leaf is a module with a buffer between two parameters.
type leaf struct {
	Weight  *cgotorch.Tensor
	Running *cgotorch.Tensor `state:",buffer"`
	Bias    *cgotorch.Tensor
}

func (l *leaf) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Alias(in) }

func newLeaf(x *cgotorch.Exec) *leaf {
	tensor := func() *cgotorch.Tensor { return x.Keep(x.Zeros(cgotorch.Float32, 2)) }
	return &leaf{tensor(), tensor(), tensor()}
}

type inner struct{ Embedded *leaf }

type wrapped struct {
	nn.Module
	Extra *leaf
}

type stack struct {
	nn.Sequential
	Extra *leaf
}

type everything struct {
	Child       *leaf // listed after Own, because tensors of the module come before children
	Own         *cgotorch.Tensor
	FC          *leaf
	BN1         nn.Module
	RunningMean *leaf
	LayerNorm2d leaf
	inner                          // its fields are listed although the name inner is not exported
	Named       *leaf              `state:"other"`
	Hidden      *leaf              `state:"-"`
	Blocks      []nn.Module        // has children 0 and 1
	List        []*cgotorch.Tensor // has tensor 0
	Order       *nn.Sequential     // has child 0
	Missing     *leaf
	MissingToo  nn.Module
	Options     struct{ Width int }
	Stream      *cgotorch.Stream
	Numbers     []int
	Pair        [2]*leaf      // has children 0 and 1
	Stages      [][]nn.Module // has children 0.0 and 0.1
	Twice       [1][2]leaf    // has children 0.0 and 0.1
	Indirect    **leaf
	Rows        [][]float32
	private     *leaf
	Table       map[string]*leaf
}

func TestState_NamesAndOrder(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		hidden := newLeaf(x)
		m := &everything{
			Child: newLeaf(x), Own: x.Keep(x.Zeros(cgotorch.Float32)), FC: newLeaf(x), BN1: newLeaf(x), RunningMean: newLeaf(x),
			LayerNorm2d: *newLeaf(x), Named: newLeaf(x), Hidden: hidden, Blocks: []nn.Module{newLeaf(x), nil, newLeaf(x)},
			List: []*cgotorch.Tensor{x.Keep(x.Zeros(cgotorch.Float32))}, Order: nn.NewSequential(newLeaf(x)),
			inner:  inner{newLeaf(x)},
			Pair:   [2]*leaf{nil, newLeaf(x)},
			Stages: [][]nn.Module{nil, {newLeaf(x)}}, Twice: [1][2]leaf{{*newLeaf(x), *newLeaf(x)}}, Rows: [][]float32{{1}},
			Stream: cgotorch.DefaultStream(cgotorch.CPU), private: hidden,
		}
		indirect := newLeaf(x)
		m.Indirect = &indirect
		defer nn.Close(hidden)
		defer nn.Close(m)
		var want []string
		want = append(want, "own")
		for _, prefix := range []string{
			"child", "fc", "bn1", "running_mean", "layer_norm2d", "embedded", "other", "blocks.0", "blocks.2", "list", "order.0",
			"pair.1", "stages.1.0", "twice.0.0", "twice.0.1", "indirect",
		} {
			if prefix == "list" {
				want = append(want, "list.0")
				continue
			}
			want = append(want, prefix+".weight", prefix+".bias", prefix+".running") // parameters come before buffers
		}
		var got []string
		for _, n := range nn.State(m) {
			got = append(got, n.Name)
			if wantBuffer := len(n.Name) > 8 && n.Name[len(n.Name)-8:] == ".running"; n.Buffer != wantBuffer {
				t.Errorf("%s: buffer is %v", n.Name, n.Buffer)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

func TestState_Embedded(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a, b := newLeaf(x), newLeaf(x)
		defer nn.Close(a)
		defer nn.Close(b)
		for name, c := range map[string]struct {
			module any
			want   []string
		}{
			"interface":  {&wrapped{a, b}, []string{"weight", "bias", "running", "extra.weight", "extra.bias", "extra.running"}},
			"container":  {&stack{*nn.NewSequential(a), b}, []string{"0.weight", "0.bias", "0.running", "extra.weight", "extra.bias", "extra.running"}},
			"nil":        {&wrapped{nil, b}, []string{"extra.weight", "extra.bias", "extra.running"}},
			"slice":      {[]*leaf{nil, b}, []string{"1.weight", "1.bias", "1.running"}},
			"nothing":    {nil, nil},
			"no module":  {7, nil},
			"nil module": {(*leaf)(nil), nil},
		} {
			var got []string
			for _, n := range nn.State(c.module) {
				got = append(got, n.Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
	})
}

// The tensors of children without a name have names as if they belonged to the parent, at any
// depth.
func TestState_UnnamedChildren(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a, b, c := newLeaf(x), newLeaf(x), newLeaf(x)
		nested := &nn.Sequential{Modules: []nn.Child{{Name: "b", Module: b}, {Module: &nn.Parallel{Branches: []nn.Child{{Name: "c", Module: c}}}}}}
		m := nn.NewSequential(&nn.Sequential{Modules: []nn.Child{{Name: "a", Module: a}, {Module: nested}}})
		defer nn.Close(m)
		var got []string
		for _, n := range nn.State(m) {
			got = append(got, n.Name)
		}
		want := []string{"0.a.weight", "0.a.bias", "0.a.running", "0.b.weight", "0.b.bias", "0.b.running", "0.c.weight", "0.c.bias", "0.c.running"}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		must.Do(t, nn.Check(m))
	})
}

func TestState_HoldsItself(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := newLeaf(x)
		defer nn.Close(l)
		s := nn.NewSequential(l)
		s.Modules = append(s.Modules, nn.Child{Name: "loop", Module: s})
		if got := len(nn.State(s)); got != 3 {
			t.Errorf("%d tensors, want 3", got)
		}
	})
}

// looped is a module with a pointer to a module around it, which is no mistake.
type looped struct {
	Leaf *leaf
	Next nn.Module
}

func (m *looped) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Alias(in)
}

// deep makes a new child at each call of Children.
type deep struct{ Level int }

func (m *deep) Children() []nn.Child {
	return []nn.Child{{Name: "more", Module: &deep{m.Level + 1}}}
}
func (*deep) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Alias(in)
}

// embedding embeds a pointer to its own type.
type embedding struct {
	*embedding
	Weight *cgotorch.Tensor
}

// A container that holds itself, a list that does, and children without end are errors that name
// the path. No walk of a module ends the process.
func TestCheck_HoldsItself(t *testing.T) {
	outer, inner := nn.NewSequential(), nn.NewSequential()
	inner.Modules = []nn.Child{{Name: "back", Module: outer}}
	outer.Modules = []nn.Child{{Name: "a", Module: &nn.Identity{}}, {Name: "in", Module: inner}}
	branches := nn.NewParallel()
	branches.Branches = []nn.Child{{Name: "0", Module: branches}}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		list := []any{&nn.Identity{}, nil}
		list[1] = list
		table := map[string]any{}
		table["self"] = table
		ring := &looped{Leaf: newLeaf(x)}
		ring.Next = &looped{Next: ring}
		defer nn.Close(ring)
		self := &embedding{}
		self.embedding = self
		for name, test := range map[string]struct {
			m    any
			want string // "" for no error
		}{
			"Sequential":       {outer, "in.back, of type *nn.Sequential, is around itself"},
			"Sequential below": {&struct{ Body *nn.Sequential }{outer}, "body.in.back, of type"},
			"Parallel":         {branches, "0, of type *nn.Parallel, is around itself"},
			"list":             {list, "1, of type []interface {}, is around itself"},
			"children":         {&deep{}, "lies more than 1000 modules deep"},
			"map":              {&struct{ Table map[string]any }{table}, ""},
			"parent":           {ring, ""},
			"embedded":         {self, ""},
		} {
			err := nn.Check(test.m)
			if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 400) {
				t.Errorf("%s: error %v, want %q", name, err, test.want)
			}
			nn.State(test.m)
			nn.SetTraining(test.m, false)
			nn.SetFused(test.m, false)
			nn.SetParallelism(test.m, nn.AlwaysSerial)
			nn.Apply(test.m, func(any) {})
			_, release := nn.CastWeights(x.Autocast(cgotorch.BFloat16), test.m)
			release()
		}
	})
	for want, m := range map[string]nn.Module{"the child in.back is": outer, "the child 0 is": branches} {
		for _, call := range []func(x *cgotorch.Exec){
			func(x *cgotorch.Exec) { m.Forward(x, x.Ones(cgotorch.Float32, 1)) },
			func(x *cgotorch.Exec) { nn.Fuse(x, m, nn.FuseOptions{}) },
			func(x *cgotorch.Exec) { nn.To(x, m, nn.ToOptions{}) },
		} {
			err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { call(x); return nil })
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "is around itself") {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	}
}

func TestParameters_TiedOnce(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := newLeaf(x)
		m := nn.NewSequential(l, l)
		if got := len(nn.State(m)); got != 6 {
			t.Errorf("the state has %d entries, want 6", got)
		}
		if got := nn.Parameters(m); len(got) != 2 || got[0] != l.Weight || got[1] != l.Bias {
			t.Errorf("the parameters are %v, want the weight and the bias", got)
		}
		if got := nn.NamedParameters(m); len(got) != 2 || got[1].Name != "0.bias" {
			t.Errorf("the named parameters are %v", got)
		}
		if got := countParameters(m); got != 4 {
			t.Errorf("%d parameters, want 4", got)
		}
		for range 2 {
			must.Do(t, nn.Close(m))
		}
		if !l.Running.Closed() {
			t.Error("a buffer is open after Close")
		}
	})
}

func TestFreeze(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		body, head := nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		m := nn.NewSequential(body, nn.NewBatchNorm1d(x, 2, nn.BatchNormOptions{}), head)
		defer nn.Close(m)
		nn.Freeze(body)
		x.Backward(x.Sum(m.Forward(x, x.Ones(cgotorch.Float32, 4, 2))))
		if body.Weight.RequiresGrad() || body.Bias.Grad() != nil || head.Weight.Grad() == nil {
			t.Error("the body has gradients, or the head has none")
		}
	})
}

func TestSetTraining(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		norm := nn.NewBatchNorm2d(x, 2, nn.BatchNormOptions{})
		defer nn.Close(norm)
		dropout, embedded := &nn.Dropout{P: 0.5}, &nn.Dropout{P: 0.5}
		m := &stack{*nn.NewSequential(&nn.Residual{Body: norm}, dropout, &wrapped{Module: embedded}), nil}
		for _, training := range []bool{false, true} {
			nn.SetTraining(m, training)
			if norm.Eval == training || dropout.Eval == training || embedded.Eval == training {
				t.Errorf("training %v: Eval is %v, %v and %v", training, norm.Eval, dropout.Eval, embedded.Eval)
			}
		}
	})
}

func TestZeroGrad(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(m)
		x.Backward(m.Forward(x, x.Ones(cgotorch.Float32, 1, 2)))
		if m.Weight.Grad() == nil || m.Bias.Grad() == nil {
			t.Fatal("no gradient after Backward")
		}
		must.Do(t, nn.ZeroGrad(m))
		if m.Weight.Grad() != nil || m.Bias.Grad() != nil {
			t.Error("a gradient after ZeroGrad")
		}
	})
}

// countParameters returns the number of elements of all parameters of m.
func countParameters(m any) (n int64) {
	for _, p := range nn.Parameters(m) {
		n += p.Numel()
	}
	return n
}
