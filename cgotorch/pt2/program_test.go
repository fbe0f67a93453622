package pt2_test

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// smallProgram returns the file of the program.
func smallProgram() []byte {
	data, err := pt2test.Zipped(pt2test.Entries())
	if err != nil {
		panic(err)
	}
	return data
}

// withNodes returns the program with other nodes. The result is named add.
func withNodes(nodes ...string) string {
	head, tail, _ := strings.Cut(pt2test.Model, `"nodes": [`)
	_, tail, _ = strings.Cut(tail, "],\n   \"tensor_values\"")
	return head + `"nodes": [` + lines(nodes...) + "],\n   \"tensor_values\"" + tail
}

// withSize is withNodes, and the value "relu" is a float32 vector of this size.
func withSize(size int64, nodes ...string) string {
	return strings.Replace(withNodes(nodes...), `"tensor_values": {`, fmt.Sprintf(`"tensor_values": {"relu": {"dtype": 7, "sizes": [{"as_int": %d}]}, `, size), 1)
}

func load(x *cgotorch.Exec, data []byte, o pt2.Options) (*pt2.Program, error) {
	return pt2.LoadFrom(x, bytes.NewReader(data), int64(len(data)), "net.pt2", o)
}

// open loads the program on a device, and closes it at the end of the test.
func open(t *testing.T, d cgotorch.Device, o pt2.Options) *pt2.Program {
	var p *pt2.Program
	torchtest.Do(t, d, func(x *cgotorch.Exec) (err error) {
		p, err = load(x, pt2test.Archive(t, pt2test.Entries()), o)
		return err
	})
	t.Cleanup(func() { must.Check(t, p.Close()) })
	return p
}

func TestProgram_Forward(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := open(t, d, pt2.Options{})
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			in := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
			torchtest.Equal(t, x, p.Forward(x, in), []float32{3, 2, 5, 4}, 2, 2)
			torchtest.Equal(t, x, p.Call(x, in).(*cgotorch.Tensor), []float32{3, 2, 5, 4}, 2, 2)
			torchtest.Equal(t, x, p.Call(x, pt2.Keywords{"x": in}).(*cgotorch.Tensor), []float32{3, 2, 5, 4}, 2, 2)
			torchtest.Equal(t, x, p.Forward(x, x.Narrow(in, 0, 0, 1)), []float32{3, 2}, 1, 2) // PyTorch accepts 1 where it says 2
		})
		if got := nn.State(p); len(got) != 2 || got[0].Name != "fc.weight" || got[1].Name != "fc.bias" {
			t.Errorf("the state dict is %v", got)
		}
		if got := fmt.Sprint(p.Inputs()); got != "[float32[s0 2]]" || p.Inputs()[0].Name != "x" || p.Inputs()[0].Shape[0].Max != 8 {
			t.Errorf("the inputs are %v", got)
		}
		nodes := p.Nodes()
		if len(nodes) != 3 || nodes[0].Text != "linear = aten.linear.default(x, p_w, p_b)" || nodes[0].Module != "fc" || nodes[0].Where != "model.py:42: y = self.fc(x)" ||
			nodes[2].Text != "add = aten.add.Tensor(relu, c_c, alpha=2)" {
			t.Errorf("the nodes are %+v", nodes[0])
		}
	})
}

// Arguments that accept one value may be left out.
func TestProgram_Call_FixedArguments(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	const leaf = `{\"type\": null, \"context\": null, \"children_spec\": []}`
	changed["models/model.json"] = strings.NewReplacer(
		`{"as_tensor": {"name": "x"}}],
   "outputs"`, `{"as_tensor": {"name": "x"}}, {"as_none": true}, {"as_bool": false}, {"as_int": 3}],
   "outputs"`,
		`{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}`, `{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}, {"constant_input": {"name": "mask", "value": {"as_none": true}}},
    {"constant_input": {"name": "cache", "value": {"as_bool": false}}}, {"constant_input": {"name": "k", "value": {"as_int": 3}}}`,
		`["x"]`, `["x", "mask", "cache"]`,
		`\"children_spec\": [`+leaf+`]}`, `\"children_spec\": [`+leaf+`, `+leaf+`]}`,
		`\"context\": \"[]\", \"children_spec\": []}]`, `\"context\": \"[\\\"cache\\\"]\", \"children_spec\": [{\"type\": \"builtins.list\", \"context\": \"null\", \"children_spec\": [`+leaf+`, `+leaf+`]}]}]`,
	).Replace(pt2test.Model)
	call := func(x *cgotorch.Exec, args ...any) *cgotorch.Tensor {
		p := must.Get(load(x, pt2test.Archive(t, changed), pt2.Options{}))(t)
		x.AtEnd(func() { p.Close() })
		return p.Call(x, args...).(*cgotorch.Tensor)
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := cgotorch.FromSlice(x, []float32{1, 2}, 1, 2)
		for _, args := range [][]any{{in}, {in, nil}, {in, pt2.Keywords{"cache": []any{false, 3}}}} {
			torchtest.Equal(t, x, call(x, args...), []float32{3, 2}, 1, 2)
		}
	})
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		call(x, cgotorch.FromSlice(x, []float32{1, 2}, 1, 2), pt2.Keywords{"cache": []any{true, 3}})
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, `cache[0] is true, and the program was exported for false`)
}

