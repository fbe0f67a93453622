package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// gatheredBytes bounds the bytes of experts' weights that inBlocks copies at a time.
const gatheredBytes = 256 << 20

// Note [Experts in blocks]
//
// Only the device knows how many tokens each expert has, but the host decides shapes. The tokens
// are therefore sorted by expert and laid out in blocks of equal size. A block holds tokens of
// one expert. Free rows of a block are zeros.
//
// A block has `size` rows. n tokens of e experts need at most (n + e*(size-1))/size blocks, and
// at most n blocks. inBlocks always computes the smaller of these two numbers of blocks. The last
// blocks may therefore be empty. Block b belongs to the first expert whose blocks end after b.
//
// For each block inBlocks copies the weights of the block's expert. These copies are one input of
// a batched product. Blocks of one token need no sorting.

// inBlocks runs `tokens` [tokens, d_model] through the experts, whose stacked weights are wi and
// wo. `ids` has the number of each token's expert. inBlocks copies at most `limit` bytes of
// weights at a time. See Note [Experts in blocks].
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

	// The blocks of one expert lie one after another. The row of a token is therefore the sum of
	// two numbers. One number is the first row of the first block of the token's expert. The other
	// number is the token's position among the tokens of this expert.
	place := x.Sub(x.Arange(cgotorch.Int64, 0, shape[0], nil), x.IndexSelect(starts, 0, sorted))
	rows := x.Add(x.MulScalar(x.IndexSelect(blockStarts, 0, sorted), size), place)
	laid := x.Zeros(tokens.DType(), count*size, shape[1])
	indexCopy(x, laid, 0, rows, x.IndexSelect(tokens, 0, order))
	of := searchSorted(x, blockEnds, x.Arange(cgotorch.Int64, 0, count, nil), false)
	of = x.Clamp(of, nil, experts-1) // an empty block after the last token counts as a block of the last expert
	out := batched(x, wi, wo, x.View(laid, count, size, shape[1]), of, limit)
	return unsortRows(x, x.IndexSelect(x.View(out, count*size, shape[1]), 0, rows), order)
}

// blocks chooses the number of rows of a block, `size`, and the number of blocks to compute,
// `count`. `size` is at most about four times the mean number of tokens of an expert. This bounds
// both the copies of weights and the padding to a few times what is needed.
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

// batched maps the blocks `in` [count, size, d_model] to the same shape. Expert of[i] maps block i.
// One batched product copies at most `limit` bytes of weights. But if the weights for one block
// have more bytes, one product copies the weights for one block.
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
