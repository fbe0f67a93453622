package text

import "math"

// family is what the models of one model_type share. Fields of config.json that a file lacks get
// the values of Hugging Face's transformers. Width, inner width and number of layers must be there.
type family struct {
	vocab, context, heads int
	keyHeads, head        int // 0 for keyHeads means num_attention_heads; for head, hidden_size over heads
	eps                   float64
	theta, localTheta     float64           // localTheta is that of layers with a window; 0 means theta
	scaling               *hubRope          // in place of rope_parameters, without them
	ropeTypes             map[string]string // what other values of rope_type mean
	partial               bool              // partial_rotary_factor counts
	original              int               // original_max_position_embeddings; 0 means that of rope_parameters
	activation            string
	tied                  bool
	window                windowRule
	slide                 int // sliding_window
	names                 names
	differ                func(h hubConfig, c *decoderConfig) // what the fields above do not say
	vision                vision
}

// vision says how the folder of a model that also sees images differs from that of its text model.
type vision struct {
	tensors        []string // prefixes of what sees images; such tensors are passed over
	textType, text string   // model_type and architecture of the text model, as it is saved
}

// windowRule says which layers have a sliding window when config.json has no layer_types.
type windowRule int

const (
	noWindow      windowRule = iota
	allLayers                // if sliding_window is there
	fromLayer                // from max_window_layers on, if use_sliding_window is set
	allIfUsed                // all, if use_sliding_window is set
	everySecond              // layers 0, 2, 4, …
	allButPattern            // all but every sixth, or what sliding_window_pattern says
)

// names are the names of a layer's tensors in the files, without "model.layers.N." and ".weight".
// A product of several tensors lists them in the order of its rows.
type names struct {
	qkv, gateUp           []string
	out, down             string
	queryNorm, keyNorm    string
	beforeMix, afterMix   string // norms around attention
	beforeFeed, afterFeed string // norms around the feed-forward layer
	router                string
	expertGateUp          []string // %d is the number of the expert; without it one tensor holds all experts
	expertDown            string
	sinks                 string
	prefix                []string // of all names but the head's; the first is written, the others are read too
}

var (
	llamaNames = names{
		qkv: []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, out: "self_attn.o_proj",
		gateUp: []string{"mlp.gate_proj", "mlp.up_proj"}, down: "mlp.down_proj",
		beforeMix: "input_layernorm", beforeFeed: "post_attention_layernorm", prefix: []string{"model."},
	}
	qwenNames  = llamaNames.with(func(n *names) { n.queryNorm, n.keyNorm = "self_attn.q_norm", "self_attn.k_norm" })
	gemmaNames = llamaNames.with(func(n *names) {
		n.afterMix, n.beforeFeed, n.afterFeed = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
	})
	gemma3Names = gemmaNames.with(func(n *names) {
		n.queryNorm, n.keyNorm = "self_attn.q_norm", "self_attn.k_norm"
		n.prefix = []string{"model.", "language_model.model.", "model.language_model."}
	})
)

func (n names) with(change func(n *names)) names {
	change(&n)
	return n
}

