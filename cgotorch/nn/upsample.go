package nn

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Upsample resizes sequences, images and volumes.
type Upsample struct {
	Size  []int64   // sizes of the result: length, or height and width, or depth, height and width
	Scale []float64 // factors of the sizes, without Size; one number is for all dimensions
	// Mode is "linear" for sequences, "bilinear" or "bicubic" for images, "trilinear" for volumes, or
	// "nearest-exact". "" means "nearest".
	Mode         string
	AlignCorners bool // maps corners to corners; not for the modes that take the nearest point
}

// Forward maps [N, C, sizes...] to [N, C, new sizes...]. It does not wait. It fails with
// [cgotorch.ErrInvalidArgument] if Mode does not fit the number of dimensions.
func (m *Upsample) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	dims := in.Dim() - 2
	mode := m.Mode
	if mode == "" {
		mode = "nearest"
	}
	op := map[string]string{
		"nearest/1": "upsample_nearest1d", "nearest/2": "upsample_nearest2d", "nearest/3": "upsample_nearest3d",
		"nearest-exact/1": "_upsample_nearest_exact1d", "nearest-exact/2": "_upsample_nearest_exact2d", "nearest-exact/3": "_upsample_nearest_exact3d",
		"linear/1": "upsample_linear1d", "bilinear/2": "upsample_bilinear2d", "bicubic/2": "upsample_bicubic2d", "trilinear/3": "upsample_trilinear3d",
	}[fmt.Sprintf("%s/%d", mode, dims)]
	nearest := mode == "nearest" || mode == "nearest-exact"
	switch {
	case op == "":
		refuse(x, "nn.Upsample", "Mode is %q, which has no form for the input %s", m.Mode, in)
	case (m.Size == nil) == (m.Scale == nil):
		refuse(x, "nn.Upsample", "Size is %v and Scale is %v, want one of the two", m.Size, m.Scale)
	case m.AlignCorners && nearest:
		refuse(x, "nn.Upsample", "AlignCorners with the mode %q", mode)
	}
	var size, scale any
	if m.Size != nil {
		size = m.Size
	} else {
		factors := m.Scale
		if len(factors) == 1 {
			factors = slices.Repeat(factors, dims)
		}
		scale = factors
	}
	if nearest {
		return x.Call1("aten::"+op+".vec", in, size, scale)
	}
	return x.Call1("aten::"+op+".vec", in, size, m.AlignCorners, scale)
}
