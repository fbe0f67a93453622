package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// SwitchConfig holds fields of Hugging Face's config.json for a Switch Transformer. A field that
// the file lacks gets the default of Hugging Face's transformers. The file's other fields do not
// change a forward pass in inference.
type SwitchConfig struct {
	ModelType string `json:"model_type"` // "switch_transformers"

	VocabSize int `json:"vocab_size"` // number of tokens
	DModel    int `json:"d_model"`    // width of the hidden states
	DKV       int `json:"d_kv"`       // width of a head's queries, keys and values
	DFF       int `json:"d_ff"`       // width inside a feed-forward layer, for a dense layer and for an expert
	NumHeads  int `json:"num_heads"`

	// The sparse blocks are those of Hugging Face's transformers: of the encoder, blocks 1, 1+d,
	// 1+2*d and so on, where d is NumLayers / NumSparseEncoderLayers, rounded down. If d is 1, every
	// block is sparse. So there may be more of them than NumSparseEncoderLayers. If that is 0, d is
	// NumLayers, and block 1 is still sparse. The decoder has the same rule.
	NumLayers              int `json:"num_layers"` // number of blocks of the encoder
	NumSparseEncoderLayers int `json:"num_sparse_encoder_layers"`
	NumDecoderLayers       int `json:"num_decoder_layers"` // number of blocks of the decoder; null in a file means NumLayers
	NumSparseDecoderLayers int `json:"num_sparse_decoder_layers"`

	NumExperts     int    `json:"num_experts"`     // number of experts of each sparse layer
	ExpertCapacity int    `json:"expert_capacity"` // at least 1; no expert ever reaches it, as in transformers
	RouterBias     bool   `json:"router_bias"`     // whether routers add a bias
	RouterDType    string `json:"router_dtype"`    // the dtype in which routers compute; always "float32"

	RelativeAttentionNumBuckets  int `json:"relative_attention_num_buckets"`  // number of buckets of distances
	RelativeAttentionMaxDistance int `json:"relative_attention_max_distance"` // all distances from this number on share one bucket

	LayerNormEpsilon  float64 `json:"layer_norm_epsilon"` // added to the mean square
	InitializerFactor float64 `json:"initializer_factor"` // factor of the standard deviations of new weights
	DenseActFn        string  `json:"dense_act_fn"`       // always "relu"
	// TieWordEmbeddings makes encoder, decoder and head share one embedding. The input of the head
	// is then scaled by 1/sqrt(DModel).
	TieWordEmbeddings bool `json:"tie_word_embeddings"`

	PadTokenID          int   `json:"pad_token_id"`
	EOSTokenID          []int `json:"eos_token_id"`           // each of these tokens ends a sequence; a file has a list, one number or null
	DecoderStartTokenID int   `json:"decoder_start_token_id"` // null, or a file without this field, means PadTokenID
}

// defaultSwitchConfig returns the defaults of Hugging Face's transformers. The defaults describe
// google/switch-base-8 with a smaller DFF and fewer sparse layers.
func defaultSwitchConfig() SwitchConfig {
	return SwitchConfig{
		ModelType: "switch_transformers",
		VocabSize: 32128, DModel: 768, DKV: 64, DFF: 2048, NumHeads: 12,
		NumLayers: 12, NumSparseEncoderLayers: 3, NumDecoderLayers: 12, NumSparseDecoderLayers: 3,
		NumExperts: 8, ExpertCapacity: 64, RouterDType: "float32",
		RelativeAttentionNumBuckets: 32, RelativeAttentionMaxDistance: 128,
		LayerNormEpsilon: 1e-6, InitializerFactor: 1, DenseActFn: "relu", TieWordEmbeddings: true,
		EOSTokenID: []int{1},
	}
}

