package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// foldable are operators without random numbers, whose results depend on their arguments alone.
var foldable = graph.OperatorSet(`abs add.Tensor add.Scalar add_.Tensor add_.Scalar alias arange arange.start arange.start_step bitwise_and.Tensor bitwise_not
	bitwise_or.Tensor cat chunk clamp clamp_min clone contiguous copy_ cos detach detach_ div.Scalar div.Tensor div.Tensor_mode
	eq.Scalar eq.Tensor exp expand fill_.Scalar fill_.Tensor flatten.using_ints floor full full_like ge.Scalar ge.Tensor
	gt.Scalar gt.Tensor index.Tensor index_select le.Scalar le.Tensor lift_fresh_copy log logical_and logical_not logical_or
	lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar maximum minimum movedim.int mul.Scalar
	mul.Tensor ne.Scalar ne.Tensor neg new_full new_ones new_zeros ones ones_like pad permute pow.Scalar pow.Tensor_Scalar
	reciprocal repeat reshape roll rsqrt rsub.Scalar scalar_tensor select.int sigmoid sin slice.Tensor softmax.int split.Tensor
	sqrt squeeze squeeze.dim stack sub.Scalar sub.Tensor sum.dim_IntList t tanh to.dtype to.dtype_layout _to_copy transpose.int
	tril triu unbind.int unsqueeze view where.self zero_ zeros zeros_like`)

// likes are operators that read of their first argument its dtype and device alone.
var likes = graph.OperatorSet("new_full new_ones new_zeros")

// mostFolded bounds the bytes of the results of folded steps. A program with more is not folded.
const mostFolded = 256 << 20

