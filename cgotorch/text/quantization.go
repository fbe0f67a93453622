package text

import (
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
//
// A weight is (code - zero) * scale. It is computed in float32, and rounded to the model's dtype.
// Activations stay in the model's dtype, also where the files ask for narrow ones: the result is
// nearer to that of the model before its quantization. What is not in the list is refused by its
// name.

// quantization says how the files have the weights of products.
type quantization struct {
	layout    layout
	bits      int  // of a code that is packed into 32 bits
	group     int  // columns of a scale, or 0 for all of them
	symmetric bool // all zeros are equal
	ordered   bool // the files must say which group each column belongs to; else they may
	zeroAbove int  // what is added to a zero of the files
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
)

// hubQuantization is quantization_config, as the methods write it.
type hubQuantization struct {
	Method     string          `json:"quant_method"`
	Format     string          `json:"format"`
	Bits       int             `json:"bits"`
	Group      *int            `json:"group_size"`
	Symmetric  *bool           `json:"sym"`
	Checkpoint string          `json:"checkpoint_format"`
	Marlin     bool            `json:"is_marlin_format"`
	PackDType  string          `json:"pack_dtype"`
	Rotation   json.RawMessage `json:"rotation"`
	Adapter    json.RawMessage `json:"adapter"`

	Dynamic   map[string]json.RawMessage `json:"dynamic"`
	Version   *string                    `json:"version"`
	ZeroPoint *bool                      `json:"zero_point"`
	Type      string                     `json:"fmt"`
	Block     []int                      `json:"weight_block_size"`
	Groups    map[string]struct {
		Format  string `json:"format"`
		Weights *struct {
			Bits      int             `json:"num_bits"`
			Type      string          `json:"type"`
			Symmetric *bool           `json:"symmetric"`
			Strategy  string          `json:"strategy"`
			Group     *int            `json:"group_size"`
			Block     []int           `json:"block_structure"`
			Order     json.RawMessage `json:"actorder"`
		} `json:"weights"`
	} `json:"config_groups"`
	Sparsity *struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
	Transform json.RawMessage `json:"transform_config"`
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
	}
	return nil, refused("quantization_config has the quant_method %q, and compressed-tensors, gptq, awq and fp8 are read: get the folder in bfloat16", h.Method)
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
		format, w := g.Format, g.Weights
		if format == "" {
			format = h.Format
		}
		if w == nil {
			return nil, refused("config_groups.%s of quantization_config has no weights", name)
		}
		q := &quantization{bits: w.Bits, symmetric: or(w.Symmetric, true), scale: ".weight_scale"}
		form := fmt.Sprintf("%s of %s%d, strategy %q", format, w.Type, w.Bits, w.Strategy)
		packed := format == "pack-quantized" && w.Type == "int" && (w.Bits == 4 || w.Bits == 8)
		ints := (format == "int-quantized" || format == "naive-quantized") && w.Type == "int" && w.Bits == 8
		floats := (format == "float-quantized" || format == "naive-quantized") && w.Type == "float" && w.Bits == 8
		switch {
		case packed:
			q.layout = rowWords
		case ints, floats:
			q.layout = rowCodes
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
			if len(w.Block) != 2 || min(w.Block[0], w.Block[1]) < 1 {
				return nil, refused("block_structure of quantization_config is %v, want two positive numbers", w.Block)
			}
			q.block = [2]int(w.Block)
		default:
			return nil, refused("quantization_config is compressed-tensors %s, and the strategies channel, tensor, group and block are read", form)
		}
		if !q.symmetric && !packed {
			return nil, refused("quantization_config is compressed-tensors %s with zeros, and only pack-quantized is read with them", form)
		}
		return q, nil
	}
	return nil, nil
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
	if h.Bits != 4 || !strings.EqualFold(or(h.Version, "gemm"), "gemm") || !or(h.ZeroPoint, true) {
		return nil, refused("quantization_config is awq of %d bits, version %q, zero_point %v, and gemm of 4 bits with zeros is read", h.Bits, or(h.Version, "gemm"), or(h.ZeroPoint, true))
	}
	return &quantization{layout: awqWords, bits: 4, group: max(0, or(h.Group, 128)), scale: ".scales"}, nil
}

func (h *hubQuantization) fp8() (*quantization, error) {
	if (h.Block != nil && (len(h.Block) != 2 || min(h.Block[0], h.Block[1]) < 1)) || (h.Type != "" && h.Type != "e4m3") {
		return nil, refused("quantization_config is fp8 %q with the weight_block_size %v, and e4m3 with two positive numbers or none is read", h.Type, h.Block)
	}
	if h.Block == nil {
		return &quantization{layout: rowCodes, bits: 8, symmetric: true, scale: ".weight_scale"}, nil
	}
	return &quantization{layout: rowCodes, bits: 8, symmetric: true, block: [2]int(h.Block), scale: ".weight_scale_inv"}, nil
}
