package docs

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/data/parquet"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/imageloader/cifar"
	"github.com/streamtorch/streamtorch/imageloader/idx"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// More mistakes inside a Do.
var modelMistakes = map[string]map[string]func(x *cgotorch.Exec){
	"cgotorch/metric": {
		"the logits are":      func(x *cgotorch.Exec) { metric.Accuracy(x, x.Ones(f32, 2, 3), x.Ones(i64, 2), 4) },
		"the predictions are": func(x *cgotorch.Exec) { metric.Confusion(x, x.Ones(f32, 2), x.Ones(i64, 2), 3) },
		"the scores are":      func(x *cgotorch.Exec) { metric.AUC(x, x.Ones(f32, 2), x.Ones(i64, 3)) },
	},
	"cgotorch/trace": {
		"a trace is running": func(x *cgotorch.Exec) {
			first, err := trace.Start()
			failWith(x, err)
			defer first.Stop()
			_, err = trace.Start()
			failWith(x, err)
		},
		"the trace has been": func(x *cgotorch.Exec) {
			running, err := trace.Start()
			failWith(x, err)
			_, err = running.Stop()
			failWith(x, err)
			_, err = running.Stop()
			failWith(x, err)
		},
	},
	"cgotorch/text": {
		"the ids are":   withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) { m.Encode(x, x.Ones(f32, 1, 2), nil) }),
		"the mask is …": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) { m.Encode(x, ids, x.Ones(i64, 1, 9)) }),
		"the layer is": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			m.Encoder.Block[0].FF.Route(x, m.Encode(x, ids, nil))
		}),
		"Batch is …": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) { m.NewCache(x, text.CacheOptions{Batch: -1}) }),
		"the encoder's result is": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			m.Decoder.Start(x, cacheOf(x, m, text.CacheOptions{Batch: 3}), m.Encode(x, ids, nil), nil)
		}),
		"the encoder's result has": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			m.Decoder.Start(x, cacheOf(x, m, text.CacheOptions{Batch: 2, Source: 2}), m.Encode(x, ids, nil), nil)
		}),
		"the cache was made for … tokens, and all": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			c := cacheOf(x, m, text.CacheOptions{Batch: 2, Source: 3, Capacity: 1})
			m.Decoder.Start(x, c, m.Encode(x, ids, nil), nil)
			for range 2 {
				m.Step(x, c)
				c.Advance(x)
			}
		}),
		"the cache was made for … tokens, and Max": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			c := cacheOf(x, m, text.CacheOptions{Batch: 2, Source: 3, Capacity: 1})
			_, err := m.Generate(context.Background(), x, ids, nil, text.GenerateOptions{Cache: c, MaxNewTokens: 5})
			failWith(x, err)
		}),
		"MaxNewTokens is": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			_, err := m.Generate(context.Background(), x, ids, nil, text.GenerateOptions{MaxNewTokens: -1})
			failWith(x, err)
		}),
		"DType is …": withSwitch(func(x *cgotorch.Exec, m *text.Switch, ids *tensor) {
			text.NewSwitch(x, smallSwitch(), text.SwitchOptions{DType: i64})
		}),
		"text: LoadSwitch": func(x *cgotorch.Exec) {
			config := smallSwitch()
			_, err := text.LoadSwitch(x, text.LoadOptions{Config: &config})
			failWith(x, err)
		},
		"text: …: tensor … is missing": withSwitchFile(safetensors.Tensor{Name: "shared.weight", DType: "F32", Shape: []int64{11, 8}, Data: make([]byte, 11*8*4)}, false),
		"text: …: tensor … is not the": withSwitchFile(safetensors.Tensor{Name: "other", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}, true),
		"text: …: tensor … is ……":      withSwitchFile(safetensors.Tensor{Name: "shared.weight", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}, true),
		"text: …: tensor … is …, want": withSwitchFile(safetensors.Tensor{Name: "shared.weight", DType: "I64", Shape: []int64{11, 8}, Data: make([]byte, 11*8*8)}, true),
	},
	"cgotorch/pt2": {
		"not a whole file":         loadProgram(nil, "models/model.json", "", "{"),
		"it has no entry models":   loadProgram(nil, "models/model.json", "", ""),
		"its … is …, and this":     loadProgram(nil, "archive_version", "0", "7"),
		"its schema has version":   loadProgram(nil, "models/model.json", `"major": 8`, `"major": 9`),
		"the entry models/….json":  loadProgram(nil, "models/model.json", `"schema_version"`, `"other"`),
		"its size … is negative":   loadProgram(nil, "models/model.json", `{"as_int": 2}], "requires_grad": false`, `{"as_int": -2}], "requires_grad": false`),
		"its size … is from":       loadProgram(nil, "models/model.json", `"min_val": 2`, `"min_val": 9`),
		"LibTorch lacks":           loadProgram(nil, "models/model.json", "aten.relu.default", "torchvision.nms.default"),
		"this package does not":    loadProgram(nil, "models/model.json", "torch.ops.aten.relu.default", "os.system"),
		"there is no value":        loadProgram(nil, "models/model.json", `"arg": {"as_tensor": {"name": "linear"}}`, `"arg": {"as_tensor": {"name": "add"}}`),
		"two values have":          loadProgram(nil, "models/model.json", `"outputs": [{"as_tensor": {"name": "relu"}}]`, `"outputs": [{"as_tensor": {"name": "linear"}}]`),
		"its kind is":              loadProgram(nil, "models/model.json", `{"as_int": 2}, "kind": 2`, `{"as_quaternion": 2}, "kind": 2`),
		"an argument with":         loadProgram(nil, "models/model.json", `{"as_int": 2}, "kind": 2`, `{}, "kind": 2`),
		"the operator has no":      loadProgram(nil, "models/model.json", `"name": "alpha"`, `"name": "beta"`),
		"there is no dtype number": loadProgram(nil, "models/model.json", `{"as_int": 2}, "kind": 2`, `{"as_scalar_type": 99}, "kind": 2`),
		"there is no memory form":  loadProgram(nil, "models/model.json", `{"as_int": 2}, "kind": 2`, `{"as_memory_format": 99}, "kind": 2`),
		"the layout number":        loadProgram(nil, "models/model.json", `{"as_int": 2}, "kind": 2`, `{"as_layout": 1}, "kind": 2`),
		"it orders side effects":   loadProgram(nil, "models/model.json", `{"tensor_constant": {"arg": {"name": "c_c"}, "tensor_constant_name": "c"}}`, `{"token": {"arg": {"name": "c_c"}}}`),
		"it computes its own":      loadProgram(nil, "models/model.json", `{"user_output": {"arg": {"as_tensor": {"name": "add"}}}}`, `{"gradient_to_parameter": {"arg": {"name": "add"}, "parameter_name": "fc.bias"}}`),
		"the results have":         loadProgram(nil, "models/model.json", `"out_spec": "[1, {\"type\": null`, `"out_spec": "[1, {\"type\": \"builtins.tuple\"`),
		"a tree of another":        loadProgram(nil, "models/model.json", `"in_spec": "[1, `, `"in_spec": "[2, `),
		"it ends too early":        loadProgram(nil, "models/model.json", "Symbol('s0', positive=True, integer=True)", "Symbol('s0'"),
		"the entry … has more":     loadProgram(nil, "models/model.json", "", strings.Repeat("[", 100000)),
		"the tensor … is pickled":  loadProgram(nil, "data/weights/model_weights_config.json", `"use_pickle": false`, `"use_pickle": true`),
		"the tensor … is in no":    loadProgram(nil, "models/model.json", `"parameter_name": "fc.bias"`, `"parameter_name": "fc.other"`),
		"the entry … has … bytes,": loadProgram(nil, "data/weights/model_weights_config.json", `"sizes": [{"as_int": 2}, {"as_int": 2}]`, `"sizes": [{"as_int": 2000}, {"as_int": 2}]`),
		"its shape is …, its str":  loadProgram(nil, "data/weights/model_weights_config.json", `"storage_offset": {"as_int": 0}`, `"storage_offset": {"as_int": -1}`),
		"its dtype number is":      loadProgram(nil, "data/weights/model_weights_config.json", `"layout": 7`, `"layout": 1`),
		"a size or stride":         loadProgram(nil, "data/weights/model_weights_config.json", `"strides": [{"as_int": 2}`, `"strides": [{}`),
		"pt2: Options.DType":       loadWith(pt2.Options{DType: i64}, nil, "", "", ""),
		"pt2: GoOptions.Package": func(x *cgotorch.Exec) {
			_, err := pt2.GoSource("net.pt2", pt2.GoOptions{Package: "my net"})
			failWith(x, err)
		},
		"item … of a list": loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Forward(x, x.Ones(f32, 2, 2)) }, "models/model.json",
			`relu.default", "name": "relu", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}`,
			`view.default", "name": "relu", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}, {"name": "size", "arg": {"as_sym_ints": [{"as_name": "linear"}]}, "kind": 1}`),
		"… is missing":                       loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x) }, "", "", ""),
		"… arguments without a name":         loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x, 1, 2) }, "", "", ""),
		"there are … keywords":               loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x, 1, pt2.Keywords{"mask": 1}) }, "", "", ""),
		"…: the input … is …, want a tensor": loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x, 1) }, "", "", ""),
		"…: the input … is …, want …":        loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x, x.Ones(i64, 2, 2)) }, "", "", ""),
		"with … from … to":                   loadProgram(func(x *cgotorch.Exec, p *pt2.Program) { p.Call(x, x.Ones(f32, 9, 2)) }, "", "", ""),
	},
	"cgotorch/internal/torchzip": {
		"a program that AOTInductor compiled: load": loadProgram(nil, "data/aotinductor/model/a.so", "", "x"),
		"a TorchScript program: export":             loadProgram(nil, "code/a.py", "", "x"),
		"an old program of torch.export: PyTorch":   loadProgram(nil, "serialized_exported_program.json", "", "x"),
		"a file of torch.save: it":                  loadProgram(nil, "data.pkl", "", "x"),
		"a program of torch.export: load":           loadPackage("models/model.json", "{}"),
		"the entry … is missing":                    loadProgram(nil, "archive_version", "", ""),
		"it holds no … …":                           loadWith(pt2.Options{Model: "other"}, nil, "", "", ""),
		"it holds … …s":                             loadProgram(nil, "models/other.json", "", "{}"),
		"…: … is not a regular": func(x *cgotorch.Exec) {
			_, err := pt2.Load(x, os.TempDir(), pt2.Options{})
			failWith(x, err)
		},
	},
	"cgotorch/aoti": {
		"not a whole package":         loadPackage(),
		"it has no entry …MODEL":      loadPackage("a", ""),
		"the entry … leaves":          loadPackage("data/aotinductor/model/../../../x.so", ""),
		"the model … is C++ source":   loadPackage("data/aotinductor/model/a.wrapper.cpp", ""),
		"the model … has … compiled":  loadPackage("data/aotinductor/model/a.json", ""),
		"it lacks ….cpp":              loadPackage("data/aotinductor/model/a.so", "", "data/aotinductor/model/a_metadata.json", `{"AOTI_DEVICE_KEY": "cpu"}`),
		"its metadata name no device": compiled(`{}`, ""),
		"it was compiled for the …":   compiled(`{"AOTI_DEVICE_KEY": "cuda"}`, ""),
		"PyTorch … has compiled it":   compiled(`{"AOTI_DEVICE_KEY": "cpu", "torch_version": "2.9.1"}`, ""),
		"it was compiled for a proc":  compiled(`{"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "none such"}`, ""),
		"the file … is missing":       loadPackage("data/aotinductor/model/a.so", "", "data/aotinductor/model/a.cpp", ""),
		"the package cannot run here": compiled(`{"AOTI_DEVICE_KEY": "cuda"}`, ""),
	},
	"prefetcher/weights": {
		"weights: Offload: the optim": func(x *cgotorch.Exec) {
			s, err := optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: []*tensor{leaf(x)}})
			failWith(x, err)
			defer s.Close()
			_, err = weights.NewOffload(s, cgotorch.CPU, weights.OffloadOptions{})
			failWith(x, err)
		},
		"weights: Offload: parameter … lies": offload(cgotorch.CUDA(0), weights.OffloadOptions{}),
		"weights: OffloadOptions":            offload(cgotorch.CPU, weights.OffloadOptions{Slots: -1}),
	},
}

