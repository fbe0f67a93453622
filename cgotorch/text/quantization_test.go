package text_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const quantizedLlama = `{"model_type": "llama", "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
	"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128`

// quantized is a weight as the files have it: codes, zeros and scales, which tell its values.
type quantized struct {
	rows, columns, group int
	code, zero           func(row, column int) int
	scale                func(row, column int) float32
	decode               func(code int) float32 // nil: the code is a number
}

func (q *quantized) value(row, column int) float32 {
	if q.decode != nil {
		return q.decode(q.code(row, column)) * q.scale(row, column/q.group)
	}
	return float32(q.code(row, column)-q.zero(row, column/q.group)) * q.scale(row, column/q.group)
}

// words packs codes into words of 32 bits. at returns the code at a place of a word [a, b].
func words(a, b, bits int, at func(a, b, i int) int) safetensors.Tensor {
	var data []byte
	for i := range a {
		for j := range b {
			var word uint32
			for k := range 32 / bits {
				word |= uint32(at(i, j, k)) << (k * bits)
			}
			data = binary.LittleEndian.AppendUint32(data, word)
		}
	}
	return tensorOf("I32", data, a, b)
}

func tensorOf(dtype string, data []byte, shape ...int) safetensors.Tensor {
	sizes := make([]int64, len(shape))
	for i, n := range shape {
		sizes[i] = int64(n)
	}
	return safetensors.Tensor{DType: dtype, Shape: sizes, Read: func() ([]byte, error) { return data, nil }}
}

func floatsOf(a, b int, at func(i, j int) float32) safetensors.Tensor {
	var data []byte
	for i := range a {
		for j := range b {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(at(i, j)))
		}
	}
	return tensorOf("F32", data, a, b)
}

func bytesOf(dtype string, q *quantized) safetensors.Tensor {
	data := make([]byte, 0, q.rows*q.columns)
	for i := range q.rows {
		for j := range q.columns {
			data = append(data, byte(q.code(i, j)))
		}
	}
	return tensorOf(dtype, data, q.rows, q.columns)
}

// float8 is the value of a code of e4m3.
func float8(code int) float32 {
	sign, exponent, fraction := 1-2*float64(code>>7&1), code>>3&15, float64(code&7)/8
	if exponent == 0 {
		return float32(sign * fraction * math.Exp2(-6))
	}
	return float32(sign * (1 + fraction) * math.Exp2(float64(exponent-7)))
}

// quantizedForms are the forms that are read, each with its files.
var quantizedForms = map[string]struct {
	config string
	group  int // 0: all columns
	zeros  bool
	bits   int
	files  func(q *quantized) map[string]safetensors.Tensor
}{
	"pack-quantized": {`{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
		"weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}}`, 32, false, 4,
		func(q *quantized) map[string]safetensors.Tensor {
			return map[string]safetensors.Tensor{
				"weight_packed": words(q.rows, q.columns/8, 4, func(a, b, i int) int { return q.code(a, 8*b+i) + 8 - q.zero(a, 0) }),
				"weight_scale":  floatsOf(q.rows, q.columns/32, q.scale),
				"weight_shape":  tensorOf("I64", binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(q.rows)), uint64(q.columns)), 2),
			}
		}},
	"gptq": {`{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "sym": false}`, 32, true, 4,
		func(q *quantized) map[string]safetensors.Tensor {
			var order []byte
			for i := range q.columns {
				order = binary.LittleEndian.AppendUint32(order, uint32(i/32))
			}
			return map[string]safetensors.Tensor{
				"qweight": words(q.columns/8, q.rows, 4, func(a, b, i int) int { return q.code(b, 8*a+i) }),
				"qzeros":  words(q.columns/32, q.rows/8, 4, func(a, b, i int) int { return q.zero(8*b+i, a) - 1 }),
				"scales":  floatsOf(q.columns/32, q.rows, func(i, j int) float32 { return q.scale(j, i) }),
				"g_idx":   tensorOf("I32", order, q.columns),
			}
		}},
	"awq": {`{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}`, 32, true, 4,
		func(q *quantized) map[string]safetensors.Tensor {
			order := []int{0, 2, 4, 6, 1, 3, 5, 7}
			return map[string]safetensors.Tensor{
				"qweight": words(q.columns, q.rows/8, 4, func(a, b, i int) int { return q.code(8*b+order[i], a) }),
				"qzeros":  words(q.columns/32, q.rows/8, 4, func(a, b, i int) int { return q.zero(8*b+order[i], a) }),
				"scales":  floatsOf(q.columns/32, q.rows, func(i, j int) float32 { return q.scale(j, i) }),
			}
		}},
	"int-quantized": {`{"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
		"weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"}, "input_activations": {"num_bits": 8, "dynamic": true}}}}`, 0, false, 8,
		func(q *quantized) map[string]safetensors.Tensor {
			signed := *q
			signed.code = func(i, j int) int { return q.code(i, j) - q.zero(i, 0) }
			return map[string]safetensors.Tensor{"weight": bytesOf("I8", &signed), "weight_scale": floatsOf(q.rows, 1, q.scale)}
		}},
	"float-quantized": {`{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
		"weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel"}}}}`, 0, false, 8,
		func(q *quantized) map[string]safetensors.Tensor {
			q.decode = float8
			return map[string]safetensors.Tensor{"weight": bytesOf("F8_E4M3", q), "weight_scale": floatsOf(q.rows, 1, q.scale), "input_scale": floatsOf(1, 1, q.scale)}
		}},
	"fp8": {`{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [20, 24]}`, 24, false, 8,
		func(q *quantized) map[string]safetensors.Tensor {
			byRow := q.scale
			q.decode, q.scale = float8, func(i, j int) float32 { return byRow(i/20, j) }
			return map[string]safetensors.Tensor{"weight": bytesOf("F8_E4M3", q), "weight_scale_inv": floatsOf((q.rows+19)/20, (q.columns+23)/24, func(i, j int) float32 { return byRow(i, j) })}
		}},
}

