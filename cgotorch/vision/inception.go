package vision

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// InceptionV3 is the third Inception network, as in torchvision (Szegedy et al., 2015,
// "Rethinking the Inception Architecture for Computer Vision"). Each Mixed block gives its input
// to three or four branches and concatenates the channels of their results. Images have at least
// 75x75 pixels. If the auxiliary head runs, they have at least 299x299 pixels. The shapes below
// are for 299x299.
type InceptionV3 struct {
	Conv1a   *basicConv2d `state:"Conv2d_1a_3x3"` // [N, Channels, 299, 299] to [N, 32, 149, 149]
	Conv2a   *basicConv2d `state:"Conv2d_2a_3x3"`
	Conv2b   *basicConv2d `state:"Conv2d_2b_3x3"` // to [N, 64, 147, 147]
	MaxPool1 *nn.MaxPool2d
	Conv3b   *basicConv2d `state:"Conv2d_3b_1x1"`
	Conv4a   *basicConv2d `state:"Conv2d_4a_3x3"` // to [N, 192, 71, 71]
	MaxPool2 *nn.MaxPool2d

	Mixed5b *nn.Parallel `state:"Mixed_5b"` // to [N, 256, 35, 35]
	Mixed5c *nn.Parallel `state:"Mixed_5c"` // to [N, 288, 35, 35]
	Mixed5d *nn.Parallel `state:"Mixed_5d"` // to [N, 288, 35, 35]
	Mixed6a *nn.Parallel `state:"Mixed_6a"` // to [N, 768, 17, 17]
	Mixed6b *nn.Parallel `state:"Mixed_6b"` // to [N, 768, 17, 17]
	Mixed6c *nn.Parallel `state:"Mixed_6c"` // to [N, 768, 17, 17]
	Mixed6d *nn.Parallel `state:"Mixed_6d"` // to [N, 768, 17, 17]
	Mixed6e *nn.Parallel `state:"Mixed_6e"` // to [N, 768, 17, 17]

	AuxLogits *inceptionV3Aux `state:"AuxLogits"` // reads Mixed6e's result; nil with NoAux

	Mixed7a *nn.Parallel `state:"Mixed_7a"` // to [N, 1280, 8, 8]
	Mixed7b *nn.Parallel `state:"Mixed_7b"` // to [N, 2048, 8, 8]; two of its branches fork again
	Mixed7c *nn.Parallel `state:"Mixed_7c"` // to [N, 2048, 8, 8]; two of its branches fork again
	Dropout *nn.Dropout
	FC      *nn.Linear

	TransformInput bool // as in [Options]
	Eval           bool
}

func newInceptionV3(x *cgotorch.Exec, where string, o Options) nn.Module {
	dropout := probability(x, where, "Dropout", o.Dropout, 0.5)
	checkTransform(x, where, o)
	return build(x, where, o, 1000, func(b *builder) *InceptionV3 {
		conv := func(in, out, kernel, stride, padding int) *basicConv2d {
			return b.basicConv(in, out, nn.Square(kernel), nn.Conv2dOptions{Stride: nn.Square(stride), Padding: nn.Square(padding)})
		}
		m := &InceptionV3{
			Conv1a:   conv(b.Channels, 32, 3, 2, 0),
			Conv2a:   conv(32, 32, 3, 1, 0),
			Conv2b:   conv(32, 64, 3, 1, 1),
			MaxPool1: halvingPool(),
			Conv3b:   conv(64, 80, 1, 1, 0),
			Conv4a:   conv(80, 192, 3, 1, 0),
			MaxPool2: halvingPool(),

			Mixed5b: b.inceptionA(192, 32),
			Mixed5c: b.inceptionA(256, 64),
			Mixed5d: b.inceptionA(288, 64),
			Mixed6a: b.inceptionB(288),
			Mixed6b: b.inceptionC(768, 128),
			Mixed6c: b.inceptionC(768, 160),
			Mixed6d: b.inceptionC(768, 160),
			Mixed6e: b.inceptionC(768, 192),

			TransformInput: b.TransformInput,
		}
		if !b.NoAux {
			m.AuxLogits = &inceptionV3Aux{Conv0: conv(768, 128, 1, 1, 0), Conv1: conv(128, 768, 5, 1, 0), FC: b.linear(768, b.Classes)}
		}
		m.Mixed7a, m.Mixed7b, m.Mixed7c = b.inceptionD(768), b.inceptionE(1280), b.inceptionE(2048)
		m.Dropout, m.FC = &nn.Dropout{P: dropout}, b.linear(2048, b.Classes)
		b.redrawTruncated(m, func(weight *cgotorch.Tensor) float64 {
			if m.AuxLogits != nil && weight == m.AuxLogits.FC.Weight {
				return 0.001
			}
			return 0.1 // AuxLogits.Conv1 too, because torchvision never uses the 0.01 that it sets for that layer
		})
		return m
	})
}