// smallSwitch is the config of a model with few numbers.
func smallSwitch() text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.VocabSize, c.DModel, c.DKV, c.DFF, c.NumHeads, c.NumExperts = 11, 8, 4, 12, 2, 3
	c.NumLayers, c.NumDecoderLayers, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers = 2, 2, 1, 1
	return c
}

func withSwitch(call func(x *cgotorch.Exec, m *text.Switch, ids *tensor)) func(x *cgotorch.Exec) {
	return func(x *cgotorch.Exec) {
		m := text.NewSwitch(x, smallSwitch(), text.SwitchOptions{})
		x.AtEnd(func() { nn.Close(m) })
		call(x, m, x.Ones(i64, 2, 3))
	}
}

func cacheOf(x *cgotorch.Exec, m *text.Switch, o text.CacheOptions) *text.Cache {
	c := m.NewCache(x, o)
	x.AtEnd(func() { c.Close() })
	return c
}

// withSwitchFile loads a file with a tensor, and perhaps all tensors of the model, into a model.
func withSwitchFile(of safetensors.Tensor, whole bool) func(x *cgotorch.Exec) {
	return withSwitch(func(x *cgotorch.Exec, m *text.Switch, _ *tensor) {
		failWith(x, inFolder(func(folder string) error {
			path, tensors := filepath.Join(folder, "model.safetensors"), []safetensors.Tensor{of}
			for _, n := range nn.State(m) {
				if whole && n.Name != of.Name {
					tensors = append(tensors, safetensors.Tensor{Name: n.Name, DType: "F32", Shape: n.Tensor.Shape(), Data: make([]byte, 4*n.Tensor.Numel())})
				}
			}
			return errors.Join(safetensors.WriteFile(path, tensors, nil), m.Load(x, path))
		}))
	})
}

