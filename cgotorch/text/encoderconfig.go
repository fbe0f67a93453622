package text

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// encoderConfig says what an encoder computes. [readEncoderConfig] fills it from a config.json and
// the table of families.
type encoderConfig struct {
	encoderFamily

	vocab, width, inner, heads, head int
	positions                        int // rows of the table of positions; 0 means rotations in its place
	firstPosition                    int // of a text's first token in that table
	pad                              int64
	kinds                            int // rows of the table of token types; 0 means that there is none
	context                          int // most tokens of a text
	eps                              float64
	activation                       string
	mixBias, feedBias, normBias      bool
	layers                           []encoderLayerConfig
	ropes                            []ropeConfig
	dtype                            cgotorch.DType // as config.json tells it; 0 if it does not
	rank                             *rankConfig    // of a cross-encoder, or nil
}

// encoderLayerConfig says in which ways a layer differs from the others.
type encoderLayerConfig struct {
	reach int // a token sees so many tokens on each side; 0 is all
	rope  int // index into ropes
}

// rankConfig says how a cross-encoder makes a score of hidden states.
type rankConfig struct {
	pool       string // cls or mean
	activation string // of the layer before the last one
	bias, norm bool   // of that layer
	sigmoid    bool   // the score is between 0 and 1
}

// encoderFamily is what encoders of one model_type share. Fields of config.json that a file lacks
// get the values of Hugging Face's transformers.
type encoderFamily struct {
	vocab0, inner0, context0, kinds0 int
	pad0                             int64
	eps0                             float64
	names                            encoderNames
	prefix                           string // of the names in the files of a model with a head
	preNorm                          bool   // norms come before attention and the feed-forward layer, and the latter has a gate
	buckets                          int    // of relative distances, which get a bias of the scores; 0 means none
	pairKinds                        bool   // the second text of a pair has the token type 1
	afterPad                         bool   // positions begin behind that of padding
}

// encoderNames are the names of tensors in files. Those of a layer are without its number.
type encoderNames struct {
	embed, positions, kinds, embedNorm string
	layer                              string // %d is the number
	qkv                                []string
	out, mixNorm, up, down, feedNorm   string
	finalNorm                          string
	dense, denseNorm, score            string // of a cross-encoder
}

var bertNames = encoderNames{
	embed: "embeddings.word_embeddings", positions: "embeddings.position_embeddings", kinds: "embeddings.token_type_embeddings", embedNorm: "embeddings.LayerNorm",
	layer: "encoder.layer.%d.", qkv: []string{"attention.self.query", "attention.self.key", "attention.self.value"},
	out: "attention.output.dense", mixNorm: "attention.output.LayerNorm", up: "intermediate.dense", down: "output.dense", feedNorm: "output.LayerNorm",
	dense: "bert.pooler.dense", score: "classifier",
}

func (n encoderNames) with(change func(n *encoderNames)) encoderNames {
	change(&n)
	return n
}

var robertaNames = bertNames.with(func(n *encoderNames) { n.dense, n.score = "classifier.dense", "classifier.out_proj" })

// encoderFamilies is the table of what encoders do differently.
var encoderFamilies = map[string]encoderFamily{
	"bert":        {vocab0: 30522, inner0: 3072, context0: 512, kinds0: 2, eps0: 1e-12, names: bertNames, prefix: "bert.", pairKinds: true},
	"roberta":     {vocab0: 50265, inner0: 3072, context0: 512, kinds0: 2, pad0: 1, eps0: 1e-12, names: robertaNames, prefix: "roberta.", afterPad: true},
	"xlm-roberta": {vocab0: 30522, inner0: 3072, context0: 512, kinds0: 2, pad0: 1, eps0: 1e-12, names: robertaNames, prefix: "roberta.", afterPad: true},
	"mpnet": {vocab0: 30527, inner0: 3072, context0: 512, pad0: 1, eps0: 1e-12, prefix: "mpnet.", afterPad: true, buckets: 32,
		names: robertaNames.with(func(n *encoderNames) {
			n.qkv, n.out = []string{"attention.attn.q", "attention.attn.k", "attention.attn.v"}, "attention.attn.o"
			n.mixNorm = "attention.LayerNorm"
		})},
	"modernbert": {vocab0: 50368, inner0: 1152, context0: 8192, pad0: 50283, eps0: 1e-5, prefix: "model.", preNorm: true, names: encoderNames{
		embed: "embeddings.tok_embeddings", embedNorm: "embeddings.norm", layer: "layers.%d.", qkv: []string{"attn.Wqkv"}, out: "attn.Wo", mixNorm: "attn_norm",
		up: "mlp.Wi", down: "mlp.Wo", feedNorm: "mlp_norm", finalNorm: "final_norm", dense: "head.dense", denseNorm: "head.norm", score: "classifier",
	}},
}