// halvingPool makes the pool that halves the size in Inception-v3's blocks.
func halvingPool() *nn.MaxPool2d { return &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2)} }

func meanPool() *nn.AvgPool2d {
	return &nn.AvgPool2d{Kernel: nn.Square(3), Stride: nn.Square(1), Padding: nn.Square(1)}
}

// inceptionA makes a block. One branch has a 5x5 convolution, and one has two 3x3 convolutions.
// The block is figure 5 of the paper.
func (b *builder) inceptionA(in, pooled int) *nn.Parallel {
	return unnamed(
		b.branch(in, nil, convs{{"branch1x1", 64, 1, 1, 1}}),
		b.branch(in, nil, convs{{"branch5x5_1", 48, 1, 1, 1}, {"branch5x5_2", 64, 5, 5, 1}}),
		b.branch(in, nil, convs{{"branch3x3dbl_1", 64, 1, 1, 1}, {"branch3x3dbl_2", 96, 3, 3, 1}, {"branch3x3dbl_3", 96, 3, 3, 1}}),
		b.branch(in, meanPool(), convs{{"branch_pool", pooled, 1, 1, 1}}))
}

// inceptionB makes a block that halves the size, from [N, in, H, W] to [N, in+480, (H-1)/2,
// (W-1)/2].
func (b *builder) inceptionB(in int) *nn.Parallel {
	return unnamed(
		b.branch(in, nil, convs{{"branch3x3", 384, 3, 3, 2}}),
		b.branch(in, nil, convs{{"branch3x3dbl_1", 64, 1, 1, 1}, {"branch3x3dbl_2", 96, 3, 3, 1}, {"branch3x3dbl_3", 96, 3, 3, 2}}),
		b.branch(in, halvingPool(), nil))
}

// inceptionC makes a block with pairs of 1x7 and 7x1 convolutions in place of 7x7 convolutions.
// The block is figure 6 of the paper. The last convolution of a branch has a result of 192
// channels. All convolutions before it have results of `width` channels.
func (b *builder) inceptionC(in, width int) *nn.Parallel {
	return unnamed(
		b.branch(in, nil, convs{{"branch1x1", 192, 1, 1, 1}}),
		b.branch(in, nil, convs{{"branch7x7_1", width, 1, 1, 1}, {"branch7x7_2", width, 1, 7, 1}, {"branch7x7_3", 192, 7, 1, 1}}),
		b.branch(in, nil, convs{{"branch7x7dbl_1", width, 1, 1, 1}, {"branch7x7dbl_2", width, 7, 1, 1},
			{"branch7x7dbl_3", width, 1, 7, 1}, {"branch7x7dbl_4", width, 7, 1, 1}, {"branch7x7dbl_5", 192, 1, 7, 1}}),
		b.branch(in, meanPool(), convs{{"branch_pool", 192, 1, 1, 1}}))
}

// inceptionD makes a block that halves the size, from [N, in, H, W] to [N, in+512, (H-1)/2,
// (W-1)/2].
func (b *builder) inceptionD(in int) *nn.Parallel {
	return unnamed(
		b.branch(in, nil, convs{{"branch3x3_1", 192, 1, 1, 1}, {"branch3x3_2", 320, 3, 3, 2}}),
		b.branch(in, nil, convs{{"branch7x7x3_1", 192, 1, 1, 1}, {"branch7x7x3_2", 192, 1, 7, 1},
			{"branch7x7x3_3", 192, 7, 1, 1}, {"branch7x7x3_4", 192, 3, 3, 2}}),
		b.branch(in, halvingPool(), nil))
}

