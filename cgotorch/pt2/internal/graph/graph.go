// Package graph runs the steps of a program of torch.export.
package graph

import (
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Graph is a list of steps. A sub-graph, such as a branch of a condition, is a graph too.
type Graph struct {
	File    string // for errors
	Name    string
	Slots   int
	Inputs  []int // the slots of the inputs
	Outputs []Operand
	Aliased []bool // output i is also an input or an earlier output, so its handle must be made anew
	Steps   []Step

	shares  bool   // Outputs may share memory with inputs
	writes  bool   // Steps may write into inputs
	Written []bool // Steps may write into input i
}

// Step is one node.
type Step struct {
	Node  *Node
	Act   Action
	frees []int // the slots that no later step reads
}

// Action runs a node: it reads the slots of its arguments and fills the slots of its results.
type Action interface {
	Run(x *cgotorch.Exec, f *Frame)
	Reads() []*Operand
	Fills() []int
}

// Operand is an argument: a slot, a list with slots in it, or a constant.
type Operand struct {
	Slot     int  // -1 for a list or a constant
	Number   bool // the slot holds a number, and no tensor
	Constant any
	List     []Operand
	Of       ListKind
}

// ListKind is the kind of the items of a list.
type ListKind int

const (
	NoList ListKind = iota
	TensorList
	IntList
	BoolList
	FloatList
)

// OnDevice is the constant that stands for the device of the Exec.
type OnDevice struct{}

// ConstantOf returns the operand of a constant.
func ConstantOf(v any) Operand { return Operand{Slot: -1, Constant: v} }

// IsDefault reports whether the operator's own default stands for the argument.
func (o *Operand) IsDefault() bool {
	return o.Slot < 0 && o.Of == NoList && o.Constant == cgotorch.Default
}

// IsNone reports whether the argument is Python's None.
func (o *Operand) IsNone() bool { return o.Slot < 0 && o.Of == NoList && o.Constant == nil }

// Free gives each step the slots that no step and no output reads after it. The inputs belong to
// the caller.
func (g *Graph) Free() {
	last := map[int]int{} // by slot: the last step that fills or reads it
	for i := range g.Steps {
		for _, slot := range g.Steps[i].Act.Fills() {
			last[slot] = i
		}
		for _, slot := range SlotsOf(g.Steps[i].Act.Reads()...) {
			if _, own := last[slot]; own {
				last[slot] = i
			}
		}
		g.Steps[i].frees = nil
	}
	for i := range g.Outputs {
		for _, slot := range SlotsOf(&g.Outputs[i]) {
			delete(last, slot)
		}
	}
	for slot, i := range last {
		g.Steps[i].frees = append(g.Steps[i].frees, slot)
	}
}

// SlotsOf returns the slots that operands name.
func SlotsOf(operands ...*Operand) (slots []int) {
	for _, o := range operands {
		if o.Slot >= 0 {
			slots = append(slots, o.Slot)
		}
		for i := range o.List {
			slots = append(slots, SlotsOf(&o.List[i])...)
		}
	}
	return slots
}

// Pointers returns the addresses of the items of lists.
func Pointers(lists ...[]Operand) (all []*Operand) {
	for _, list := range lists {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

// ConstantAt returns argument i, if it is a constant of this type.
func ConstantAt[T any](args []Operand, i int) (v T, ok bool) {
	if i < len(args) && args[i].Slot < 0 {
		v, ok = args[i].Constant.(T)
	}
	return v, ok
}

// IsTensor reports whether the operand is a slot of a tensor.
func (o *Operand) IsTensor() bool { return o.Slot >= 0 && !o.Number }

// OperatorSet returns a set of operators, which are separated by spaces. "item" is
// aten.item.default, and "sum.dim_IntList" is aten.sum.dim_IntList.
func OperatorSet(names string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(names) {
		switch strings.Count(name, ".") {
		case 0:
			name = "aten." + name + ".default"
		case 1:
			name = "aten." + name
		}
		set[name] = true
	}
	return set
}
