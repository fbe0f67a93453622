package nn

import (
	"reflect"
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Parallel gives its input to several branches and joins their results, as the blocks of GoogLeNet
// do. The branches run parallel on the device where that is faster: see
// [cgotorch.Exec.Parallel].
type Parallel struct {
	Branches []Child
	// Join makes one tensor of the branches' results, and does not close them. nil joins their
	// channels.
	Join        func(x *cgotorch.Exec, results []*cgotorch.Tensor) *cgotorch.Tensor
	Parallelism Parallelism       // "" means the faster of both, which the first calls measure
	Log         func(text string) // is told the measurements and the decision; nil for nobody

	once   sync.Once
	choice *cgotorch.Choice
}

// Parallelism decides whether the branches of a [Parallel] run parallel or serial.
type Parallelism string

// The values of Parallelism.
const (
	Measured       Parallelism = ""         // the faster of both, for each shape of the input
	AlwaysParallel Parallelism = "parallel" // each branch on a stream of its own
	AlwaysSerial   Parallelism = "serial"   // one branch after another
)

// SetParallelism sets the Parallelism of every [Parallel] in m, a pointer to a module. It reaches
// those that [State] sees, and those in exported fields that the tag `state:"-"` hides. A captured
// function keeps the parallelism of its capture.
func SetParallelism(m any, p Parallelism) {
	w := &walker{path: map[any]bool{}}
	w.visit = func(v reflect.Value, _ []heldTensor) { setParallelism(w, v, p) }
	if v := reflect.ValueOf(m); holdsState(v) {
		w.module("", v)
	}
}

var parallelType = reflect.TypeFor[Parallel]()

// setParallelism sets the parallelism of a struct that is a Parallel. Otherwise it goes on to
// embedded structs and to hidden fields.
func setParallelism(w *walker, v reflect.Value, p Parallelism) {
	if v.Kind() != reflect.Struct {
		return
	}
	if v.Type() == parallelType && v.CanAddr() {
		v.Addr().Interface().(*Parallel).Parallelism = p
		return
	}
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		switch {
		case stateTag(f) == "-" && f.IsExported() && holdsState(value):
			w.module("", value)
		case f.Anonymous && stateTag(f) == "":
			if embedded, ok := structUnder(value); ok {
				setParallelism(w, embedded, p)
			}
		}
	}
}

// NewParallel names its branches 0, 1, ….
func NewParallel(branches ...Module) *Parallel {
	m := &Parallel{}
	for i, b := range branches {
		m.Branches = append(m.Branches, Child{strconv.Itoa(i), b})
	}
	return m
}

// Children implements [Container].
func (m *Parallel) Children() []Child { return m.Branches }

func (m *Parallel) measure() *cgotorch.Choice {
	m.once.Do(func() { m.choice = cgotorch.NewChoice(cgotorch.ChoiceOptions{Log: m.Log}) })
	return m.choice
}

// Forward joins the branches' results.
func (m *Parallel) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if len(m.Branches) == 0 {
		refuse(x, "nn.Parallel", "there are no branches")
	}
	branches := make([]func(x *cgotorch.Exec) *cgotorch.Tensor, len(m.Branches))
	for i, b := range m.Branches {
		branches[i] = func(x *cgotorch.Exec) *cgotorch.Tensor { return b.Module.Forward(x, in) }
	}
	return m.joined(x, m.run(x, []*cgotorch.Tensor{in}, branches))
}

// joined joins results and closes them.
func (m *Parallel) joined(x *cgotorch.Exec, results []*cgotorch.Tensor) *cgotorch.Tensor {
	var out *cgotorch.Tensor
	if m.Join == nil {
		out = x.Cat(results, 1)
	} else {
		out = m.Join(x, results)
	}
	closeUnless(out, results...)
	return out
}

// run returns the results of branches that read inputs.
func (m *Parallel) run(x *cgotorch.Exec, inputs []*cgotorch.Tensor, branches []func(x *cgotorch.Exec) *cgotorch.Tensor) []*cgotorch.Tensor {
	o := cgotorch.ParallelOptions{Inputs: inputs, Transient: m.Join == nil}
	switch m.Parallelism {
	case Measured:
		o.Choice = m.measure()
	case AlwaysParallel:
	case AlwaysSerial:
		o.Serial = true
	default:
		refuse(x, "nn.Parallel", "Parallelism is %q, want parallel, serial, or nothing for the faster of both", m.Parallelism)
	}
	return x.ParallelWith(o, branches...)
}
