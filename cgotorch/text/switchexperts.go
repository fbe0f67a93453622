package text

import (
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// switchExperts are the experts of one layer. The weights of all experts are adjacent, and each
// expert holds views of them.
type switchExperts struct {
	Expert []*Dense `state:"-"` // the names in the state are expert_0, expert_1, …

	// NoGrouped avoids the product that may wait for the device: see switchExperts.Forward.
	NoGrouped bool

	held  *heldExperts `state:"-"` // the experts lie in its table; nil if they lie on the device
	layer int          // of the table
}

// Children implements [nn.Container].
func (m *switchExperts) Children() []nn.Child {
	children := make([]nn.Child, len(m.Expert))
	for i, e := range m.Expert {
		children[i] = nn.Child{Name: "expert_" + strconv.Itoa(i), Module: e}
	}
	return children
}

// Forward maps `tokens` [tokens, d_model] to the same shape. `ids` is Int64 [tokens], and expert
// ids[i] maps row i. The device, the dtype and the number of tokens decide how it multiplies:
//
//   - A single token, on any device, runs by [Dense.Forward] with a copy of its expert's weights.
//     The results equal those of [nn.Dispatch] bit for bit. On the CPU up to 8 tokens run in this
//     way, one after another. The last bits of their results may differ from the results of
//     several tokens at once.
//   - On the CPU more than 8 tokens run by LibTorch's grouped product. The grouped product
//     multiplies once for each expert that has tokens. The results equal those of nn.Dispatch bit
//     for bit. [cgotorch.Exec.NoWaits] counts the grouped product as a wait, because on CUDA in
//     float32 it would wait.
//   - On CUDA in bfloat16 two or more tokens run by LibTorch's grouped product, in one kernel. The
//     last bits may differ from those of Dense. With LibTorch 2.11 this product does not wait on
//     compute capability 9.0, where it was tried. If a device does not have this kernel, the
//     product waits and cannot be captured. Set NoGrouped for this device.
//   - In all other cases the tokens of each expert are put into blocks, and each block gets a copy
//     of its expert's weights. These cases are NoGrouped, a dtype other than bfloat16 on CUDA, and
//     weights whose rows are not multiples of 16 bytes. At most 256 MiB are copied at a time, or
//     the weights of one expert. The last bits may differ from those of Dense.
//   - If the experts lie in a table, see Note [Slots of a Switch].
//
// After [nn.To] the weights of the experts are not adjacent any more. Each Forward then copies
// all weights. Choose the dtype by [SwitchOptions] instead.
func (m *switchExperts) Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		wi, wo := m.stacked(x, func(e *Dense) *cgotorch.Tensor { return e.WI.Weight }), m.stacked(x, func(e *Dense) *cgotorch.Tensor { return e.WO.Weight })
		n, cuda := tokens.Shape()[0], x.Device().IsCUDA()
		held := m.held != nil && wi.SharesMemory(m.held.table.Layer(m.layer).Experts[0]) // not after nn.To
		switch {
		case held && m.held.slots && n <= slotTokens:
			return m.held.bySlots(x, m.layer, tokens, ids)
		case held && cuda && n > 1:
			if _, count := blocks(n, int64(len(m.Expert))); count <= int64(2*len(m.Expert)) {
				return inBlocks(x, wi, wo, tokens, ids, gatheredBytes)
			}
			wi, wo = x.Clone(wi), x.Clone(wo) // on the device
		}
		switch {
		case n == 1 || !cuda && n <= 8:
			return oneByOne(x, wi, wo, tokens, ids)
		case m.NoGrouped || cuda && tokens.DType() != cgotorch.BFloat16 || !groupable(wi):
			return inBlocks(x, wi, wo, tokens, ids, gatheredBytes)
		}
		return grouped(x, wi, wo, tokens, ids)
	})
}

// stacked returns the weights of all experts as one tensor, [experts, …]. `of` returns the weight
// of one expert.
func (m *switchExperts) stacked(x *cgotorch.Exec, of func(e *Dense) *cgotorch.Tensor) *cgotorch.Tensor {
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

// oneByOne runs one token after another, each with a copy of its expert's weights.
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

// groupable reports whether LibTorch's grouped product takes weights with the shape of wi,
// [experts, d_ff, d_model]. The answer is the same for wo, [experts, d_model, d_ff].
func groupable(wi *cgotorch.Tensor) bool {
	shape, size := wi.Shape(), int64(wi.DType().Size())
	return shape[1]*size%16 == 0 && shape[2]*size%16 == 0
}

// grouped sorts the tokens by expert. LibTorch then multiplies the tokens of each expert by the
// expert's weights.
func grouped(x *cgotorch.Exec, wi, wo, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	order := nn.ExpertOrder(x, ids)
	ends := searchSorted(x, x.IndexSelect(ids, 0, order), x.Arange(cgotorch.Int64, 0, wi.Shape()[0], nil), true)
	product := func(in, weights *cgotorch.Tensor) *cgotorch.Tensor {
		return call(x, "aten::_grouped_mm", in, x.Transpose(weights, 1, 2), ends)
	}
	inner := x.ReLUInPlace(product(x.IndexSelect(tokens, 0, order), wi))
	return unsortRows(x, product(inner, wo), order)
}
