package pt2_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// lines returns the JSON of nodes. A line such as "v = view size=4,2 m" is a node with the result v
// and the arguments m and [4, 2]. A name with a "." is an overload. Results may be a list: "[a b]".
// An integer of the program is #n.
func lines(lines ...string) string {
	var nodes []string
	for _, line := range lines {
		results, call, _ := strings.Cut(line, " = ")
		words := strings.Fields(call)
		target := "aten." + words[0]
		if strings.Contains(words[0], "/") {
			target = strings.Replace(words[0], "/", ".", 1)
		} else if !strings.Contains(words[0], ".") {
			target += ".default"
		}
		var inputs []string
		for _, word := range words[1:] {
			arg, kind := fmt.Sprintf(`{"as_tensor": {"name": %q}}`, word), 1
			name, value, keyword := strings.Cut(word, "=")
			switch {
			case name == "out":
				arg, kind = fmt.Sprintf(`{"as_tensor": {"name": %q}}`, value), 2
			case strings.HasPrefix(value, "@"):
				arg, kind = fmt.Sprintf(`{"as_tensor": {"name": %q}}`, value[1:]), 2
			case strings.HasPrefix(word, "#"):
				arg = fmt.Sprintf(`{"as_sym_int": {"as_name": %q}}`, word[1:])
			case name == "graph":
				arg = graph(value)
			case name == "list":
				arg = `{"as_tensors": [{"name": "` + strings.ReplaceAll(value, ",", `"}, {"name": "`) + `"}]}`
			case keyword && strings.Contains(value, "."):
				arg, kind = fmt.Sprintf(`{"as_float": %s}`, value), 2
			case keyword && strings.Contains(value, ","):
				arg, kind = fmt.Sprintf(`{"as_ints": [%s]}`, strings.TrimSuffix(value, ",")), 2
			case keyword && (value == "true" || value == "false"):
				arg = fmt.Sprintf(`{"as_bool": %s}`, value)
			case keyword:
				arg, kind = fmt.Sprintf(`{"as_int": %s}`, value), 2
			}
			inputs = append(inputs, fmt.Sprintf(`{"name": %q, "arg": %s, "kind": %d}`, name, arg, kind))
		}
		out := fmt.Sprintf(`{"as_tensor": {"name": %q}}`, results)
		if number, ok := strings.CutPrefix(results, "#"); ok {
			out = fmt.Sprintf(`{"as_sym_int": {"as_name": %q}}`, number)
		}
		if list, ok := strings.CutPrefix(results, "["); ok {
			out = `{"as_tensors": [{"name": "` + strings.Join(strings.Fields(strings.TrimSuffix(list, "]")), `"}, {"name": "`) + `"}]}`
		}
		nodes = append(nodes, fmt.Sprintf(`{"target": "torch.ops.%s", "name": "%s", "inputs": [%s], "outputs": [%s], "metadata": {}}`,
			target, strings.Trim(strings.Fields(results)[0], "[]#"), strings.Join(inputs, ", "), out))
	}
	return strings.Join(nodes, ",\n")
}

// graph returns a sub-graph with the input p. That of the name "sized" has an integer too.
func graph(name string) string {
	output, nodes, more := "s", "", ""
	switch name {
	case "writes":
		nodes = lines("s = add_.Tensor p p")
	case "reads":
		nodes = lines("r = mul.Tensor p p", "s = add_.Tensor r r")
	case "views":
		nodes = lines("s = view p size=4,2")
	case "same":
		output = "p"
	case "sized":
		nodes, more = lines("s = mul.Tensor p #k"), `, {"as_sym_int": {"as_name": "k"}}`
	}
	return fmt.Sprintf(`{"as_graph": {"name": "part", "graph": {"inputs": [{"as_tensor": {"name": "p"}}%s], "outputs": [{"as_tensor": {"name": %q}}], "nodes": [%s], "tensor_values": {}}}}`, more, output, nodes)
}