// An integer has bounds, and equals the sizes that have its symbol.
func TestProgram_Call_Integers(t *testing.T) {
	const leaf = `{\"type\": null, \"context\": null, \"children_spec\": []}`
	withInteger := func(symbol string) []byte {
		changed := pt2test.Entries()
		changed["models/model.json"] = strings.NewReplacer(
			`{"as_tensor": {"name": "x"}}],
   "outputs"`, `{"as_tensor": {"name": "x"}}, {"as_sym_int": {"as_name": "n"}}],
   "outputs"`,
			`{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}`, `{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}, {"user_input": {"arg": {"as_sym_int": {"as_name": "n"}}}}`,
			`"tensor_values"`, `"sym_int_values": {"n": {"as_expr": {"expr_str": "Symbol('`+symbol+`', integer=True)"}}}, "tensor_values"`,
			`["x"]`, `["x", "n"]`, `\"children_spec\": [`+leaf+`]}`, `\"children_spec\": [`+leaf+`, `+leaf+`]}`,
			`"s0": {"min_val": 2, "max_val": 8}`, `"s0": {"min_val": 2, "max_val": 8}, "s1": {"min_val": 0, "max_val": 5}, "s2": {"min_val": 3, "max_val": null}`,
		).Replace(pt2test.Model)
		return pt2test.Archive(t, changed)
	}
	for _, c := range []struct {
		symbol string
		n      int
		want   string // the error, or "" for none
	}{
		{"s0", 1, ""}, {"s0", 2, "the input n is 2, want s0 = 1 as before"}, {"s1", 5, ""}, {"s1", -1, ""},
		{"s1", 6, "the input n is 6, want 5 or less"}, {"s2", 3, ""}, {"s2", 2, "the input n is 2, want 3 or more"},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, withInteger(c.symbol), pt2.Options{})
			if err != nil {
				return err
			}
			defer p.Close()
			p.Call(x, cgotorch.FromSlice(x, []float32{1, 2}, 1, 2), c.n)
			return nil
		})
		if c.want != "" {
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.want)
		} else if err != nil {
			t.Errorf("%s = %d: %v", c.symbol, c.n, err)
		}
	}
}

// The host waits for a size only if no argument gives it.
func TestNode_Waits(t *testing.T) {
	for node, want := range map[string]bool{
		"one_hot x": true, "one_hot x num_classes=-1": true, "one_hot x num_classes=5": false,
		"repeat_interleave.Tensor x": true, "repeat_interleave.Tensor x output_size=6": false,
		"repeat_interleave.self_Tensor x x": true, "repeat_interleave.self_Tensor x x output_size=6": false,
	} {
		changed := pt2test.Entries()
		changed["models/model.json"] = withNodes("add = " + node)
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
			if err != nil {
				return err
			}
			defer p.Close()
			if got := p.Nodes()[0].Waits; got != want {
				t.Errorf("%s: Waits is %v, want %v", node, got, want)
			}
			return nil
		})
	}
}

func TestProgram_Forward_BFloat16(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := open(t, d, pt2.Options{DType: cgotorch.BFloat16})
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			got := p.Forward(x, cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2))
			if got.DType() != cgotorch.BFloat16 || p.Weights[0].Tensor.DType() != cgotorch.BFloat16 {
				t.Errorf("the result is %v, the weight %v", got, p.Weights[0].Tensor)
			}
			torchtest.Equal(t, x, x.To(got, cgotorch.Float32), []float32{3, 2, 5, 4}, 2, 2)
		})
	})
}

// The largest float32 in a program is the largest number of the chosen dtype.
func TestProgram_Forward_LargestNumber(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = strings.NewReplacer("aten.relu.default", "aten.add.Scalar",
		`"arg": {"as_tensor": {"name": "linear"}}, "kind": 1}`, `"arg": {"as_tensor": {"name": "linear"}}, "kind": 1},
			{"name": "other", "arg": {"as_float": -3.4028234663852886e+38}, "kind": 1}`).Replace(pt2test.Model)
	for dtype, want := range map[cgotorch.DType]float32{cgotorch.Float32: -math.MaxFloat32, cgotorch.BFloat16: -0x1.fep127, cgotorch.Float16: -65504} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, pt2test.Archive(t, changed), pt2.Options{DType: dtype})
			if err != nil {
				return err
			}
			defer p.Close()
			torchtest.Equal(t, x, x.To(p.Forward(x, cgotorch.FromSlice(x, []float32{1, 2}, 1, 2)), cgotorch.Float32), []float32{want, want}, 1, 2)
			return nil
		})
	}
}

func TestProgram_Forward_Gradients(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := open(t, d, pt2.Options{})
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			x.Backward(x.Sum(p.Forward(x, cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2))))
			grad := p.Weights[1].Tensor.Grad()
			defer grad.Close()
			torchtest.Equal(t, x, grad, []float32{2, 1}, 2) // one of the values is 0, where relu has no gradient
			must.Check(t, nn.ZeroGrad(p))
		})
	})
}

// Many goroutines use one set of weights, and Close waits for them.
func TestProgram_Forward_FromGoroutines(t *testing.T) {
	torchtest.CheckLeaks(t)
	p := open(t, cgotorch.CPU, pt2.Options{})
	var wait sync.WaitGroup
	for range 4 {
		stream := torchtest.NewStream(t, cgotorch.CPU)
		wait.Add(1)
		go func() {
			defer wait.Done()
			for range 50 {
				err := stream.Do(func(x *cgotorch.Exec) error {
					got := p.Forward(x.NoGrad(), cgotorch.FromSlice(x, []float32{1, 2}, 1, 2))
					if v := cgotorch.ToSlice[float32](x, got); v[0] != 3 || v[1] != 2 {
						return fmt.Errorf("the result is %v", v)
					}
					return nil
				})
				if err != nil && !errors.Is(err, cgotorch.ErrClosed) {
					t.Error(err)
					return
				}
			}
		}()
	}
	must.Check(t, p.Close())
	wait.Wait()
}

