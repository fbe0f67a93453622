package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// EmbeddingOptions choose the row of an [Embedding] that stands for padding.
type EmbeddingOptions struct {
	// PaddingIndex is a row that begins as zeros and gets no gradient. A negative index counts from
	// the end. Unset means that no row is padding.
	PaddingIndex cgotorch.Opt[int]
}

// Embedding returns rows of Weight by their index.
type Embedding struct {
	Weight *cgotorch.Tensor // [rows, width]
	EmbeddingOptions
}

// NewEmbedding makes an Embedding with the given number of rows and the given width, in float32
// on x's device. It draws the rows from the standard normal distribution.
func NewEmbedding(x *cgotorch.Exec, rows, width int, o EmbeddingOptions) *Embedding {
	const where = "nn.NewEmbedding"
	atLeast(x, where, 1, argument{"rows", rows}, argument{"width", width})
	padding, padded := o.PaddingIndex.Get()
	if padded {
		if padding < -rows || padding >= rows {
			refuse(x, where, "PaddingIndex is %d, outside of %d rows", padding, rows)
		}
		padding = (padding + rows) % rows
		o.PaddingIndex = cgotorch.Set(padding)
	}
	m := &Embedding{Weight: x.Empty(cgotorch.Float32, int64(rows), int64(width)), EmbeddingOptions: o}
	Normal(x, m.Weight, 0, 1)
	if padded {
		row := x.NoGrad().Select(m.Weight, 0, padding)
		Constant(x, row, 0)
		row.Close()
	}
	keepParameters(x, where, m.Weight)
	return m
}

// Forward maps int64 or int32 indices [...] to rows [..., width]. An index outside the rows is an
// error on the CPU. On a CUDA device it makes the device lost.
func (m *Embedding) Forward(x *cgotorch.Exec, indices *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Embedding(m.Weight, indices, cgotorch.EmbeddingOptions{PaddingIndex: m.PaddingIndex})
}
