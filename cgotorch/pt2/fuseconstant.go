package pt2

import (
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// foldable are operators without random numbers, whose results depend on their arguments alone.
var foldable = map[string]bool{}

func init() {
	for _, name := range strings.Fields(`abs.default add.Tensor add.Scalar add_.Tensor add_.Scalar alias.default arange.default arange.start arange.start_step
		bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor cat.default chunk.default clamp.default clamp_min.default clone.default contiguous.default
		copy_.default cos.default detach.default detach_.default div.Scalar div.Tensor div.Tensor_mode eq.Scalar eq.Tensor exp.default expand.default
		fill_.Scalar fill_.Tensor flatten.using_ints floor.default full.default full_like.default ge.Scalar ge.Tensor gt.Scalar gt.Tensor index.Tensor
		index_select.default le.Scalar le.Tensor lift_fresh_copy.default log.default logical_and.default logical_not.default logical_or.default
		lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar maximum.default minimum.default movedim.int mul.Scalar mul.Tensor
		ne.Scalar ne.Tensor neg.default new_full.default new_ones.default new_zeros.default ones.default ones_like.default pad.default permute.default
		pow.Scalar pow.Tensor_Scalar reciprocal.default repeat.default reshape.default roll.default rsqrt.default rsub.Scalar scalar_tensor.default
		select.int sigmoid.default sin.default slice.Tensor softmax.int split.Tensor sqrt.default squeeze.default squeeze.dim stack.default sub.Scalar
		sub.Tensor sum.dim_IntList t.default tanh.default to.dtype to.dtype_layout _to_copy.default transpose.int tril.default triu.default unbind.int
		unsqueeze.default view.default where.self zero_.default zeros.default zeros_like.default`) {
		foldable["aten."+name] = true
	}
}

// likes are operators that read of their first argument its dtype and device alone.
var likes = map[string]bool{"aten.new_full.default": true, "aten.new_ones.default": true, "aten.new_zeros.default": true}

// mostFolded bounds the bytes of the results of folded steps. A program with more is not folded.
const mostFolded = 256 << 20

// A folder finds the steps whose results are the same in each run.
type folder struct {
	*binder
	graph  *graph
	set    func(slot int) int
	given  map[int]bool // by slot: a weight or a constant
	stored map[int]bool // by set: weights and constants have memory in it
	varies map[int]bool // by set: its memory is written by a step that is not folded, or returned
	folds  []bool       // by step
}

// foldConstants computes the steps that read weights and constants alone. Their results become
// constants of the program. Others may write neither into what such a step reads nor into its
// results, and may not read between two such writes. A view of a weight stays a step, because it
// has no memory of its own.
func (b *binder) foldConstants(x *cgotorch.Exec, f *fuser) {
	g := f.graph
	fold := &folder{binder: b, graph: g, set: g.memorySets(), given: map[int]bool{}, stored: map[int]bool{}, varies: map[int]bool{}}
	values := map[int]*cgotorch.Tensor{}
	for i, slot := range g.inputs {
		switch in := b.program.inputs[i]; {
		case in.weight >= 0:
			values[slot] = b.weightList[in.weight].tensor
		case in.constant >= 0:
			values[slot] = b.constantList[in.constant].tensor
		default:
			continue
		}
		fold.given[slot], fold.stored[fold.set(slot)] = true, true
	}
	for slot := range b.replaced() {
		fold.varies[fold.set(slot)] = true
	}
	for fold.look() {
	}
	read := map[int]bool{} // by slot: a step that is not folded reads it
	gone := map[int]bool{}
	for i := range g.steps {
		gone[i] = fold.folds[i] && !slices.ContainsFunc(g.steps[i].act.fills(), func(slot int) bool { return fold.stored[fold.set(slot)] })
		if !gone[i] {
			for _, slot := range slotsOf(g.steps[i].act.reads()...) {
				read[slot] = true
			}
		}
	}
	kept := map[int]*cgotorch.Tensor{}
	var bytes int64
	frame := &frame{values: make([]any, g.slots)}
	for slot, t := range values {
		frame.values[slot] = t
	}
	folded := 0
	for i := range g.steps {
		if !fold.folds[i] {
			continue
		}
		if c := g.steps[i].act.(*operatorCall); likes[g.steps[i].node.Operator] && frame.values[c.args[0].slot] == nil {
			dtype, _ := b.resultOf(g.steps[i].node)
			frame.values[c.args[0].slot] = x.Empty(dtype, 0)
			c.run(x, frame)
			frame.values[c.args[0].slot] = nil
		} else {
			c.run(x, frame)
		}
		for _, slot := range g.steps[i].act.fills() {
			t, isTensor := frame.values[slot].(*cgotorch.Tensor)
			if isTensor && t != nil && gone[i] {
				if bytes += t.Numel() * int64(t.DType().Size()); bytes > mostFolded {
					return // views count too, so this is a bound of all that the folding holds
				}
				if read[slot] {
					kept[slot] = t
				}
			}
		}
		if gone[i] {
			folded++
		}
	}
	if folded == 0 {
		return
	}
	for i := range g.steps {
		for _, slot := range g.steps[i].act.fills() {
			t := kept[slot]
			if t == nil || !gone[i] {
				continue
			}
			g.inputs, g.written = append(g.inputs, slot), append(g.written, false)
			b.program.inputs = append(b.program.inputs, programInput{weight: -1, constant: len(b.constantList), user: -1})
			b.constantList = append(b.constantList, &storedTensor{name: g.steps[i].node.Name, constant: true, tensor: t})
		}
	}
	f.done.constants = folded
	f.remove(gone)
}

// replaced returns the slots of the weights and constants that a run replaces by outputs of the
// graph, under any of their names.
func (b *binder) replaced() map[int]bool {
	written := map[*cgotorch.Tensor]bool{}
	for _, o := range b.program.outputs {
		if o.weight >= 0 {
			written[b.weightList[o.weight].tensor] = true
		}
		if o.constant >= 0 {
			written[b.constantList[o.constant].tensor] = true
		}
	}
	slots := map[int]bool{}
	for i, slot := range b.program.graph.inputs {
		switch in := b.program.inputs[i]; {
		case in.weight >= 0 && written[b.weightList[in.weight].tensor], in.constant >= 0 && written[b.constantList[in.constant].tensor]:
			slots[slot] = true
		}
	}
	return slots
}

// resultOf returns the dtype of the first result of a node.
func (b *binder) resultOf(n *Node) (cgotorch.DType, bool) {
	if len(n.results) == 0 || n.results[0].Tensor == nil {
		return 0, false
	}
	m, ok := b.text.GraphModule.Graph.Tensors[n.results[0].Tensor.Name]
	if !ok {
		return 0, false
	}
	dtype, err := (&compiler{float: b.program.float}).dtype(m.DType)
	return dtype, err == nil
}

// look finds the steps to fold, as far as the sets that vary are known. It returns true if it finds
// another set that varies.
func (f *folder) look() (again bool) {
	known := map[int]bool{} // by slot
	for slot := range f.given {
		known[slot] = !f.varies[f.set(slot)]
	}
	f.folds = make([]bool, len(f.graph.steps))
	lastWrite := map[int]int{} // by set: the last folded step that writes into it
	for i := range f.graph.steps {
		if f.folds[i] = f.canFold(&f.graph.steps[i], known); !f.folds[i] {
			continue
		}
		for _, slot := range f.graph.steps[i].act.fills() {
			known[slot] = true
		}
		_, written := f.graph.steps[i].memory()
		for _, slot := range written {
			lastWrite[f.set(slot)] = i
		}
	}
	vary := func(slot int) {
		if set := f.set(slot); !f.varies[set] {
			f.varies[set], again = true, true
		}
	}
	for i := range f.graph.steps {
		s := &f.graph.steps[i]
		_, written := s.memory()
		for _, slot := range written {
			if !f.folds[i] || f.stored[f.set(slot)] {
				vary(slot)
			}
		}
		if f.folds[i] {
			continue
		}
		for _, slot := range slotsOf(s.act.reads()...) {
			if last, ok := lastWrite[f.set(slot)]; ok && last > i {
				vary(slot)
			}
		}
	}
	for i := range f.graph.outputs {
		for _, slot := range slotsOf(&f.graph.outputs[i]) {
			vary(slot)
		}
	}
	return again
}

// isSmall reports whether a node's results have mostFolded elements at most, by the sizes in the
// file. A size that changes from run to run is not small.
func (f *folder) isSmall(n *Node) bool {
	for _, result := range n.results {
		var names []named
		switch {
		case result.Tensor != nil:
			names = []named{*result.Tensor}
		case result.Tensors != nil:
			names = *result.Tensors
		}
		for _, name := range names {
			elements := int64(1)
			for _, size := range f.text.GraphModule.Graph.Tensors[name.Name].Sizes {
				if size.Int == nil || *size.Int < 0 || *size.Int > 0 && elements > mostFolded / *size.Int {
					return false
				}
				elements *= *size.Int
			}
		}
	}
	return true
}

// canFold reports whether a step reads known values alone.
func (f *folder) canFold(s *step, known map[int]bool) bool {
	c, ok := s.act.(*operatorCall)
	if !ok || !foldable[s.node.Operator] || s.node.Waits || !f.isSmall(s.node) {
		return false
	}
	operands := c.reads()
	if likes[s.node.Operator] {
		if _, ok := f.resultOf(s.node); !ok || len(operands) == 0 || !operands[0].isTensor() {
			return false
		}
		operands = operands[1:]
	}
	for _, slot := range slotsOf(operands...) {
		if !known[slot] {
			return false
		}
	}
	return !slices.ContainsFunc(c.outs, func(slot int) bool { return f.varies[f.set(slot)] })
}
