package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// GoogLeNet is the network of Szegedy et al., 2014 ("Going deeper with convolutions"), as in
// torchvision. It has batch norms, and it has 3x3 convolutions where the paper has 5x5. Each
// Inception block gives its input to the branches branch1 to branch4, and concatenates the
// channels of their results. Images have at least 15x15 pixels. The usual size is 224x224.
type GoogLeNet struct {
	Conv1    *basicConv2d // [N, Channels, H, W] to [N, 64, H/2, W/2]
	MaxPool1 *nn.MaxPool2d
	Conv2    *basicConv2d
	Conv3    *basicConv2d // to [N, 192, H/4, W/4]
	MaxPool2 *nn.MaxPool2d

	Inception3a *nn.Parallel // to [N, 256, H/8, W/8]
	Inception3b *nn.Parallel // to [N, 480, H/8, W/8]
	MaxPool3    *nn.MaxPool2d
	Inception4a *nn.Parallel // to [N, 512, H/16, W/16]
	Inception4b *nn.Parallel // to [N, 512, H/16, W/16]
	Inception4c *nn.Parallel // to [N, 512, H/16, W/16]
	Inception4d *nn.Parallel // to [N, 528, H/16, W/16]
	Inception4e *nn.Parallel // to [N, 832, H/16, W/16]
	MaxPool4    *nn.MaxPool2d
	Inception5a *nn.Parallel // to [N, 832, H/32, W/32]
	Inception5b *nn.Parallel // to [N, 1024, H/32, W/32]

	Aux1    *googLeNetAux // reads Inception4a's result; nil with NoAux
	Aux2    *googLeNetAux // reads Inception4d's result; nil with NoAux
	Dropout *nn.Dropout
	FC      *nn.Linear

	TransformInput bool // as in [Options]
	Eval           bool
}

func newGoogLeNet(x *cgotorch.Exec, where string, o Options) nn.Module {
	dropout, auxDropout := probability(x, where, "Dropout", o.Dropout, 0.2), probability(x, where, "AuxDropout", o.AuxDropout, 0.7)
	checkTransform(x, where, o)
	return build(x, where, o, 1000, func(b *builder) *GoogLeNet {
		pool := func(kernel int) *nn.MaxPool2d {
			return &nn.MaxPool2d{Kernel: nn.Square(kernel), Stride: nn.Square(2), CeilMode: true}
		}
		m := &GoogLeNet{
			Conv1:    b.basicConv(b.Channels, 64, nn.Square(7), nn.Conv2dOptions{Stride: nn.Square(2), Padding: nn.Square(3)}),
			MaxPool1: pool(3),
			Conv2:    b.basicConv(64, 64, nn.Square(1), nn.Conv2dOptions{}),
			Conv3:    b.basicConv(64, 192, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1)}),
			MaxPool2: pool(3),

			Inception3a: b.inception(192, 64, 96, 128, 16, 32, 32),
			Inception3b: b.inception(256, 128, 128, 192, 32, 96, 64),
			MaxPool3:    pool(3),
			Inception4a: b.inception(480, 192, 96, 208, 16, 48, 64),
			Inception4b: b.inception(512, 160, 112, 224, 24, 64, 64),
			Inception4c: b.inception(512, 128, 128, 256, 24, 64, 64),
			Inception4d: b.inception(512, 112, 144, 288, 32, 64, 64),
			Inception4e: b.inception(528, 256, 160, 320, 32, 128, 128),
			MaxPool4:    pool(2),
			Inception5a: b.inception(832, 256, 160, 320, 32, 128, 128),
			Inception5b: b.inception(832, 384, 192, 384, 48, 128, 128),

			TransformInput: b.TransformInput,
		}
		if !b.NoAux {
			m.Aux1, m.Aux2 = b.googLeNetAux(512, auxDropout), b.googLeNetAux(528, auxDropout)
		}
		m.Dropout, m.FC = &nn.Dropout{P: dropout}, b.linear(1024, b.Classes)
		b.redrawTruncated(m, func(*cgotorch.Tensor) float64 { return 0.01 })
		return m
	})
}