// quantize replaces the weights of products in a folder by codes, and returns their values.
func quantize(t *testing.T, folder, form string) map[string][]float32 {
	t.Helper()
	f := must.Get(safetensors.Open(filepath.Join(folder, "model.safetensors")))(t)
	defer f.Close()
	kind, values, r := quantizedForms[form], map[string][]float32{}, rand.New(rand.NewPCG(1, 2))
	var tensors []safetensors.Tensor
	for _, info := range f.Tensors() {
		module, isWeight := strings.CutSuffix(info.Name, ".weight")
		if !isWeight || !strings.Contains(module, "_proj") {
			data := must.Get(f.Read(info.Name))(t)
			tensors = append(tensors, safetensors.Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return data, nil }})
			continue
		}
		q := &quantized{rows: int(info.Shape[0]), columns: int(info.Shape[1]), group: kind.group}
		if q.group == 0 {
			q.group = q.columns
		}
		codes, zeros := make([]int, q.rows*q.columns), make([]int, q.rows*(q.columns/q.group+1))
		for i := range codes {
			codes[i] = r.IntN(1 << kind.bits)
			if kind.bits == 8 && codes[i]&127 == 127 {
				codes[i]-- // NaN in e4m3
			}
		}
		for i := range zeros {
			zeros[i] = 1 << (kind.bits - 1)
			if kind.zeros {
				zeros[i] = 1 + r.IntN(15)
			}
		}
		q.code = func(i, j int) int { return codes[i*q.columns+j] }
		q.zero = func(i, j int) int { return zeros[i*(q.columns/q.group+1)+j] }
		smallest := map[int]float32{4: 1.0 / 512, 8: 1.0 / 16384}[kind.bits] // large weights multiply each change
		q.scale = func(i, j int) float32 { return float32(1+i%7+3*j) * smallest }
		files := kind.files(q)
		for i := range q.rows {
			for j := range q.columns {
				values[info.Name] = append(values[info.Name], q.value(i, j))
			}
		}
		for _, suffix := range slices.Sorted(maps.Keys(files)) {
			one := files[suffix]
			one.Name = module + "." + suffix
			tensors = append(tensors, one)
		}
	}
	must.Do(t, safetensors.WriteFile(filepath.Join(folder, "model.safetensors"), tensors, nil))
	config := map[string]any{}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "config.json")))(t), &config))
	config["quantization_config"] = json.RawMessage(kind.config)
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), must.Get(json.Marshal(config))(t), 0o644))
	return values
}

