package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// buckets maps relative positions, key less query, Int64 of any shape, to the buckets of T5's
// learnt biases. Half of the buckets hold one distance each. The others hold ranges that grow with
// the logarithm, up to the largest distance. bothWays gives half of all buckets to keys behind the
// query. Without it these count as distance 0.
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
		// The operations are transformers', float32 and in the same order: a rounding decides between two
		// buckets.
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

// positionBias looks biases up: buckets [queries, keys] give [1, heads, queries, keys].
func positionBias(x *cgotorch.Exec, biases *nn.Embedding, buckets *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return x.Unsqueeze(x.Permute(biases.Forward(x, buckets), 2, 0, 1), 0)
	})
}

// relative returns key less query for every pair, Int64 [n, n].
func relative(x *cgotorch.Exec, n int64) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		positions := x.Arange(cgotorch.Int64, 0, n, nil)
		return x.Sub(x.Unsqueeze(positions, 0), x.Unsqueeze(positions, 1))
	})
}

// padding turns a mask [batch, keys] into numbers added to the scores, [batch, 1, 1, keys]. The
// mask is 0 at padding, and of any dtype. nil stays nil.
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