// folder finds the steps whose results are the same in each run.
type folder struct {
	graph  *graph.Graph
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
func foldConstants(x *cgotorch.Exec, p *graph.Program, f *fuser) {
	g := f.graph
	fold := newFolder(p)
	for fold.look() {
	}
	read := map[int]bool{} // by slot: a step that is not folded reads it
	gone := map[int]bool{}
	for i := range g.Steps {
		if fold.folds[i] && !slices.ContainsFunc(g.Steps[i].Act.Fills(), func(slot int) bool { return fold.stored[fold.set(slot)] }) {
			gone[i] = true
			f.done.constants++
			continue
		}
		for _, slot := range graph.SlotsOf(g.Steps[i].Act.Reads()...) {
			read[slot] = true
		}
	}
	values, small := fold.compute(x, p, gone)
	if !small {
		f.done.constants = 0
		return
	}
	for i := range g.Steps {
		for _, slot := range g.Steps[i].Act.Fills() {
			t, isTensor := values[slot].(*cgotorch.Tensor)
			if !gone[i] || !read[slot] || !isTensor || t == nil {
				continue
			}
			g.Inputs, g.Written = append(g.Inputs, slot), append(g.Written, false)
			p.Inputs = append(p.Inputs, graph.Input{Weight: -1, Constant: len(p.Constants), User: -1})
			p.Constants = append(p.Constants, &graph.Variable{Name: g.Steps[i].Node.Name, Constant: true, Tensor: t})
		}
	}
	f.remove(gone)
}

func newFolder(p *graph.Program) *folder {
	f := &folder{graph: p.Graph, set: p.Graph.MemorySets(), given: map[int]bool{}, stored: map[int]bool{}, varies: map[int]bool{}}
	for i, slot := range p.Graph.Inputs {
		if p.Inputs[i].User < 0 {
			f.given[slot], f.stored[f.set(slot)] = true, true
		}
	}
	for slot := range p.Replaced() {
		f.varies[f.set(slot)] = true
	}
	return f
}

// compute runs the steps to fold, and returns their values by slot. small is false if the results
// of the steps that go are too large. Views count too, so this bounds all that the folding holds.
func (f *folder) compute(x *cgotorch.Exec, p *graph.Program, gone map[int]bool) (values []any, small bool) {
	frame := graph.NewFrame(f.graph.Slots)
	for i, slot := range f.graph.Inputs {
		if v := p.Variable(p.Inputs[i].Weight, p.Inputs[i].Constant); v != nil {
			frame.Values[slot] = v.Tensor
		}
	}
	var bytes int64
	for i := range f.graph.Steps {
		if !f.folds[i] {
			continue
		}
		s := &f.graph.Steps[i]
		absent := -1 // the slot of a tensor whose dtype alone is known
		if likes[s.Node.Operator] && frame.Values[s.Act.Reads()[0].Slot] == nil {
			like, _ := s.Node.Tensor()
			absent = s.Act.Reads()[0].Slot
			frame.Values[absent] = x.Empty(like.DType, 0)
		}
		s.Act.Run(x, frame)
		if absent >= 0 {
			frame.Values[absent] = nil
		}
		for _, slot := range s.Act.Fills() {
			if t, isTensor := frame.Values[slot].(*cgotorch.Tensor); isTensor && t != nil && gone[i] {
				if bytes += t.Numel() * int64(t.DType().Size()); bytes > mostFolded {
					return nil, false
				}
			}
		}
	}
	return frame.Values, true
}

// look finds the steps to fold, as far as the sets that vary are known. It returns true if it finds
// another set that varies.
func (f *folder) look() (again bool) {
	known := map[int]bool{} // by slot
	for slot := range f.given {
		known[slot] = !f.varies[f.set(slot)]
	}
	f.folds = make([]bool, len(f.graph.Steps))
	lastWrite := map[int]int{} // by set: the last folded step that writes into it
	for i := range f.graph.Steps {
		if f.folds[i] = f.canFold(&f.graph.Steps[i], known); !f.folds[i] {
			continue
		}
		for _, slot := range f.graph.Steps[i].Act.Fills() {
			known[slot] = true
		}
		_, written := f.graph.Steps[i].Memory()
		for _, slot := range written {
			lastWrite[f.set(slot)] = i
		}
	}
	vary := func(slot int) {
		if set := f.set(slot); !f.varies[set] {
			f.varies[set], again = true, true
		}
	}
	for i := range f.graph.Steps {
		s := &f.graph.Steps[i]
		_, written := s.Memory()
		for _, slot := range written {
			if !f.folds[i] || f.stored[f.set(slot)] {
				vary(slot)
			}
		}
		if f.folds[i] {
			continue
		}
		for _, slot := range graph.SlotsOf(s.Act.Reads()...) {
			if last, ok := lastWrite[f.set(slot)]; ok && last > i {
				vary(slot)
			}
		}
	}
	for i := range f.graph.Outputs {
		for _, slot := range graph.SlotsOf(&f.graph.Outputs[i]) {
			vary(slot)
		}
	}
	return again
}

// isSmall reports whether a node's results have mostFolded elements at most, by the sizes in the
// file. A size that changes from run to run is not small.
func isSmall(n *graph.Node) bool {
	for _, result := range n.Results {
		for _, t := range result.Tensors {
			elements := int64(1)
			for _, size := range t.Sizes {
				if size < 0 || size > 0 && elements > mostFolded/size {
					return false
				}
				elements *= size
			}
		}
	}
	return true
}

// canFold reports whether a step reads known values alone.
func (f *folder) canFold(s *graph.Step, known map[int]bool) bool {
	c, ok := s.Act.(*graph.Call)
	if !ok || !foldable[s.Node.Operator] || s.Node.Waits || !isSmall(s.Node) {
		return false
	}
	operands := c.Reads()
	if likes[s.Node.Operator] {
		if like, ok := s.Node.Tensor(); !ok || !like.Typed || len(operands) == 0 || !operands[0].IsTensor() {
			return false
		}
		operands = operands[1:]
	}
	for _, slot := range graph.SlotsOf(operands...) {
		if !known[slot] {
			return false
		}
	}
	return !slices.ContainsFunc(c.Outs, func(slot int) bool { return f.varies[f.set(slot)] })
}