// Weights that are published in few bits have the values that their codes tell, and a model of them
// answers and is saved.
func TestOpen_Quantized(t *testing.T) {
	torchtest.CheckLeaks(t)
	for form := range quantizedForms {
		t.Run(form, func(t *testing.T) {
			folder := savedModel(t, quantizedLlama+"}")
			values := quantize(t, folder, form)
			m := must.Get(text.Open(torchtest.Device(), folder, text.Options{DType: cgotorch.Float32}))(t)
			defer m.Close()
			saved := t.TempDir()
			must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
				for _, n := range m.Weights {
					if want := values[n.Name]; want != nil && !slices.Equal(cgotorch.ToSlice[float32](x, n.Tensor), want) {
						t.Errorf("%s has other values than its codes tell", n.Name)
					}
				}
				return m.Save(x, saved)
			}))
			narrow := must.Get(text.Open(torchtest.Device(), folder, text.Options{DType: cgotorch.Float32, Quantize: "int8"}))(t)
			defer narrow.Close()
			if d := distance(logitsOf(t, narrow), logitsOf(t, m)); d > 0.05 || d == 0 {
				t.Errorf("with int8 the logits are %v away", d)
			}
			wide, _ := m.Memory()
			if got, _ := narrow.Memory(); got > wide/2 {
				t.Errorf("weights take %d bytes with int8, and %d without", got, wide)
			}
			c := m.NewConversation()
			defer c.Close()
			want, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 8, Greedy: true, IgnoreEnd: true})
			if config := string(must.Get(os.ReadFile(filepath.Join(saved, "config.json")))(t)); strings.Contains(config, "quantization") {
				t.Errorf("the saved config.json says that the weights are quantised: %s", config)
			}
			again := must.Get(text.Open(torchtest.Device(), saved, text.Options{}))(t)
			defer again.Close()
			other := again.NewConversation()
			defer other.Close()
			if got, _ := tokensOf(t, other, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 8, Greedy: true, IgnoreEnd: true}); !slices.Equal(got, want) {
				t.Errorf("the saved model answers %v, want %v", got, want)
			}
		})
	}
}

// The experts of gpt_oss are read as they are published. Experts whose scales are not numbers, or
// of which a part is missing or of another shape, are refused.
func TestOpen_MXFP4(t *testing.T) {
	torchtest.CheckLeaks(t)
	const config = `{"model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 128}`
	for what, damage := range map[string]func(suffix string, data []byte, shape []int) ([]byte, []int){
		"": func(_ string, data []byte, shape []int) ([]byte, []int) { return data, shape },
		"a scale that is not a number": func(suffix string, data []byte, shape []int) ([]byte, []int) {
			if suffix == "_scales" {
				data[len(data)-1] = 255
			}
			return data, shape
		},
		"_scales is missing": func(suffix string, data []byte, shape []int) ([]byte, []int) {
			if suffix == "_scales" {
				return nil, nil
			}
			return data, shape
		},
		"tells the shape": func(suffix string, data []byte, shape []int) ([]byte, []int) {
			if suffix == "_blocks" {
				return data, append([]int{shape[0], shape[1] * shape[2]}, shape[3])
			}
			return data, shape
		},
	} {
		folder, r, want := savedModel(t, config), rand.New(rand.NewPCG(1, 2)), map[string][]float32{}
		path := filepath.Join(folder, "model.safetensors")
		f := must.Get(safetensors.Open(path))(t)
		var tensors []safetensors.Tensor
		for _, info := range f.Tensors() {
			if !strings.HasSuffix(info.Name, "_proj") || len(info.Shape) != 3 {
				data := must.Get(f.Read(info.Name))(t)
				tensors = append(tensors, safetensors.Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return data, nil }})
				continue
			}
			experts, columns, rows := int(info.Shape[0]), int(info.Shape[1]), int(info.Shape[2])
			codes, scales := make([]byte, experts*rows*columns/2), make([]byte, experts*rows*columns/32)
			values := make([]float32, experts*rows*columns)
			for i := range codes {
				codes[i] = byte(r.IntN(256))
			}
			for i := range scales {
				scales[i] = byte(120 + r.IntN(4))
			}
			for i := range values { // in the files rows are whole, and in the model columns are
				code, e, row, column := codes[i/2]>>(i%2*4), i/(rows*columns), i/columns%rows, i%columns
				of := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[code&7]
				if code&8 != 0 {
					of = -of
				}
				values[(e*columns+column)*rows+row] = float32(math.Ldexp(of, int(scales[i/32])-127))
			}
			want[info.Name] = values
			for suffix, part := range map[string]safetensors.Tensor{
				"_blocks": tensorOf("U8", codes, experts, rows, columns/32, 16), "_scales": tensorOf("U8", scales, experts, rows, columns/32),
			} {
				data, _ := part.Read()
				shape := make([]int, len(part.Shape))
				for i, n := range part.Shape {
					shape[i] = int(n)
				}
				if data, shape = damage(suffix, data, shape); data != nil {
					part = tensorOf("U8", data, shape...)
					part.Name = info.Name + suffix
					tensors = append(tensors, part)
				}
			}
		}
		f.Close()
		must.Do(t, safetensors.WriteFile(path, tensors, nil))
		whole := must.Get(os.ReadFile(filepath.Join(folder, "config.json")))(t)
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(strings.Replace(string(whole), "{", `{"quantization_config": {"quant_method": "mxfp4"},`, 1)), 0o644))
		m, err := text.Open(torchtest.Device(), folder, text.Options{DType: cgotorch.Float32})
		if what != "" {
			_, err2 := text.Open(torchtest.Device(), folder, text.Options{DType: cgotorch.Float32, Quantize: "mxfp4"})
			torchtest.WantError(t, err2, cgotorch.ErrInvalidArgument, what)
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want an error with %q", err, what)
			}
			continue
		}
		must.Do(t, err)
		must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
			for _, n := range m.Weights {
				if want[n.Name] != nil && !slices.Equal(cgotorch.ToSlice[float32](x, n.Tensor), want[n.Name]) {
					t.Errorf("%s has other values than its codes tell", n.Name)
				}
			}
			return nil
		}))
		logits := logitsOf(t, m)
		must.Do(t, m.Close())
		kept := must.Get(text.Open(torchtest.Device(), folder, text.Options{DType: cgotorch.Float32, Quantize: "mxfp4"}))(t) // the codes stay
		if d := distance(logitsOf(t, kept), logits); !(d < 1e-5) || kept.QuantizationError() != 0 {
			t.Errorf("with the codes of the files the logits are %v away, and QuantizationError is %v", d, kept.QuantizationError())
		}
		must.Do(t, kept.Close())
	}
}

