package vision

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// NewMLP makes a multi-layer perceptron on the pixels of images of size ImageSize, with the
// parameter names of torchvision.ops.MLP. Each hidden layer is a Linear, a ReLU and a Dropout. The
// last layer is a Linear and a Dropout. It maps [N, Channels, height, width] to logits, [N,
// Classes].
func NewMLP(x *cgotorch.Exec, o Options) *nn.Sequential {
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
	return build(x, where, o, 10, func(b *builder) *nn.Sequential {
		in := b.Channels * o.ImageSize[0] * o.ImageSize[1]
		var layers []nn.Module
		for _, width := range o.Hidden {
			layers = append(layers, b.linear(in, width), &nn.ReLU{InPlace: true}, &nn.Dropout{P: dropout})
			in = width
		}
		layers = append(layers, b.linear(in, b.Classes), &nn.Dropout{P: dropout})
		m := nn.NewSequential(layers...)
		m.Modules = slices.Insert(m.Modules, 0, nn.Child{Module: &nn.Flatten{}}) // without a name, so that the names count the layers
		return m
	})
}