// A loop whose condition stays true ends with an error.
func TestProgram_Forward_EndlessLoop(t *testing.T) {
	torchtest.CheckLeaks(t)
	holds := `{"as_graph": {"name": "holds", "graph": {"inputs": [{"as_tensor": {"name": "a"}}], "outputs": [{"as_bool": true}], "nodes": [], "tensor_values": {}}}}`
	body := `{"as_graph": {"name": "body", "graph": {"inputs": [{"as_tensor": {"name": "a"}}], "outputs": [{"as_tensor": {"name": "a"}}], "nodes": [], "tensor_values": {}}}}`
	e := pt2test.Entries()
	head, tail, _ := strings.Cut(withNodes("add = relu x"), `"nodes": [`)
	_, tail, _ = strings.Cut(tail, "],\n   \"tensor_values\"")
	e["models/model.json"] = head + `"nodes": [` + `{"target": "torch.ops.higher_order.while_loop", "name": "forever", "inputs": [{"name": "", "arg": ` + holds + `}, {"name": "", "arg": ` + body +
		`}, {"name": "", "arg": {"as_tensors": [{"name": "x"}]}}, {"name": "", "arg": {"as_tensors": []}}], "outputs": [{"as_tensors": [{"name": "add"}]}], "metadata": {}}` + "],\n   \"tensor_values\"" + tail
	err := forwardSmall(t, pt2test.Archive(t, e), pt2.Options{}, 2)
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "node forever", "has not ended after 1048576 rounds")
}

func TestProgram_Forward_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	p := open(t, cgotorch.CPU, pt2.Options{})
	for _, c := range []struct {
		name string
		args func(x *cgotorch.Exec) []any
		want string
	}{
		{"no argument", func(x *cgotorch.Exec) []any { return nil }, "x is missing"},
		{"too many", func(x *cgotorch.Exec) []any { return []any{1, 2} }, "2 arguments without a name, and the program takes 1: x"},
		{"keyword", func(x *cgotorch.Exec) []any { return []any{1, pt2.Keywords{"mask": 1}} }, "1 keywords too many"},
		{"no tensor", func(x *cgotorch.Exec) []any { return []any{1} }, "the input x is 1 (a int64), want a tensor"},
		{"nil", func(x *cgotorch.Exec) []any { return []any{(*cgotorch.Tensor)(nil)} }, "want a tensor"},
		{"dtype", func(x *cgotorch.Exec) []any { return []any{x.Zeros(cgotorch.Int64, 2, 2)} }, "int64[2 2], want float32[s0 2]"},
		{"dimensions", func(x *cgotorch.Exec) []any { return []any{x.Zeros(cgotorch.Float32, 2)} }, "want float32[s0 2]"},
		{"fixed size", func(x *cgotorch.Exec) []any { return []any{x.Zeros(cgotorch.Float32, 2, 3)} }, "dimension 1 must be 2, as in the export"},
		{"range", func(x *cgotorch.Exec) []any { return []any{x.Zeros(cgotorch.Float32, 9, 2)} }, "with s0 from 0 to 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { p.Call(x, c.args(x)...) })
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "net.pt2", c.want, "program_test.go")
			if len(err.Error()) > 400 {
				t.Errorf("the error has %d characters: %v", len(err.Error()), err)
			}
		})
	}
}

// A view of a tensor whose elements lie in another order than where the program was exported.
func TestProgram_Forward_ViewThatCopies(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = strings.NewReplacer(
		`"torch.ops.aten.linear.default"`, `"torch.ops.aten.t.default"`,
		`[{"name": "input", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}, {"name": "weight", "arg": {"as_tensor": {"name": "p_w"}}, "kind": 1},
                {"name": "bias", "arg": {"as_tensor": {"name": "p_b"}}, "kind": 1}]`, `[{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}]`,
		"aten.relu.default", "aten.view.default",
		`{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}`,
		`{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}, {"name": "size", "arg": {"as_ints": [-1, 2]}, "kind": 1}`).Replace(pt2test.Model)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
		if err != nil {
			return err
		}
		defer p.Close()
		in := cgotorch.FromSlice(x, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)
		torchtest.Equal(t, x, p.Forward(x, in), []float32{2, 5, 6, 9, 3, 6, 7, 10}, 4, 2) // the columns of in, and twice c
		return nil
	})
}

// A file can name a tensor where a size belongs. The call fails, and does not panic.
func TestProgram_Forward_TensorAsSize(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = strings.Replace(strings.Replace(pt2test.Model, "aten.relu.default", "aten.view.default", 1),
		`{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}`,
		`{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}, {"name": "size", "arg": {"as_sym_ints": [{"as_name": "linear"}]}, "kind": 1}`, 1)
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
		if err != nil {
			return err
		}
		x.AtEnd(func() { p.Close() })
		p.Forward(x, x.Zeros(cgotorch.Float32, 2, 2))
		return nil
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "item 0 of a list of integers")
}

// An operator that fails names its node and the line of Python.
func TestProgram_Forward_FailedOperator(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = strings.Replace(pt2test.Model, `{"as_int": 2}], "requires_grad": false`, `{"as_int": 3}], "requires_grad": false`, 1)
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
		if err != nil {
			return err
		}
		x.AtEnd(func() { p.Close() })
		p.Forward(x, x.Zeros(cgotorch.Float32, 1, 3))
		return nil
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "aten::linear", "in node linear of net.pt2, from model.py:42: y = self.fc(x)", "program_test.go")
}

