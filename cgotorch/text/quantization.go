package text

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Note [Quantised weights]
//
// A published model may have the weights of its products in 8 or 4 bits. They are read in these
// forms, which quantization_config of config.json names:
//
//	compressed-tensors  pack-quantized   int4 and int8, a scale for each row or group of columns
//	                    int-quantized    int8, a scale for each row or for all
//	                    naive-quantized  int8 and fp8, the same
//	                    float-quantized  fp8 (e4m3), a scale for each row, for all or for a block
//	gptq                                 int4 and int8, groups of columns in any order
//	awq                 gemm             int4, groups of columns
//	fp8                                  fp8 (e4m3), a scale for each block or for all
//	mxfp4                                the experts of gpt_oss in 4 bits (e2m1), a power of two for
//	                                     each 32 columns
//
// A weight is (code - zero) * scale. It is computed in float32, and rounded to the model's dtype.
// Activations stay in the model's dtype, also where the files ask for narrow ones: the result is
// nearer to that of the model before its quantization. What is not in the list is refused by its
// name.

// quantization says how the files have the weights of products.
type quantization struct {
	layout    layout
	kind      string // of rowCodes: the dtype in the files, I8 or F8_E4M3
	bits      int    // of a code that is packed into 32 bits
	group     int    // columns of a scale, or 0 for all of them
	symmetric bool   // all zeros are equal
	ordered   bool   // the files must say which group each column belongs to; else they may
	zeroAbove int    // what is added to a zero of the files
	block     [2]int
	scale     string // the suffix of the scale's tensor
}

// layout is how the codes of a weight lie in the files.
type layout int

const (
	rowCodes  layout = iota // [rows, columns], an element each
	rowWords                // [rows, columns/n], n codes a word
	gptqWords               // [columns/n, rows]
	awqWords                // [columns, rows/n], where a word has its rows in another order
	fp4Blocks               // of all experts, [experts, rows, columns/32, 16]: two codes a byte
)

// hubQuantization is quantization_config, as the methods write it.
type hubQuantization struct {
	Method string `json:"quant_method"`
	Format string `json:"format"`
	Bits   int    `json:"bits"`
	Group  *int   `json:"group_size"`

	// compressed-tensors
	Groups   map[string]hubGroup `json:"config_groups"`
	Sparsity *struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
	Transform json.RawMessage `json:"transform_config"`

	// gptq
	Symmetric  *bool                      `json:"sym"`
	DescAct    bool                       `json:"desc_act"`
	Static     bool                       `json:"static_groups"`
	Checkpoint string                     `json:"checkpoint_format"`
	Marlin     bool                       `json:"is_marlin_format"`
	PackDType  string                     `json:"pack_dtype"`
	Rotation   json.RawMessage            `json:"rotation"`
	Adapter    json.RawMessage            `json:"adapter"`
	Dynamic    map[string]json.RawMessage `json:"dynamic"`

	// awq
	OldBits   int     `json:"w_bit"`
	OldGroup  *int    `json:"q_group_size"`
	Version   *string `json:"version"`
	ZeroPoint *bool   `json:"zero_point"`

	// fp8
	Type  string    `json:"fmt"`
	Block blockSize `json:"weight_block_size"`
}

// hubGroup is how compressed-tensors stores some layers.
type hubGroup struct {
	Format  string `json:"format"`
	Weights *struct {
		Bits      int             `json:"num_bits"`
		Type      string          `json:"type"`
		Symmetric *bool           `json:"symmetric"`
		Strategy  string          `json:"strategy"`
		Group     *int            `json:"group_size"`
		Block     blockSize       `json:"block_structure"`
		Order     json.RawMessage `json:"actorder"`
	} `json:"weights"`
}

// blockSize has the rows and the columns of a block. It is a list, or a text such as "128x128".
type blockSize []int

func (b *blockSize) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return json.Unmarshal(data, (*[]int)(b))
	}
	*b = make([]int, 2) // zeros are refused later
	_, _ = fmt.Sscanf(text, "%dx%d", &(*b)[0], &(*b)[1])
	return nil
}

// pair returns the sizes if they can be those of a block.
func (b blockSize) pair() (sizes [2]int, ok bool) {
	if len(b) != 2 || min(b[0], b[1]) < 1 {
		return sizes, false
	}
	return [2]int(b), true
}

// quantization returns how to read the weights, or an error that names the form.
func (h *hubQuantization) quantization() (*quantization, error) {
	switch h.Method {
	case "compressed-tensors":
		return h.compressed()
	case "gptq":
		return h.gptq()
	case "awq":
		return h.awq()
	case "fp8":
		return h.fp8()
	case "mxfp4":
		return &quantization{layout: fp4Blocks, group: 32, scale: "_scales"}, nil
	}
	return nil, refused("quantization_config has the quant_method %q, and compressed-tensors, gptq, awq, fp8 and mxfp4 are read: get the folder in bfloat16", h.Method)
}

func isSet(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "false", "{}", "[]", `""`}, strings.ReplaceAll(string(raw), " ", ""))
}

func (h *hubQuantization) compressed() (*quantization, error) {
	if len(h.Groups) != 1 {
		return nil, refused("quantization_config has %d config_groups, and one is read", len(h.Groups))
	}
	if h.Sparsity != nil && h.Sparsity.Format != "" && h.Sparsity.Format != "dense" {
		return nil, refused("quantization_config has sparse weights, %q, and dense ones are read", h.Sparsity.Format)
	}
	if isSet(h.Transform) {
		return nil, refused("quantization_config has a transform_config, and weights that are not transformed are read")
	}
	for name, g := range h.Groups {
		if g.Weights == nil {
			return nil, refused("config_groups.%s of quantization_config has no weights", name)
		}
		return g.quantization(cmp.Or(g.Format, h.Format))
	}
	return nil, nil
}