// families is the table of what model families do differently. A new family is a row here, if its
// layers compute what those of others do.
var families = map[string]family{
	"llama":   {vocab: 32000, context: 2048, heads: 32, eps: 1e-6, theta: 10000, activation: "silu", names: llamaNames},
	"mistral": {vocab: 32000, context: 131072, heads: 32, keyHeads: 8, eps: 1e-6, theta: 10000, activation: "silu", names: llamaNames, window: allLayers, slide: 4096, differ: noBias},
	"qwen2": {vocab: 151936, context: 32768, heads: 32, keyHeads: 32, eps: 1e-6, theta: 10000, activation: "silu", names: llamaNames, window: fromLayer, slide: 4096,
		differ: func(h hubConfig, c *decoderConfig) { c.queryBias, c.outBias, c.innerBias = true, false, false }},
	"qwen3": {vocab: 151936, context: 32768, heads: 32, keyHeads: 32, head: 128, eps: 1e-6, theta: 10000, activation: "silu", names: qwenNames, window: fromLayer, slide: 4096,
		differ: func(h hubConfig, c *decoderConfig) { c.headNorm, c.innerBias = eachHead, false }},
	"gemma2": {vocab: 256000, context: 8192, heads: 8, keyHeads: 4, head: 256, eps: 1e-6, theta: 10000, activation: "gelu_pytorch_tanh", tied: true, names: gemmaNames,
		window: everySecond, slide: 4096, differ: func(h hubConfig, c *decoderConfig) {
			gemma(h, c)
			c.scoreCap, c.logitCap = h.ScoreCap.or(50), h.LogitCap.or(30)
		}},
	"gemma3_text": gemma3,
	"gemma3": gemma3.with(func(f *family) {
		f.vision = vision{[]string{"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}, "gemma3_text", "Gemma3ForCausalLM"}
	}),
	"phi3": {vocab: 32064, context: 4096, heads: 32, original: 4096, eps: 1e-5, theta: 10000, activation: "silu", window: allLayers, differ: noBias,
		partial: true, ropeTypes: map[string]string{"su": "longrope", "yarn": "longrope"},
		names: llamaNames.with(func(n *names) {
			n.qkv, n.gateUp = []string{"self_attn.qkv_proj"}, []string{"mlp.gate_up_proj"}
		})},
	"olmo2": {vocab: 50304, context: 2048, heads: 32, eps: 1e-5, theta: 10000, activation: "silu",
		names: qwenNames.with(func(n *names) {
			n.beforeMix, n.beforeFeed, n.afterMix, n.afterFeed = "", "", "post_attention_layernorm", "post_feedforward_layernorm"
		}),
		differ: func(h hubConfig, c *decoderConfig) {
			c.headNorm, c.innerBias = allHeads, false
		}},
	"mixtral": {vocab: 32000, context: 131072, heads: 32, keyHeads: 8, eps: 1e-5, theta: 1e6, activation: "silu", window: allLayers,
		names: llamaNames.with(func(n *names) {
			n.router, n.expertDown = "block_sparse_moe.gate", "block_sparse_moe.experts.%d.w2"
			n.expertGateUp = []string{"block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3"}
		}),
		differ: func(h hubConfig, c *decoderConfig) {
			noBias(h, c)
			c.sparse(expertConfig{count: or(h.LocalExperts, 8), top: or(h.Top, 2), inner: c.inner, normalize: true}, nil)
		}},
	"qwen3_moe": {vocab: 151936, context: 32768, heads: 32, keyHeads: 4, eps: 1e-6, theta: 10000, activation: "silu", window: allIfUsed, slide: 4096,
		names: qwenNames.with(func(n *names) {
			n.router, n.expertDown = "mlp.gate", "mlp.experts.%d.down_proj"
			n.expertGateUp = []string{"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"}
		}),
		differ: func(h hubConfig, c *decoderConfig) {
			c.headNorm, c.innerBias = eachHead, false
			inner := h.ExpertInner
			if inner == 0 {
				inner = 768
			}
			step := or(h.SparseStep, 1)
			c.sparse(expertConfig{count: or(h.Experts, or(h.LocalExperts, 128)), top: or(h.Top, 8), inner: inner, normalize: h.NormTop}, func(layer int) bool {
				return (layer+1)%step != 0
			})
			for _, layer := range h.DenseLayers {
				if layer >= 0 && layer < len(c.layers) {
					c.layers[layer].sparse = false
				}
			}
		}},
	"gpt_oss": {vocab: 201088, context: 131072, heads: 64, keyHeads: 8, head: 64, eps: 1e-5, theta: 150000, activation: "silu", window: everySecond, slide: 128,
		scaling: &hubRope{Type: "yarn", Factor: ptr(32.0), BetaFast: ptr(32.0), BetaSlow: ptr(1.0), Original: 4096, Truncate: ptr(false)},
		names: llamaNames.with(func(n *names) {
			n.router, n.sinks = "mlp.router", "self_attn.sinks"
			n.expertGateUp, n.expertDown = []string{"mlp.experts.gate_up_proj"}, "mlp.experts.down_proj"
		}),
		differ: func(h hubConfig, c *decoderConfig) {
			bias := or(h.Bias, true)
			c.queryBias, c.outBias, c.innerBias, c.sinks, c.activation = bias, bias, false, true, "clamped"
			c.sparse(expertConfig{count: or(h.LocalExperts, 128), top: or(h.Top, 4), inner: c.inner, softmaxOfTop: true, bias: true}, nil)
		}},
}

// gemma3 is also the text model of a folder with vision, whose config.json has a text_config.
var gemma3 = family{vocab: 262208, context: 131072, heads: 8, keyHeads: 4, head: 256, eps: 1e-6, theta: 1e6, localTheta: 10000, activation: "gelu_pytorch_tanh", tied: true,
	names: gemma3Names, window: allButPattern, slide: 4096, differ: func(h hubConfig, c *decoderConfig) {
		gemma(h, c)
		c.headNorm, c.scoreCap, c.logitCap = eachHead, h.ScoreCap.or(0), h.LogitCap.or(0)
	}}

func (f family) with(change func(f *family)) family {
	change(&f)
	return f
}

// gemma has what the Gemma families share.
func gemma(h hubConfig, c *decoderConfig) {
	c.normOffset, c.innerBias = true, false
	c.activation = or(h.Activation, "gelu_pytorch_tanh") // hidden_act of the same files may name another one
	c.embedScale = math.Sqrt(float64(c.width))
	c.queryScale = 1 / math.Sqrt(or(h.QueryScale, 256))
}

func noBias(_ hubConfig, c *decoderConfig) { c.queryBias, c.outBias, c.innerBias = false, false, false }

// sparse gives all layers experts but those that `dense` names.
func (c *decoderConfig) sparse(e expertConfig, dense func(layer int) bool) {
	c.experts = e
	for i := range c.layers {
		c.layers[i].sparse = dense == nil || !dense(i)
	}
}

// windows sets the window of each layer.
func (f family) windows(h hubConfig, layers []layerConfig) error {
	window := h.Window.or(f.slide)
	if window < 0 || window == 0 && h.Window.value != nil && (f.window == allLayers || h.UseWindow) {
		return refused("sliding_window is %d, want at least 1, or null for none", window)
	}
	if (f.window == fromLayer || f.window == allIfUsed) && !h.UseWindow {
		window = 0
	}
	if h.Bidirectional {
		return refused("use_bidirectional_attention is true, and a decoder's tokens see no later ones")
	}
	if len(h.LayerTypes) > 0 && f.window != allLayers && f.window != noWindow && f.window != allIfUsed {
		if len(h.LayerTypes) != len(layers) {
			return refused("layer_types has %d entries, and num_hidden_layers is %d", len(h.LayerTypes), len(layers))
		}
		for i, kind := range h.LayerTypes {
			switch kind {
			case "sliding_attention":
				if layers[i].window = window; window == 0 {
					return refused("layer_types has %q, and sliding_window is 0, null or not used", kind)
				}
			case "full_attention":
			default:
				return refused("layer_types has %q, and only full_attention and sliding_attention are known", kind)
			}
		}
		return nil
	}
	pattern := or(h.WindowPattern, 6)
	if pattern < 1 {
		return refused("sliding_window_pattern is %d, want at least 1", pattern)
	}
	for i := range layers {
		var has bool
		switch f.window {
		case allLayers, allIfUsed:
			has = true
		case fromLayer:
			has = i >= or(h.MaxWindowLayers, 28)
		case everySecond:
			has = i%2 == 0
		case allButPattern:
			has = (i+1)%pattern != 0
		}
		if has && window == 0 && (f.window == everySecond || f.window == allButPattern) {
			return refused("sliding_window is 0 or null, and layer %d has one: name the layers without in layer_types", i)
		}
		if has {
			layers[i].window = window
		}
	}
	return nil
}
