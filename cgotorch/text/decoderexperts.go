package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// experts are the feed-forward layers among which a router picks for each token.
type experts struct {
	c          *decoderConfig
	router     *linear
	gateUp     *cgotorch.Tensor // [experts, 2*inner, width]
	down       *cgotorch.Tensor // [experts, width, inner]
	gateUpBias *cgotorch.Tensor // [experts, 2*inner], or nil
	downBias   *cgotorch.Tensor // [experts, width], or nil
	each       []expert         // the parameters of each expert; empty if one parameter has all of them

	gateUpParameter, downParameter *cgotorch.Tensor // that parameter, transposed; nil if there is none

	held   *weights.TableLayer // where gateUp and down lie in host memory; nil if they are on the device
	number int                 // of the layer in the table
	packed cgotorch.DType      // of the numbers that gateUp and down tell in codes of 4 bits, or 0
	form   string              // of these codes

	gateUpRing, downRing ring // of a token's products
	wide                 bool // there is room for the numbers of all experts of a layer
}

type expert struct {
	gateUp []nn.Linear
	down   nn.Linear
}

// through maps `in` to what the experts of a layer make of it. `wide` is the same before it was
// rounded.
func (p *pass) through(x *cgotorch.Exec, e *experts, in, wide *cgotorch.Tensor) *cgotorch.Tensor {
	if p.experts == nil {
		return e.forward(x, in, wide, p.training)
	}
	copied := *e
	matrices := p.experts.Experts(x, e.number)
	copied.gateUp, copied.down, copied.gateUpParameter, copied.downParameter, copied.each = matrices[0], matrices[1], nil, nil, nil
	out := copied.forward(x, in, wide, p.training)
	p.experts.Done(x)
	return out
}

// fewPicks is the largest number of picks that fromCopies computes.
const fewPicks = 16

// forward maps `in` [rows, width] to the weighted sum of what the picked experts make of each row.
// The router reads `wide`, the same rows before they are rounded to the dtype of the weights. On
// CUDA many picks wait for the device if the dtype is not bfloat16, or if experts have 4 bits and
// there is no room for those of a layer in the model's dtype.
func (e *experts) forward(x *cgotorch.Exec, in, wide *cgotorch.Tensor, training bool) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		weights, picks := e.route(x, wide)
		n, top := in.Shape()[0], int64(e.c.experts.top)
		var out *cgotorch.Tensor // [rows*top, width]
		switch {
		case x.Device().IsCUDA() && !training && (n == 1 || n*top <= fewPicks): // a step never waits
			out = e.fromCopies(x, in, picks)
		case in.DType() == cgotorch.BFloat16 && !training && e.groupable():
			out = e.grouped(x, in, picks)
		default:
			out = e.oneByOne(x, in, picks, training)
		}
		out = x.View(out, n, top, int64(e.c.width))
		return x.SumDim(x.Mul(out, x.Unsqueeze(weights, 2)), []int64{1}, cgotorch.SumOptions{})
	})
}

// groupable reports whether grouped takes the experts.
func (e *experts) groupable() bool {
	if e.packed != 0 {
		return e.wide && e.c.width%8 == 0 && e.c.experts.inner%8 == 0
	}
	return groupable(e.gateUp) && groupable(e.down)
}

// numbers returns the numbers of matrices, [..., rows, columns], also where they have 4 bits.
func (e *experts) numbers(x *cgotorch.Exec, matrices *cgotorch.Tensor, columns int64) *cgotorch.Tensor {
	if e.packed == 0 {
		return matrices
	}
	return x.Call1("streamtorch::unpack4", matrices, columns, e.packed, e.form)
}

// route returns the weights of the picked experts, [rows, top] in the wide dtype, and their
// numbers, Int64 [rows, top].
func (e *experts) route(x *cgotorch.Exec, wide *cgotorch.Tensor) (weights, picks *cgotorch.Tensor) {
	c := e.c.experts
	scores := e.router.forward(x, wide, false)
	if !c.softmaxOfTop {
		scores = x.Softmax(scores, -1)
	}
	weights, picks = x.TopK(scores, c.top, -1, cgotorch.TopKOptions{})
	switch {
	case c.softmaxOfTop:
		weights = x.Softmax(weights, -1)
	case c.normalize:
		weights = x.Div(weights, x.SumDim(weights, []int64{1}, cgotorch.SumOptions{KeepDim: true}))
	}
	return weights, picks
}

// fromCopies copies the weights of each pick. It does not wait for the device.
func (e *experts) fromCopies(x *cgotorch.Exec, in, picks *cgotorch.Tensor) *cgotorch.Tensor {
	n, top, width := in.Shape()[0], int64(e.c.experts.top), int64(e.c.width)
	picks = x.Reshape(picks, -1)
	column := x.Reshape(x.Expand(x.Unsqueeze(in, 1), n, top, width), n*top, width, 1)
	product := func(weight, bias, column *cgotorch.Tensor) *cgotorch.Tensor {
		out := x.Squeeze(x.BMM(e.numbers(x, x.IndexSelect(weight, 0, picks), column.Shape()[1]), column), 2)
		if bias != nil {
			out = x.Add(out, x.IndexSelect(bias, 0, picks))
		}
		return out
	}
	inner := e.c.activate(x, product(e.gateUp, e.gateUpBias, column))
	return product(e.down, e.downBias, x.Unsqueeze(inner, 2))
}

