package nn

import (
	"reflect"
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Parallel gives its input to several branches and joins their results, as the blocks of GoogLeNet
// do. The branches run side by side on the device where that is faster: see
// [cgotorch.Exec.Parallel].
type Parallel struct {
	Branches []Child
	Join     Join              // nil means Concat(1), of the channels
	Schedule Schedule          // "" means the faster way, which the first calls measure
	Log      func(text string) // is told the measurements and the decision; nil for nobody

	once   sync.Once
	choice *cgotorch.Choice
}

// Schedule decides whether the branches of a [Parallel] run side by side.
type Schedule string

// The schedules.
const (
	Fastest    Schedule = ""             // measured, for each shape of the input
	SideBySide Schedule = "side by side" // each branch on a stream of its own
	InTurn     Schedule = "in turn"      // one after another
)

// SetSchedule sets the Schedule of every [Parallel] in m, a pointer to a module. It reaches those
// that [State] sees, and those in exported fields that the tag `state:"-"` hides. A captured
// function keeps the schedule of its capture.
func SetSchedule(m any, s Schedule) {
	w := &walker{path: map[any]bool{}}
	w.visit = func(v reflect.Value, _ []heldTensor) { setSchedule(w, v, s) }
	if v := reflect.ValueOf(m); holdsState(v) {
		w.module("", v)
	}
}

var parallelType = reflect.TypeFor[Parallel]()

// setSchedule sets the schedule of a struct that is a Parallel. Otherwise it goes on to embedded
// structs and to hidden fields.
func setSchedule(w *walker, v reflect.Value, s Schedule) {
	if v.Kind() != reflect.Struct {
		return
	}
	if v.Type() == parallelType && v.CanAddr() {
		v.Addr().Interface().(*Parallel).Schedule = s
		return
	}
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		switch {
		case stateTag(f) == "-" && f.IsExported() && holdsState(value):
			w.module("", value)
		case f.Anonymous && stateTag(f) == "":
			if embedded, ok := structUnder(value); ok {
				setSchedule(w, embedded, s)
			}
		}
	}
}

// Join makes one tensor of the branches' results. It does not close the results.
type Join interface {
	join(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor
	// transient is the value of cgotorch.ParallelOptions.Transient for this Join.
	transient() bool
}

// Concat joins along a dimension. All other dimensions must be equal.
func Concat(dim int) Join { return concat(dim) }

type concat int

func (d concat) join(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
	return x.Cat(branches, int(d))
}
func (concat) transient() bool { return true }

// Sum adds results of equal shapes.
func Sum() Join { return sum{} }

type sum struct{}

func (sum) join(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
	out := x.Alias(branches[0])
	for _, b := range branches[1:] {
		next := x.Add(out, b)
		out.Close()
		out = next
	}
	return out
}
func (sum) transient() bool { return true }

// JoinFunc joins by a function.
type JoinFunc func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor

func (f JoinFunc) join(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
	return f(x, branches)
}
func (JoinFunc) transient() bool { return false }

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

// Decisions returns the decisions made so far, one for each shape of the input.
func (m *Parallel) Decisions() []cgotorch.Decision { return m.measure().Decisions() }

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

func (m *Parallel) join() Join {
	if m.Join == nil {
		return Concat(1)
	}
	return m.Join
}

// joined joins results and closes them.
func (m *Parallel) joined(x *cgotorch.Exec, results []*cgotorch.Tensor) *cgotorch.Tensor {
	out := m.join().join(x, results)
	closeUnless(out, results...)
	return out
}

// run returns the results of branches that read inputs.
func (m *Parallel) run(x *cgotorch.Exec, inputs []*cgotorch.Tensor, branches []func(x *cgotorch.Exec) *cgotorch.Tensor) []*cgotorch.Tensor {
	o := cgotorch.ParallelOptions{Inputs: inputs, Transient: m.join().transient()}
	switch m.Schedule {
	case Fastest:
		o.Choice = m.measure()
	case SideBySide:
	case InTurn:
		o.Serial = true
	default:
		refuse(x, "nn.Parallel", "Schedule is %q, want side by side, in turn, or nothing for the faster one", m.Schedule)
	}
	return x.ParallelWith(o, branches...)
}
