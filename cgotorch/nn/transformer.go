package nn

import (
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// TransformerOptions are the options of transformers and of their layers. The zero value is
// PyTorch's default, with batches first.
type TransformerOptions struct {
	FeedForward int                   // width between the two linear layers; 0 means 2048
	Dropout     cgotorch.Opt[float64] // probability in training, in [0, 1); unset means 0.1
	GELU        bool                  // the activation between the linear layers is GELU, and not ReLU
	NormFirst   bool                  // the norms come before attention and linear layers, and not after the sums
	Eps         cgotorch.Opt[float64] // of the norms; unset means 1e-5
	NoBias      bool                  // linear layers, attention and norms have no biases
	Causal      bool                  // in self-attention, position i sees the positions 0 to i
	// FinalNorm adds a norm behind the last layer. [NewTransformer] always adds it, as PyTorch does.
	FinalNorm bool
	// Layers is for [NewTransformer]: the numbers of layers of encoder and decoder; 0 means 6.
	Layers [2]int
}

// TransformerEncoderLayer is self-attention and two linear layers, each with a residual connection
// and a norm.
type TransformerEncoderLayer struct {
	SelfAttn        *MultiheadAttention
	Linear1         *Linear
	Linear2         *Linear
	Norm1, Norm2    *LayerNorm
	Dropout         float64 // as in [TransformerOptions]
	GELU, NormFirst bool    // as in [TransformerOptions]
	Eval            bool
}

// TransformerDecoderLayer is an encoder's layer with a second attention, to an encoder's result.
type TransformerDecoderLayer struct {
	SelfAttn            *MultiheadAttention
	MultiheadAttn       *MultiheadAttention // its keys and values come from the encoder
	Linear1             *Linear
	Linear2             *Linear
	Norm1, Norm2, Norm3 *LayerNorm
	Dropout             float64 // as in [TransformerOptions]
	GELU, NormFirst     bool    // as in [TransformerOptions]
	Eval                bool
}

// TransformerEncoder is a stack of encoder layers.
type TransformerEncoder struct {
	Layers []*TransformerEncoderLayer
	Norm   *LayerNorm // or nil
}

// TransformerDecoder is a stack of decoder layers.
type TransformerDecoder struct {
	Layers []*TransformerDecoderLayer
	Norm   *LayerNorm // or nil
}

// Transformer is an encoder and a decoder (Vaswani et al., 2017).
type Transformer struct {
	Encoder *TransformerEncoder
	Decoder *TransformerDecoder
}

// parts holds the modules that a constructor has made. If the constructor fails, it closes them.
type parts struct {
	made     []any
	complete bool
}

func (p *parts) close() {
	if !p.complete {
		Close(p.made)
	}
}

// part adds a module to p and returns it.
func part[M any](p *parts, m M) M {
	p.made = append(p.made, m)
	return m
}

// attention makes an attention of a layer.
func (o TransformerOptions) attention(x *cgotorch.Exec, p *parts, width, heads int, causal bool) *MultiheadAttention {
	return part(p, NewMultiheadAttention(x, width, heads, AttentionOptions{Dropout: o.Dropout.Or(0.1), Causal: causal, NoBias: o.NoBias}))
}

// linears makes the two linear layers of a layer.
func (o TransformerOptions) linears(x *cgotorch.Exec, p *parts, width int) (first, second *Linear) {
	inner := o.FeedForward
	if inner == 0 {
		inner = 2048
	}
	first = part(p, NewLinear(x, width, inner, LinearOptions{NoBias: o.NoBias}))
	return first, part(p, NewLinear(x, inner, width, LinearOptions{NoBias: o.NoBias}))
}

func (o TransformerOptions) norm(x *cgotorch.Exec, p *parts, width int) *LayerNorm {
	return part(p, NewLayerNorm(x, []int64{int64(width)}, LayerNormOptions{Eps: o.Eps, NoBias: o.NoBias}))
}

// NewTransformerEncoderLayer makes a layer for sequences of `width` numbers for each position, in
// float32 on x's device. `width` must be a multiple of `heads`. It draws the random numbers of
// torch.nn.TransformerEncoderLayer.
func NewTransformerEncoderLayer(x *cgotorch.Exec, width, heads int, o TransformerOptions) *TransformerEncoderLayer {
	var p parts
	defer p.close()
	m := &TransformerEncoderLayer{SelfAttn: o.attention(x, &p, width, heads, o.Causal), Dropout: o.Dropout.Or(0.1), GELU: o.GELU, NormFirst: o.NormFirst}
	m.Linear1, m.Linear2 = o.linears(x, &p, width)
	m.Norm1, m.Norm2 = o.norm(x, &p, width), o.norm(x, &p, width)
	p.complete = true
	return m
}

// NewTransformerDecoderLayer is [NewTransformerEncoderLayer] for a decoder.
func NewTransformerDecoderLayer(x *cgotorch.Exec, width, heads int, o TransformerOptions) *TransformerDecoderLayer {
	var p parts
	defer p.close()
	m := &TransformerDecoderLayer{SelfAttn: o.attention(x, &p, width, heads, o.Causal), Dropout: o.Dropout.Or(0.1), GELU: o.GELU, NormFirst: o.NormFirst}
	m.MultiheadAttn = o.attention(x, &p, width, heads, false)
	m.Linear1, m.Linear2 = o.linears(x, &p, width)
	m.Norm1, m.Norm2, m.Norm3 = o.norm(x, &p, width), o.norm(x, &p, width), o.norm(x, &p, width)
	p.complete = true
	return m
}

// NewTransformerEncoder makes `layers` layers with equal weights, because torch.nn copies its first
// layer too. Give them other weights by [Apply] if they shall differ.
func NewTransformerEncoder(x *cgotorch.Exec, width, heads, layers int, o TransformerOptions) *TransformerEncoder {
	atLeast(x, "nn.NewTransformerEncoder", 1, argument{"layers", layers})
	var p parts
	defer p.close()
	m := &TransformerEncoder{Layers: copies(x, &p, layers, NewTransformerEncoderLayer(x, width, heads, o))}
	if o.FinalNorm {
		m.Norm = o.norm(x, &p, width)
	}
	p.complete = true
	return m
}

// NewTransformerDecoder is [NewTransformerEncoder] for a decoder.
func NewTransformerDecoder(x *cgotorch.Exec, width, heads, layers int, o TransformerOptions) *TransformerDecoder {
	atLeast(x, "nn.NewTransformerDecoder", 1, argument{"layers", layers})
	var p parts
	defer p.close()
	m := &TransformerDecoder{Layers: copies(x, &p, layers, NewTransformerDecoderLayer(x, width, heads, o))}
	if o.FinalNorm {
		m.Norm = o.norm(x, &p, width)
	}
	p.complete = true
	return m
}

// NewTransformer makes an encoder and a decoder, as torch.nn.Transformer does. Option Causal is for
// the decoder. All weights of at least two dimensions are drawn anew by [XavierUniform].
func NewTransformer(x *cgotorch.Exec, width, heads int, o TransformerOptions) *Transformer {
	for i, n := range o.Layers {
		if n == 0 {
			o.Layers[i] = 6
		}
	}
	o.FinalNorm = true
	var p parts
	defer p.close()
	encoder := o
	encoder.Causal = false
	m := &Transformer{Encoder: part(&p, NewTransformerEncoder(x, width, heads, o.Layers[0], encoder))}
	m.Decoder = part(&p, NewTransformerDecoder(x, width, heads, o.Layers[1], o))
	for _, weight := range Parameters(m) {
		if weight.Dim() > 1 {
			XavierUniform(x, weight, 1)
		}
	}
	p.complete = true
	return m
}

// copies returns a list of `count` layers: `first` and copies of it.
func copies[M any](x *cgotorch.Exec, p *parts, count int, first M) []M {
	list := []M{part(p, first)}
	for len(list) < count {
		d := duplication{x: x, f: &Fusion{copies: map[*cgotorch.Tensor]*cgotorch.Tensor{}}, made: map[place]reflect.Value{}}
		layer := d.value(reflect.ValueOf(first)).Interface().(M)
		keepParameters(x, "nn.NewTransformer", Parameters(layer)...)
		list = append(list, part(p, layer))
	}
	return list
}

// branch is a part of a layer: attention, or the two linear layers.
type branch struct {
	norm    *LayerNorm
	forward func(in *cgotorch.Tensor) *cgotorch.Tensor
}

// residuals runs branches one after another. Each adds its result to its input. Where `first` is
// set, the norm of a branch comes before it, and otherwise after the sum.
func residuals(x *cgotorch.Exec, in *cgotorch.Tensor, first bool, branches ...branch) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		sum, addend := in, (*cgotorch.Tensor)(nil)
		for _, b := range branches {
			if first {
				var normed *cgotorch.Tensor
				sum, normed = AddLayerNorm(x, b.norm, sum, addend)
				addend = b.forward(normed)
			} else {
				sum = b.norm.Forward(x, x.Add(sum, b.forward(sum)))
			}
		}
		if addend != nil {
			sum = x.Add(sum, addend)
		}
		return sum
	})
}

