package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Flatten joins the dimensions from Start to End into one dimension.
type Flatten struct {
	Start int // 0 means 1, so that the batch dimension stays
	End   int // 0 means -1, the last dimension
}

// Forward maps [N, C, H, W] to [N, C*H*W] by default. It returns a view if the strides allow a
// view. Otherwise it returns a copy.
func (m *Flatten) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	start, end := m.Start, m.End
	if start == 0 {
		start = 1
	}
	if end == 0 {
		end = -1
	}
	return x.Flatten(in, start, end)
}