// readSwitchConfig reads a config.json. Errors name the file and, if a field is wrong, the field.
// An illegal value gives [cgotorch.ErrInvalidArgument].
func readSwitchConfig(path string) (SwitchConfig, error) {
	fail := func(err error) (SwitchConfig, error) {
		return SwitchConfig{}, fmt.Errorf("text: %s: %w", path, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return SwitchConfig{}, fmt.Errorf("text: %w", err)
	}
	c := defaultSwitchConfig()
	c.NumDecoderLayers, c.DecoderStartTokenID = -1, -1
	var given map[string]json.RawMessage
	if err := json.Unmarshal(data, &given); err != nil {
		return fail(fmt.Errorf("it is no JSON object: %w", err))
	}
	if ids := given["eos_token_id"]; json.Unmarshal(ids, new(int)) == nil && string(ids) != "null" { // it is one number, not a list
		given["eos_token_id"] = slices.Concat([]byte("["), ids, []byte("]"))
		if data, err = json.Marshal(given); err != nil {
			return fail(err)
		}
	}
	if err := json.Unmarshal(data, &c); err != nil {
		var field *json.UnmarshalTypeError
		if errors.As(err, &field) {
			return fail(fmt.Errorf("%s is a %s, want %v: %w", field.Field, field.Value, field.Type, cgotorch.ErrInvalidArgument))
		}
		return fail(err)
	}
	switch value := string(given["num_decoder_layers"]); value {
	case "": // transformers' default
		c.NumDecoderLayers = 12
	case "null":
		c.NumDecoderLayers = c.NumLayers
	}
	if value := string(given["decoder_start_token_id"]); value == "" || value == "null" {
		c.DecoderStartTokenID = c.PadTokenID
	}
	if err := c.check(); err != nil {
		return fail(err)
	}
	return c, nil
}

// check fails with [cgotorch.ErrInvalidArgument] if no model can be made from the values. The error
// has the field's name in the file.
func (c SwitchConfig) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...)
	}
	for _, n := range []struct {
		field        string
		value, least int
	}{
		{"vocab_size", c.VocabSize, 1}, {"d_model", c.DModel, 1}, {"d_kv", c.DKV, 1}, {"d_ff", c.DFF, 1}, {"num_heads", c.NumHeads, 1},
		{"num_layers", c.NumLayers, 1}, {"num_decoder_layers", c.NumDecoderLayers, 1},
		{"num_sparse_encoder_layers", c.NumSparseEncoderLayers, 0}, {"num_sparse_decoder_layers", c.NumSparseDecoderLayers, 0},
		{"num_experts", c.NumExperts, 1}, {"expert_capacity", c.ExpertCapacity, 1},
		{"relative_attention_num_buckets", c.RelativeAttentionNumBuckets, 4},
	} {
		if n.value < n.least {
			return refuse("%s is %d, want at least %d", n.field, n.value, n.least)
		}
	}
	switch {
	case c.ModelType != "switch_transformers":
		return refuse("model_type is %q, want switch_transformers", c.ModelType)
	case c.DenseActFn != "relu":
		return refuse("dense_act_fn is %q, and only relu is known", c.DenseActFn)
	case c.RouterDType != "float32":
		return refuse("router_dtype is %q, and routers compute in float32", c.RouterDType)
	case c.RelativeAttentionMaxDistance <= c.RelativeAttentionNumBuckets/2:
		return refuse("relative_attention_max_distance is %d, want more than half of relative_attention_num_buckets, %d",
			c.RelativeAttentionMaxDistance, c.RelativeAttentionNumBuckets)
	case !(c.LayerNormEpsilon >= 0) || c.LayerNormEpsilon > 1:
		return refuse("layer_norm_epsilon is %v, want a number from 0 to 1", c.LayerNormEpsilon)
	case !(c.InitializerFactor > 0):
		return refuse("initializer_factor is %v, want a number above 0", c.InitializerFactor)
	}
	for _, t := range []struct {
		field string
		ids   []int
	}{{"pad_token_id", []int{c.PadTokenID}}, {"decoder_start_token_id", []int{c.DecoderStartTokenID}}, {"eos_token_id", c.EOSTokenID}} {
		for _, id := range t.ids {
			if id < 0 || id >= c.VocabSize {
				return refuse("%s is %d, outside of vocab_size, %d", t.field, id, c.VocabSize)
			}
		}
	}
	return nil
}

// sparseEncoder reports whether a block of the encoder has experts. Blocks are counted from 0.
// [SwitchConfig].NumLayers says which blocks have experts.
func (c SwitchConfig) sparseEncoder(block int) bool {
	return sparse(c.NumLayers, c.NumSparseEncoderLayers, block)
}

// sparseDecoder does for the decoder what sparseEncoder does for the encoder.
func (c SwitchConfig) sparseDecoder(block int) bool {
	return sparse(c.NumDecoderLayers, c.NumSparseDecoderLayers, block)
}

func sparse(layers, wanted, block int) bool {
	step := layers
	if wanted > 0 {
		step = layers / wanted
	}
	return step == 1 || step > 1 && block%step == 1
}

// configOf reads the config.json in the folder `path`. If `path` is a file, it reads the
// config.json beside that file.
func configOf(path string) (SwitchConfig, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	return readSwitchConfig(filepath.Join(path, "config.json"))
}
