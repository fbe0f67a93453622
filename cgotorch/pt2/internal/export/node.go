package export

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// newNode describes a node.
func (b *builder) newNode(text *nodeText) *graph.Node {
	n := &graph.Node{Name: text.Name, Operator: strings.TrimPrefix(text.Target, "torch.ops."), Where: pythonLine(text.Metadata.Stack), Modules: text.Metadata.Modules}
	if modules := strings.Split(text.Metadata.Modules, ";"); len(modules) > 0 {
		if parts := strings.Split(modules[len(modules)-1], ","); len(parts) >= 3 {
			n.Module = parts[1]
		}
	}
	var results, args []string
	for i := range text.Outputs {
		results = append(results, text.Outputs[i].text())
		n.Results = append(n.Results, b.result(&text.Outputs[i]))
	}
	for i := range text.Inputs {
		arg := text.Inputs[i].Arg.text()
		if text.Inputs[i].Kind == 2 {
			arg = text.Inputs[i].Name + "=" + arg
		}
		args = append(args, arg)
	}
	n.Text = fmt.Sprintf("%s = %s(%s)", strings.Join(results, ", "), n.Operator, strings.Join(args, ", "))
	return n
}

// result returns what the file says of a result.
func (b *builder) result(a *argument) (r graph.Result) {
	var names []named
	switch {
	case a.SymFloat != nil:
		r.Number = "float"
	case a.SymBool != nil:
		r.Number = "bool"
	case a.Tensor != nil:
		names = []named{*a.Tensor}
	case a.Tensors != nil:
		r.List, names = true, *a.Tensors
	}
	for _, name := range names {
		m, known := b.text.Tensors[name.Name]
		t := graph.TensorResult{Known: known}
		for _, s := range m.Sizes {
			size := int64(-1)
			if s.Int != nil {
				size = max(*s.Int, -1)
			}
			t.Sizes = append(t.Sizes, size)
		}
		dtype, err := dtypeOf(m.DType, b.float)
		t.DType, t.Typed = dtype, known && err == nil
		r.Tensors = append(r.Tensors, t)
	}
	return r
}

// pythonLine returns the innermost line of a stack trace that is not PyTorch's own.
func pythonLine(stack string) string {
	best := ""
	lines := strings.Split(stack, "\n")
	for i, line := range lines {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), `File "`)
		if !ok {
			continue
		}
		file, rest, ok := strings.Cut(rest, `", line `)
		if !ok || best != "" && strings.Contains(file, "site-packages/torch/") {
			continue
		}
		number, _, _ := strings.Cut(rest, ",")
		best = file[strings.LastIndexAny(file, `/\`)+1:] + ":" + number
		if i+1 < len(lines) {
			best += ": " + strings.TrimSpace(lines[i+1])
		}
	}
	return best
}

// text writes an argument as a program would.
func (a *argument) text() string {
	switch {
	case a.Tensor != nil:
		return a.Tensor.Name
	case a.Tensors != nil:
		return "[" + strings.Join(tensorNames(a), ", ") + "]"
	case a.SymInt != nil:
		return a.SymInt.text()
	case a.SymBool != nil:
		return a.SymBool.text()
	case a.SymFloat != nil:
		return a.SymFloat.text()
	case a.SymInts != nil:
		var parts []string
		for _, s := range *a.SymInts {
			parts = append(parts, s.text())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case a.Graph != nil:
		return a.Graph.Name
	case a.OptionalTensors != nil:
		var parts []string
		for _, t := range *a.OptionalTensors {
			part := "None"
			if t.Tensor != nil {
				part = t.Tensor.Name
			}
			parts = append(parts, part)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case a.None != nil:
		return "None"
	case a.Text != nil:
		return fmt.Sprintf("%q", *a.Text)
	}
	v, err := a.constant(0)
	if _, isDevice := v.(graph.OnDevice); isDevice {
		return "device"
	}
	if err != nil {
		return "?"
	}
	return fmt.Sprint(v)
}

func (s symbol) text() string {
	switch {
	case s.Name != nil:
		return *s.Name
	case s.Int != nil:
		return fmt.Sprint(*s.Int)
	case s.Bool != nil:
		return fmt.Sprint(*s.Bool)
	case s.Float != nil:
		return fmt.Sprint(float64(*s.Float))
	}
	return "?"
}