// linears returns the branch of the two linear layers.
func linears(x *cgotorch.Exec, norm *LayerNorm, first, second *Linear, gelu bool, dropout *Dropout) branch {
	var activation Module = &ReLU{}
	if gelu {
		activation = &GELU{}
	}
	return branch{norm, func(in *cgotorch.Tensor) *cgotorch.Tensor {
		return chain(x, in, []Module{first, activation, dropout, second, dropout})
	}}
}

// Forward is [TransformerEncoderLayer.ForwardMasked] without a mask.
func (m *TransformerEncoderLayer) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.ForwardMasked(x, in, AttentionMask{})
}

// ForwardMasked maps [N, L, width] to a tensor of the same shape. `mask` hides positions. In
// training with Dropout, ForwardMasked draws random numbers. They drop other elements than PyTorch
// drops, whose attention stores its results in another order. ForwardMasked does not wait.
func (m *TransformerEncoderLayer) ForwardMasked(x *cgotorch.Exec, in *cgotorch.Tensor, mask AttentionMask) *cgotorch.Tensor {
	dependsOnMode(x, "nn.TransformerEncoderLayer", &m.Eval)
	x, release := CastWeights(x, m)
	defer release()
	dropout := &Dropout{P: m.Dropout, Eval: m.Eval}
	return residuals(x, in, m.NormFirst,
		branch{m.Norm1, func(in *cgotorch.Tensor) *cgotorch.Tensor {
			return dropout.Forward(x, m.SelfAttn.Attend(x, in, in, in, mask))
		}},
		linears(x, m.Norm2, m.Linear1, m.Linear2, m.GELU, dropout))
}

