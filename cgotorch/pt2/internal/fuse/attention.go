package fuse

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

var attentionInWindows = opcall.New("streamtorch::window_attention")

// The places of arguments in the schema of aten::scaled_dot_product_attention.
const attentionQuery, attentionMask = 0, 3

// attentions makes masks of attention dense on CUDA. LibTorch's fast kernels read no mask with
// gaps, as a broadcast one has, and without them LibTorch computes in float32, by many kernels. The
// first attention with a mask makes the dense one, and the others use it. And linear layers of
// three dimensions with gaps copy their input, so that one product adds the bias too.
func (f *fuser) attentions() {
	if !f.CUDA {
		return
	}
	f.windowAttentions()
	type made struct{ slot, at int }
	dense := map[int]made{} // by slot of a mask: the slot of the dense one, and the step that makes it
	for i := range f.graph.Steps {
		if c := f.call(i, "aten.linear.default"); c != nil && c.Args[0].IsTensor() {
			f.graph.Steps[i].Act = &linearLayer{Call: *c}
		}
		c := f.call(i, "aten.scaled_dot_product_attention.default")
		if c == nil || len(c.Args) <= attentionMask || !c.Args[attentionMask].IsTensor() {
			continue
		}
		mask := c.Args[attentionMask].Slot
		of, ok := dense[mask]
		if ok && f.writesBetween(of.at, i) {
			continue // the mask may have changed
		}
		if !ok {
			of = made{f.graph.Slots, i}
			f.graph.Slots++
			dense[mask] = of
		}
		f.graph.Steps[i].Act = &attention{Call: *c, dense: graph.Operand{Slot: of.slot}, first: !ok}
		f.done.masks++
	}
	f.graph.Free()
	f.look()
}

// mostDense bounds the elements of a mask that is made dense.
const mostDense = 64 << 20

// attention is an attention whose mask has gaps perhaps.
type attention struct {
	graph.Call
	dense graph.Operand // the dense mask
	first bool          // this attention makes it
}

func (a *attention) Reads() []*graph.Operand {
	if a.first {
		return a.Call.Reads()
	}
	return append(a.Call.Reads(), &a.dense)
}

func (a *attention) Fills() []int {
	if a.first {
		return append([]int{a.dense.Slot}, a.Outs...)
	}
	return a.Outs
}

func (a *attention) Run(x *cgotorch.Exec, f *graph.Frame) {
	mask, query := a.Args[attentionMask].Tensor(f), a.Args[attentionQuery].Tensor(f)
	if a.first && mask != nil && query != nil && !isDense(mask) && !mask.RequiresGrad() && mask.Numel() <= mostDense {
		f.Values[a.dense.Slot] = additive(x, mask, query.DType())
	}
	dense := a.dense.Tensor(f)
	if dense == nil || query == nil || dense.DType() != query.DType() {
		a.Call.Run(x, f)
		return
	}
	slot := a.Args[attentionMask].Slot
	f.Values[slot] = dense
	a.Call.Run(x, f)
	f.Values[slot] = mask
}

// additive returns a dense mask of this dtype that attention adds: minus infinity for false.
func additive(x *cgotorch.Exec, mask *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	if mask.DType() != cgotorch.Bool {
		return x.Contiguous(x.To(mask, dtype), cgotorch.Contiguous)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		return x.MaskedFill(x.Zeros(dtype, mask.Shape()...), x.LogicalNot(mask), math.Inf(-1))
	})
}

// windowAttentions makes one step of an attention in windows that a model computes by products and
// a softmax: softmax(query * scale @ key^T + bias [+ mask]) @ value.
func (f *fuser) windowAttentions() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		w, steps := f.windowAttention(i, gone)
		if w == nil {
			continue
		}
		for _, at := range steps[1:] {
			gone[at] = true
		}
		slices.Reverse(steps)
		own := map[int]bool{}
		for _, at := range steps {
			w.plain = append(w.plain, f.graph.Steps[at])
			for _, o := range f.graph.Steps[at].Act.Reads() {
				for _, slot := range graph.SlotsOf(o) {
					if !own[slot] {
						w.also = append(w.also, graph.Operand{Slot: slot})
					}
				}
			}
			for _, slot := range f.graph.Steps[at].Act.Fills() {
				own[slot] = true
			}
		}
		f.graph.Steps[i].Act = w
		f.done.windows++
	}
	f.remove(gone)
}

// windowAttention returns the action for step i, the last product, and the steps whose work it
// does, from the last one to the first.
func (f *fuser) windowAttention(i int, gone map[int]bool) (*windowAttention, []int) {
	last := f.call(i, "aten.matmul.default")
	if last == nil || !last.Args[1].IsTensor() {
		return nil, nil
	}
	c := &chain{fuser: f, gone: gone, at: i, steps: []int{i}}
	softmax := c.back(last.Args[0], "aten.softmax.int")
	if softmax == nil || len(softmax.Args) > 2 && softmax.Args[2].Constant != cgotorch.Default && softmax.Args[2].Constant != nil {
		return nil, nil
	}
	if dim, ok := constantArg[int64](softmax, 1); !ok || dim != -1 {
		return nil, nil
	}
	w := &windowAttention{mask: graph.ConstantOf(nil), outs: last.Outs}
	scores, ok := w.unmasked(c, softmax.Args[0])
	if !ok || !w.scored(c, scores) || f.viewed(last.Outs[0]) {
		return nil, nil
	}
	// The steps move to the last one.
	if f.writesBetween(slices.Min(c.steps), i) {
		return nil, nil
	}
	w.args[2] = last.Args[1]
	slices.Sort(c.steps)
	slices.Reverse(c.steps)
	return w, c.steps
}

