package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Pad adds a border to the last dimensions of its input. It is PyTorch's ZeroPad, ConstantPad,
// ReflectionPad, ReplicationPad and CircularPad, in any number of dimensions.
type Pad struct {
	// Padding holds the sizes of the border before and after the last dimension, then those of the
	// dimension before it, and so on. Four equal numbers are a border around images. A negative
	// number cuts.
	Padding []int
	// Mode is "reflect", "replicate" or "circular", as in [Conv2dOptions]. "" means Value.
	Mode  string
	Value float64
}

// Forward maps [N, C, H, W] to [N, C, H+top+bottom, W+left+right], for a Padding of left, right,
// top and bottom.
func (m *Pad) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	border := make([]int64, len(m.Padding))
	for i, n := range m.Padding {
		border[i] = int64(n)
	}
	switch {
	case m.Mode == "":
		return x.Pad(in, border, cgotorch.PadOptions{Value: m.Value})
	case !slices.Contains([]string{"reflect", "replicate", "circular"}, m.Mode):
		refuse(x, "nn.Pad", "Mode is %q, want reflect, replicate, circular or nothing for Value", m.Mode)
	}
	return x.Pad(in, border, cgotorch.PadOptions{Mode: m.Mode})
}