func TestLoad_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	replace := func(entry, old, new string) func(e map[string]string) {
		return func(e map[string]string) {
			if !strings.Contains(e[entry], old) {
				t.Errorf("%s has no %q", entry, old)
			}
			e[entry] = strings.Replace(e[entry], old, new, 1)
		}
	}
	const m, weights = "models/model.json", "data/weights/model_weights_config.json"
	remove := func(entry string) func(e map[string]string) { return func(e map[string]string) { delete(e, entry) } }
	for name, c := range map[string]struct {
		change func(e map[string]string)
		is     error
		want   string
	}{
		"no model":             {remove(m), pt2.ErrFormat, "no entry models/NAME.json"},
		"two models":           {func(e map[string]string) { e["models/other.json"] = pt2test.Model }, nil, `["model" "other"]`},
		"no weights":           {remove("data/weights/weight_0"), pt2.ErrFormat, "data/weights/weight_0 is missing"},
		"no table":             {remove(weights), pt2.ErrFormat, "the entry data/weights/model_weights_config.json is missing"},
		"no version":           {remove("archive_version"), pt2.ErrFormat, "archive_version is missing"},
		"version":              {replace("archive_version", "0", "7"), pt2.ErrUnsupported, `archive_version is "7"`},
		"schema":               {replace(m, `"major": 8`, `"major": 9`), pt2.ErrUnsupported, "its schema has version 9.17 (PyTorch 2.11.0), and this package reads 8.x"},
		"byte order":           {replace("byteorder", "little", "big"), pt2.ErrUnsupported, `byteorder is "big"`},
		"compiled":             {func(e map[string]string) { e["data/aotinductor/model/a.so"] = "" }, pt2.ErrUnsupported, "AOTInductor"},
		"TorchScript":          {func(e map[string]string) { e["code/a.py"], e["data.pkl"] = "", "" }, pt2.ErrUnsupported, "torch.export.export"},
		"state dict":           {func(e map[string]string) { e["data.pkl"] = "" }, pt2.ErrUnsupported, "checkpoint.LoadModel"},
		"old":                  {func(e map[string]string) { e["serialized_exported_program.json"] = "" }, pt2.ErrUnsupported, "PyTorch 2.8 or older"},
		"JSON":                 {replace(m, `"graph":`, `"graph"`), pt2.ErrFormat, "models/model.json"},
		"deep JSON":            {func(e map[string]string) { e[m] = strings.Repeat("[", 100000) }, pt2.ErrFormat, "models/model.json"},
		"deep arguments":       {replace(m, `\"children_spec\": []}]}, {\"type\": \"builtins.dict\"`, `\"children_spec\": []}]`+strings.Repeat(`,{\"type\": \"builtins.list\", \"context\": \"null\", \"children_spec\": [`, 200)+strings.Repeat("]}", 200)+`}, {\"type\": \"builtins.dict\"`), pt2.ErrFormat, "the arguments"},
		"missing argument":     {func(e map[string]string) { e[m] = withNodes("add = relu") }, pt2.ErrFormat, "node add (aten.relu.default): its argument self is missing"},
		"missing arguments":    {func(e map[string]string) { e[m] = withNodes("add = conv2d x") }, pt2.ErrFormat, "its argument weight is missing"},
		"unknown operator":     {replace(m, "aten.relu.default", "aten.relo.default"), pt2.ErrUnsupported, "LibTorch lacks 1 of its operators: aten::relo (node relu)"},
		"unknown namespace":    {replace(m, "aten.relu.default", "mine.relu.default"), pt2.ErrUnsupported, "mine::relu (node relu); open their library with cgotorch.OpenOperators before"},
		"unknown function":     {replace(m, "torch.ops.aten.relu.default", "os.system"), pt2.ErrUnsupported, "node relu (os.system)"},
		"unknown graph":        {replace(m, "torch.ops.aten.relu.default", "torch.ops.higher_order.flex_attention"), pt2.ErrUnsupported, "higher_order.flex_attention"},
		"dangling value":       {replace(m, `"arg": {"as_tensor": {"name": "linear"}}`, `"arg": {"as_tensor": {"name": "later"}}`), pt2.ErrFormat, `node relu (aten.relu.default): argument "self": there is no value "later" before it`},
		"cyclic value":         {replace(m, `"arg": {"as_tensor": {"name": "linear"}}`, `"arg": {"as_tensor": {"name": "add"}}`), pt2.ErrFormat, `no value "add" before it`},
		"value made twice":     {replace(m, `"outputs": [{"as_tensor": {"name": "relu"}}]`, `"outputs": [{"as_tensor": {"name": "linear"}}]`), pt2.ErrFormat, `two values have the name "linear"`},
		"dangling output":      {replace(m, `"outputs": [{"as_tensor": {"name": "add"}}]`, `"outputs": [{"as_tensor": {"name": "nothing"}}]`), pt2.ErrFormat, "output 0"},
		"unknown kind":         {replace(m, `{"as_int": 2}, "kind": 2`, `{"as_quaternion": 2}, "kind": 2`), pt2.ErrFormat, `"as_quaternion"`},
		"unknown keyword":      {replace(m, `"name": "alpha"`, `"name": "beta"`), pt2.ErrFormat, `no argument "beta"`},
		"unknown dtype":        {replace(m, `{"as_int": 2}, "kind": 2`, `{"as_scalar_type": 99}, "kind": 2`), pt2.ErrFormat, "no dtype number 99"},
		"no kind":              {replace(m, `{"as_int": 2}, "kind": 2`, `{}, "kind": 2`), pt2.ErrFormat, "an argument with 0 kinds, want one"},
		"unknown memory":       {replace(m, `{"as_int": 2}, "kind": 2`, `{"as_memory_format": 99}, "kind": 2`), pt2.ErrFormat, "no memory format number 99"},
		"cut expression":       {replace(m, "Symbol('s0', positive=True, integer=True)", "Symbol('s0'"), pt2.ErrFormat, "it ends too early"},
		"version of a tree":    {replace(m, `"in_spec": "[1, `, `"in_spec": "[2, `), pt2.ErrFormat, "a tree of another version than 1"},
		"sparse weight":        {replace(weights, `"layout": 7`, `"layout": 1`), pt2.ErrFormat, "its layout number 1"},
		"stride of nothing":    {replace(weights, `"strides": [{"as_int": 2}`, `"strides": [{}`), pt2.ErrFormat, "a size or stride is no number"},
		"sparse":               {replace(m, `{"as_int": 2}, "kind": 2`, `{"as_layout": 1}, "kind": 2`), pt2.ErrUnsupported, "strided"},
		"weight without entry": {replace(m, `"parameter_name": "fc.bias"`, `"parameter_name": "fc.other"`), pt2.ErrFormat, `"fc.other"`},
		"absurd size":          {replace(weights, `"sizes": [{"as_int": 2}, {"as_int": 2}]`, `"sizes": [{"as_int": 4611686018427387904}, {"as_int": 4}]`), pt2.ErrFormat, "fc.weight"},
		"size beyond entry":    {replace(weights, `"sizes": [{"as_int": 2}, {"as_int": 2}]`, `"sizes": [{"as_int": 2000}, {"as_int": 2}]`), pt2.ErrFormat, "has 16 bytes"},
		"negative size":        {replace(weights, `"sizes": [{"as_int": 2}, {"as_int": 2}]`, `"sizes": [{"as_int": -2}, {"as_int": 2}]`), pt2.ErrFormat, "fc.weight"},
		"negative offset":      {replace(weights, `"storage_offset": {"as_int": 0}`, `"storage_offset": {"as_int": -1}`), pt2.ErrFormat, "fc.weight"},
		"pickled":              {replace(weights, `"use_pickle": false`, `"use_pickle": true`), pt2.ErrUnsupported, `"fc.weight" is pickled`},
		"entry outside":        {replace(weights, `"path_name": "weight_0"`, `"path_name": "../../../etc/passwd"`), pt2.ErrFormat, "is missing"},
		"input twice":          {replace(m, `{"as_tensor": {"name": "c_c"}}, {"as_tensor": {"name": "x"}}]`, `{"as_tensor": {"name": "x"}}, {"as_tensor": {"name": "x"}}]`), pt2.ErrFormat, `input 3 of the program: two values have the name "x"`},
		"input dtype":          {replace(m, `"x": {"dtype": 7`, `"x": {"dtype": 99`), pt2.ErrFormat, `the input "x": there is no dtype number 99`},
		"input size":           {replace(m, `{"as_int": 2}], "requires_grad": false`, `{"as_int": -2}], "requires_grad": false`), pt2.ErrFormat, `the input "x": its size -2 is negative`},
		"input range":          {replace(m, `{"min_val": 2, "max_val": 8}`, `{"min_val": 8, "max_val": 2}`), pt2.ErrFormat, `the input "x": its size s0 is from 8 to 2`},
		"input kind":           {replace(m, `{"tensor_constant": {"arg": {"name": "c_c"}, "tensor_constant_name": "c"}}`, `{"quaternion": {}}`), pt2.ErrUnsupported, "input 2 of its signature"},
		"output kind":          {replace(m, `{"user_output": {`, `{"quaternion": {`), pt2.ErrUnsupported, "output 0 of its signature"},
		"no schema":            {replace(m, `"schema_version"`, `"other_version"`), pt2.ErrFormat, "the entry models/model.json has no schema_version"},
		"graphs in graphs":     {func(e map[string]string) { e[m] = strings.Repeat(`{"a":[`, 300) + strings.Repeat("]}", 300) }, pt2.ErrFormat, "values inside each other"},
		"size without number":  {replace(m, `"torch.ops.aten.relu.default"`, `"torch.ops.aten.sym_size.int"`), pt2.ErrFormat, "node relu (aten.sym_size.int)"},
		"trained integers":     {replace(weights, `"dtype": 7, "sizes": [{"as_int": 2}],`, `"dtype": 5, "sizes": [{"as_int": 1}],`), pt2.ErrFormat, `the parameter "fc.bias"`},
		"tokens":               {replace(m, `{"tensor_constant": {"arg": {"name": "c_c"}, "tensor_constant_name": "c"}}`, `{"token": {"arg": {"name": "c_c"}}}`), pt2.ErrUnsupported, "tokens"},
		"gradients":            {replace(m, `{"user_output": {"arg": {"as_tensor": {"name": "add"}}}}`, `{"gradient_to_parameter": {"arg": {"name": "add"}, "parameter_name": "fc.bias"}}`), pt2.ErrUnsupported, "Exec.Backward"},
		"results":              {replace(m, `"out_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]"`, `"out_spec": "[1, {\"type\": \"builtins.tuple\", \"context\": null, \"children_spec\": []}]"`), pt2.ErrFormat, "the results have 0 values"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pt2test.Entries()
			c.change(changed)
			data := pt2test.Archive(t, changed)
			var fused error
			err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				p, err := load(x, data, pt2.Options{})
				p.Close()
				p, fused = pt2.LoadFusedForCUDA(x, bytes.NewReader(data), int64(len(data)), 0, pt2.Options{})
				p.Close()
				return err
			})
			if fused == nil || !strings.Contains(fused.Error(), c.want) {
				t.Errorf("with Fuse the error is %v, without it %v", fused, err)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "net.pt2") || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("the error is %v, want %q", err, c.want)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error has %d characters: %v", len(err.Error()), err)
			}
		})
	}
}

