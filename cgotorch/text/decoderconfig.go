package text

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// decoderConfig says what a decoder computes. [readDecoderConfig] fills it from a config.json and
// the table of families.
type decoderConfig struct {
	vision    vision
	pad       int // a token whose embedding gets no gradient, or -1
	vocab     int
	width     int // of the hidden states
	inner     int // width inside a dense feed-forward layer
	heads     int // of queries
	keyHeads  int // of keys and values; divides heads
	head      int // width of a head
	layers    []layerConfig
	ropes     []ropeConfig
	published *hubQuantization // quantization_config of config.json, or nil
	quantized *quantization    // how the files have the weights of products, or nil
	predicts  bool             // Options.PredictExperts
	context   int              // largest number of tokens of a sequence

	eps        float64
	normOffset bool // norms multiply by 1 + weight
	headNorm   normKind
	queryScale float64 // factor of the scores
	embedScale float64 // factor of the embeddings
	scoreCap   float64 // scores are cap*tanh(score/cap); 0 is no cap
	logitCap   float64 // the same for logits
	queryBias  bool    // queries, keys and values have biases
	outBias    bool    // attention's output has a bias
	innerBias  bool    // the feed-forward layer has biases
	sinks      bool    // each head has a score that takes weight and has no value
	activation string  // silu, gelu_tanh or clamped
	tied       bool    // the head is the embedding
	experts    expertConfig
	clampLimit float64 // of the clamped activation
	clampAlpha float64
	names      names
	dtype      cgotorch.DType // the files' dtype as config.json tells it; 0 if it does not
	deviation  float64        // of random weights
	eos        []int64
}

// layerConfig says in which ways a layer differs from the others.
type layerConfig struct {
	window int  // a token sees so many tokens, itself among them; 0 is all
	rope   int  // index into ropes
	sparse bool // the feed-forward layer has experts
}

// expertConfig says how sparse layers route.
type expertConfig struct {
	count, top   int
	inner        int
	normalize    bool // the weights of the picked experts sum to 1
	softmaxOfTop bool // the softmax is over the picked experts alone
	bias         bool
}

type normKind int

const (
	noNorm   normKind = iota
	eachHead          // one norm of the width of a head
	allHeads          // one norm over all heads
)

// hubConfig has the fields of a config.json that change a forward pass. A nil field is absent.
type hubConfig struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	TextConfig    *hubConfig       `json:"text_config"`
	DType         string           `json:"dtype"`
	TorchDType    string           `json:"torch_dtype"`
	Quantization  *hubQuantization `json:"quantization_config"`

	VocabSize    *int          `json:"vocab_size"`
	HiddenSize   int           `json:"hidden_size"`
	Intermediate int           `json:"intermediate_size"`
	Layers       int           `json:"num_hidden_layers"`
	Heads        *int          `json:"num_attention_heads"`
	KeyHeads     nullable[int] `json:"num_key_value_heads"`
	HeadDim      *int          `json:"head_dim"`
	Positions    int           `json:"max_position_embeddings"`
	Original     int           `json:"original_max_position_embeddings"`
	Eps          *float64      `json:"rms_norm_eps"`
	Act          string        `json:"hidden_act"`
	Activation   *string       `json:"hidden_activation"`
	Tied         *bool         `json:"tie_word_embeddings"`
	Bias         *bool         `json:"attention_bias"`
	MLPBias      bool          `json:"mlp_bias"`
	Deviation    *float64      `json:"initializer_range"`

	Theta         *float64        `json:"rope_theta"`
	LocalTheta    *float64        `json:"rope_local_base_freq"`
	Partial       *float64        `json:"partial_rotary_factor"`
	RopeScaling   json.RawMessage `json:"rope_scaling"`
	RopeParameter json.RawMessage `json:"rope_parameters"`

	Window          nullable[int] `json:"sliding_window"`
	UseWindow       bool          `json:"use_sliding_window"`
	MaxWindowLayers *int          `json:"max_window_layers"`
	WindowPattern   *int          `json:"sliding_window_pattern"`
	LayerTypes      []string      `json:"layer_types"`
	Bidirectional   bool          `json:"use_bidirectional_attention"`

	ScoreCap   nullable[float64] `json:"attn_logit_softcapping"`
	LogitCap   nullable[float64] `json:"final_logit_softcapping"`
	QueryScale *float64          `json:"query_pre_attn_scalar"`

	LocalExperts *int     `json:"num_local_experts"`
	Experts      *int     `json:"num_experts"`
	Top          *int     `json:"num_experts_per_tok"`
	ExpertInner  int      `json:"moe_intermediate_size"`
	NormTop      bool     `json:"norm_topk_prob"`
	SparseStep   *int     `json:"decoder_sparse_step"`
	DenseLayers  []int    `json:"mlp_only_layers"`
	SwigluLimit  *float64 `json:"swiglu_limit"`
	SwigluAlpha  *float64 `json:"swiglu_alpha"`

	EOS json.RawMessage `json:"eos_token_id"`
	Pad *int            `json:"pad_token_id"`
}

