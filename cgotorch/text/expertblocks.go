package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// gatheredBytes bounds the copies of experts' weights that inBlocks makes at a time.
const gatheredBytes = 256 << 20

// Note [Experts in blocks]
//
// Only the device knows how many tokens an expert has, and the host decides shapes. The sorted
// tokens are therefore laid out in blocks of equal size. A block holds tokens of one expert, padded
// with zeros. n tokens of e experts never need more than (n + e*(size-1))/size blocks of that size,
// nor more than n. That many blocks are computed, and the last may be empty. Block b belongs to the
// first expert whose blocks end behind b. Each block's weights are copied, as input of a batched
// product. A block of one token needs no sorting.

// inBlocks runs tokens [tokens, d_model] through the experts with the stacked weights wi and wo.
// See Note [Experts in blocks].
func inBlocks(x *cgotorch.Exec, wi, wo, tokens, ids *cgotorch.Tensor, limit int64) *cgotorch.Tensor {
	shape, experts := tokens.Shape(), wi.Shape()[0]
	size, count := blocks(shape[0], experts)
	if size == 1 {
		out := batched(x, wi, wo, x.Unsqueeze(tokens, 1), ids, limit)
		return x.Squeeze(out, 1)
	}
	order := nn.ExpertOrder(x, ids)
	sorted := x.IndexSelect(ids, 0, order)
	numbers := x.Arange(cgotorch.Int64, 0, experts, nil)
	ends := searchSorted(x, sorted, numbers, false)
	starts := call(x, "aten::searchsorted.Tensor", sorted, numbers, false, false)
	blockCounts := x.DivFloor(x.AddScalar(x.Sub(ends, starts), size-1), x.Full(cgotorch.Int64, size))
	blockEnds := x.CumSum(blockCounts, 0)
	blockStarts := x.Sub(blockEnds, blockCounts)

	// An expert's blocks lie one behind another. The row of a token is therefore the first row of its
	// expert's first block, plus its place among the expert's tokens.
	place := x.Sub(x.Arange(cgotorch.Int64, 0, shape[0], nil), x.IndexSelect(starts, 0, sorted))
	rows := x.Add(x.MulScalar(x.IndexSelect(blockStarts, 0, sorted), size), place)
	laid := x.Zeros(tokens.DType(), count*size, shape[1])
	indexCopy(x, laid, 0, rows, x.IndexSelect(tokens, 0, order))
	of := searchSorted(x, blockEnds, x.Arange(cgotorch.Int64, 0, count, nil), false)
	of = x.Clamp(of, nil, experts-1) // empty blocks at the end
	out := batched(x, wi, wo, x.View(laid, count, size, shape[1]), of, limit)
	return unsortRows(x, x.IndexSelect(x.View(out, count*size, shape[1]), 0, rows), order)
}

// blocks chooses the size of blocks and their largest number. Blocks of four times the mean number
// of tokens keep the copies of weights, and the padding, within a few times the need.
func blocks(tokens, experts int64) (size, count int64) {
	size = 1
	for size < 64 && size < 4*tokens/experts {
		size *= 2
	}
	count = min(tokens, (tokens+experts*(size-1))/size)
	if count == tokens {
		return 1, tokens
	}
	return size, count
}

// batched maps blocks [count, size, d_model] to the same shape, block i by expert of[i]. It handles
// as many blocks at a time as limit bytes of weights allow.
func batched(x *cgotorch.Exec, wi, wo, in, of *cgotorch.Tensor, limit int64) *cgotorch.Tensor {
	count := in.Shape()[0]
	matrix := wi.Numel() / wi.Shape()[0] * int64(wi.DType().Size())
	step := max(1, limit/(2*matrix))
	var parts []*cgotorch.Tensor
	for at := int64(0); at < count; at += step {
		n := int(min(step, count-at))
		parts = append(parts, x.Tidy(func() *cgotorch.Tensor {
			chosen := x.Narrow(of, 0, int(at), n)
			product := func(in, weights *cgotorch.Tensor) *cgotorch.Tensor {
				return x.Tidy(func() *cgotorch.Tensor { return x.BMM(in, x.Transpose(x.IndexSelect(weights, 0, chosen), 1, 2)) })
			}
			inner := x.ReLUInPlace(product(x.Narrow(in, 0, int(at), n), wi))
			return product(inner, wo)
		}))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return x.Cat(parts, 0)
}