// hubEncoder has the fields of an encoder's config.json. A nil field is absent.
type hubEncoder struct {
	Architectures []string        `json:"architectures"`
	ModelType     string          `json:"model_type"`
	DType         string          `json:"dtype"`
	TorchDType    string          `json:"torch_dtype"`
	Quantization  json.RawMessage `json:"quantization_config"`

	VocabSize    *int     `json:"vocab_size"`
	HiddenSize   *int     `json:"hidden_size"`
	Intermediate *int     `json:"intermediate_size"`
	Layers       *int     `json:"num_hidden_layers"`
	Heads        *int     `json:"num_attention_heads"`
	Positions    *int     `json:"max_position_embeddings"`
	Kinds        *int     `json:"type_vocab_size"`
	Act          *string  `json:"hidden_act"`
	Activation   *string  `json:"hidden_activation"`
	Eps          *float64 `json:"layer_norm_eps"`
	NormEps      *float64 `json:"norm_eps"`
	Pad          *int64   `json:"pad_token_id"`
	PositionKind string   `json:"position_embedding_type"`
	IsDecoder    bool     `json:"is_decoder"`
	Buckets      *int     `json:"relative_attention_num_buckets"`

	LayerTypes    []string        `json:"layer_types"`
	Local         *int            `json:"local_attention"`
	GlobalEvery   *int            `json:"global_attn_every_n_layers"`
	RopeParameter json.RawMessage `json:"rope_parameters"`
	RopeScaling   json.RawMessage `json:"rope_scaling"`
	GlobalTheta   *float64        `json:"global_rope_theta"`
	LocalTheta    *float64        `json:"local_rope_theta"`
	MixBias       bool            `json:"attention_bias"`
	FeedBias      bool            `json:"mlp_bias"`
	NormBias      bool            `json:"norm_bias"`

	Labels              json.RawMessage `json:"id2label"`
	NumLabels           *int            `json:"num_labels"`
	ClassifierPool      string          `json:"classifier_pooling"`
	ClassifierBias      bool            `json:"classifier_bias"`
	ClassifierAct       *string         `json:"classifier_activation"`
	ScoreActivation     *string         `json:"sbert_ce_default_activation_function"`
	SentenceTransformer struct {
		Activation *string `json:"activation_fn"`
	} `json:"sentence_transformers"`
}

// classifies reports whether the folder has a model with a head for classes.
func (h *hubEncoder) classifies() bool {
	return slices.ContainsFunc(h.Architectures, func(a string) bool { return strings.HasSuffix(a, "ForSequenceClassification") })
}

// readJSON reads a file of a folder into the fields of `to`. Errors name the file and the field.
func readJSON(path string, to any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	if err := unmarshalHub(data, to); err != nil {
		return fmt.Errorf("text: %s: %w", path, err)
	}
	return nil
}

// readEncoderConfig makes the config of an encoder.
func readEncoderConfig(folder string, h *hubEncoder) (*encoderConfig, error) {
	c, err := h.config()
	if err != nil {
		return nil, fmt.Errorf("text: %s: %w", filepath.Join(folder, "config.json"), err)
	}
	return c, nil
}

