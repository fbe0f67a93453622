package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// builder makes the weights of one model. The Do owns the weights until all of them are made.
type builder struct {
	x      *cgotorch.Exec
	config *SwitchConfig
	SwitchOptions
	held   *heldExperts // of the stack, or nil
	sparse int          // number of sparse layers of the stack so far
}

// newSwitch makes a model of a config that is legal. Its weights are random, or undefined until a
// load. It waits only for the host memory of experts.
func newSwitch(x *cgotorch.Exec, config SwitchConfig, o SwitchOptions) *Switch {
	switch o.DType {
	case 0:
		o.DType = cgotorch.Float32
	case cgotorch.Float32, cgotorch.BFloat16:
	default:
		refuse(x, "text.LoadSwitch", "DType is %v, want float32 or bfloat16", o.DType)
	}
	if o.Slots < 0 {
		refuse(x, "text.LoadSwitch", "Slots is %d, want 0 or more", o.Slots)
	}
	x = plain(x)
	m := &Switch{Config: config, Encoder: &SwitchEncoder{}, Decoder: &SwitchDecoder{}}
	made := false
	defer func() {
		if !made {
			m.Encoder.held.Close()
			m.Decoder.held.Close()
		}
	}()
	c := &m.Config
	b := &builder{x: x, config: c, SwitchOptions: o}
	m.Shared = b.embedding()
	embed := func() *nn.Embedding {
		if c.TieWordEmbeddings {
			return &nn.Embedding{Weight: m.Shared.Weight}
		}
		return b.embedding()
	}
	m.Encoder.EmbedTokens, m.Encoder.FinalLayerNorm, m.Encoder.config = embed(), b.norm(), c
	m.Encoder.held = b.hold(c.NumLayers, c.sparseEncoder, 0)
	for i := range c.NumLayers {
		m.Encoder.Block = append(m.Encoder.Block, &SwitchEncoderBlock{Attention: b.selfAttention(i == 0), FF: b.feedForward(c.sparseEncoder(i))})
	}
	m.Decoder.EmbedTokens, m.Decoder.FinalLayerNorm, m.Decoder.config = embed(), b.norm(), c
	m.Decoder.held = b.hold(c.NumDecoderLayers, c.sparseDecoder, o.Slots)
	for i := range c.NumDecoderLayers {
		m.Decoder.Block = append(m.Decoder.Block, &SwitchDecoderBlock{
			Attention: b.selfAttention(i == 0),
			Cross:     &crossAttention{EncDecAttention: b.attention(false), LayerNorm: b.norm()},
			FF:        b.feedForward(c.sparseDecoder(i)),
		})
	}
	m.LMHead = &nn.Linear{Weight: m.Shared.Weight}
	if !c.TieWordEmbeddings {
		m.LMHead.Weight = b.weight(1, c.VocabSize, c.DModel)
	}
	for _, n := range nn.State(m) {
		x.Keep(n.Tensor)
	}
	made = true
	return m
}

// hold begins a stack of blocks. It makes a table for the experts, if they do not lie on the
// device.
func (b *builder) hold(blocks int, sparse func(block int) bool, slots int) *heldExperts {
	b.sparse, b.held = 0, nil
	layers := 0
	for i := range blocks {
		if sparse(i) {
			layers++
		}
	}
	if b.Slots > 0 && b.Slots < b.config.NumExperts && layers > 0 {
		b.held = newHeldExperts(b.x, b.config, b.DType, layers, slots)
	}
	return b.held
}

// weight makes a weight. With RandomWeights the values come from a normal distribution.
func (b *builder) weight(deviation float64, size ...int) *cgotorch.Tensor {
	shape := make([]int64, len(size))
	for i, n := range size {
		shape[i] = int64(n)
	}
	return b.draw(b.x.Empty(b.DType, shape...), deviation)
}

func (b *builder) draw(t *cgotorch.Tensor, deviation float64) *cgotorch.Tensor {
	if b.RandomWeights != 0 {
		nn.Normal(b.x, t, 0, deviation*b.config.InitializerFactor)
	}
	return t
}

func (b *builder) embedding() *nn.Embedding {
	return &nn.Embedding{Weight: b.weight(1, b.config.VocabSize, b.config.DModel)}
}

func (b *builder) norm() *rmsNorm {
	return &rmsNorm{Weight: b.x.Full(b.DType, b.config.InitializerFactor, int64(b.config.DModel)), Eps: b.config.LayerNormEpsilon}
}

func (b *builder) linear(deviation float64, out, in int) *nn.Linear {
	return &nn.Linear{Weight: b.weight(deviation, out, in)}
}

func (b *builder) selfAttention(biased bool) *selfAttention {
	return &selfAttention{SelfAttention: b.attention(biased), LayerNorm: b.norm()}
}

func (b *builder) attention(biased bool) *attention {
	c := b.config
	inner, narrow := c.NumHeads*c.DKV, root(c.DModel)
	a := &attention{O: b.linear(root(inner), c.DModel, inner), heads: c.NumHeads, width: c.DKV}
	all := b.x.Empty(b.DType, int64(3*inner), int64(c.DModel)) // the three weights are adjacent, for attention.project
	for i, of := range []struct {
		layer     **nn.Linear
		deviation float64
	}{{&a.Q, root(c.DModel * c.DKV)}, {&a.K, narrow}, {&a.V, narrow}} {
		*of.layer = &nn.Linear{Weight: b.draw(b.x.Narrow(all, 0, i*inner, inner), of.deviation)}
	}
	if biased {
		a.RelativeAttentionBias = &nn.Embedding{Weight: b.weight(narrow, c.RelativeAttentionNumBuckets, c.NumHeads)}
	}
	return a
}

func root(n int) float64 { return 1 / math.Sqrt(float64(n)) }

func (b *builder) feedForward(sparse bool) *FeedForward {
	c, m := b.config, &FeedForward{LayerNorm: b.norm()}
	if !sparse {
		m.Dense = &Dense{WI: b.linear(root(c.DModel), c.DFF, c.DModel), WO: b.linear(root(c.DFF), c.DModel, c.DFF)}
		return m
	}
	m.Sparse = &Sparse{Router: &router{b.linear(1, c.NumExperts, c.DModel)}}
	if c.RouterBias {
		m.Sparse.Router.Classifier.Bias = b.x.Zeros(b.DType, int64(c.NumExperts))
	}
	experts := &switchExperts{NoGrouped: b.NoGrouped, held: b.held, layer: b.sparse}
	b.sparse++
	var wi, wo *cgotorch.Tensor
	if b.held != nil {
		of := b.held.table.Layer(experts.layer).Experts
		wi, wo = b.draw(of[0], root(c.DModel)), b.draw(of[1], root(c.DModel))
	} else {
		wi, wo = b.weight(root(c.DModel), c.NumExperts, c.DFF, c.DModel), b.weight(root(c.DModel), c.NumExperts, c.DModel, c.DFF)
	}
	for i := range c.NumExperts {
		experts.Expert = append(experts.Expert, &Dense{WI: &nn.Linear{Weight: b.x.Select(wi, 0, i)}, WO: &nn.Linear{Weight: b.x.Select(wo, 0, i)}})
	}
	m.Sparse.Experts = experts
	return m
}