// A program with an operator of another library loads after the library is open.
func TestLoad_OperatorsOfALibrary(t *testing.T) {
	torchtest.CheckLeaks(t)
	with := pt2test.Entries()
	with["models/model.json"] = strings.Replace(pt2test.Model, "torch.ops.aten.relu.default", "torch.ops.streamtest.scale.default", 1)
	data := pt2test.Archive(t, with)
	must.Do(t, cgotorch.OpenOperators(torchtest.OperatorLibrary(t)))
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, data, pt2.Options{})
		if err != nil {
			return err
		}
		defer p.Close()
		// 2 * (x + b) + 2 * c
		torchtest.Equal(t, x, p.Forward(x, cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)), []float32{5, 2, 9, 6}, 2, 2)
		return nil
	})
}

// A file that is cut anywhere is refused.
func TestLoad_CutShort(t *testing.T) {
	torchtest.CheckLeaks(t)
	data := pt2test.Archive(t, pt2test.Entries())
	for n := 0; n < len(data); n += 97 {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			_, err := load(x, data[:n], pt2.Options{})
			return err
		})
		if !errors.Is(err, pt2.ErrFormat) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
}

// A weight whose bytes have changed is named. Python loads such a file.
func TestLoad_DamagedWeight(t *testing.T) {
	torchtest.CheckLeaks(t)
	all := pt2test.Entries()
	data := pt2test.Archive(t, all)
	at := bytes.Index(data, []byte(all["data/weights/weight_0"]))
	if at < 0 {
		t.Fatal("the archive does not store its weight")
	}
	data[at] ^= 1
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		err := torchtest.TryDo(t, d, func(x *cgotorch.Exec) error {
			_, err := load(x, data, pt2.Options{})
			return err
		})
		torchtest.WantError(t, err, pt2.ErrFormat, "net.pt2", "the entry data/weights/weight_0 is damaged", "copy the file again")
	})
}