func inFolder(call func(folder string) error) error {
	folder, err := os.MkdirTemp("", "mistakes")
	if err != nil {
		return err
	}
	return errors.Join(call(folder), os.RemoveAll(folder))
}

// zipped returns a zip file of pairs of names and texts, without compression.
func zipped(entries ...string) []byte {
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for i := 0; i < len(entries); i += 2 {
		e, err := w.CreateHeader(&zip.FileHeader{Name: "net/" + entries[i], Method: zip.Store})
		if err == nil {
			e.Write([]byte(entries[i+1]))
		}
	}
	w.Close()
	return file.Bytes()
}

// loadProgram loads a program of a linear layer in which one entry is changed: `old` becomes
// `with`, or the whole entry becomes `with` if `old` is "", and is left out if both are "". Then
// `call` runs it.
func loadProgram(call func(x *cgotorch.Exec, p *pt2.Program), entry, old, with string) func(x *cgotorch.Exec) {
	return loadWith(pt2.Options{}, call, entry, old, with)
}

func loadWith(o pt2.Options, call func(x *cgotorch.Exec, p *pt2.Program), entry, old, with string) func(x *cgotorch.Exec) {
	return func(x *cgotorch.Exec) {
		texts := map[string]string{"archive_format": "pt2", "archive_version": "0", "byteorder": "little",
			"data/weights/weight_0": strings.Repeat("\x00", 16), "data/weights/weight_1": strings.Repeat("\x00", 8), "data/constants/tensor_0": strings.Repeat("\x00", 8)}
		for name, file := range map[string]string{"models/model.json": "model", "data/weights/model_weights_config.json": "weights", "data/constants/model_constants_config.json": "constants"} {
			text, err := os.ReadFile(filepath.Join(root, "cgotorch/pt2/testdata/small", file+".json"))
			failWith(x, err)
			texts[name] = string(text)
		}
		switch {
		case old != "":
			if !strings.Contains(texts[entry], old) {
				failWith(x, fmt.Errorf("%s has no %s", entry, old))
			}
			texts[entry] = strings.Replace(texts[entry], old, with, 1)
		case with != "":
			texts[entry] = with
		default:
			delete(texts, entry)
		}
		var entries []string
		for name, text := range texts {
			entries = append(entries, name, text)
		}
		data := zipped(entries...)
		p, err := pt2.LoadFrom(x, bytes.NewReader(data), int64(len(data)), "net.pt2", o)
		failWith(x, err)
		x.AtEnd(func() { p.Close() })
		call(x, p)
	}
}

