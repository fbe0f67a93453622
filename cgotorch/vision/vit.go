package vision

import (
	"fmt"
	"math"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// ViT is the vision transformer of Dosovitskiy et al., 2020, as in torchvision. It cuts an image
// into patches, and a transformer reads the patches as a sequence.
type ViT struct {
	ClassToken *cgotorch.Tensor // [1, 1, width]: the first position of each sequence
	ConvProj   nn.Module        // a convolution that makes one position of each patch
	Encoder    *vitEncoder
	Heads      nn.Module
	size       nn.Size // of the images
}

// newViTB16 makes a model with patches of 16x16.
func newViTB16(x *cgotorch.Exec, where string, o Options) nn.Module {
	const patch, width, hidden, layers, heads = 16, 768, 3072, 12, 12
	dropout := probability(x, where, "Dropout", o.Dropout, 0)
	if o.ImageSize == (nn.Size{}) {
		o.ImageSize = nn.Square(224)
	}
	if o.ImageSize[0] != o.ImageSize[1] || o.ImageSize[0] < patch || o.ImageSize[0]%patch != 0 {
		x.Fail(where, fmt.Errorf("ImageSize is %v, want a square of a multiple of %d: %w", o.ImageSize, patch, cgotorch.ErrInvalidArgument))
	}
	return build(x, where, o, 1000, func(b *builder) *ViT {
		m := &ViT{size: o.ImageSize}
		conv := b.convWith(b.Channels, width, nn.Square(patch), nn.Conv2dOptions{Stride: nn.Square(patch)})
		m.ConvProj = conv
		m.ClassToken = b.parameter(where, x.Zeros(cgotorch.Float32, 1, 1, width))
		positions := o.ImageSize[0]/patch*(o.ImageSize[1]/patch) + 1
		position := x.Empty(cgotorch.Float32, 1, int64(positions), width)
		nn.Normal(x, position, 0, 0.02)
		position = b.parameter(where, position)
		blocks := &nn.Sequential{Recompute: b.Recompute}
		for i := range layers {
			blocks.Modules = append(blocks.Modules, nn.Child{Name: "encoder_layer_" + strconv.Itoa(i), Module: b.vitBlock(width, hidden, heads, dropout)})
		}
		m.Encoder = &vitEncoder{PosEmbedding: position, Dropout: &nn.Dropout{P: dropout}, Layers: blocks, LN: b.layerNorm(width)}
		head := b.linear(width, b.Classes)
		m.Heads = &nn.Sequential{Modules: []nn.Child{{Name: "head", Module: head}}}
		nn.TruncatedNormal(x, conv.Weight, 0, math.Sqrt(1/float64(b.Channels*patch*patch)), -2, 2)
		for _, t := range []*cgotorch.Tensor{conv.Bias, head.Weight, head.Bias} {
			nn.Constant(x, t, 0)
		}
		return m
	})
}

// parameter makes t trainable, and keeps it after the Do. If the model cannot be completed, the
// builder frees t.
func (b *builder) parameter(where string, t *cgotorch.Tensor) *cgotorch.Tensor {
	if err := t.SetRequiresGrad(true); err != nil {
		b.x.Fail(where, err)
	}
	b.made = append(b.made, []*cgotorch.Tensor{b.x.Keep(t)})
	return t
}

func (b *builder) layerNorm(width int) *nn.LayerNorm {
	m := nn.NewLayerNorm(b.x, []int64{int64(width)}, nn.LayerNormOptions{Eps: cgotorch.Set(1e-6)})
	b.made = append(b.made, m)
	return m
}

// Forward maps [N, Channels, H, W] to logits [N, Classes]. H and W are those of ImageSize.
func (m *ViT) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	if images.Dim() != 4 || images.Shape()[2] != int64(m.size[0]) || images.Shape()[3] != int64(m.size[1]) {
		x.Fail("vision.ViT", fmt.Errorf("the images are %s, want [N, C, %d, %d]: %w", images, m.size[0], m.size[1], cgotorch.ErrInvalidArgument))
	}
	x, release := nn.CastWeights(x, m)
	defer release()
	return x.Tidy(func() *cgotorch.Tensor {
		n := images.Shape()[0]
		patches := x.Transpose(x.Flatten(m.ConvProj.Forward(x, images), 2, 3), 1, 2)
		first := x.To(x.Expand(m.ClassToken, n, -1, -1), patches.DType())
		out := m.Encoder.Forward(x, x.Cat([]*cgotorch.Tensor{first, patches}, 1))
		return m.Heads.Forward(x, x.Select(out, 1, 0))
	})
}

// Fuse implements [nn.Fusible].
func (m *ViT) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	e := m.Encoder
	return &ViT{
		ClassToken: f.Copy(x, m.ClassToken), ConvProj: f.Fuse(x, m.ConvProj), Heads: f.Fuse(x, m.Heads), size: m.size,
		Encoder: &vitEncoder{PosEmbedding: f.Copy(x, e.PosEmbedding), Dropout: &nn.Identity{}, Layers: f.Fuse(x, e.Layers), LN: f.Fuse(x, e.LN)},
	}
}

