package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Flatten joins the dimensions from Start to End into one.
type Flatten struct {
	Start int // 0 means 1: the batch stays
	End   int // 0 means -1, the last
}

// Forward maps [N, C, H, W] to [N, C*H*W] by default. It returns a view where the strides allow
// one, and otherwise a copy.
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