// quantization returns how to read the weights of the group, which are in this format of
// compressed-tensors.
func (g *hubGroup) quantization(format string) (*quantization, error) {
	w := g.Weights
	q := &quantization{bits: w.Bits, symmetric: or(w.Symmetric, true), scale: ".weight_scale"}
	form := fmt.Sprintf("%s of %s%d, strategy %q", format, w.Type, w.Bits, w.Strategy)
	packed := format == "pack-quantized" && w.Type == "int" && (w.Bits == 4 || w.Bits == 8)
	ints := (format == "int-quantized" || format == "naive-quantized") && w.Type == "int" && w.Bits == 8
	floats := (format == "float-quantized" || format == "naive-quantized") && w.Type == "float" && w.Bits == 8
	switch {
	case packed:
		q.layout = rowWords
	case ints, floats:
		q.layout, q.kind = rowCodes, map[bool]string{true: "I8", false: "F8_E4M3"}[ints]
	default:
		return nil, refused("quantization_config is compressed-tensors %s, and pack-quantized of int4 and int8, and int-quantized, naive-quantized and float-quantized of 8 bits are read", form)
	}
	if w.Strategy == "" {
		switch {
		case w.Group == nil:
			w.Strategy = "tensor"
		case *w.Group > 0:
			w.Strategy = "group"
		default:
			w.Strategy = "channel"
		}
	}
	if order := string(w.Order); order == "true" || order == `"group"` || order == `"dynamic"` {
		q.ordered = true
	}
	switch w.Strategy {
	case "channel", "tensor":
	case "group":
		if q.group = or(w.Group, 0); q.group < 1 {
			return nil, refused("group_size of quantization_config is %d, want a positive number", q.group)
		}
	case "block":
		block, ok := w.Block.pair()
		if !ok || packed {
			return nil, refused("quantization_config is compressed-tensors %s, with the block_structure %v, and blocks of two positive numbers are read, of codes that are not packed", form, w.Block)
		}
		q.block = block
	default:
		return nil, refused("quantization_config is compressed-tensors %s, and the strategies channel, tensor, group and block are read", form)
	}
	if !q.symmetric && !packed {
		return nil, refused("quantization_config is compressed-tensors %s with zeros, and only pack-quantized is read with them", form)
	}
	return q, nil
}

func (h *hubQuantization) gptq() (*quantization, error) {
	if h.Bits != 4 && h.Bits != 8 {
		return nil, refused("quantization_config is gptq of %d bits, and 4 and 8 are read", h.Bits)
	}
	for rule := range h.Dynamic {
		if !strings.HasPrefix(rule, "-:") { // layers that are not quantised
			return nil, refused("quantization_config is gptq with the rule %q for single layers in dynamic, and one form for all layers is read", rule)
		}
	}
	if h.Marlin || isSet(h.Rotation) || isSet(h.Adapter) || (h.PackDType != "" && h.PackDType != "int32") {
		return nil, refused("quantization_config is gptq with is_marlin_format, rotation, adapter or the pack_dtype %q, and int32 without them is read", h.PackDType)
	}
	q := &quantization{layout: gptqWords, bits: h.Bits, group: max(0, or(h.Group, -1)), symmetric: or(h.Symmetric, false), zeroAbove: 1, scale: ".scales"}
	q.ordered = h.DescAct && !h.Static
	if h.Checkpoint != "" && h.Format != "" && h.Checkpoint != h.Format {
		return nil, refused("quantization_config is gptq with the checkpoint_format %q and the format %q, want one", h.Checkpoint, h.Format)
	}
	for _, format := range []string{h.Checkpoint, h.Format} {
		switch format {
		case "", "gptq":
		case "gptq_v2":
			q.zeroAbove = 0
		default:
			return nil, refused("quantization_config is gptq with the checkpoint_format %q, and gptq and gptq_v2 are read", format)
		}
	}
	return q, nil
}

func (h *hubQuantization) awq() (*quantization, error) {
	if h.Bits == 0 && h.Group == nil {
		h.Bits, h.Group = h.OldBits, h.OldGroup
	}
	if h.Bits != 4 || !strings.EqualFold(or(h.Version, "gemm"), "gemm") || !or(h.ZeroPoint, true) {
		return nil, refused("quantization_config is awq of %d bits, version %q, zero_point %v, and gemm of 4 bits with zeros is read", h.Bits, or(h.Version, "gemm"), or(h.ZeroPoint, true))
	}
	return &quantization{layout: awqWords, bits: 4, group: max(0, or(h.Group, 128)), scale: ".scales"}, nil
}

func (h *hubQuantization) fp8() (*quantization, error) {
	block, ok := h.Block.pair()
	if (h.Block != nil && !ok) || (h.Type != "" && h.Type != "e4m3") {
		return nil, refused("quantization_config is fp8 %q with the weight_block_size %v, and e4m3 with two positive numbers or none is read", h.Type, h.Block)
	}
	if h.Block == nil {
		return &quantization{layout: rowCodes, kind: "F8_E4M3", bits: 8, symmetric: true, scale: ".weight_scale"}, nil
	}
	return &quantization{layout: rowCodes, kind: "F8_E4M3", bits: 8, symmetric: true, block: block, scale: ".weight_scale_inv"}, nil
}