// What a download leaves instead of a file is named.
func TestLoad_NoProgram(t *testing.T) {
	for text, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\n": "a pointer of Git LFS, and not the file itself: run git lfs pull",
		"<!DOCTYPE html>":                    "a web page: download the file itself",
		"\x1f\x8b\x08":                       "a gzip file: unpack it",
		"\x08\x08\x12\x07pytorch":            "an ONNX model: export the PyTorch model with torch.export.export, and save that with torch.export.save",
		"GGUF\x03\x00\x00\x00":               "a GGUF file of llama.cpp: export the PyTorch model",
		"\x80\x04\x95\x05":                   "a pickle, and torch.save did not write it: export the PyTorch model",
		"\x02\x00\x00\x00\x00\x00\x00\x00{}": "a safetensors file: it holds weights and no program: use checkpoint.LoadModel",
		"":                                   "not a valid zip file: it has 0 bytes, and is cut short or of another kind: copy the file again",
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			_, err := load(x, []byte(text), pt2.Options{})
			return err
		})
		torchtest.WantError(t, err, pt2.ErrFormat, "net.pt2", want)
	}
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		_, err := pt2.LoadFrom(x, bytes.NewReader(nil), -1, "net.pt2", pt2.Options{})
		return err
	})
	torchtest.WantError(t, err, pt2.ErrFormat, "net.pt2", "negative")
}

func TestLoad_Path(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "net.pt2")
	must.Do(t, os.WriteFile(path, pt2test.Archive(t, pt2test.Entries()), 0o600))
	pipe := filepath.Join(t.TempDir(), "pipe")
	filetest.Pipe(t, pipe)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := pt2.Load(x, path, pt2.Options{Model: "model"})
		if err != nil {
			return err
		}
		defer p.Close()
		_, err = pt2.Load(x, path, pt2.Options{Model: "other"})
		wantText(t, err, `no program "other"`)
		_, err = pt2.Load(x, filepath.Dir(path), pt2.Options{})
		wantText(t, err, "is not a regular file, but a folder, a pipe or a device: give the path of a .pt2 file")
		_, err = pt2.Load(x, pipe, pt2.Options{})
		wantText(t, err, "is not a regular file")
		_, err = pt2.Load(x, path+"x", pt2.Options{})
		torchtest.WantError(t, err, os.ErrNotExist, "net.pt2x", "check the path")
		_, err = pt2.Load(x, path, pt2.Options{DType: cgotorch.Int64})
		wantText(t, err, "Options.DType is int64")
		return nil
	})
}

func wantText(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}

// Empty entries cost little.
func TestLoad_ManyEntries(t *testing.T) {
	torchtest.CheckLeaks(t)
	many := pt2test.Entries()
	for i := range 20_000 {
		many[fmt.Sprintf("extra/%d", i)] = ""
	}
	data := pt2test.Archive(t, many)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, data, pt2.Options{})
		p.Close()
		return err
	})
}

// FuzzLoad changes bytes of an archive, and JSON texts inside it.
func FuzzLoad(f *testing.F) {
	f.Add(pt2test.Archive(f, pt2test.Entries()), []byte(pt2test.Model), []byte(pt2test.WeightTable))
	f.Fuzz(func(t *testing.T, data, model, weights []byte) {
		changed := pt2test.Entries()
		changed["models/model.json"], changed["data/weights/model_weights_config.json"] = string(model), string(weights)
		for _, data := range [][]byte{data, pt2test.Archive(t, changed)} {
			_ = cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
				p, err := load(x, data, pt2.Options{})
				if err != nil {
					return err
				}
				defer p.Close()
				p.Forward(x.NoGrad(), x.Zeros(cgotorch.Float32, 2, 2))
				return nil
			})
			_ = cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
				p, err := pt2.LoadFusedForCUDA(x, bytes.NewReader(data), int64(len(data)), 0, pt2.Options{DType: cgotorch.BFloat16})
				if err != nil {
					return err
				}
				defer p.Close()
				p.Forward(x.NoGrad(), x.Zeros(cgotorch.Float32, 2, 2))
				return nil
			})
		}
	})
}

