package text

import (
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Experts run each token through its expert.
type Experts interface {
	// Forward maps tokens [tokens, d_model] to the same shape, on x's device. Expert ids[i] maps row i;
	// ids is Int64 [tokens].
	Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor
}

// residentExperts are [Experts]: a layer's experts in the memory of the device. All weights lie one
// behind another, and the experts hold views of them.
type residentExperts struct {
	Expert []*Dense `state:"-"` // named expert_0, expert_1, … in the state

	// NoGrouped keeps to products that wait on no device: see residentExperts.Forward.
	NoGrouped bool
}

// Children implements [nn.Container].
func (m *residentExperts) Children() []nn.Child {
	children := make([]nn.Child, len(m.Expert))
	for i, e := range m.Expert {
		children[i] = nn.Child{Name: "expert_" + strconv.Itoa(i), Module: e}
	}
	return children
}

// Forward implements [Experts]. The device, the dtype and the number of tokens decide how it
// multiplies:
//
//   - A single token, on any device, runs by [Dense.Forward] with a copy of its expert's weights.
//     The results are those of [nn.Dispatch] to the bit. On the CPU up to 8 tokens run so, one at a
//     time. Their last bits may differ from those of several tokens at once.
//   - More tokens on the CPU run by LibTorch's grouped product, a product for each expert with
//     tokens. The results are Dispatch's to the bit. [cgotorch.Exec.NoWaits] counts this product,
//     since in float32 on CUDA it would wait.
//   - On CUDA in bfloat16 they run by LibTorch's grouped product, in one kernel. The last bits may
//     differ from Dense's. LibTorch 2.11 does not wait there on compute capability 9.0, where it
//     was tried. A device without that kernel waits and cannot be captured, as in float32: set
//     NoGrouped.
//   - Otherwise each block of an expert's tokens gets a copy of the expert's weights. This is so on
//     CUDA in float32, with NoGrouped, and where a row of weights is no multiple of 16 bytes. At
//     most 256 MiB are copied at a time, or one expert. The last bits may differ.
//
// After [nn.To] the weights do not lie one behind another any more, and each Forward copies them
// all. Choose the dtype by [SwitchOptions] instead.
func (m *residentExperts) Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		wi, wo := m.stacked(x, func(e *Dense) *cgotorch.Tensor { return e.WI.Weight }), m.stacked(x, func(e *Dense) *cgotorch.Tensor { return e.WO.Weight })
		n, cuda := tokens.Shape()[0], x.Device().IsCUDA()
		switch {
		case n == 1 || !cuda && n <= 8:
			return oneByOne(x, wi, wo, tokens, ids)
		case m.NoGrouped || cuda && tokens.DType() != cgotorch.BFloat16 || !groupable(wi):
			return inBlocks(x, wi, wo, tokens, ids, gatheredBytes)
		}
		return grouped(x, wi, wo, tokens, ids)
	})
}

// stacked returns the weights of all experts, [experts, …].
func (m *residentExperts) stacked(x *cgotorch.Exec, of func(e *Dense) *cgotorch.Tensor) *cgotorch.Tensor {
	n := len(m.Expert)
	if all := stackedView(x, n, of(m.Expert[0]), of(m.Expert[n-1])); all != nil {
		return all
	}
	all := make([]*cgotorch.Tensor, n)
	for i, e := range m.Expert {
		all[i] = of(e)
	}
	return x.Stack(all, 0)
}

// oneByOne runs each token with a copy of its expert.
func oneByOne(x *cgotorch.Exec, wi, wo, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	var rows []*cgotorch.Tensor
	for i := range int(tokens.Shape()[0]) {
		rows = append(rows, x.Tidy(func() *cgotorch.Tensor {
			id := x.Narrow(ids, 0, i, 1)
			one := func(weights *cgotorch.Tensor) *nn.Linear {
				return &nn.Linear{Weight: x.Squeeze(x.IndexSelect(weights, 0, id), 0)}
			}
			return (&Dense{WI: one(wi), WO: one(wo)}).Forward(x, x.Narrow(tokens, 0, i, 1))
		}))
	}
	if len(rows) == 1 {
		return rows[0]
	}
	return x.Cat(rows, 0)
}

// groupable reports whether LibTorch's grouped product takes weights [experts, d_ff, d_model], and
// [experts, d_model, d_ff].
func groupable(wi *cgotorch.Tensor) bool {
	shape, size := wi.Shape(), int64(wi.DType().Size())
	return shape[1]*size%16 == 0 && shape[2]*size%16 == 0
}

// grouped sorts the tokens by expert. LibTorch multiplies each group by its expert's weights.
func grouped(x *cgotorch.Exec, wi, wo, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	order := nn.ExpertOrder(x, ids)
	ends := searchSorted(x, x.IndexSelect(ids, 0, order), x.Arange(cgotorch.Int64, 0, wi.Shape()[0], nil), true)
	product := func(in, weights *cgotorch.Tensor) *cgotorch.Tensor {
		return call(x, "aten::_grouped_mm", in, x.Transpose(weights, 1, 2), ends)
	}
	inner := x.ReLUInPlace(product(x.IndexSelect(tokens, 0, order), wi))
	return unsortRows(x, product(inner, wo), order)
}
