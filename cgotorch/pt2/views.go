package pt2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
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
var unmarked = map[string]bool{
	"aten._unsafe_view.default": true, "aten.align_tensors.default": true, "aten.alpha_dropout.default": true,
	"aten.atleast_1d.default": true, "aten.atleast_1d.Sequence": true, "aten.atleast_2d.default": true, "aten.atleast_2d.Sequence": true,
	"aten.atleast_3d.default": true, "aten.atleast_3d.Sequence": true, "aten.broadcast_tensors.default": true,
	"aten.cartesian_prod.default": true, "aten.conj_physical.default": true, "aten.dequantize.self": true, "aten.dropout.default": true,
	"aten.einsum.default": true, "aten.feature_alpha_dropout.default": true, "aten.feature_dropout.default": true,
	"aten.flatten_dense_tensors.default": true, "aten.lift.default": true, "aten.meshgrid.default": true, "aten.meshgrid.indexing": true,
	"aten.sum_to_size.default": true, "aten.to_dense.default": true, "aten.type_as.default": true,
	"aten.unflatten_dense_tensors.default": true, "aten.unsafe_chunk.default": true, "aten.unsafe_split.Tensor": true,
	"aten.unsafe_split_with_sizes.default": true,
}

var reshape = opcall.New("aten::reshape")

// viewsMayCopy turns views into reshapes. See Note [Views that copy].
func (g *graph) viewsMayCopy() {
	set := g.memorySets()
	lastWrite := map[int]int{} // by slot, and later by set: the last step that writes into it
	for i := range g.steps {
		_, written := g.steps[i].memory()
		for _, slot := range written {
			lastWrite[slot] = i
		}
	}
	for slot, i := range lastWrite {
		lastWrite[set(slot)] = max(lastWrite[set(slot)], i)
	}
	returned := map[int]bool{}
	for i := range g.outputs {
		for _, slot := range slotsOf(&g.outputs[i]) {
			returned[set(slot)] = true
		}
	}
	for _, slot := range g.inputs {
		at, written := lastWrite[set(slot)]
		inStep := written && at < len(g.steps)
		g.writes, g.written = g.writes || inStep, append(g.written, inStep)
		if returned[set(slot)] {
			g.shares = true
			lastWrite[set(slot)] = len(g.steps)
		}
	}
	for i, s := range g.steps {
		c, ok := s.act.(*operatorCall)
		if !ok || s.node.Operator != "aten.view.default" || len(c.args) == 0 || c.args[0].slot < 0 {
			continue
		}
		if at := lastWrite[set(c.args[0].slot)]; at > i {
			what := "is written into an input of its graph"
			if at < len(g.steps) {
				what = fmt.Sprintf("node %.80s writes", g.steps[at].node.Name)
			}
			s.node.cure = fmt.Sprintf("a copy would not hold what %s later: in Python, call .contiguous() on the tensor before its first view, and export again", what)
			continue
		}
		c.op, s.node.Operator = reshape, "aten.reshape.default"
		s.node.Text = strings.Replace(s.node.Text, " = aten.view.default(", " = aten.reshape.default(", 1)
	}
}

// memorySets returns a function that returns the set of a slot: one of the slots with which it may
// share memory.
func (g *graph) memorySets() func(slot int) int {
	sets := make([]int, g.slots) // by slot: another slot of its set, or the slot itself
	for slot := range sets {
		sets[slot] = slot
	}
	set := func(slot int) int {
		for ; sets[slot] != slot; slot = sets[slot] {
			sets[slot] = sets[sets[slot]]
		}
		return slot
	}
	for i := range g.steps {
		shared, _ := g.steps[i].memory()
		for _, slot := range shared {
			sets[set(slot)] = set(shared[0])
		}
	}
	return set
}

// memory returns the slots of a step that may share memory with each other, and the slots into
// whose memory it may write.
func (s *step) memory() (shared, written []int) {
	var graphs []*graph
	shares := false
	switch act := s.act.(type) {
	case *operatorCall:
		silent, trains := unmarked[s.node.Operator], act.trains()
		for i, p := range parametersOf(act.schema) {
			if i >= len(act.args) {
				break
			}
			slots := slotsOf(&act.args[i])
			if strings.HasPrefix(p.of, "Tensor(") || silent && strings.HasPrefix(p.of, "Tensor") {
				shared = append(shared, slots...)
			}
			if strings.Contains(p.of, "!") || trains && (p.name == "running_mean" || p.name == "running_var") {
				written = append(written, slots...)
			}
		}
		if result := act.schema[strings.LastIndex(act.schema, "-> ")+1:]; silent || strings.Contains(result, "Tensor(") {
			return append(shared, act.outs...), written
		}
		return nil, written
	case *region:
		graphs = []*graph{act.graph}
	case *condition:
		graphs = []*graph{act.then, act.otherwise}
	case *whileLoop:
		graphs, shares = []*graph{act.holds, act.body}, true
	case *scan:
		graphs, shares = []*graph{act.body}, true
	}
	slots := append(slotsOf(s.act.reads()...), s.act.fills()...)
	if shares || slices.ContainsFunc(graphs, func(g *graph) bool { return g.shares }) {
		shared = slots
	}
	if slices.ContainsFunc(graphs, func(g *graph) bool { return g.writes }) {
		written = slots
	}
	return shared, written
}

// trains reports whether an operator is a norm that may run as in training.
func (o *operatorCall) trains() bool {
	at := slices.IndexFunc(parametersOf(o.schema), func(p parameter) bool { return p.name == "training" || p.name == "use_input_stats" })
	if at < 0 {
		return false
	}
	on, isConstant := constantAt[bool](o.args, at)
	return on || !isConstant
}