// inception makes a block of GoogLeNet. `widths` has the number of channels of each convolution's
// result, in order. The first branch has one convolution, the second has two, the third has two.
// The fourth branch has one convolution after a pool.
func (b *builder) inception(in int, widths ...int) *nn.Parallel {
	conv := func(in, out, kernel int) nn.Module {
		return b.basicConv(in, out, nn.Square(kernel), nn.Conv2dOptions{Padding: nn.Square(kernel / 2)})
	}
	pool := &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(1), Padding: nn.Square(1), CeilMode: true}
	return &nn.Parallel{Branches: []nn.Child{
		{Name: "branch1", Module: conv(in, widths[0], 1)},
		{Name: "branch2", Module: nn.NewSequential(conv(in, widths[1], 1), conv(widths[1], widths[2], 3))},
		{Name: "branch3", Module: nn.NewSequential(conv(in, widths[3], 1), conv(widths[3], widths[4], 3))},
		{Name: "branch4", Module: nn.NewSequential(pool, conv(in, widths[5], 1))},
	}}
}

// Forward maps [N, Channels, H, W] to logits [N, Classes].
func (m *GoogLeNet) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	logits, _, _ := m.forward(x, images, false)
	return logits
}

// ForwardAux maps [N, Channels, H, W] to logits [N, Classes]. In training it also returns aux2
// and aux1, the logits of the auxiliary heads Aux2 and Aux1. In evaluation, and with NoAux, aux2
// and aux1 are nil. The paper adds 0.3 times the loss of each head to the loss of the logits.
func (m *GoogLeNet) ForwardAux(x *cgotorch.Exec, images *cgotorch.Tensor) (logits, aux2, aux1 *cgotorch.Tensor) {
	return m.forward(x, images, runsHeads(x, "vision.GoogLeNet", &m.Eval))
}

// Fuse implements [nn.Fusible].
func (m *GoogLeNet) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, entrance{m.TransformInput}, m.Conv1, m.MaxPool1, m.Conv2, m.Conv3, m.MaxPool2, m.Inception3a, m.Inception3b, m.MaxPool3,
		m.Inception4a, m.Inception4b, m.Inception4c, m.Inception4d, m.Inception4e, m.MaxPool4, m.Inception5a, m.Inception5b,
		&nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.FC)
}

func (m *GoogLeNet) forward(x *cgotorch.Exec, images *cgotorch.Tensor, heads bool) (logits, aux2, aux1 *cgotorch.Tensor) {
	x, release := nn.CastWeights(x, m)
	defer release()
	out := enter(x, images, m.TransformInput)
	out = then(x, out, m.Conv1, m.MaxPool1, m.Conv2, m.Conv3, m.MaxPool2, m.Inception3a, m.Inception3b, m.MaxPool3, m.Inception4a)
	if heads && m.Aux1 != nil {
		aux1 = m.Aux1.Forward(x, out)
	}
	out = then(x, out, m.Inception4b, m.Inception4c, m.Inception4d)
	if heads && m.Aux2 != nil {
		aux2 = m.Aux2.Forward(x, out)
	}
	out = then(x, out, m.Inception4e, m.MaxPool4, m.Inception5a, m.Inception5b)
	return then(x, out, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.Dropout, m.FC), aux2, aux1
}

// googLeNetAux is an auxiliary head of [GoogLeNet]. It classifies by a result from the middle of
// the network.
type googLeNetAux struct {
	Conv    *basicConv2d
	FC1     *nn.Linear
	FC2     *nn.Linear
	Dropout *nn.Dropout
}

func (b *builder) googLeNetAux(in int, dropout float64) *googLeNetAux {
	return &googLeNetAux{
		Conv: b.basicConv(in, 128, nn.Square(1), nn.Conv2dOptions{}),
		FC1:  b.linear(128*4*4, 1024), FC2: b.linear(1024, b.Classes),
		Dropout: &nn.Dropout{P: dropout},
	}
}

// Forward maps [N, in, H, W] to logits [N, Classes].
func (m *googLeNetAux) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	pool := &nn.AdaptiveAvgPool2d{Output: nn.Square(4)}
	out := then(x, pool.Forward(x, in), m.Conv, &nn.Flatten{}, m.FC1)
	rectify(x, out)
	return then(x, out, m.Dropout, m.FC2)
}
