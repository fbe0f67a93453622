package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// EmbeddingOptions are the options of [NewEmbedding].
type EmbeddingOptions struct {
	Padding bool // row PaddingIndex begins as zeros and gets no gradient
	// PaddingIndex is used with Padding; negative counts from the end.
	PaddingIndex int
}

// Embedding looks up rows by their number.
type Embedding struct {
	Weight *cgotorch.Tensor // [rows, width]
	EmbeddingOptions
}

// NewEmbedding makes rows of the given width, float32, on x's device, drawn from the standard normal distribution.
func NewEmbedding(x *cgotorch.Exec, rows, width int, o EmbeddingOptions) *Embedding {
	const where = "nn.NewEmbedding"
	atLeast(x, where, 1, argument{"rows", rows}, argument{"width", width})
	if o.Padding {
		if o.PaddingIndex < -rows || o.PaddingIndex >= rows {
			refuse(x, where, "PaddingIndex is %d, outside of %d rows", o.PaddingIndex, rows)
		}
		o.PaddingIndex = (o.PaddingIndex + rows) % rows
	}
	m := &Embedding{Weight: x.Empty(cgotorch.Float32, int64(rows), int64(width)), EmbeddingOptions: o}
	Normal(x, m.Weight, 0, 1)
	if o.Padding {
		row := x.NoGrad().Select(m.Weight, 0, o.PaddingIndex)
		Constant(x, row, 0)
		row.Close()
	}
	keepParameters(x, where, m.Weight)
	return m
}

// Forward maps int64 (or int32) [...] to [..., width]. An index outside of the rows is an error on the CPU and loses a CUDA
// device.
func (m *Embedding) Forward(x *cgotorch.Exec, indices *cgotorch.Tensor) *cgotorch.Tensor {
	var o cgotorch.EmbeddingOptions
	if m.Padding {
		o.PaddingIndex = cgotorch.Set(m.PaddingIndex)
	}
	return x.Embedding(m.Weight, indices, o)
}
