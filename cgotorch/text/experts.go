package text

import (
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Experts run each token through the expert it wants.
type Experts interface {
	// Forward maps tokens [tokens, d_model] to the same shape, row i by the expert whose number is ids[i], Int64 [tokens], on x's device.
	Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor
}

// ResidentExperts are a layer's experts in the memory of the device. The weights of all lie one behind another, and the experts hold views of them.
type ResidentExperts struct {
	Expert []*Dense `state:"-"` // named expert_0, expert_1, … in the state

	// NoGrouped keeps to products that wait for nothing on any device: see [ResidentExperts.Forward].
	NoGrouped bool
}

// Children implements [nn.Container].
func (m *ResidentExperts) Children() []nn.Child {
	children := make([]nn.Child, len(m.Expert))
	for i, e := range m.Expert {
		children[i] = nn.Child{Name: "expert_" + strconv.Itoa(i), Module: e}
	}
	return children
}

// Forward implements [Experts]. Which way it goes depends on the device, the dtype and the number of tokens:
//
//   - A single token, on any device, runs by [Dense.Forward] with a copy of its expert's weights: the results are those of [nn.Dispatch] to the bit. On the
//     CPU so do up to 8 tokens, each by itself, which may differ in the last bits from what is made of several at once.
//   - More tokens on the CPU run by LibTorch's grouped product, one product for each expert that has some: the results are again Dispatch's to the
//     bit. [cgotorch.Exec.NoWaits] counts it, since in float32 on CUDA it would wait.
//   - On CUDA in bfloat16 they run by LibTorch's grouped product, which is one kernel and may differ from Dense's product in the last bits. LibTorch 2.11
//     waits for nothing there on compute capability 9.0, where it was tried; where a device lacks that kernel, it waits and cannot be
//     captured, as it does in float32: there set NoGrouped.
//   - On CUDA in float32, with NoGrouped, and where a row of weights is no multiple of 16 bytes, the weights of experts are copied beside each
//     other, an expert's once for each block of its tokens, at most 256 MiB at a time or one expert's. The last bits may differ.
//
// After [nn.To] the weights do not lie one behind another any more, and each Forward copies them all: choose the dtype by [SwitchOptions] instead.
func (m *ResidentExperts) Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
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

// stacked is the weights of all experts, [experts, …].
func (m *ResidentExperts) stacked(x *cgotorch.Exec, of func(e *Dense) *cgotorch.Tensor) *cgotorch.Tensor {
	n := len(m.Expert)
	if all := sideBySide(x, n, of(m.Expert[0]), of(m.Expert[n-1])); all != nil {
		return all
	}
	all := make([]*cgotorch.Tensor, n)
	for i, e := range m.Expert {
		all[i] = of(e)
	}
	return x.Stack(all, 0)
}

// oneByOne copies each token's expert.
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

// groupable reports whether LibTorch's grouped product takes weights [experts, d_ff, d_model], and their counterparts.
func groupable(wi *cgotorch.Tensor) bool {
	shape, size := wi.Shape(), int64(wi.DType().Size())
	return shape[1]*size%16 == 0 && shape[2]*size%16 == 0
}

// grouped sorts the tokens by expert and has LibTorch multiply each group by its expert's weights.
func grouped(x *cgotorch.Exec, wi, wo, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	order := nn.ExpertOrder(x, ids)
	ends := searchSorted(x, x.IndexSelect(ids, 0, order), x.Arange(cgotorch.Int64, 0, wi.Shape()[0], nil), true)
	product := func(in, weights *cgotorch.Tensor) *cgotorch.Tensor {
		return call(x, "aten::_grouped_mm", in, x.Transpose(weights, 1, 2), ends)
	}
	inner := x.ReLUInPlace(product(x.IndexSelect(tokens, 0, order), wi))
	return nn.UnsortRows(x, product(inner, wo), order)
}
