package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Dispatch sends each token through the expert of that token. `tokens` has the shape [tokens,
// d_model]. `ids` holds the number of each token's expert, in host memory. `order` is the result
// of [ExpertOrder], on the device: the positions of the tokens, sorted by expert. `order` may be
// nil if all tokens have the same expert.
//
// Dispatch calls `fn` on the host, once for each expert that has tokens. Experts with lower
// numbers come first. `rows` are the tokens of one expert, as [n, d_model], in the same order as
// in `tokens`. `fn` returns a tensor of the same shape as `rows`. Row i of Dispatch's result is
// the result for row i of `tokens`. Dispatch waits for the device only if `fn` waits. It fails
// with [cgotorch.ErrInvalidArgument] if a shape does not fit.
func Dispatch(x *cgotorch.Exec, tokens *cgotorch.Tensor, ids []int64, order *cgotorch.Tensor, fn func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "nn.Dispatch"
	shape := tokens.Shape()
	if len(shape) != 2 || shape[0] != int64(len(ids)) || len(ids) == 0 {
		refuse(x, where, "the tokens are %s, and there are %d ids: want [tokens, d_model] with one for each, and at least one", tokens, len(ids))
	}
	sortedIDs := slices.Sorted(slices.Values(ids))
	if sortedIDs[0] == sortedIDs[len(ids)-1] {
		out := fn(ids[0], tokens)
		sameShape(x, where, ids[0], out, shape)
		return x.Alias(out)
	}
	if order == nil {
		refuse(x, where, "there is no order, and the tokens want experts from %d to %d", sortedIDs[0], sortedIDs[len(ids)-1])
	}
	return x.Tidy(func() *cgotorch.Tensor {
		sorted := x.IndexSelect(tokens, 0, order)
		var parts []*cgotorch.Tensor
		for at := 0; at < len(ids); {
			n, expert := 1, sortedIDs[at]
			for at+n < len(ids) && sortedIDs[at+n] == expert {
				n++
			}
			part := fn(expert, x.Narrow(sorted, 0, at, n))
			sameShape(x, where, expert, part, []int64{int64(n), shape[1]})
			parts = append(parts, part)
			at += n
		}
		return unsortRows(x, x.Cat(parts, 0), order)
	})
}

// ExpertOrder returns the positions of the tokens sorted by expert, as Int64 [tokens]. Tokens of
// the same expert keep their order. `ids` holds the number of each token's expert, as Int64
// [tokens]. ExpertOrder does not wait.
func ExpertOrder(x *cgotorch.Exec, ids *cgotorch.Tensor) *cgotorch.Tensor {
	return x.ArgSort(ids, 0, cgotorch.SortOptions{Stable: true})
}

// unsortRows puts rows back into the order that they had before they were sorted. Row i of
// `sorted` becomes row order[i] of the result.
func unsortRows(x *cgotorch.Exec, sorted, order *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::index_copy_", x.EmptyLike(sorted), 0, order, sorted)
}

func sameShape(x *cgotorch.Exec, where string, expert int64, out *cgotorch.Tensor, want []int64) {
	if out == nil || !slices.Equal(out.Shape(), want) {
		refuse(x, where, "expert %d made %s of rows %v, which want the same shape", expert, out, want)
	}
}