// unmasked takes the mask of the scores, if there is one. It returns the scores before the mask.
func (w *windowAttention) unmasked(c *chain, scores graph.Operand) (before graph.Operand, ok bool) {
	turned := c.back(scores, "aten.reshape.default", "aten.view.default")
	if turned == nil {
		return scores, true
	}
	w.turned[1] = turned.Args[1]
	masked := c.fixedSum(turned.Args[0])
	if masked == nil {
		return scores, false
	}
	w.mask = masked.Args[1]
	if turned = c.back(masked.Args[0], "aten.reshape.default", "aten.view.default"); turned == nil {
		return scores, false
	}
	w.turned[0] = turned.Args[1]
	return turned.Args[0], true
}

// scored takes query, key, scale and bias of the scores query * scale @ key^T + bias.
func (w *windowAttention) scored(c *chain, scores graph.Operand) bool {
	biased := c.fixedSum(scores)
	if biased == nil {
		return false
	}
	product := c.back(biased.Args[0], "aten.matmul.default")
	if product == nil {
		return false
	}
	at := c.at
	key := c.back(product.Args[1], "aten.transpose.int")
	if key == nil {
		return false
	}
	first, ok := constantArg[int64](key, 1)
	second, isConstant := constantArg[int64](key, 2)
	if !ok || !isConstant || first != -2 || second != -1 {
		return false
	}
	c.at = at // the product reads the query too
	query := c.back(product.Args[0], "aten.mul.Tensor")
	if query == nil || len(query.Args) != 2 || query.Args[1].Slot >= 0 {
		return false
	}
	var err error
	w.scale, err = expr.ToFloat(query.Args[1].Constant)
	w.args = []graph.Operand{query.Args[0], key.Args[0], {}, biased.Args[1]}
	return err == nil
}

// viewed reports whether a step reads the strides of a value, which the attention's result has in
// another order.
func (f *fuser) viewed(slot int) bool {
	return slices.ContainsFunc(f.graph.Steps, func(s graph.Step) bool {
		return slices.Contains([]string{"aten.view.default", "aten.as_strided.default", "aten.sym_stride.int"}, s.Node.Operator) &&
			slices.Contains(graph.SlotsOf(s.Act.Reads()...), slot)
	})
}

// plainSum reports whether a sum has no factor.
func plainSum(c *graph.Call) bool { return len(c.Args) < 3 || isOne(c.Args[2]) }

// isFixed reports whether an operand is an input of the graph, as weights and constants are.
func (f *fuser) isFixed(o graph.Operand) bool {
	_, filled := f.filled[o.Slot]
	return o.IsTensor() && !filled
}

// windowAttention is an attention in windows. It runs the plain steps for shapes that are others.
type windowAttention struct {
	args  []graph.Operand // query, key, value and bias
	mask  graph.Operand   // or nil
	scale float64
	outs  []int
	// turned are the shapes to which the plain steps turn the scores for the mask, and back.
	turned [2]graph.Operand
	plain  []graph.Step
	also   []graph.Operand // what the plain steps read
}

func (w *windowAttention) Reads() []*graph.Operand {
	return append(graph.Pointers(w.args, w.also), &w.mask)
}
func (w *windowAttention) Fills() []int { return w.outs }

func (w *windowAttention) Run(x *cgotorch.Exec, f *graph.Frame) {
	query, bias, mask := w.args[0].Tensor(f), w.args[3].Tensor(f), w.mask.Tensor(f)
	if !w.fits(f, query, bias, mask) {
		for i := range w.plain {
			w.plain[i].Act.Run(x, f)
		}
		for _, s := range w.plain[:len(w.plain)-1] {
			for _, slot := range s.Act.Fills() {
				if t, ok := f.Values[slot].(*cgotorch.Tensor); ok && t != nil {
					t.Close()
				}
				f.Values[slot] = nil
			}
		}
		return
	}
	if mask != nil {
		shape := mask.Shape()
		mask = x.Reshape(mask, shape[1], shape[3], shape[4])
		defer mask.Close()
	}
	call := opcall.Begin(x, attentionInWindows)
	for i := range w.args {
		call.Tensor(w.args[i].Tensor(f))
	}
	call.OptTensor(mask)
	call.Float(w.scale)
	f.Values[w.outs[0]] = call.Run1()
}

// fits reports whether the shapes are those of windows: the query [B, H, L, D], the bias [1, H, L,
// L], and the mask [1, W, 1, L, L], where W divides B.
func (w *windowAttention) fits(f *graph.Frame, query, bias, mask *cgotorch.Tensor) bool {
	if query == nil || bias == nil || query.Dim() != 4 {
		return false
	}
	q := query.Shape()
	for _, at := range []int{1, 2} {
		if t := w.args[at].Tensor(f); t == nil || !slices.Equal(t.Shape(), q) {
			return false
		}
	}
	if !slices.Equal(bias.Shape(), []int64{1, q[1], q[2], q[2]}) || w.mask.Slot >= 0 && mask == nil {
		return false
	}
	if mask == nil {
		return true
	}
	m := mask.Shape()
	return len(m) == 5 && m[1] > 0 && q[0]%m[1] == 0 && slices.Equal(m, []int64{1, m[1], 1, q[2], q[2]}) &&
		isShape(w.turned[0].Value(f), q[0]/m[1], m[1], q[1], q[2], q[2]) && isShape(w.turned[1].Value(f), q[0], q[1], q[2], q[2])
}

// isShape reports whether the argument of a reshape gives this shape. It may have one -1.
func isShape(given any, want ...int64) bool {
	shape, ok := given.([]int64)
	if !ok || len(shape) != len(want) {
		return false
	}
	for i, n := range shape {
		if n != want[i] && n != -1 {
			return false
		}
	}
	return true
}