// Forms that are not read are refused by their names.
func TestOpen_QuantizedRefused(t *testing.T) {
	compressed := func(format, weights string) string {
		return fmt.Sprintf(`{"quant_method": "compressed-tensors", "format": %q, "config_groups": {"group_0": {"weights": %s}}}`, format, weights)
	}
	for config, want := range map[string]string{
		`{"quant_method": "bitsandbytes", "load_in_4bit": true}`: `"bitsandbytes"`,
		`{"quant_method": "hqq"}`:                                `"hqq"`,
		`{}`:                                                     `quant_method ""`,
		`{"quant_method": "gptq", "bits": 3}`:                    "gptq of 3 bits",
		`{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}`:                       `"marlin"`,
		`{"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}, "+:down": {"bits": 8}}}`: "dynamic",
		`{"quant_method": "awq", "bits": 4, "version": "gemv"}`:                                    `"gemv"`,
		`{"quant_method": "awq", "bits": 8}`:                                                       "awq of 8 bits",
		`{"quant_method": "fp8", "weight_block_size": [128]}`:                                      "weight_block_size",
		`{"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"}`:                  "e5m2",
		compressed("nvfp4-pack-quantized", `{"num_bits": 4, "type": "float"}`):                     "nvfp4-pack-quantized",
		compressed("marlin-24", `{"num_bits": 4, "type": "int"}`):                                  "marlin-24",
		compressed("pack-quantized", `{"num_bits": 3, "type": "int"}`):                             "int3",
		compressed("int-quantized", `{"num_bits": 8, "type": "int", "strategy": "token"}`):         `"token"`,
		compressed("pack-quantized", `{"num_bits": 4, "type": "int", "strategy": "group"}`):        "group_size",
	} {
		folder := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(quantizedLlama+`, "quantization_config": `+config+"}"), 0o644))
		_, err := text.Open(torchtest.Device(), folder, text.Options{})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want, "config.json")
	}
}