// With Options.DType a program computes on a copy of a float32 input. What it writes into the input
// is in the caller's tensor.
func TestProgram_Forward_WritesConvertedInput(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = withNodes("w = add_.Tensor x x", "add = relu w")
	for _, o := range []pt2.Options{{}, {DType: cgotorch.BFloat16}} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, pt2test.Archive(t, changed), o)
			if err != nil {
				return err
			}
			defer p.Close()
			in := cgotorch.FromSlice(x, []float32{1, -2, 3, 4}, 2, 2)
			p.Forward(x.NoGrad(), in)
			torchtest.Equal(t, x, in, []float32{2, -4, 6, 8}, 2, 2)
			return nil
		})
	}
}

// With Options.DType a tensor that an operator makes of no other one has that dtype too.
func TestLoad_DType_Factories(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, nodes := range [][]string{
		{"relu = zeros size=2,", "add = linear relu p_w p_b"},
		{"relu = full size=2, fill_value=0.0", "add = linear relu p_w p_b"},
		{"relu = arange end=2.0", "zero = mul.Scalar relu other=0", "add = linear zero p_w p_b"},
	} {
		changed := pt2test.Entries()
		changed["models/model.json"] = withSize(2, nodes...)
		for _, o := range []pt2.Options{{}, {DType: cgotorch.BFloat16}, {DType: cgotorch.BFloat16, Fuse: true}} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				p, err := load(x, pt2test.Archive(t, changed), o)
				if err != nil {
					return err
				}
				defer p.Close()
				out := p.Forward(x.NoGrad(), x.Zeros(cgotorch.Float32, 2, 2))
				if want := cmp.Or(o.DType, cgotorch.Float32); out.DType() != want {
					t.Errorf("%v with %+v: the result is %v", nodes, o, out)
				}
				return nil
			})
		}
	}
}

// A file asks for more memory than a program's constants may have: Load with Fuse takes none.
func TestLoad_Fuse_LargeConstants(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = withSize(100_000_000_000, "relu = zeros size=100000000000,", "w = sum relu", "add = add.Tensor x w")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := load(x, pt2test.Archive(t, changed), pt2.Options{Fuse: true})
		if err != nil {
			return err
		}
		return p.Close()
	})
}

// Tensors that share memory in the file share it with Options.DType too.
func TestLoad_SharedMemoryConverted(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	// The bias is the second row of the weight.
	changed["data/weights/model_weights_config.json"] = strings.Replace(strings.Replace(pt2test.WeightTable, `"path_name": "weight_1"`, `"path_name": "weight_0"`, 1),
		`"strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}`, `"strides": [{"as_int": 1}], "storage_offset": {"as_int": 2}`, 1)
	changed["models/model.json"] = withNodes("w = add_.Tensor p_w p_w", "add = add.Tensor x p_b")
	for _, o := range []pt2.Options{{}, {DType: cgotorch.BFloat16}} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			p, err := load(x, pt2test.Archive(t, changed), o)
			if err != nil {
				return err
			}
			defer p.Close()
			out := p.Forward(x, x.Zeros(cgotorch.Float32, 2, 2))
			torchtest.Equal(t, x, x.To(out, cgotorch.Float32), []float32{0, 2, 0, 2}, 2, 2)
			return nil
		})
	}
}

// The largest float32 stands for infinity in masks, and stays finite with Options.DType.
func TestLoad_LargestNumber(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["data/constants/tensor_0"] = "\xff\xff\x7f\xff\x00\x00\x80\xff" // the least float32, and -infinity
	changed["models/model.json"] = withNodes("add = add.Tensor x c_c")
	for d, want := range map[cgotorch.DType]float32{cgotorch.Float32: -math.MaxFloat32, cgotorch.BFloat16: -0x1.fep127, cgotorch.Float16: -65504} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, pt2test.Archive(t, changed), pt2.Options{DType: d})
			if err != nil {
				return err
			}
			defer p.Close()
			out := p.Forward(x, x.Zeros(cgotorch.Float32, 2, 2))
			torchtest.Equal(t, x, x.To(out, cgotorch.Float32), []float32{want, float32(math.Inf(-1)), want, float32(math.Inf(-1))}, 2, 2)
			return nil
		})
	}
}

// An input that is fixed to NaN takes NaN. One that is fixed to a list is refused.
func TestLoad_FixedInputs(t *testing.T) {
	torchtest.CheckLeaks(t)
	for value, want := range map[string]string{`{"as_float": "NaN"}`: "", `{"as_ints": [1]}`: "input 3 of the program is fixed to [1]", `{"as_bools": [true]}`: "is fixed to [true]"} {
		changed := pt2test.Entries()
		text := strings.Replace(pt2test.Model, `{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}`, `{"constant_input": {"name": "k", "value": `+value+`}}, {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}`, 1)
		text = strings.Replace(text, `{"as_tensor": {"name": "c_c"}}, {"as_tensor": {"name": "x"}}]`, `{"as_tensor": {"name": "c_c"}}, {"as_float": 0.5}, {"as_tensor": {"name": "x"}}]`, 1)
		text = strings.Replace(text, `\"children_spec\": [{\"type\": null,`, `\"children_spec\": [{\"type\": null, \"context\": null, \"children_spec\": []}, {\"type\": null,`, 1)
		changed["models/model.json"] = text
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
			if err != nil {
				return err
			}
			defer p.Close()
			p.Call(x, math.NaN(), x.Zeros(cgotorch.Float32, 2, 2))
			p.Call(x, 1.0, x.Zeros(cgotorch.Float32, 2, 2))
			return nil
		})
		if want != "" {
			torchtest.WantError(t, err, pt2.ErrFormat, want)
		} else {
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "is 1, and the program was exported for NaN")
		}
	}
}

