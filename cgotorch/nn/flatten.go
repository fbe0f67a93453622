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

// Unflatten splits a dimension into several dimensions. It undoes [Flatten].
type Unflatten struct {
	Dim   int     // the dimension to split; negative numbers count from the last
	Sizes []int64 // sizes of the new dimensions, whose product is the size of Dim; one may be -1
}

// Forward maps [N, C*H*W] to [N, C, H, W], with a Dim of 1 and the Sizes C, H and W. It returns a
// view.
func (m *Unflatten) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::unflatten.int", in, m.Dim, m.Sizes)
}