// vitEncoder is the transformer of a [ViT].
type vitEncoder struct {
	PosEmbedding *cgotorch.Tensor // [1, positions, width]
	Dropout      nn.Module
	Layers       nn.Module
	LN           nn.Module
}

// Forward maps [N, positions, width] to a tensor of the same shape.
func (m *vitEncoder) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := then(x, x.Add(in, m.PosEmbedding), m.Dropout)
	blocks, norm := m.blocks(x)
	if norm == nil {
		return then(x, out, m.Layers, m.LN)
	}
	var addend *cgotorch.Tensor
	for _, b := range blocks {
		before, added := out, addend
		out, addend = b.halves(x, before, added)
		before.Close()
		if added != nil {
			added.Close()
		}
	}
	sum, normed := nn.AddLayerNorm(x, norm, out, addend)
	for _, t := range []*cgotorch.Tensor{out, addend, sum} {
		if t != nil {
			t.Close()
		}
	}
	return normed
}

// blocks returns the blocks and the last norm if all norms of the encoder are layer norms. Each
// norm then adds the result of the half before it. Otherwise `blocks` returns nil. Blocks that are
// recomputed add their halves themselves.
func (m *vitEncoder) blocks(x *cgotorch.Exec) ([]*vitBlock, *nn.LayerNorm) {
	layers, ok := m.Layers.(*nn.Sequential)
	norm, isNorm := m.LN.(*nn.LayerNorm)
	if !ok || !isNorm || layers.Recompute != 0 && x.GradEnabled() {
		return nil, nil
	}
	var blocks []*vitBlock
	for _, c := range layers.Modules {
		b, ok := c.Module.(*vitBlock)
		if !ok || !b.hasLayerNorms() {
			return nil, nil
		}
		blocks = append(blocks, b)
	}
	return blocks, norm
}

// vitBlock is a block of a [ViT]. Its first half is a norm and attention. Its second half is a
// norm and a network of two layers for each position. The input of each half is added to the
// result of the half.
type vitBlock struct {
	LN1           nn.Module `state:"ln_1"`
	SelfAttention nn.Module
	Dropout       nn.Module
	LN2           nn.Module `state:"ln_2"`
	MLP           nn.Module
}

func (b *builder) vitBlock(width, hidden, heads int, dropout float64) *vitBlock {
	m := &vitBlock{LN1: b.layerNorm(width), Dropout: &nn.Dropout{P: dropout}}
	attention := nn.NewMultiheadAttention(b.x, width, heads, nn.AttentionOptions{})
	b.made = append(b.made, attention)
	m.SelfAttention = attention
	m.LN2 = b.layerNorm(width)
	up, down := b.linear(width, hidden), b.linear(hidden, width)
	m.MLP = nn.NewSequential(up, &nn.GELU{}, &nn.Dropout{P: dropout}, down, &nn.Dropout{P: dropout})
	for _, l := range []*nn.Linear{up, down} {
		nn.XavierUniform(b.x, l.Weight, 1)
		nn.Normal(b.x, l.Bias, 0, 1e-6)
	}
	return m
}

// Forward maps [N, positions, width] to a tensor of the same shape.
func (m *vitBlock) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		if m.hasLayerNorms() {
			return x.Add(m.halves(x, in, nil))
		}
		middle := x.Add(then(x, m.LN1.Forward(x, in), m.SelfAttention, m.Dropout), in)
		return x.Add(middle, then(x, m.LN2.Forward(x, middle), m.MLP))
	})
}

// hasLayerNorms reports whether `halves` can run the block.
func (m *vitBlock) hasLayerNorms() bool {
	_, first := m.LN1.(*nn.LayerNorm)
	_, second := m.LN2.(*nn.LayerNorm)
	return first && second
}

// halves gives the block the sum of `in` and `addend`, which may be nil. It returns the sum after
// the first half, and the result of the second half, which is still to be added.
func (m *vitBlock) halves(x *cgotorch.Exec, in, addend *cgotorch.Tensor) (middle, out *cgotorch.Tensor) {
	in, normed := nn.AddLayerNorm(x, m.LN1.(*nn.LayerNorm), in, addend)
	defer in.Close()
	seen := then(x, normed, m.SelfAttention, m.Dropout)
	defer seen.Close()
	middle, normed = nn.AddLayerNorm(x, m.LN2.(*nn.LayerNorm), in, seen)
	return middle, then(x, normed, m.MLP)
}

// Fuse implements [nn.Fusible].
func (m *vitBlock) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return &vitBlock{
		LN1: f.Fuse(x, m.LN1), SelfAttention: f.Fuse(x, m.SelfAttention), Dropout: &nn.Identity{}, LN2: f.Fuse(x, m.LN2), MLP: f.Fuse(x, m.MLP),
	}
}
