package nn

import (
	"reflect"
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Parallel gives its input to several branches and joins their results, as the blocks of
// GoogLeNet do. The branches run in parallel on the device if that is faster: see
// [cgotorch.Exec.Parallel].
type Parallel struct {
	Branches []Child
	// Join makes one tensor from the results of the branches, and does not close the results. nil
	// concatenates the results along the channels.
	Join        func(x *cgotorch.Exec, results []*cgotorch.Tensor) *cgotorch.Tensor
	Parallelism Parallelism       // "" means that the first calls measure whether parallel or serial branches are faster
	Log         func(text string) // is called with the measurements and the decision; nil means no calls

	once   sync.Once
	choice *cgotorch.Choice
}

// Parallelism decides whether the branches of a [Parallel] run in parallel or serially.
type Parallelism string

// These are the values of Parallelism. "" means the faster of the two, for each shape of the input.
const (
	AlwaysParallel Parallelism = "parallel" // each branch on its own stream
	AlwaysSerial   Parallelism = "serial"   // one branch after another
)

// SetParallelism sets the Parallelism of every [Parallel] in m, a pointer to a module. It finds
// each Parallel that [State] sees. It also finds each Parallel in an exported field that the tag
// `state:"-"` hides. A captured function keeps the parallelism of its capture.
func SetParallelism(m any, p Parallelism) {
	w := &walker{path: map[any]int{}}
	w.visit = func(v reflect.Value, _ []heldTensor) { setParallelism(w, v, p) }
	cgotorch.Check(w.walk(m))
}

var parallelType = reflect.TypeFor[Parallel]()

// setParallelism sets the parallelism of v if v is a Parallel. If v is a struct of a different
// type, setParallelism looks into its embedded structs and hidden fields.
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

// NewParallel returns a Parallel whose branches have the names 0, 1, ….
func NewParallel(branches ...Module) *Parallel {
	m := &Parallel{}
	for i, b := range branches {
		m.Branches = append(m.Branches, Child{strconv.Itoa(i), b})
	}
	return m
}

// Children returns the branches. It implements [Container].
func (m *Parallel) Children() []Child { return m.Branches }

func (m *Parallel) measure() *cgotorch.Choice {
	m.once.Do(func() { m.choice = cgotorch.NewChoice(m.Log) })
	return m.choice
}

// Forward runs all branches on its argument `in` and joins their results.
func (m *Parallel) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	refuseLoop(x, "nn.Parallel", m)
	if len(m.Branches) == 0 {
		refuse(x, "nn.Parallel", "there are no branches")
	}
	x, release := CastWeights(x, m)
	defer release()
	branches := make([]func(x *cgotorch.Exec) *cgotorch.Tensor, len(m.Branches))
	for i, b := range m.Branches {
		branches[i] = func(x *cgotorch.Exec) *cgotorch.Tensor { return b.Module.Forward(x, in) }
	}
	return m.joined(x, m.run(x, []*cgotorch.Tensor{in}, branches))
}

// joined joins the results, and then closes them.
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

// run runs the branches and returns their results. `inputs` are the tensors that the branches read.
func (m *Parallel) run(x *cgotorch.Exec, inputs []*cgotorch.Tensor, branches []func(x *cgotorch.Exec) *cgotorch.Tensor) []*cgotorch.Tensor {
	o := cgotorch.ParallelOptions{Inputs: inputs, Transient: m.Join == nil}
	switch m.Parallelism {
	case "":
		o.Choice = m.measure()
	case AlwaysParallel:
	case AlwaysSerial:
		o.Serial = true
	default:
		refuse(x, "nn.Parallel", "Parallelism is %q, want parallel, serial, or nothing for the faster of both", m.Parallelism)
	}
	return x.Parallel(o, branches...)
}
