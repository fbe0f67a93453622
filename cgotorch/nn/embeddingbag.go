package nn

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// EmbeddingBagOptions are the options of [NewEmbeddingBag].
type EmbeddingBagOptions struct {
	Mode string // "sum", "mean" or "max" of a bag's rows; "" means "mean"
	// PaddingIndex is a row that begins as zeros, gets no gradient and does not count. A negative
	// index counts from the end. Unset means that no row is padding.
	PaddingIndex cgotorch.Opt[int]
}

// EmbeddingBag returns the sum, the mean or the maximum of rows of Weight. A bag is a set of
// indices.
type EmbeddingBag struct {
	Weight *cgotorch.Tensor // [rows, width]
	EmbeddingBagOptions
}

// NewEmbeddingBag makes an EmbeddingBag with the given number of rows and the given width, in
// float32 on x's device. It draws the rows as [NewEmbedding] does.
func NewEmbeddingBag(x *cgotorch.Exec, rows, width int, o EmbeddingBagOptions) *EmbeddingBag {
	if _, ok := bagModes[o.Mode]; !ok {
		refuse(x, "nn.NewEmbeddingBag", "Mode is %q, want sum, mean, max or nothing for mean", o.Mode)
	}
	table := NewEmbedding(x, rows, width, EmbeddingOptions{PaddingIndex: o.PaddingIndex})
	o.PaddingIndex = table.PaddingIndex
	return &EmbeddingBag{Weight: table.Weight, EmbeddingBagOptions: o}
}

// bagModes has LibTorch's numbers of the modes.
var bagModes = map[string]int{"sum": 0, "": 1, "mean": 1, "max": 2}

// Forward maps int64 or int32 indices [N, L], N bags of L indices each, to [N, width].
func (m *EmbeddingBag) Forward(x *cgotorch.Exec, indices *cgotorch.Tensor) *cgotorch.Tensor {
	if indices.Dim() != 2 {
		refuse(x, "nn.EmbeddingBag", "the indices are %s, want [N, L]; for bags of different sizes call ForwardBags", indices)
	}
	shape := indices.Shape()
	return x.Tidy(func() *cgotorch.Tensor {
		offsets := x.Zeros(indices.DType(), shape[0]) // of empty bags
		if shape[1] > 0 {
			offsets = x.Arange(indices.DType(), 0, shape[0]*shape[1], shape[1])
		}
		return m.forward(x, x.Reshape(indices, -1), offsets, nil)
	})
}

// ForwardBags maps the indices of N bags, one after another, to [N, width]. `offsets` are [N], the
// positions of the bags' first indices. `factors` has a factor for each index, and needs the mode
// "sum". It may be nil. The indices and offsets have one dtype, int64 or int32. ForwardBags refuses
// a negative offset on the CPU. It does not look at offsets on a CUDA device.
func (m *EmbeddingBag) ForwardBags(x *cgotorch.Exec, indices, offsets, factors *cgotorch.Tensor) *cgotorch.Tensor {
	checkOpen(x, "nn.EmbeddingBag", "indices", indices, "offsets", offsets)
	if !offsets.Device().IsCUDA() && offsets.Numel() > 0 && !inside.Core.Watched(x) {
		smallest := x.Min(offsets)
		least := x.Item(smallest)
		smallest.Close()
		if least < 0 { // LibTorch would read before the indices
			refuse(x, "nn.EmbeddingBag", "an offset is %v, want numbers from 0 up", least)
		}
	}
	return m.forward(x, indices, offsets, factors)
}

func (m *EmbeddingBag) forward(x *cgotorch.Exec, indices, offsets, factors *cgotorch.Tensor) *cgotorch.Tensor {
	mode, ok := bagModes[m.Mode]
	if !ok || factors != nil && m.Mode != "sum" {
		refuse(x, "nn.EmbeddingBag", "Mode is %q; factors need the mode sum", m.Mode)
	}
	var padding any
	if row, ok := m.PaddingIndex.Get(); ok {
		padding = row
	}
	results := x.Call("aten::embedding_bag.padding_idx", m.Weight, indices, offsets, false, mode, false, factors, false, padding)
	for _, r := range results[1:] {
		r.(*cgotorch.Tensor).Close()
	}
	return results[0].(*cgotorch.Tensor)
}