// ForwardWith maps [N, L, width] to a tensor of the same shape. `memory` is the result of an
// encoder, [N, S, width]. `mask` hides positions of `in`, and `memoryMask` those of `memory`. In
// training with Dropout, ForwardWith draws random numbers. It does not wait.
func (m *TransformerDecoderLayer) ForwardWith(x *cgotorch.Exec, in, memory *cgotorch.Tensor, mask, memoryMask AttentionMask) *cgotorch.Tensor {
	dependsOnMode(x, "nn.TransformerDecoderLayer", &m.Eval)
	x, release := CastWeights(x, m)
	defer release()
	dropout := &Dropout{P: m.Dropout, Eval: m.Eval}
	return residuals(x, in, m.NormFirst,
		branch{m.Norm1, func(in *cgotorch.Tensor) *cgotorch.Tensor {
			return dropout.Forward(x, m.SelfAttn.Attend(x, in, in, in, mask))
		}},
		branch{m.Norm2, func(in *cgotorch.Tensor) *cgotorch.Tensor {
			return dropout.Forward(x, m.MultiheadAttn.Attend(x, in, memory, memory, memoryMask))
		}},
		linears(x, m.Norm3, m.Linear1, m.Linear2, m.GELU, dropout))
}

// Forward is [TransformerEncoder.ForwardMasked] without a mask.
func (m *TransformerEncoder) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.ForwardMasked(x, in, AttentionMask{})
}

// ForwardMasked runs all layers as [TransformerEncoderLayer.ForwardMasked] does, each with `mask`.
func (m *TransformerEncoder) ForwardMasked(x *cgotorch.Exec, in *cgotorch.Tensor, mask AttentionMask) *cgotorch.Tensor {
	return runLayers(x, in, m.Layers, m.Norm, func(layer *TransformerEncoderLayer, in *cgotorch.Tensor) *cgotorch.Tensor {
		return layer.ForwardMasked(x, in, mask)
	})
}

// ForwardWith runs all layers as [TransformerDecoderLayer.ForwardWith] does, each with the same
// memory and masks.
func (m *TransformerDecoder) ForwardWith(x *cgotorch.Exec, in, memory *cgotorch.Tensor, mask, memoryMask AttentionMask) *cgotorch.Tensor {
	return runLayers(x, in, m.Layers, m.Norm, func(layer *TransformerDecoderLayer, in *cgotorch.Tensor) *cgotorch.Tensor {
		return layer.ForwardWith(x, in, memory, mask, memoryMask)
	})
}

// ForwardWith maps the sequences `source`, [N, S, width], and `target`, [N, L, width], to a tensor
// of the shape of `target`. `sourceMask` hides positions of `source` from the encoder, and from the
// decoder if it is Padding. `mask` hides positions of `target`.
func (m *Transformer) ForwardWith(x *cgotorch.Exec, source, target *cgotorch.Tensor, sourceMask, mask AttentionMask) *cgotorch.Tensor {
	memory := m.Encoder.ForwardMasked(x, source, sourceMask)
	defer memory.Close()
	return m.Decoder.ForwardWith(x, target, memory, mask, AttentionMask{Padding: sourceMask.Padding})
}

// runLayers runs layers one after another, and then the norm. It closes each intermediate result.
func runLayers[M any](x *cgotorch.Exec, in *cgotorch.Tensor, layers []M, norm *LayerNorm, forward func(layer M, in *cgotorch.Tensor) *cgotorch.Tensor) *cgotorch.Tensor {
	out := x.Alias(in)
	for _, layer := range layers {
		next := forward(layer, out)
		out.Close()
		out = next
	}
	if norm != nil {
		normed := norm.Forward(x, out)
		out.Close()
		out = normed
	}
	return out
}