// A view of elements in an order that allows no view copies, unless a later node writes into its
// memory. A copy would then hold other numbers.
func TestProgram_Forward_ViewOfWrittenMemory(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, c := range map[string]struct {
		nodes string    // m is a tensor [4, 2] with the elements of the input, and t is its transpose
		fails string    // what the error says, or "" if the view copies
		want  []float32 // of the result, which is named add
	}{
		"nothing written":           {"v = view t size=4,2;add = add.Tensor v v", "", []float32{2, 6, 10, 14, 4, 8, 12, 16}},
		"base written before":       {"m2 = add_.Tensor m m;v = view t size=4,2;add = add.Tensor v v", "", []float32{4, 12, 20, 28, 8, 16, 24, 32}},
		"other memory written":      {"v = view t size=4,2;r = relu v;w = add_.Tensor r r;add = add.Tensor v w", "", []float32{3, 9, 15, 21, 6, 12, 18, 24}},
		"copy of the view written":  {"v = view t size=4,2;r = clone v;w = add_.Tensor r r;add = add.Tensor v w", "", []float32{3, 9, 15, 21, 6, 12, 18, 24}},
		"graph that writes its own": {"v = view t size=4,2;g = higher_order/wrap_with_set_grad_enabled on=false graph=reads v;add = add.Tensor v g", "", []float32{3, 21, 55, 105, 10, 36, 78, 136}},
		"another view made later":   {"v = view t size=4,2;u = t m;add = add.Tensor v v", "", []float32{2, 6, 10, 14, 4, 8, 12, 16}},
		"new memory of a graph":     {"v = view t size=4,2;g = higher_order/wrap_with_set_grad_enabled on=false graph=reads m;w = add_.Tensor g g;add = add.Tensor v v", "", []float32{2, 6, 10, 14, 4, 8, 12, 16}},
		"result beside it written":  {"r = rrelu_with_noise x m;v = view t size=4,2;w = add_.Tensor r r;add = add.Tensor v v", "", []float32{2, 6, 10, 14, 4, 8, 12, 16}},
		"base written":              {"v = view t size=4,2;w = add_.Tensor m m;add = add.Tensor v v", "what node w writes", nil},
		"base of the base written":  {"v = view t size=4,2;w = add_.Tensor t t;add = add.Tensor v v", "what node w writes", nil},
		"view written":              {"v = view t size=4,2;w = add_.Tensor v v;add = add.Tensor m m", "what node w writes", nil},
		"view of the view written":  {"v = view t size=4,2;u = t v;w = add_.Tensor u u;add = add.Tensor m m", "what node w writes", nil},
		"written as out":            {"v = view t size=4,2;w = mul.out m m out=m;add = add.Tensor v v", "what node w writes", nil},
		"part of a list written":    {"v = view t size=4,2;[a b] = unbind.int t dim=0;w = add_.Tensor b b;add = add.Tensor v v", "what node w writes", nil},
		"list written":              {"v = view t size=4,2;w = _foreach_zero_ list=m;add = add.Tensor v v", "what node w writes", nil},
		"dropout of it written":     {"v = view t size=4,2;d = dropout m p=0 train=false;w = add_.Tensor d d;add = add.Tensor v v", "what node w writes", nil},
		"graph writes":              {"v = view t size=4,2;g = higher_order/wrap_with_set_grad_enabled on=false graph=writes m;add = add.Tensor v v", "what node g writes", nil},
		"result of a graph written": {"v = view t size=4,2;g = higher_order/wrap_with_set_grad_enabled on=false graph=same m;w = add_.Tensor g g;add = add.Tensor v v", "what node w writes", nil},
		"result of a cond written":  {"v = view t size=4,2;s = sum m;g = higher_order/cond s graph=reads graph=same list=m;w = add_.Tensor g g;add = add.Tensor v v", "what node w writes", nil},
		"result of a loop written":  {"v = view t size=4,2;g = higher_order/while_loop graph=reads graph=reads list=m;w = add_.Tensor g g;add = add.Tensor v v", "what node w writes", nil},
		"result of a scan written":  {"v = view t size=4,2;g = higher_order/scan graph=reads list=m list=m;w = add_.Tensor g g;add = add.Tensor v v", "what node w writes", nil},
		"view of a graph":           {"g = higher_order/wrap_with_set_grad_enabled on=false graph=views t;w = add_.Tensor m m;add = add.Tensor g g", "what is written into an input of its graph", nil},
		"view of an input returned": {"u = t x;add = view u size=4,2", "what is written into an input of its graph", nil},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pt2test.Entries()
			changed["models/model.json"] = withNodes(append([]string{"m = relu x", "t = t m"}, strings.Split(c.nodes, ";")...)...)
			err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				p := must.Get(load(x, pt2test.Archive(t, changed), pt2.Options{}))(t)
				x.AtEnd(func() { p.Close() })
				in := cgotorch.FromSlice(x, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)
				out := p.Forward(x.NoGrad(), in)
				if c.fails != "" {
					t.Fatalf("the result is %v, want an error", cgotorch.ToSlice[float32](x, out))
				}
				torchtest.Equal(t, x, out, c.want, 4, 2)
				if !slices.ContainsFunc(p.Nodes(), func(n pt2.Node) bool { return n.Text == "v = aten.reshape.default(t, size=[4 2])" }) {
					t.Error("no node tells that v may copy")
				}
				return nil
			})
			if c.fails != "" {
				torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "aten::view", c.fails, ".contiguous()")
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