func (h *hubEncoder) config() (*encoderConfig, error) {
	f := encoderFamilies[h.ModelType]
	c := &encoderConfig{
		encoderFamily: f, vocab: or(h.VocabSize, f.vocab0), width: or(h.HiddenSize, 768), inner: or(h.Intermediate, f.inner0), heads: or(h.Heads, 12),
		context: or(h.Positions, f.context0), pad: or(h.Pad, f.pad0), kinds: or(h.Kinds, f.kinds0), eps: or(h.Eps, f.eps0), activation: or(h.Act, "gelu"),
		mixBias: true, feedBias: true, normBias: true,
	}
	layers := or(h.Layers, map[bool]int{false: 12, true: 22}[f.preNorm])
	if f.kinds0 == 0 {
		c.kinds = 0
	}
	if f.preNorm {
		c.eps, c.activation = or(h.NormEps, f.eps0), or(h.Activation, "gelu")
		c.mixBias, c.feedBias, c.normBias = h.MixBias, h.FeedBias, h.NormBias
	}
	for _, n := range []struct {
		field             string
		value, least, top int
	}{
		{"vocab_size", c.vocab, 1, 1 << 24}, {"hidden_size", c.width, 1, 1 << 16}, {"intermediate_size", c.inner, 1, 1 << 20}, {"num_hidden_layers", layers, 1, 1 << 10},
		{"num_attention_heads", c.heads, 1, 1 << 10}, {"max_position_embeddings", c.context, 1, 1 << 24}, {"type_vocab_size", c.kinds, min(1, f.kinds0), 1 << 16},
		{"pad_token_id", int(c.pad), 0, c.vocab - 1},
	} {
		if n.value < n.least || n.value > n.top {
			return nil, refused("%s is %d, want %d to %d", n.field, n.value, n.least, n.top)
		}
	}
	c.layers, c.head = make([]encoderLayerConfig, layers), c.width/c.heads
	if err := h.check(c); err != nil {
		return nil, err
	}
	if !f.preNorm {
		c.positions = c.context
	}
	if f.afterPad { // MPNet counts from 2 whatever its padding is
		if f.buckets > 0 {
			c.pad = 1
		}
		c.firstPosition = int(c.pad) + 1
		c.context = c.positions - c.firstPosition
	}
	if c.context < 1 {
		return nil, refused("max_position_embeddings is %d, and positions begin at %d", c.positions, c.firstPosition)
	}
	err := h.windows(c)
	if err == nil && h.classifies() {
		c.rank, err = h.rank(c)
	}
	if err == nil {
		c.dtype, err = hubConfig{DType: h.DType, TorchDType: h.TorchDType}.dtype()
	}
	return c, err
}

// check refuses what the encoder would compute otherwise.
func (h *hubEncoder) check(c *encoderConfig) error {
	switch {
	case c.width%c.heads != 0:
		return refused("hidden_size is %d, and that is no multiple of num_attention_heads, %d", c.width, c.heads)
	case c.preNorm && c.head%2 != 0:
		return refused("hidden_size over num_attention_heads is %d, want an even number", c.head)
	case !(c.eps >= 0 && c.eps < 1):
		return refused("layer_norm_eps or norm_eps is %v, want a number from 0 to 1", c.eps)
	case h.IsDecoder:
		return refused("is_decoder is true, and the tokens of an encoder see later ones")
	case h.PositionKind != "" && h.PositionKind != "absolute":
		return refused("position_embedding_type is %q, and only absolute is known", h.PositionKind)
	case !isNull(h.Quantization):
		return refused("quantization_config is there, and quantised encoders are not read: get the folder with the weights as they were before")
	case c.buckets > 0 && or(h.Buckets, c.buckets) != c.buckets:
		return refused("relative_attention_num_buckets is %d, and transformers computes with %d", *h.Buckets, c.buckets)
	}
	if !isActivation(c.activation) {
		return refused("hidden_act or hidden_activation is %q, and only %s are known", c.activation, strings.Join(activationNames(), ", "))
	}
	return nil
}