func loadPackage(entries ...string) func(x *cgotorch.Exec) {
	return func(x *cgotorch.Exec) {
		data := zipped(entries...)
		if len(entries) == 0 {
			data = []byte("no zip")
		}
		p, err := aoti.LoadFrom(x, bytes.NewReader(data), int64(len(data)), "net.pt2", aoti.Options{})
		failWith(x, err)
		p.Close()
	}
}

// compiled loads a package with these metadata and this library.
func compiled(metadata, library string) func(x *cgotorch.Exec) {
	const at = "data/aotinductor/model/a.wrapper"
	return loadPackage(at+".so", library, at+".cpp", "void run_impl() {}", at+"_metadata.json", metadata)
}

func linearUnit(name string) weights.UnitSpec {
	return weights.UnitSpec{Name: name, Tensors: []weights.TensorSpec{{Name: "weight", DType: f32, Shape: []int64{2, 2}}, {Name: "bias", DType: f32, Shape: []int64{2}}}}
}

func linearOf(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
	return nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nil
}

// withCache calls a function with a cache of the units "a" and "b".
func withCache(o weights.CacheOptions, call func(c *weights.Cache[*nn.Linear]) error) func() error {
	return func() error {
		return withStore(func(s *weights.Store) error {
			c, err := weights.NewCache(s, cgotorch.CPU, linearOf, o)
			if err != nil {
				return err
			}
			defer c.Close()
			return call(c)
		})
	}
}

func useCache(o weights.CacheOptions, call func(x *cgotorch.Exec, c *weights.Cache[*nn.Linear])) func() error {
	return withCache(o, func(c *weights.Cache[*nn.Linear]) error {
		return cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { call(x, c); return nil })
	})
}

func withExperts(call func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor)) func() error {
	return withCache(weights.CacheOptions{}, func(c *weights.Cache[*nn.Linear]) error {
		e, err := weights.NewExperts(c, [][]string{{"a", "b"}}, weights.ExpertsOptions{})
		if err != nil {
			return err
		}
		defer e.Close()
		return cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { call(x, e, x.Zeros(i64, 1)); return nil })
	})
}

func offload(device cgotorch.Device, o weights.OffloadOptions) func(x *cgotorch.Exec) {
	return func(x *cgotorch.Exec) {
		adam, err := optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*tensor{leaf(x)}})
		failWith(x, err)
		defer adam.Close()
		_, err = weights.NewOffload(adam, device, o)
		failWith(x, err)
	}
}