// Files that do not say what their quantization_config says are refused, by the tensor.
func TestOpen_QuantizedFiles(t *testing.T) {
	const q = "model.layers.1.self_attn.q_proj"
	order := func(group func(column int) int) safetensors.Tensor {
		var data []byte
		for i := range 64 {
			data = binary.LittleEndian.AppendUint32(data, uint32(group(i)))
		}
		return tensorOf("I32", data, 64)
	}
	zeros := tensorOf("F32", make([]byte, 4*64), 64)
	for _, c := range []struct {
		form, old, new string // of config.json
		edit           func(all map[string]safetensors.Tensor)
		want           string // the error, or "" for none
	}{
		{"int-quantized", "int-quantized", "float-quantized", nil, "is compressed-tensors float-quantized of int8"},
		{"int-quantized", `"int-quantized"`, `"naive-quantized"`, nil, ""},
		{"int-quantized", "", "", func(all map[string]safetensors.Tensor) { all[q+".weight_zero_point"] = zeros }, q + ".weight_zero_point is not"},
		{"float-quantized", "", "", func(all map[string]safetensors.Tensor) {
			all[q+".weight"] = tensorOf("I8", make([]byte, 64*64), 64, 64)
		}, q + ".weight is I8"},
		{"float-quantized", "", "", func(all map[string]safetensors.Tensor) { delete(all, q+".weight_scale") }, q + ".weight_scale is missing"},
		{"fp8", `"weight_block_size"`, `"block"`, nil, "no weight_block_size"},
		{"fp8", `[20,24]`, `[20000,9223372036854775807]`, nil, "the shape [1 1]"},
		{"fp8", `[20,24]`, `"20x24"`, nil, ""},
		{"gptq", `"desc_act":false`, `"desc_act":true`, func(all map[string]safetensors.Tensor) { delete(all, q+".g_idx") }, q + ".g_idx is missing"},
		{"gptq", `"desc_act":false`, `"desc_act":true`, func(all map[string]safetensors.Tensor) { all[q+".g_idx"] = order(func(i int) int { return i % 2 }) }, ""},
		{"gptq", "", "", func(all map[string]safetensors.Tensor) { all[q+".g_idx"] = order(func(i int) int { return i / 16 }) }, "group 2 of 2"},
		{"gptq", `"sym":false`, `"sym":true`, nil, "qzeros has zeros from"},
		{"gptq", `"sym":false`, `"checkpoint_format":"gptq_v2","format":"gptq"`, nil, "want one"},
		{"gptq", `"group_size":32`, `"group_size":48`, nil, "no multiple of group_size"},
		{"gptq", "", "", func(all map[string]safetensors.Tensor) { all[q+".bias"] = zeros }, ""},
		{"pack-quantized", "", "", func(all map[string]safetensors.Tensor) {
			all[q+".weight_shape"] = tensorOf("I64", append(binary.LittleEndian.AppendUint64(nil, 64), 63, 0, 0, 0, 0, 0, 0, 0), 2)
		}, "weight_shape is [64 63]"},
		{"awq", `"quantization_config"`, `"quantization"`, nil, "no quantization_config"},
		{"awq", `"bits":4,"group_size":32`, `"w_bit":4,"q_group_size":32`, nil, ""},
		{"awq", `"group_size":32`, `"group_size":"32"`, nil, "want an integer"},
	} {
		t.Run(c.form+"/"+c.want, func(t *testing.T) {
			torchtest.CheckLeaks(t)
			folder := savedModel(t, quantizedLlama+"}")
			quantize(t, folder, c.form)
			if c.edit != nil {
				f := must.Get(safetensors.Open(filepath.Join(folder, "model.safetensors")))(t)
				all := map[string]safetensors.Tensor{}
				for _, info := range f.Tensors() {
					data := must.Get(f.Read(info.Name))(t)
					all[info.Name] = safetensors.Tensor{DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return data, nil }}
				}
				f.Close()
				c.edit(all)
				var list []safetensors.Tensor
				for _, name := range slices.Sorted(maps.Keys(all)) {
					one := all[name]
					one.Name = name
					list = append(list, one)
				}
				must.Do(t, safetensors.WriteFile(filepath.Join(folder, "model.safetensors"), list, nil))
			}
			path := filepath.Join(folder, "config.json")
			config := string(must.Get(os.ReadFile(path))(t))
			if !strings.Contains(config, c.old) {
				t.Fatalf("config.json has no %s: %s", c.old, config)
			}
			must.Do(t, os.WriteFile(path, []byte(strings.Replace(config, c.old, c.new, 1)), 0o644))
			m, err := text.Open(torchtest.Device(), folder, text.Options{})
			if c.want != "" {
				torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.want, folder)
				return
			}
			must.Do(t, err)
			must.Do(t, m.Close())
		})
	}
}