// Names of leaves are short, and no more than the signature has.
func TestLoad_ManyLeaves(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	many := strings.Repeat("null, ", 100_000) + "null"
	changed["models/model.json"] = strings.Replace(pt2test.Model, `\"builtins.dict\", \"context\": \"[]\", \"children_spec\": []`,
		`\"builtins.dict\", \"context\": \"[\\\"`+strings.Repeat("k", 1<<20)+`\\\"]\", \"children_spec\": [{\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": [`+many+`]}]`, 1)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		_, err := load(x, pt2test.Archive(t, changed), pt2.Options{})
		torchtest.WantError(t, err, pt2.ErrFormat, "the arguments have 100002 values, and the signature has 4")
	})
}

// A small file with a long compressed text is refused before it is read.
func TestLoad_LongText(t *testing.T) {
	torchtest.CheckLeaks(t)
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for name, text := range pt2test.Entries() {
		if name == "models/model.json" {
			text = `{"graph_module": {"graph": {"nodes": [` + strings.Repeat("{},", 1<<22) + "{}]}}}"
		}
		e := must.Get(w.CreateHeader(&zip.FileHeader{Name: "net/" + name, Method: zip.Deflate}))(t)
		e.Write([]byte(text))
	}
	must.Do(t, w.Close())
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		_, err := load(x, file.Bytes(), pt2.Options{})
		torchtest.WantError(t, err, pt2.ErrFormat, "models/model.json")
	})
}

// A result that a program also writes into a buffer is that buffer, as in PyTorch. It has the
// buffer's dtype, and what the buffer holds after all writes. testdata/made has the source.
func TestProgram_ResultIsWritten(t *testing.T) {
	data := must.Get(os.ReadFile(filepath.Join("testdata", "made", "delay.pt2")))(t)
	for _, fuse := range []bool{false, true} {
		t.Run(fmt.Sprint("fuse ", fuse), func(t *testing.T) {
			var p *pt2.Program
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) (err error) {
				p, err = load(x, data, pt2.Options{Fuse: fuse})
				return err
			})
			t.Cleanup(func() { p.Close() })
			before := []float32{0, 0, 0}
			for _, in := range [][]float32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}} {
				torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
					given := cgotorch.FromSlice(x, in, 3)
					results := p.Call(x, given).([]any)
					x.FillInPlace(given, -1)
					got, count := cgotorch.ToSlice[float32](x, results[0].(*cgotorch.Tensor)), results[1].(*cgotorch.Tensor)
					if !slices.Equal(got, before) || count.DType() != cgotorch.Int64 || x.Item(count) != float64(in[0]+in[1]+in[2]) {
						t.Errorf("after %v: %v and %v, want %v and the sum as int64", in, got, count, before)
					}
				})
				before = in
			}
		})
	}
}

// Without a batch, dimension 1 of a convolution's result is not that of the channels. Fuse then
// leaves the batch norm alone.
func TestLoad_FusedUnbatched(t *testing.T) {
	data := must.Get(os.ReadFile(filepath.Join("testdata", "made", "unbatched.pt2")))(t)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		in := x.Randn(cgotorch.Float32, 3, 6)
		var results []*cgotorch.Tensor
		for _, fuse := range []bool{false, true} {
			p, err := load(x, data, pt2.Options{Fuse: fuse})
			if err != nil {
				return err
			}
			defer p.Close()
			results = append(results, p.Forward(x, in))
		}
		if !x.Equal(results[0], results[1]) {
			t.Errorf("as exported %v, fused %v", results[0], results[1])
		}
		return nil
	})
}

// A program of tied weights takes a file that has one of their names, also with Options.DType.
func TestProgram_TiedWeights(t *testing.T) {
	torchtest.CheckLeaks(t)
	var table struct {
		Config map[string]map[string]any `json:"config"`
	}
	must.Do(t, json.Unmarshal([]byte(pt2test.WeightTable), &table))
	table.Config["fc.bias"] = table.Config["fc.weight"]
	text := must.Get(json.Marshal(table))(t)
	tied := pt2test.Entries()
	tied["data/weights/model_weights_config.json"] = string(text)
	tied["models/model.json"] = withNodes("add = add.Tensor p_w p_b")
	for _, c := range []struct {
		names  []string // each with a value of its own: 1, 2
		prefix string
		want   string
	}{
		{[]string{"fc.weight"}, "", ""}, {[]string{"fc.bias"}, "", ""}, {[]string{"m.fc.bias"}, "m.", ""},
		{[]string{"fc.weight", "fc.bias"}, "", "one tensor for fc.weight and fc.bias, and their stored values differ"},
		{[]string{"v"}, "", "2 missing: fc.weight, fc.bias"},
	} {
		for _, o := range []pt2.Options{{}, {DType: cgotorch.BFloat16}} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				p, err := load(x, pt2test.Archive(t, tied), o)
				if err != nil {
					return err
				}
				defer p.Close()
				stored := map[string]*cgotorch.Tensor{}
				for i, name := range c.names {
					stored[name] = x.Full(cgotorch.Float32, float64(i+1), 2, 2)
				}
				err = nn.Load(x, p, stored, nn.LoadOptions{Prefix: c.prefix})
				if c.want != "" {
					wantText(t, err, c.want)
					return nil
				} else if err != nil {
					return err
				}
				torchtest.Equal(t, x, x.To(p.Forward(x, x.Zeros(cgotorch.Float32, 2, 2)), cgotorch.Float32), []float32{2, 2, 2, 2}, 2, 2)
				return nil
			})
		}
	}
}
