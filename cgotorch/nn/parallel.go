package nn

import (
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Parallel gives its input to several branches and joins their results, as the blocks of GoogLeNet do. The branches run side by side on the
// device where that is faster: see [cgotorch.Exec.Parallel].
type Parallel struct {
	Branches []Child
	Join     Join              // nil means Concat(1), of the channels
	Schedule Schedule          // "" means the faster one, which the first calls find out
	Log      func(text string) // is told what was found, and why; nil for nobody

	once   sync.Once
	choice *cgotorch.Choice
}

// Schedule says how the branches of a [Parallel] run.
type Schedule string

// The schedules.
const (
	Fastest    Schedule = ""             // measured, for each shape of the input
	SideBySide Schedule = "side by side" // on a stream each
	InTurn     Schedule = "in turn"      // one after another
)

// Join makes one tensor of the results of branches, which it does not close.
type Join interface {
	join(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor
	// transient: it is as cgotorch.ParallelOptions.Transient says.
	transient() bool
}

// Concat joins along a dimension; the others must be equal.
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

// Decisions are what was found for each shape of the input so far.
func (m *Parallel) Decisions() []cgotorch.Decision { return m.measure().Decisions() }

func (m *Parallel) measure() *cgotorch.Choice {
	m.once.Do(func() { m.choice = cgotorch.NewChoice(cgotorch.ChoiceOptions{Log: m.Log}) })
	return m.choice
}

// Forward returns what Join makes of the branches' results.
func (m *Parallel) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "nn.Parallel"
	if len(m.Branches) == 0 {
		refuse(x, where, "there are no branches")
	}
	branches := make([]func(x *cgotorch.Exec) *cgotorch.Tensor, len(m.Branches))
	for i, b := range m.Branches {
		branches[i] = func(x *cgotorch.Exec) *cgotorch.Tensor { return b.Module.Forward(x, in) }
	}
	join := m.Join
	if join == nil {
		join = Concat(1)
	}
	results := m.run(x, where, cgotorch.ParallelOptions{Inputs: []*cgotorch.Tensor{in}, Transient: join.transient()}, branches)
	out := join.join(x, results)
	closeUnless(out, results...)
	return out
}

func (m *Parallel) run(x *cgotorch.Exec, where string, o cgotorch.ParallelOptions, branches []func(x *cgotorch.Exec) *cgotorch.Tensor) []*cgotorch.Tensor {
	switch m.Schedule {
	case Fastest:
		o.Choice = m.measure()
	case SideBySide:
	case InTurn:
		results := make([]*cgotorch.Tensor, len(branches))
		for i, b := range branches {
			results[i] = b(x)
		}
		return results
	default:
		refuse(x, where, "Schedule is %q, want side by side, in turn, or nothing for the faster one", m.Schedule)
	}
	return x.ParallelWith(o, branches...)
}
