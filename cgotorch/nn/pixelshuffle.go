package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// PixelShuffle makes larger images of fewer channels. Each pixel's channels become squares of
// Factor x Factor pixels.
type PixelShuffle struct {
	Factor int // at least 1
}

// Forward maps [N, C*Factor*Factor, H, W] to [N, C, H*Factor, W*Factor].
func (m *PixelShuffle) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::pixel_shuffle", in, m.Factor)
}

// PixelUnshuffle undoes [PixelShuffle].
type PixelUnshuffle struct {
	Factor int // at least 1; divides height and width
}

// Forward maps [N, C, H*Factor, W*Factor] to [N, C*Factor*Factor, H, W].
func (m *PixelUnshuffle) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::pixel_unshuffle", in, m.Factor)
}

// ChannelShuffle mixes the channels of Groups groups: the first channels of all groups come first.
type ChannelShuffle struct {
	Groups int // divides the number of channels
}

// Forward maps [N, C, ...] to a tensor of the same shape.
func (m *ChannelShuffle) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::channel_shuffle", in, m.Groups)
}
