package nn_test

import (
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// blocks is a module whose type is a map.
type blocks map[string]*leaf

func (blocks) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Alias(in) }

type part struct{ inside *leaf } // not a module

type list []*leaf

type ring struct {
	next  *ring
	other *ring
	leaf  *leaf
}

// unseenCase is a module in which State misses a part. `want` has words of the error for that
// part.
type unseenCase struct {
	module any
	want   []string
}

func TestCheck_NamesWhatStateDoesNotSee(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := newLeaf(x)
		defer nn.Close(l)
		for _, c := range append(unexported(x, l), unseenTypes(l)...) {
			err := nn.Check(c.module)
			if err == nil {
				t.Errorf("%T: no error, want %q", c.module, c.want)
				continue
			}
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, append(c.want, "nn: ")...)
		}
	})
}

// unexported returns modules with an unexported field that holds tensors or modules.
func unexported(x *cgotorch.Exec, l *leaf) []unseenCase {
	w := l.Weight
	around := &ring{leaf: l}
	around.next, around.other = around, around
	return []unseenCase{
		{&struct{ w *cgotorch.Tensor }{w}, []string{"w, an unexported field", "*cgotorch.Tensor", "export it", `state:"-"`}},
		{&struct{ fc *leaf }{l}, []string{"fc, an unexported field of type *nn_test.leaf"}},
		{&struct{ body nn.Module }{l}, []string{"body, an unexported"}},
		{&struct{ list []nn.Module }{[]nn.Module{nil, l}}, []string{"list, an unexported"}},
		{&struct{ list [2]*leaf }{[2]*leaf{nil, l}}, []string{"list, an unexported"}},
		{&struct{ table map[int]any }{map[int]any{7: w}}, []string{"table, an unexported"}},
		{&struct{ part part }{part{l}}, []string{"part, an unexported"}},
		{&struct{ part struct{ w *cgotorch.Tensor } }{struct{ w *cgotorch.Tensor }{w}}, []string{"part, an unexported"}},
		{&struct{ drop *nn.Dropout }{&nn.Dropout{}}, []string{"drop, an unexported"}}, // SetTraining does not find this dropout
		{&struct{ ring *ring }{around}, []string{"ring, an unexported"}},
		{nn.NewSequential(&nn.Parallel{Branches: []nn.Child{{Module: blocks{"a": l}}}}), []string{": 0, a map"}},
		{&struct {
			Ring *ring
			_    int
		}{Ring: around}, []string{"Ring.leaf, an unexported"}},
		{&struct {
			Part *part
			_    int
		}{Part: &part{l}}, []string{"Part.inside, an unexported"}},
		{&struct {
			Parts []part
			_     int
		}{Parts: []part{{}, {l}}}, []string{"Parts.1.inside, an unexported"}},
		{&struct {
			Parts [2]part
			_     int
		}{Parts: [2]part{{}, {l}}}, []string{"Parts.1.inside, an unexported"}},
		{nn.NewSequential(&wrapped{Module: l}, &struct {
			wrapped
			hidden *cgotorch.Tensor
		}{hidden: x.Zeros(cgotorch.Float32)}), []string{"*nn.Sequential: 1.hidden, an unexported"}},
	}
}

// unseenTypes returns modules with a field of a type that State does not see.
func unseenTypes(l *leaf) []unseenCase {
	w := l.Weight
	return []unseenCase{
		{&struct {
			Table map[string]*leaf
			_     int
		}{Table: map[string]*leaf{"a": l}}, []string{"Table, a map", "map[string]*nn_test.leaf", "use a slice"}},
		{&struct {
			Tables []map[string]*leaf
			_      int
		}{Tables: []map[string]*leaf{{"a": l}}}, []string{"Tables.0, a map"}},
		{&struct{ Body nn.Module }{blocks{"a": l}}, []string{"Body, a map of type nn_test.blocks"}},
		{map[string]*leaf{"a": l}, []string{"the module itself, a map"}},
		{&struct{ *cgotorch.Tensor }{w}, []string{"Tensor, an embedded field", "give the field a name"}},
		{&struct{ list }{list{l}}, []string{"list, an embedded field"}},
		{&struct {
			leaf *leaf `state:"head"`
		}{l}, []string{"leaf, an unexported"}},
		{&struct {
			a *cgotorch.Tensor
			B map[int]*leaf
		}{w, map[int]*leaf{0: l}}, []string{"a, an unexported field", "B, a map"}},
	}
}

func TestCheck_Accepts(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l, drop := newLeaf(x), &nn.Dropout{}
		defer nn.Close(l)
		for _, module := range []any{
			&struct{ A, B *leaf }{l, l},
			&struct {
				A   *leaf
				all []nn.Module // for a loop in Forward; State finds the same leaf in A
			}{l, []nn.Module{l}},
			&struct {
				Drop *nn.Dropout
				drop *nn.Dropout
			}{drop, drop},
			&struct {
				hidden *leaf            `state:"-"`
				Table  map[string]*leaf `state:"-"`
			}{l, map[string]*leaf{"a": l}},
			&struct {
				w      *cgotorch.Tensor
				leaf   *leaf
				body   nn.Module
				act    *nn.ReLU
				widths map[string]int
				Names  map[string]string
				stream *cgotorch.Stream
				Stream *cgotorch.Stream
				Empty  map[string]*leaf
			}{act: &nn.ReLU{}, widths: map[string]int{"a": 1}, Names: map[string]string{"a": "b"}, stream: cgotorch.DefaultStream(cgotorch.CPU), Stream: cgotorch.DefaultStream(cgotorch.CPU)},
			&wrapped{l, l},
			&stack{*nn.NewSequential(l), l},
			[]*leaf{l},
			nil,
			7,
			(*leaf)(nil),
		} {
			if err := nn.Check(module); err != nil {
				t.Errorf("%T: got error %v", module, err)
			}
		}
	})
}

func TestTo_Checks(t *testing.T) {
	torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		nn.To(x, &struct{ w *cgotorch.Tensor }{x.Zeros(cgotorch.Float32)}, nn.ToOptions{})
	}), cgotorch.ErrInvalidArgument, "nn.To", "w, an unexported")
}

// Load and Close fail with the error of Check.
func TestCheck_ByWhatReturnsErrors(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := newLeaf(x)
		m := &struct {
			W    *cgotorch.Tensor
			list []*leaf
		}{x.Keep(x.Zeros(cgotorch.Float32)), []*leaf{l}}
		defer nn.Close(l)
		torchtest.WantError(t, nn.Load(x, m, map[string]*cgotorch.Tensor{"w": x.Zeros(cgotorch.Float32)}, nn.LoadOptions{}), cgotorch.ErrInvalidArgument, "list, an unexported")
		if err := nn.Close(m); err == nil || !strings.Contains(err.Error(), "list, an unexported") || !m.W.Closed() {
			t.Errorf("Close: %v, w is %v", err, m.W)
		}
	})
}

// Two fields with one tag give two tensors one name, so that a file cannot hold both.
func TestCheck_SameNames(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		type twice struct {
			First  *nn.Linear `state:"fc"`
			Second *nn.Linear `state:"fc"`
		}
		a, b := nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		defer nn.Close(a)
		defer nn.Close(b)
		err := nn.Check(&twice{a, b})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Second has the tag \"fc\"", "First has too")
		if err := nn.Check(&twice{a, a}); err != nil { // one layer in two places
			t.Error(err)
		}
	})
}