// grouped sorts the picks by expert. LibTorch then multiplies the rows of each expert by the
// expert's weights. On CUDA it does not wait for the device.
func (e *experts) grouped(x *cgotorch.Exec, in, picks *cgotorch.Tensor) *cgotorch.Tensor {
	ids := x.Reshape(picks, -1)
	order := nn.ExpertOrder(x, ids)
	ids = x.IndexSelect(ids, 0, order)
	ends := searchSorted(x, ids, x.Arange(cgotorch.Int64, 0, e.c.experts.count, nil), true)
	rows := x.IndexSelect(in, 0, call(x, "aten::div.Scalar_mode", order, e.c.experts.top, "floor"))
	product := func(in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
		out := x.Tidy(func() *cgotorch.Tensor { // numbers of 4 bits are gone then
			return call(x, "aten::_grouped_mm", in, x.Transpose(e.numbers(x, weight, in.Shape()[1]), 1, 2), ends)
		})
		if bias != nil {
			out = x.Add(out, x.IndexSelect(bias, 0, ids))
		}
		return out
	}
	inner := e.c.activate(x, product(rows, e.gateUp, e.gateUpBias))
	return unsortRows(x, product(inner, e.down, e.downBias), order)
}

// oneByOne runs each picked expert once, with all its rows. It waits for the picks.
func (e *experts) oneByOne(x *cgotorch.Exec, in, picks *cgotorch.Tensor, training bool) *cgotorch.Tensor {
	ids := cgotorch.ToSlice[int64](x, x.Detach(picks))
	of := make([][]int64, e.c.experts.count)
	for i, id := range ids {
		of[id] = append(of[id], int64(i))
	}
	var parts []*cgotorch.Tensor
	back, at := make([]int64, len(ids)), int64(0)
	for id, places := range of {
		if len(places) == 0 {
			continue
		}
		from := make([]int64, len(places))
		for k, place := range places {
			from[k] = place / int64(e.c.experts.top)
			back[place] = at
			at++
		}
		parts = append(parts, x.Tidy(func() *cgotorch.Tensor {
			return e.one(x, id, x.IndexSelect(in, 0, cgotorch.FromSlice(x, from, int64(len(from)))), training)
		}))
	}
	return x.IndexSelect(x.Cat(parts, 0), 0, cgotorch.FromSlice(x, back, int64(len(back))))
}

// one runs one expert on `in` [n, width].
func (e *experts) one(x *cgotorch.Exec, id int, in *cgotorch.Tensor, training bool) *cgotorch.Tensor {
	if training && len(e.each) > 0 {
		one := e.each[id]
		gateUp := x.Cat([]*cgotorch.Tensor{one.gateUp[0].Forward(x, in), one.gateUp[1].Forward(x, in)}, 1)
		return one.down.Forward(x, e.c.activate(x, gateUp))
	}
	row := func(t *cgotorch.Tensor) *cgotorch.Tensor {
		if t == nil {
			return nil
		}
		return x.Select(t, 0, id)
	}
	matrix := func(whole, parameter *cgotorch.Tensor, columns int64) *cgotorch.Tensor {
		if parameter == nil {
			return e.numbers(x, row(whole), columns)
		}
		return x.Transpose(row(parameter), 0, 1) // the same memory, and the parameter's gradient
	}
	inner := e.c.activate(x, x.Linear(in, matrix(e.gateUp, e.gateUpParameter, int64(e.c.width)), row(e.gateUpBias)))
	return x.Linear(inner, matrix(e.down, e.downParameter, int64(e.c.experts.inner)), row(e.downBias))
}

// fetchesFor decides whether the host fetches the experts of the next step, of n rows.
func (d *decoder) fetchesFor(x *cgotorch.Exec, n int) bool {
	d.fetches = d.byEngine != nil && d.byEngine(x)
	d.predicts = d.fetches && n == 1 && d.c.predicts
	return d.fetches
}

// nextPicks returns the experts, Int32 [top], that the router of the next layer with experts picks
// for the stream as it is before this layer's. Both differ little. It returns nil without
// Options.PredictExperts, and for the last layer.
func (d *decoder) nextPicks(x *cgotorch.Exec, stream, arrived *cgotorch.Tensor, number int) *cgotorch.Tensor {
	for _, l := range d.layers {
		if e := l.experts; d.predicts && e != nil && e.number == number+1 {
			c := d.c.experts
			route := x.Call("streamtorch::token_route", stream, e.router.weight, e.router.bias, l.beforeFeed, d.c.eps, d.c.normOffset, c.top, c.softmaxOfTop || c.normalize, arrived, "full")
			return x.Select(route[0].(*cgotorch.Tensor), 1, 2)
		}
	}
	return nil
}

// versionOfExperts counts the operators that have written experts in host memory.
func (d *decoder) versionOfExperts() (n int) {
	for _, l := range d.layers {
		if l.experts != nil {
			n += inside.Core.Version(l.experts.gateUp) + inside.Core.Version(l.experts.down)
		}
	}
	return n
}

// withSlots empties the slots if experts have changed since they were filled, or if an earlier
// `run` has failed in its middle. It then calls run, which enqueues work that reads and fills
// slots. It does not wait.
func (d *decoder) withSlots(x *cgotorch.Exec, run func()) {
	if d.table == nil {
		run()
		return
	}
	now := d.versionOfExperts()
	if d.filled != now {
		d.table.Forget(x)
	}
	const unknown = -1
	d.filled = unknown // if run fails, the table may tell of experts that no kernel has brought
	run()
	d.filled = now
}
