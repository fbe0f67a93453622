package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// buckets maps relative positions to the buckets of T5's learnt biases. A relative position is the
// position of the key minus the position of the query. `relative` holds relative positions, as
// Int64 of any shape. The distance between key and query decides the bucket. Each bucket of the
// first half holds one distance. Each bucket of the second half holds a range of distances. The
// ranges grow exponentially up to the largest distance.
//
// bothWays keeps half of all buckets for keys after the query. Without bothWays, a key after the
// query counts as distance 0.
func (c *SwitchConfig) buckets(x *cgotorch.Exec, relative *cgotorch.Tensor, bothWays bool) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		n := c.RelativeAttentionNumBuckets
		var behind, distance *cgotorch.Tensor
		if bothWays {
			n /= 2
			behind = x.MulScalar(x.To(x.GtScalar(relative, 0), cgotorch.Int64), n)
			distance = x.Abs(relative)
		} else {
			distance = x.Clamp(x.Neg(relative), 0, nil)
		}
		exact := n / 2
		// The operations, their order and float32 are those of transformers. A different rounding
		// could give a different bucket.
		far := x.Log(x.DivScalar(x.To(distance, cgotorch.Float32), exact))
		far = x.MulScalar(x.DivScalar(far, math.Log(float64(c.RelativeAttentionMaxDistance)/float64(exact))), n-exact)
		far = x.Clamp(x.AddScalar(x.To(far, cgotorch.Int64), exact), nil, n-1)
		bucket := x.Where(x.LtScalar(distance, exact), distance, far)
		if bothWays {
			bucket = x.Add(bucket, behind)
		}
		return bucket
	})
}

// positionBias looks up the biases of `buckets` [queries, keys]. The result is [1, heads,
// queries, keys].
func positionBias(x *cgotorch.Exec, biases *nn.Embedding, buckets *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return x.Unsqueeze(x.Permute(biases.Forward(x, buckets), 2, 0, 1), 0)
	})
}

// relative returns the relative position of every pair of n tokens, Int64 [n, n]. The element in
// row q and column k is k - q.
func relative(x *cgotorch.Exec, n int64) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		positions := x.Arange(cgotorch.Int64, 0, n, nil)
		return x.Sub(x.Unsqueeze(positions, 0), x.Unsqueeze(positions, 1))
	})
}

// padding turns `mask` [batch, keys] into numbers to add to the scores, [batch, 1, 1, keys]. `mask`
// has any dtype and is 0 at padding. For a nil `mask` the result is nil.
func padding(x *cgotorch.Exec, mask *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	if mask == nil {
		return nil
	}
	return x.Tidy(func() *cgotorch.Tensor {
		shape := mask.Shape()
		hidden := x.EqScalar(x.Reshape(mask, shape[0], 1, 1, shape[1]), 0)
		return x.MaskedFill(x.Zeros(dtype, shape[0], 1, 1, shape[1]), hidden, lowest(dtype))
	})
}