// More mistakes outside of a Do.
var fileMistakes = map[string]map[string]func() error{
	"cgotorch/safetensors": {
		"…: it has … bytes":              openTensors(nil),
		"…: its header has":              openTensors(append(binary.LittleEndian.AppendUint64(nil, 100), '{', '}')),
		"…: it says that its":            openTensors(append(binary.LittleEndian.AppendUint64(nil, 1<<60), '{', '}')),
		"…: torch.save wrote it":         openTensors([]byte("PK\x03\x04 and more bytes of a zip file")),
		"no JSON object":                 openTensors(header("[]", 0)),
		"damaged JSON":                   openTensors(header(`{"w":`, 0)),
		"followed by":                    openTensors(header(`{}{}`, 0)),
		"the header is not UTF":          openTensors(header("{\"\xff\":{}}", 0)),
		"ambiguous":                      openTensors(header(`{"w":{"dtype":"U8","dtype":"U8"}}`, 0)),
		"dtype, shape or":                openTensors(header(`{"w":{"dtype":"U8"}}`, 0)),
		"dtype … is not":                 openTensors(oneTensor("F33", "[2]", "[0,8]", 8)),
		"… is no text":                   openTensors(header(`{"w":{"dtype":32}}`, 0)),
		"… is no list":                   openTensors(header(`{"w":{"shape":null}}`, 0)),
		"… is no whole number":           openTensors(header(`{"w":{"shape":[2.5]}}`, 0)),
		"shape … has a neg":              openTensors(oneTensor("U8", "[-2]", "[0,8]", 8)),
		"shape … of … does not":          openTensors(oneTensor("F32", "[4294967296,4294967296]", "[0,0]", 0)),
		"shape … of … is no":             openTensors(oneTensor("F4", "[3]", "[0,1]", 1)),
		"data_offsets … are":             openTensors(oneTensor("U8", "[2]", "[2,0]", 2)),
		"data_offsets … span":            openTensors(oneTensor("U8", "[3]", "[0,2]", 2)),
		"tensor … has … bytes, a":        openTensors(oneTensor("U8", "[2]", "[0,2]", 1)),
		"tensor … begins at byte …, and": openTensors(oneTensor("U8", "[2]", "[1,3]", 3)),
		"tensor … begins at byte …, ins": openTensors(header(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3)),
		"… bytes behind the last":        openTensors(oneTensor("U8", "[2]", "[0,2]", 3)),
		"safetensors: …: there is no tensor": func() error {
			file := oneTensor("U8", "[2]", "[0,2]", 2)
			f, err := safetensors.NewFile(bytes.NewReader(file), int64(len(file)), "a.safetensors")
			if err != nil {
				return err
			}
			_, err = f.Read("v")
			return err
		},
		"safetensors: …: tensor … has … bytes, to": func() error {
			file := oneTensor("U8", "[2]", "[0,2]", 2)
			f, err := safetensors.NewFile(bytes.NewReader(file), int64(len(file)), "a.safetensors")
			if err != nil {
				return err
			}
			return f.ReadInto("w", make([]byte, 3))
		},
		"safetensors: …: not a regular": func() error { _, err := safetensors.Open(os.TempDir()); return err },
		"safetensors: …: there is neit": func() error { return inFolder(func(f string) error { _, err := safetensors.Files(f); return err }) },
		"safetensors: …: no index of":   index("weights"),
		"safetensors: …: weight_map":    index(`{"weight_map": {}}`),
		"safetensors: …: tensor … is i": index(`{"weight_map": {"a": "../b"}}`),
		"metadata … is not UTF-8":       writeTensors(map[string]string{"a": "\xff"}),
		"no tensor can have the":        writeTensors(nil, safetensors.Tensor{Name: "__metadata__", DType: "U8", Shape: []int64{0}}),
		"tensor … is there twice":       writeTensors(nil, safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{0}}, safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{0}}),
		"tensor …: … of shape":          writeTensors(nil, safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{3}}),
		"the header has … bytes, and":   writeTensors(map[string]string{"a": strings.Repeat("a", 100_000_001)}),
	},
	"cgotorch/internal/torchzip": {
		"a web page":                     openPTH("<!DOCTYPE html><html>"),
		"a gzip file":                    openPTH("\x1f\x8b\x08 and more"),
		"a pointer of Git LFS":           openPTH("version https://git-lfs.github.com/spec/v1\n"),
		"a pickle, and":                  openPTH("\x80\x04\x95\x05"),
		"a JSON text":                    openPTH("{\"a\": 1}"),
		"a GGUF file":                    openPTH("GGUF\x03\x00\x00\x00"),
		"an HDF5 file":                   openPTH("\x89HDF\r\n\x1a\n"),
		"an array of NumPy":              openPTH("\x93NUMPY\x01\x00"),
		"an ONNX model":                  openPTH("\x08\x08\x12\x07pytorch\x1a\x052.1"),
		"a .tar archive":                 openPTH("train/a.jpg" + strings.Repeat("\x00", 246) + "ustar" + strings.Repeat("\x00", 500)),
		"a program of torch.export: run": openPTH(string(zipped("models/model.json", ""))),
		"a program that AOTInduct":       openPTH(string(zipped("data/aotinductor/model/a.so", ""))),
		"a package of torch.pack":        openPTH(string(zipped(".data/extern_modules", ""))),
		"arrays of NumPy":                openPTH(string(zipped("a.npy", ""))),
	},
	"cgotorch/pth": {
		"not a whole file":                   openPTH("hello world"),
		"it begins with":                     openPTH("hello world"),
		"the zip file has no":                openPTH(string(zipped("a.txt", ""))),
		"its byte order is":                  openPTH(string(zipped("data.pkl", "}.", "byteorder", "middle"))),
		"it ends early":                      pickled(""),
		"its stack is empty":                 pickled("."),
		"its stack has no mark":              pickled("t."),
		"a mark in place":                    pickled("(."),
		"it is of protocol":                  pickled("\x80\x09."),
		"an unknown instruct":                pickled("\xf0."),
		"a length of":                        pickled("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
		"it uses value":                      pickled("h\x05."),
		"a text without quotes":              pickled("Sabc\n."),
		"… is no integer":                    pickled("Iabc\n."),
		"… is no index":                      pickled("gabc\n."),
		"it adds to a":                       pickled("K\x01K\x02a."),
		"it sets a value":                    pickled("K\x01K\x02K\x03s."),
		"a key without":                      pickled("}(K\x01u."),
		"it calls a":                         pickled("K\x01)R."),
		"it calls …, as":                     pickled("cos\nsystem\n(S'ls'\ntR."),
		"it builds a":                        pickled("K\x01}b."),
		"a class without":                    pickled("\x80\x04K\x01K\x01\x93."),
		"a class whose name":                 pickled("c" + strings.Repeat("a", 1<<20) + "\nb\n."),
		"a persistent id that is no tuple":   pickled("K\x01Q."),
		"a persistent id that is no storage": pickled(")Q."),
		"a storage without":                  pickled("(S'storage'\nK\x01K\x01K\x01K\x01tQ."),
		"a storage of the class":             openPTH("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.K\x01.}.(S'storage'\nctorch\nNewStorage\nS'0'\nS'cpu'\nK\x01tQ."),
		"the storage … is not in the file":   pickled("(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nK\x01tQ."),
		"a tensor of … arguments":            pickled("ctorch._utils\n_rebuild_tensor_v2\n)R."),
		"a tensor without storage":           pickled("ctorch._utils\n_rebuild_tensor_v2\n(NNNNtR."),
		"…: an object that holds":            pickled("}q\x00(S'a'\nh\x00u."),
		"pth: …: …: a frozen Torch":          openPTH(string(zipped("code/a.py", "", "data.pkl", "c__torch__\nNet\n)\x81}(X\x01\x00\x00\x00a\x88ub."))),
		"pth: … is no file":                  func() error { _, err := pth.Open(os.TempDir()); return err },
		"pth: tensor … is there":             writePTH(safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{0}}, safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{0}}),
		"pth: tensor …: torch.save":          writePTH(safetensors.Tensor{Name: "a", DType: "F4", Shape: []int64{0}}),
		"pth: tensor …: … of shape":          writePTH(safetensors.Tensor{Name: "a", DType: "U8", Shape: []int64{3}}),
		"pth: …: there is no tensor": func() error {
			f, err := pth.Open(filepath.Join(root, "cgotorch/pth/testdata/state.pth"))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Read("none")
			return err
		},
	},
	"cgotorch/text": {
		"it is no JSON":          switchConfig("weights"),
		"model_type is":          switchConfig(`{"model_type": "t5"}`),
		"dense_act_fn is":        switchConfig(`{"model_type": "switch_transformers", "dense_act_fn": "gelu"}`),
		"router_dtype is":        switchConfig(`{"model_type": "switch_transformers", "router_dtype": "bfloat16"}`),
		"layer_norm_epsilon is":  switchConfig(`{"model_type": "switch_transformers", "layer_norm_epsilon": -1}`),
		"initializer_factor is":  switchConfig(`{"model_type": "switch_transformers", "initializer_factor": -1}`),
		"relative_attention_max": switchConfig(`{"model_type": "switch_transformers", "relative_attention_max_distance": 1}`),
		"… is …, outside":        switchConfig(`{"model_type": "switch_transformers", "pad_token_id": 99999}`),
		"… is …, want at least":  switchConfig(`{"model_type": "switch_transformers", "d_model": 0}`),
	},
	"cgotorch/text/tokenizer": {
		"damaged tokenizer":      tokens("{"),
		"it is a …":              tokens("[]"),
		"it is missing":          tokens("{}"),
		"…: it is …, and":        tokens(`{"model": {"type": "WordPiece"}}`),
		"it is empty":            tokens(`{"model": {"type": "Unigram", "vocab": []}}`),
		"… is no token":          tokens(`{"model": {"type": "Unigram", "vocab": [["a"]]}}`),
		"it is missing, and":     tokens(`{"model": {"type": "Unigram", "vocab": [["a", -1]]}}`),
		"it is …, and the":       tokens(`{"model": {"type": "Unigram", "unk_id": 5, "vocab": [["a", -1]]}}`),
		"content is empty":       unigram(`"added_tokens": [{"id": 7, "content": ""}]`),
		"id is …":                unigram(`"added_tokens": [{"id": -7, "content": "b"}]`),
		"id is … for …, and in":  unigram(`"added_tokens": [{"id": 1, "content": "b"}]`),
		"id is … for …, and for": unigram(`"added_tokens": [{"id": 7, "content": "b"}, {"id": 7, "content": "c"}]`),
		"it is too short":        unigram(`"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}`),
		"its trie does":          unigram(`"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAA"}`),
		"it has neither":         unigram(`"normalizer": {"type": "Replace", "pattern": {}, "content": ""}`),
		"it is …, want one":      unigram(`"pre_tokenizer": {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}`),
		"it is …, want always":   unigram(`"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}`),
		"it is neither":          unigram(`"post_processor": {"type": "TemplateProcessing", "single": [{}], "special_tokens": {}}`),
		"… is missing":           unigram(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "b"}}], "special_tokens": {}}`),
		"… is …, which is":       unigram(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "b"}}], "special_tokens": {"b": {"ids": [70]}}}`),
		"it has the text":        unigram(`"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}`),
	},
	"imageloader/cifar": {
		"cifar: …: no data_batch": func() error { return inFolder(func(f string) error { _, err := cifar.Read(f, true); return err }) },
		"cifar: …: … bytes, want": inFile("a.bin", func(path string) error { _, err := cifar.ReadBinary(path, cifar.CIFAR10); return err }),
		"cifar: …: image …":       inFile(strings.Repeat("\x0a", 3073), func(path string) error { _, err := cifar.ReadBinary(path, cifar.CIFAR10); return err }),
		"not a whole file":        cifarPickle(""),
		"the pickle is cut":       cifarPickle("}"),
		"the stack is empty":      cifarPickle("."),
		"the stack is too":        cifarPickle("\x86."),
		"there is no mark":        cifarPickle("]e."),
		"it holds a":              cifarPickle("K\x01."),
		"protocol …":              cifarPickle("\x80\x06}."),
		"nothing is stored":       cifarPickle("h\x07."),
		"it wants …(":             cifarPickle("cos\nsystem\n)R."),
		"\"data\" is not":         cifarPickle("}."),
		"a number of more":        cifarPickle("\x8a\x09123456789."),
		"pairs for a list":        cifarPickle("](K\x01K\x01u."),
		"no pairs for a":          cifarPickle("}(K\x01u."),
		"a … cannot be":           cifarPickle("K\x01(K\x01e."),
	},
	"imageloader/idx": {
		"it begins with":                  inFile("\x89PNG\r\n", readIdx),
		"not a whole idx":                 inFile("", readIdx),
		"an array of … and":               inFile("\x00\x00\x08\x03"+strings.Repeat("\xff", 12), readIdx),
		"the elements of":                 inFile("\x00\x00\x08\x01\x00\x00\x00\x02a", readIdx),
		"idx: …: an array …, want images": mnist("\x00\x00\x08\x01\x00\x00\x00\x01a", "\x00\x00\x08\x01\x00\x00\x00\x01a"),
		"idx: …: an array …, want … lab":  mnist("\x00\x00\x08\x03\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01a", "\x00\x00\x08\x01\x00\x00\x00\x02ab"),
	},
	"cgotorch/data/parquet": {
		"it is no Parquet":     inFile(strings.Repeat("a", 100), func(path string) error { _, err := parquet.Open(path, parquet.Options{}); return err }),
		"its footer has":       inFile("PAR1"+strings.Repeat("a", 100)+"\xff\xff\xff\x7fPAR1", func(path string) error { _, err := parquet.Open(path, parquet.Options{}); return err }),
		"its footer is":        inFile("PAR1"+strings.Repeat("a", 100)+"\x64\x00\x00\x00PAR1", func(path string) error { _, err := parquet.Open(path, parquet.Options{}); return err }),
		"there is no column":   rowsFile(data.Field{Name: "z", DType: f32}),
		"the field … has Cl":   rowsFile(data.Field{Name: "a", DType: i64, Classes: []string{"x"}}),
		"the field … is made":  rowsFile(data.Field{Name: "x", DType: f32, From: []string{"a", "a"}}),
		"the column … has the": rowsFile(data.Field{Name: "a", Text: true}),
	},
	"prefetcher/weights": {
		"weights: a store of no units":     newStore(),
		"weights: unit …: it has no name":  newStore(linearUnit("")),
		"tensor … is there twice":          newStore(weights.UnitSpec{Name: "a", Tensors: []weights.TensorSpec{{Name: "w", Shape: []int64{1}}, {Name: "w", Shape: []int64{1}}}}),
		"it has no elements":               newStore(weights.UnitSpec{Name: "a", Tensors: []weights.TensorSpec{{Name: "w", Shape: []int64{0}}}}),
		"tensor … cannot have":             newStore(weights.UnitSpec{Name: "a", Tensors: []weights.TensorSpec{{Name: "w", Shape: []int64{-1}}}}),
		"weights: a store of … bytes: …":   newStore(weights.UnitSpec{Name: "a", Tensors: []weights.TensorSpec{{Name: "w", DType: f32, Shape: []int64{1 << 45}}}}),
		"Policy is":                        newCache(weights.CacheOptions{Policy: 9}, linearOf),
		"Slots is …; it":                   newCache(weights.CacheOptions{Slots: -1}, linearOf),
		"Slots is …, and":                  newCache(weights.CacheOptions{Policy: weights.Resident, Slots: 1}, linearOf),
		"SlotBytes is":                     newCache(weights.CacheOptions{SlotBytes: -1}, linearOf),
		"InFlight is":                      newCache(weights.CacheOptions{InFlight: -1}, linearOf),
		"Pinned has":                       newCache(weights.CacheOptions{Pinned: []string{"a", "a"}}, linearOf),
		"unit …, and what is like it, has": newCache(weights.CacheOptions{SlotBytes: 1, Pinned: []string{"a"}}, linearOf),
		"build has returned nil":           newCache(weights.CacheOptions{}, func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, nil }),
		"its tensors in the store": newCache(weights.CacheOptions{}, func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
			return nn.NewLinear(x, 3, 3, nn.LinearOptions{}), nil
		}),
		"tensor … is … in the store": newCache(weights.CacheOptions{}, func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
			m := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
			nn.To(x, m, nn.ToOptions{DType: cgotorch.Float64})
			return m, nil
		}),
		"weights: the store: …: … C": func() error {
			return withStore(func(s *weights.Store) error {
				c, err := weights.NewCache(s, cgotorch.CPU, linearOf, weights.CacheOptions{})
				if err != nil {
					return err
				}
				defer c.Close()
				return s.Close()
			})
		},
		"weights: unit … has no tensor": func() error {
			return withStore(func(s *weights.Store) error { _, err := s.Bytes("a", "none"); return err })
		},
		"weights: layer … has not": withExperts(func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor) { e.Run(x, 0, x.Ones(f32, 1, 2)) }),
		"weights: layer … was rout": withExperts(func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor) {
			e.Route(x, 0, ids)
			e.Route(x, 0, ids)
		}),
		"weights: layer … has … ex": withExperts(func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor) {
			e.Route(x, 0, cgotorch.FromSlice(x, []int64{9}))
			e.Run(x, 0, x.Ones(f32, 1, 2))
		}),
		"layer … of …":                      withExperts(func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor) { e.Route(x, 7, ids) }),
		"the ids are":                       withExperts(func(x *cgotorch.Exec, e *weights.Experts[*nn.Linear], ids *tensor) { e.Route(x, 0, x.Ones(f32, 1)) }),
		"weights: …: the store has no unit": useCache(weights.CacheOptions{}, func(x *cgotorch.Exec, c *weights.Cache[*nn.Linear]) { c.Use(x, "c") }),
		"weights: unit …: …: all … are in use by": useCache(weights.CacheOptions{Slots: 1}, func(x *cgotorch.Exec, c *weights.Cache[*nn.Linear]) {
			c.Use(x, "a")
			c.Use(x, "b")
		}),
		"weights: slot … of":          useCache(weights.CacheOptions{}, func(x *cgotorch.Exec, c *weights.Cache[*nn.Linear]) { _, err := c.At(99, "a"); failWith(x, err) }),
		"weights: no file":            openStore(weights.StoreOptions{Units: regexp.MustCompile(`^a`)}, false),
		"weights: StoreOptions.Units": openStore(weights.StoreOptions{}, true),
		"weights: StoreOptions.DType": openStore(weights.StoreOptions{Units: regexp.MustCompile(`^a`), DType: i64}, true),
		"weights: …: no tensor's":     openStore(weights.StoreOptions{Units: regexp.MustCompile(`^layer`)}, true),
		"weights: …: tensor … is … a": openStore(weights.StoreOptions{Units: regexp.MustCompile(`^a`), DType: cgotorch.BFloat16, Map: true}, true),
		"weights: tensor … is in":     openStore(weights.StoreOptions{Units: regexp.MustCompile(`^a`)}, true, true),
	},
}

