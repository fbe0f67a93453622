package vision

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// MLP is a multi-layer perceptron on the pixels, with the parameter names of torchvision.ops.MLP.
// Each hidden layer is a Linear, a ReLU and a Dropout. The last layer is a Linear and a Dropout.
type MLP struct {
	nn.Sequential
}

// NewMLP makes an MLP for images of size ImageSize.
func NewMLP(x *cgotorch.Exec, o Options) *MLP {
	const where = "vision.NewMLP"
	if o.ImageSize == (nn.Size{}) {
		o.ImageSize = nn.Square(32)
	}
	if o.Hidden == nil {
		o.Hidden = []int{512, 256}
	}
	dropout := o.Dropout.Or(0)
	if min(o.ImageSize[0], o.ImageSize[1]) < 1 || len(o.Hidden) > 0 && slices.Min(o.Hidden) < 1 || !(dropout >= 0 && dropout <= 1) {
		x.Fail(where, fmt.Errorf("ImageSize is %v, Hidden %v, Dropout %v: want sizes of at least 1 and a probability: %w", o.ImageSize, o.Hidden, dropout, cgotorch.ErrInvalidArgument))
	}
	return build(x, where, o, 10, func(b *builder) *MLP {
		in := b.Channels * o.ImageSize[0] * o.ImageSize[1]
		var layers []nn.Module
		for _, width := range o.Hidden {
			layers = append(layers, b.linear(in, width), &nn.ReLU{InPlace: true}, &nn.Dropout{P: dropout})
			in = width
		}
		layers = append(layers, b.linear(in, b.Classes), &nn.Dropout{P: dropout})
		return &MLP{*nn.NewSequential(layers...)}
	})
}

// Forward maps [N, Channels, height, width] to logits [N, Classes].
func (m *MLP) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	return then(x, x.Flatten(images, 1, -1), &m.Sequential)
}

// Fuse implements [nn.Fusible].
func (m *MLP) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, &nn.Flatten{}, &m.Sequential)
}