// nullable is a field in which null says something else than that the field is absent.
type nullable[T any] struct {
	there bool
	value *T // nil is null
}

// UnmarshalJSON implements [json.Unmarshaler].
func (n *nullable[T]) UnmarshalJSON(data []byte) error {
	n.there = true
	return json.Unmarshal(data, &n.value)
}

// or returns the value, 0 for null, or `absent`.
func (n nullable[T]) or(absent T) (value T) {
	switch {
	case !n.there:
		return absent
	case n.value != nil:
		return *n.value
	}
	return value
}

func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}

// readDecoderConfig reads the config.json of a folder. Errors name the file and the field.
func readDecoderConfig(folder string) (*decoderConfig, error) {
	path := filepath.Join(folder, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		if files, _ := filepath.Glob(filepath.Join(folder, "*.gguf")); len(files) > 0 && errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("text: %s: GGUF files are not read: get the folder with config.json and safetensors files from which it was made: %w", files[0], cgotorch.ErrInvalidArgument)
		}
		return nil, fmt.Errorf("text: %w", err)
	}
	c, err := parseDecoderConfig(data)
	if err != nil {
		return nil, fmt.Errorf("text: %s: %w", path, err)
	}
	return c, nil
}

// jsonKind names a type as JSON has it.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Int, reflect.Int64:
		return "an integer"
	}
	return "a number"
}

// unmarshalHub reads the fields of a file of Hugging Face's. Errors name the field.
func unmarshalHub(data []byte, to any) error {
	err := json.Unmarshal(data, to)
	var field *json.UnmarshalTypeError
	switch {
	case errors.As(err, &field):
		return refused("%s is a %s, want %s", cmp.Or(field.Field, "it"), field.Value, jsonKind(field.Type))
	case err != nil:
		return refused("it is no JSON object: %v", err)
	}
	return nil
}

func parseDecoderConfig(data []byte) (*decoderConfig, error) {
	var h hubConfig
	if err := unmarshalHub(data, &h); err != nil {
		return nil, err
	}
	f, ok := families[h.ModelType]
	if !ok {
		return nil, refused("model_type is %q (%s), and only %s are known: export another model with torch.export, and run it by package pt2",
			h.ModelType, strings.Join(h.Architectures, ", "), strings.Join(familyNames(), ", "))
	}
	if h.TextConfig != nil {
		if f.vision.textType == "" {
			return nil, refused("text_config is there, and models of type %s have none", h.ModelType)
		}
		outer := h
		h = *h.TextConfig
		if h.Tied == nil {
			h.Tied = outer.Tied
		}
		if h.EOS == nil {
			h.EOS = outer.EOS
		}
		if h.Quantization == nil {
			h.Quantization = outer.Quantization
		}
		if h.DType == "" && h.TorchDType == "" {
			h.DType, h.TorchDType = outer.DType, outer.TorchDType
		}
		h.ModelType, h.Architectures = outer.ModelType, outer.Architectures
	}
	return f.config(h)
}

// config is the config of a model of the family.
func (f family) config(h hubConfig) (*decoderConfig, error) {
	c := &decoderConfig{
		vision: f.vision, names: f.names,
		vocab: or(h.VocabSize, f.vocab), width: h.HiddenSize, inner: h.Intermediate, heads: or(h.Heads, f.heads), context: h.Positions,
		eps: or(h.Eps, f.eps), activation: cmp.Or(h.Act, f.activation), tied: or(h.Tied, f.tied), deviation: or(h.Deviation, 0.02),
		queryBias: or(h.Bias, false), outBias: or(h.Bias, false), innerBias: h.MLPBias,
		embedScale: 1, clampLimit: or(h.SwigluLimit, 7), clampAlpha: or(h.SwigluAlpha, 1.702),
	}
	if c.context == 0 {
		c.context = f.context
	}
	c.keyHeads = h.KeyHeads.or(f.keyHeads)
	if c.keyHeads == 0 {
		c.keyHeads = c.heads
	}
	if err := c.sizes(h); err != nil {
		return nil, err
	}
	c.head = or(h.HeadDim, f.head)
	if c.head == 0 {
		c.head = c.width / c.heads
	}
	c.queryScale = 1 / math.Sqrt(float64(c.head))
	c.layers = make([]layerConfig, h.Layers)
	if err := f.windows(h, c.layers); err != nil {
		return nil, err
	}
	if err := f.rope(h, c); err != nil {
		return nil, err
	}
	if f.differ != nil {
		f.differ(h, c)
	}
	var err error
	c.published = h.Quantization
	if c.dtype, err = h.dtype(); err != nil {
		return nil, err
	}
	if c.pad = or(h.Pad, -1); c.pad < -1 || c.pad >= c.vocab {
		return nil, refused("pad_token_id is %d, want a token from 0 to %d, or null for none", c.pad, c.vocab-1)
	}
	if c.eos, err = tokenIDs(h.EOS); err != nil {
		return nil, err
	}
	return c, c.check()
}