// header returns a safetensors file with a header and so many bytes of elements.
func header(text string, elements int) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), make([]byte, elements)...)
}

func oneTensor(dtype, shape, offsets string, elements int) []byte {
	return header(fmt.Sprintf(`{"w":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), elements)
}

func openTensors(file []byte) func() error {
	return func() error {
		_, err := safetensors.NewFile(bytes.NewReader(file), int64(len(file)), "a.safetensors")
		return err
	}
}

func writeTensors(metadata map[string]string, tensors ...safetensors.Tensor) func() error {
	return func() error { return safetensors.Write(new(bytes.Buffer), tensors, metadata) }
}

func index(text string) func() error {
	return inFile(text, func(path string) error {
		name := path + ".index.json"
		if err := os.Rename(path, name); err != nil {
			return err
		}
		_, err := safetensors.Files(name)
		return err
	})
}

// inFile calls a function with the path of a file of this text.
func inFile(text string, call func(path string) error) func() error {
	return func() error {
		return inFolder(func(folder string) error {
			path := filepath.Join(folder, "file")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				return err
			}
			return call(path)
		})
	}
}

func openPTH(file string) func() error {
	return func() error {
		_, err := pth.NewFile(strings.NewReader(file), int64(len(file)), "a.pth")
		return err
	}
}

func pickled(pickle string) func() error { return openPTH(string(zipped("data.pkl", pickle))) }

func writePTH(tensors ...safetensors.Tensor) func() error {
	return func() error { return pth.Write(new(bytes.Buffer), tensors) }
}

func switchConfig(json string) func() error {
	return inFile(json, func(path string) error { _, err := text.ReadSwitchConfig(path); return err })
}

func tokens(json string) func() error {
	return func() error { _, err := tokenizer.Parse([]byte(json)); return err }
}

// unigram parses a tokenizer of two tokens with one more field.
func unigram(field string) func() error {
	return tokens(`{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1]]}, ` + field + `}`)
}

func cifarPickle(pickle string) func() error {
	return inFile(pickle, func(path string) error { _, err := cifar.ReadPython(path); return err })
}

func readIdx(path string) error { _, err := idx.Read(path); return err }

func mnist(images, labels string) func() error {
	return func() error {
		return inFolder(func(folder string) error {
			err := errors.Join(os.WriteFile(filepath.Join(folder, "train-images-idx3-ubyte"), []byte(images), 0o600),
				os.WriteFile(filepath.Join(folder, "train-labels-idx1-ubyte"), []byte(labels), 0o600))
			if err == nil {
				_, err = idx.ReadMNIST(folder, true)
			}
			return err
		})
	}
}

// rowsFile reads a field of a Parquet file with the column "a".
func rowsFile(field data.Field) func() error {
	return inFile("", func(path string) error {
		columns := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Float32}}, nil)
		record, _, err := array.RecordFromJSON(memory.DefaultAllocator, columns, strings.NewReader(`[{"a":1},{"a":2}]`))
		if err != nil {
			return err
		}
		var file bytes.Buffer
		writer, err := pqarrow.NewFileWriter(columns, &file, format.NewWriterProperties(), pqarrow.DefaultWriterProps())
		if err == nil {
			err = errors.Join(writer.Write(record), writer.Close(), os.WriteFile(path, file.Bytes(), 0o600))
		}
		if err != nil {
			return err
		}
		_, err = parquet.Open(path, parquet.Options{Fields: []data.Field{field}})
		return err
	})
}

func newStore(units ...weights.UnitSpec) func() error {
	return func() error { _, err := weights.NewStore(units); return err }
}

func withStore(call func(s *weights.Store) error) error {
	s, err := weights.NewStore([]weights.UnitSpec{linearUnit("a"), linearUnit("b")})
	if err != nil {
		return err
	}
	defer s.Close()
	return call(s)
}

func newCache(o weights.CacheOptions, build func(*cgotorch.Exec, string) (*nn.Linear, error)) func() error {
	return func() error {
		return withStore(func(s *weights.Store) error {
			c, err := weights.NewCache(s, cgotorch.CPU, build, o)
			if err == nil {
				err = errors.Join(c.Check(), c.Close())
			}
			return err
		})
	}
}

// openStore opens a file with the tensor "a.weight". Each further true opens it once more, and
// false opens none.
func openStore(o weights.StoreOptions, files ...bool) func() error {
	return inFile("", func(path string) error {
		err := safetensors.WriteFile(path, []safetensors.Tensor{{Name: "a.weight", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}}, nil)
		if err != nil {
			return err
		}
		var paths []string
		for _, is := range files {
			if is {
				paths = append(paths, path)
			}
		}
		s, err := weights.OpenStore(paths, o)
		if err == nil {
			err = s.Close()
		}
		return err
	})
}
