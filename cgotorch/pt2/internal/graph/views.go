package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// Note [Views that copy]
//
// Operators order the elements of their results differently on each device. A view of a program
// that was exported on one device may therefore be impossible on another. Such a view copies: it is
// a reshape, which returns a view where one is possible.
//
// A copy is equal to a view until somebody writes into the memory that the view would share. So the
// slots of a graph are joined to sets that may share memory. A view copies only if no later step
// writes into its set. A set with an input and an output counts as written after the last step,
// because the caller may write into the input and read the output. Two inputs count as different
// memory. A view that may not copy stays a view, and fails as in PyTorch.
//
// Schemas tell who shares and who writes. A result of aten::add_(Tensor(a!) self, …) -> Tensor(a!)
// shares memory with self, into which the operator writes. Schemas of batch norms do not tell that
// training writes into the running mean and variance.

// unmarked are the operators that may return memory of an argument though their schemas do not
// tell. They are those of LibTorch 2.11 that were seen to do so.
var unmarked = OperatorSet(`_unsafe_view align_tensors alpha_dropout atleast_1d atleast_1d.Sequence atleast_2d atleast_2d.Sequence atleast_3d
	atleast_3d.Sequence broadcast_tensors cartesian_prod conj_physical dequantize.self dropout einsum feature_alpha_dropout
	feature_dropout flatten_dense_tensors lift meshgrid meshgrid.indexing sum_to_size to_dense type_as unflatten_dense_tensors
	unsafe_chunk unsafe_split.Tensor unsafe_split_with_sizes`)

// ViewsMayCopy turns views into reshapes. See Note [Views that copy].
func (g *Graph) ViewsMayCopy() {
	set := g.MemorySets()
	lastWrite := map[int]int{} // by slot, and later by set: the last step that writes into it
	for i := range g.Steps {
		_, written := g.Steps[i].Memory()
		for _, slot := range written {
			lastWrite[slot] = i
		}
	}
	for slot, i := range lastWrite {
		lastWrite[set(slot)] = max(lastWrite[set(slot)], i)
	}
	returned := map[int]bool{}
	for i := range g.Outputs {
		for _, slot := range SlotsOf(&g.Outputs[i]) {
			returned[set(slot)] = true
		}
	}
	for _, slot := range g.Inputs {
		at, written := lastWrite[set(slot)]
		inStep := written && at < len(g.Steps)
		g.writes, g.Written = g.writes || inStep, append(g.Written, inStep)
		if returned[set(slot)] {
			g.shares = true
			lastWrite[set(slot)] = len(g.Steps)
		}
	}
	for i, s := range g.Steps {
		c, ok := s.Act.(*Call)
		if !ok || s.Node.Operator != "aten.view.default" || len(c.Args) == 0 || c.Args[0].Slot < 0 {
			continue
		}
		if at := lastWrite[set(c.Args[0].Slot)]; at > i {
			what := "is written into an input of its graph"
			if at < len(g.Steps) {
				what = fmt.Sprintf("node %.80s writes", g.Steps[at].Node.Name)
			}
			s.Node.Cure = fmt.Sprintf("a copy would not hold what %s later: in Python, call .contiguous() on the tensor before its first view, and export again", what)
			continue
		}
		c.Op, s.Node.Operator = opcall.New("aten::reshape"), "aten.reshape.default"
		s.Node.Text = strings.Replace(s.Node.Text, " = aten.view.default(", " = aten.reshape.default(", 1)
	}
}

// MemorySets returns a function that returns the set of a slot: one of the slots with which it may
// share memory.
func (g *Graph) MemorySets() func(slot int) int {
	sets := make([]int, g.Slots) // by slot: another slot of its set, or the slot itself
	for slot := range sets {
		sets[slot] = slot
	}
	set := func(slot int) int {
		for ; sets[slot] != slot; slot = sets[slot] {
			sets[slot] = sets[sets[slot]]
		}
		return slot
	}
	for i := range g.Steps {
		shared, _ := g.Steps[i].Memory()
		for _, slot := range shared {
			sets[set(slot)] = set(shared[0])
		}
	}
	return set
}

// Memory returns the slots of a step that may share memory with each other, and the slots into
// whose memory it may write.
func (s *Step) Memory() (shared, written []int) {
	var graphs []*Graph
	shares := false
	switch act := s.Act.(type) {
	case *Call:
		silent, trains := unmarked[s.Node.Operator], act.trains()
		for i, p := range act.Schema.Arguments {
			if i >= len(act.Args) {
				break
			}
			slots := SlotsOf(&act.Args[i])
			if (p.Shares || silent) && strings.HasPrefix(p.Kind, "Tensor") {
				shared = append(shared, slots...)
			}
			if p.Writes || trains && (p.Name == "running_mean" || p.Name == "running_var") {
				written = append(written, slots...)
			}
		}
		if silent || slices.ContainsFunc(act.Schema.Results, func(r opschema.Argument) bool { return r.Shares }) {
			return append(shared, act.Outs...), written
		}
		return nil, written
	case *Region:
		graphs = []*Graph{act.Graph}
	case *Condition:
		graphs = []*Graph{act.Then, act.Otherwise}
	case *WhileLoop:
		graphs, shares = []*Graph{act.Holds, act.Body}, true
	case *Scan:
		graphs, shares = []*Graph{act.Body}, true
	}
	slots := append(SlotsOf(s.Act.Reads()...), s.Act.Fills()...)
	if shares || slices.ContainsFunc(graphs, func(g *Graph) bool { return g.shares }) {
		shared = slots
	}
	if slices.ContainsFunc(graphs, func(g *Graph) bool { return g.writes }) {
		written = slots
	}
	return shared, written
}

// trains reports whether an operator is a norm that may run as in training.
func (o *Call) trains() bool {
	for _, name := range []string{"training", "use_input_stats"} {
		if at := o.Schema.Place(name); at >= 0 {
			on, isConstant := ConstantAt[bool](o.Args, at)
			return on || !isConstant
		}
	}
	return false
}