// sizes refuses sizes from which nothing can be computed.
func (c *decoderConfig) sizes(h hubConfig) error {
	for _, n := range []struct {
		field       string
		value, most int
	}{
		{"vocab_size", c.vocab, 1 << 24}, {"hidden_size", c.width, 1 << 20}, {"intermediate_size", c.inner, 1 << 24},
		{"num_hidden_layers", h.Layers, 1 << 12}, {"num_attention_heads", c.heads, 1 << 12}, {"num_key_value_heads", c.keyHeads, 1 << 12},
		{"max_position_embeddings", c.context, 1 << 30}, {"decoder_sparse_step", or(h.SparseStep, 1), 1 << 12},
	} {
		if n.value < 1 || n.value > n.most {
			return refused("%s is %d, want 1 to %d", n.field, n.value, n.most)
		}
	}
	if c.heads%c.keyHeads != 0 {
		return refused("num_attention_heads is %d, and that is no multiple of num_key_value_heads, %d", c.heads, c.keyHeads)
	}
	return nil
}

// check refuses what the table of families has left.
func (c *decoderConfig) check() error {
	switch {
	case c.head < 2 || c.head%2 != 0 || c.head > 1<<12:
		return refused("head_dim is %d, want an even number up to 4096", c.head)
	case !(c.eps >= 0 && c.eps < 1):
		return refused("rms_norm_eps is %v, want a number from 0 to 1", c.eps)
	case !(c.queryScale > 0 && c.queryScale < 1e6):
		return refused("query_pre_attn_scalar gives the scale %v", c.queryScale)
	case !(c.deviation >= 0 && c.deviation <= 1):
		return refused("initializer_range is %v, want a number from 0 to 1", c.deviation)
	case c.scoreCap < 0 || c.logitCap < 0:
		return refused("a soft cap is negative")
	case c.activation == "clamped" && c.sparseLayers() < len(c.layers):
		return refused("hidden_act is %q, which experts alone have", c.activation)
	case !(c.clampLimit > 0):
		return refused("swiglu_limit is %v, want a number above 0", c.clampLimit)
	}
	switch c.activation {
	case "silu", "swish":
		c.activation = "silu"
	case "gelu_pytorch_tanh", "gelu_tanh":
		c.activation = "gelu_tanh"
	case "clamped":
	default:
		return refused("hidden_act is %q, and only silu and gelu_pytorch_tanh are known", c.activation)
	}
	if e := c.experts; c.sparseLayers() > 0 && (e.count < 1 || e.count > 1<<14 || e.top < 1 || e.top > e.count || e.inner < 1 || e.inner > 1<<24) {
		return refused("there are %d experts of width %d, of which %d are picked", e.count, e.inner, e.top)
	}
	return nil
}

func (h hubConfig) dtype() (cgotorch.DType, error) {
	name := h.DType
	if name == "" {
		name = h.TorchDType
	}
	switch strings.TrimPrefix(name, "torch.") {
	case "", "auto":
		return 0, nil
	case "float32", "float":
		return cgotorch.Float32, nil
	case "bfloat16":
		return cgotorch.BFloat16, nil
	case "float16", "half":
		return cgotorch.Float16, nil
	case "float64":
		return cgotorch.Float64, nil
	}
	return 0, refused("dtype is %q, want float32, bfloat16, float16 or float64", name)
}

// tokenIDs reads one id, a list of ids, or null.
func tokenIDs(data json.RawMessage) (ids []int64, err error) {
	if isNull(data) {
		return nil, nil
	}
	var one int64
	if json.Unmarshal(data, &one) == nil {
		ids = []int64{one}
	} else if json.Unmarshal(data, &ids) != nil {
		return nil, refused("eos_token_id is %.40s, want a number or a list of numbers", data)
	}
	if len(ids) > 0 && slices.Min(ids) < 0 {
		return nil, refused("eos_token_id is %.40s, and no token is below 0", data)
	}
	return ids, nil
}

func refused(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...)
}

func familyNames() []string {
	names := make([]string, 0, len(families))
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