// inceptionE makes a block. Two of its branches end in two parallel convolutions, 1x3 and 3x1.
// The block is figure 7 of the paper.
func (b *builder) inceptionE(in int) *nn.Parallel {
	fork := func(m *nn.Sequential, row, column string) *nn.Sequential {
		ends := unnamed(b.branch(384, nil, convs{{row, 384, 1, 3, 1}}), b.branch(384, nil, convs{{column, 384, 3, 1, 1}}))
		m.Modules = append(m.Modules, nn.Child{Module: ends})
		return m
	}
	return unnamed(
		b.branch(in, nil, convs{{"branch1x1", 320, 1, 1, 1}}),
		fork(b.branch(in, nil, convs{{"branch3x3_1", 384, 1, 1, 1}}), "branch3x3_2a", "branch3x3_2b"),
		fork(b.branch(in, nil, convs{{"branch3x3dbl_1", 448, 1, 1, 1}, {"branch3x3dbl_2", 384, 3, 3, 1}}), "branch3x3dbl_3a", "branch3x3dbl_3b"),
		b.branch(in, meanPool(), convs{{"branch_pool", 192, 1, 1, 1}}))
}

// Forward maps [N, Channels, H, W] to logits [N, Classes].
func (m *InceptionV3) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	logits, _ := m.forward(x, images, false)
	return logits
}

// ForwardAux maps [N, Channels, H, W] to logits [N, Classes]. In training it also returns `aux`,
// the logits of the auxiliary head. In evaluation, and with NoAux, `aux` is nil. torchvision's
// recipe adds 0.4 times the loss of the head to the loss of the logits.
func (m *InceptionV3) ForwardAux(x *cgotorch.Exec, images *cgotorch.Tensor) (logits, aux *cgotorch.Tensor) {
	return m.forward(x, images, runsHeads(x, "vision.InceptionV3", &m.Eval))
}

// Fuse implements [nn.Fusible].
func (m *InceptionV3) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, entrance{m.TransformInput}, m.Conv1a, m.Conv2a, m.Conv2b, m.MaxPool1, m.Conv3b, m.Conv4a, m.MaxPool2, m.Mixed5b, m.Mixed5c,
		m.Mixed5d, m.Mixed6a, m.Mixed6b, m.Mixed6c, m.Mixed6d, m.Mixed6e, m.Mixed7a, m.Mixed7b, m.Mixed7c, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.FC)
}

func (m *InceptionV3) forward(x *cgotorch.Exec, images *cgotorch.Tensor, heads bool) (logits, aux *cgotorch.Tensor) {
	x, release := nn.CastWeights(x, m)
	defer release()
	out := enter(x, images, m.TransformInput)
	out = then(x, out, m.Conv1a, m.Conv2a, m.Conv2b, m.MaxPool1, m.Conv3b, m.Conv4a, m.MaxPool2)
	out = then(x, out, m.Mixed5b, m.Mixed5c, m.Mixed5d, m.Mixed6a, m.Mixed6b, m.Mixed6c, m.Mixed6d, m.Mixed6e)
	if heads && m.AuxLogits != nil {
		aux = m.AuxLogits.Forward(x, out)
	}
	out = then(x, out, m.Mixed7a, m.Mixed7b, m.Mixed7c)
	return then(x, out, &nn.AdaptiveAvgPool2d{}, m.Dropout, &nn.Flatten{}, m.FC), aux
}

// inceptionV3Aux is the auxiliary head of [InceptionV3]. It classifies by a result from the
// middle of the network.
type inceptionV3Aux struct {
	Conv0 *basicConv2d
	Conv1 *basicConv2d
	FC    *nn.Linear
}

// Forward maps [N, 768, H, W] to logits [N, Classes]. It fails unless H and W are at least 17.
func (m *inceptionV3Aux) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if shape := in.Shape(); len(shape) != 4 || min(shape[2], shape[3]) < 17 {
		x.Fail("vision.InceptionV3", fmt.Errorf("the auxiliary head gets %s, want [N, 768, 17, 17] or larger, as of images of 299x299: use those, or Forward, or NoAux: %w", in, cgotorch.ErrInvalidArgument))
	}
	pool := &nn.AvgPool2d{Kernel: nn.Square(5), Stride: nn.Square(3)}
	return then(x, pool.Forward(x, in), m.Conv0, m.Conv1, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.FC)
}