// rank reads what a cross-encoder does behind its last layer.
func (h *hubEncoder) rank(c *encoderConfig) (*rankConfig, error) {
	labels := map[string]any{}
	if !isNull(h.Labels) {
		if err := json.Unmarshal(h.Labels, &labels); err != nil {
			return nil, refused("id2label is %.80s, want an object", h.Labels)
		}
	}
	if count := max(len(labels), or(h.NumLabels, 0)); count != 1 {
		return nil, refused("id2label or num_labels tells %d labels, and a cross-encoder that ranks has 1", max(count, 2))
	}
	r := &rankConfig{pool: "cls", activation: "tanh", bias: true, sigmoid: true}
	if c.preNorm {
		r.activation, r.bias, r.norm = or(h.ClassifierAct, "gelu"), h.ClassifierBias, true
		if h.ClassifierPool != "" {
			r.pool = h.ClassifierPool
		}
	}
	if !isActivation(r.activation) {
		return nil, refused("classifier_activation is %q, and only %s are known", r.activation, strings.Join(activationNames(), ", "))
	}
	if r.pool != "cls" && r.pool != "mean" {
		return nil, refused("classifier_pooling is %q, want cls or mean", r.pool)
	}
	path := h.SentenceTransformer.Activation
	if path == nil {
		path = h.ScoreActivation
	}
	return r, r.scores("sentence_transformers.activation_fn or sbert_ce_default_activation_function", path)
}

// scores sets what makes a score of the last number. path names a class of PyTorch, or is nil.
func (r *rankConfig) scores(field string, path *string) error {
	if path == nil {
		return nil
	}
	name, ok := torchActivation(*path)
	if !ok || name != "sigmoid" && name != "linear" {
		return refused("%s is %q, and only torch.nn's Sigmoid and Identity are known", field, *path)
	}
	r.sigmoid = name == "sigmoid"
	return nil
}

// windows gives layers their windows and rotations.
func (h *hubEncoder) windows(c *encoderConfig) error {
	if !c.preNorm {
		return nil
	}
	local, every := or(h.Local, 128), or(h.GlobalEvery, 3)
	switch {
	case local < 2 || local > 1<<24:
		return refused("local_attention is %d, want at least 2", local)
	case every < 1:
		return refused("global_attn_every_n_layers is %d, want at least 1", every)
	case h.LayerTypes != nil && len(h.LayerTypes) != len(c.layers):
		return refused("layer_types has %d entries, and num_hidden_layers is %d", len(h.LayerTypes), len(c.layers))
	}
	for i := range c.layers {
		slides := i%every != 0
		if h.LayerTypes != nil {
			if slides = h.LayerTypes[i] == "sliding_attention"; !slides && h.LayerTypes[i] != "full_attention" {
				return refused("layer_types has %q, and only full_attention and sliding_attention are known", h.LayerTypes[i])
			}
		}
		if slides {
			c.layers[i] = encoderLayerConfig{reach: local / 2, rope: 1}
		}
	}
	return h.rotations(c)
}

func (h *hubEncoder) rotations(c *encoderConfig) error {
	var ropes struct {
		Full    *hubRope `json:"full_attention"`
		Sliding *hubRope `json:"sliding_attention"`
	}
	if !isNull(h.RopeParameter) {
		if err := json.Unmarshal(h.RopeParameter, &ropes); err != nil {
			return refused("rope_parameters is %.80s: %v", h.RopeParameter, err)
		}
	}
	if !isNull(h.RopeScaling) {
		return refused("rope_scaling is %.80s, and only rotations that are not scaled are known", h.RopeScaling)
	}
	for i, r := range []hubRope{or(ropes.Full, hubRope{}), or(ropes.Sliding, hubRope{})} {
		kind, theta := r.Type, or(r.Theta, or([]*float64{h.GlobalTheta, h.LocalTheta}[i], []float64{160000, 10000}[i]))
		if kind != "" && kind != "default" {
			return refused("rope_type is %q, and only default is known", kind)
		}
		if !(theta > 0 && theta < math.Inf(1)) {
			return refused("rope_theta is %v, want a number above 0", theta)
		}
		c.ropes = append(c.ropes, ropeConfig{kind: "default", theta: theta, width: c.head, factor: 1, scale: 1})
	}
	return nil
}
