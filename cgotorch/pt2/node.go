package pt2

import (
	"fmt"
	"strings"
)

// A Node is one line of a program.
type Node struct {
	Name     string // the name of its result, or that of the first one
	Operator string // as in "aten.conv2d.default"
	Text     string // the whole line: results, operator and arguments
	Module   string // the name of the Python module that made it, such as "layer1.0.conv1"; "" if it is not known
	Where    string // the line of Python that made it, as in "model.py:42: y = self.fc(x)"; "" if it is not known
	Waits    bool   // it waits for the device, because a size or a branch depends on its values

	cure    string     // what to do if it fails; "" means what the error says anyway
	results []argument // as the file has them
}

// newNode describes a node.
func newNode(text *nodeText) *Node {
	n := &Node{Name: text.Name, Operator: strings.TrimPrefix(text.Target, "torch.ops."), Where: pythonLine(text.Metadata.Stack), results: text.Outputs}
	if modules := strings.Split(text.Metadata.Modules, ";"); len(modules) > 0 {
		if parts := strings.Split(modules[len(modules)-1], ","); len(parts) >= 3 {
			n.Module = parts[1]
		}
	}
	var results, args []string
	for i := range text.Outputs {
		results = append(results, text.Outputs[i].text())
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

// place describes a node of a file in an error.
func (n *Node) place(file string) string {
	text := fmt.Sprintf("in node %.80s of %.200s", n.Name, file)
	if n.Where != "" {
		text += fmt.Sprintf(", from %.120s", n.Where)
	}
	return text
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
	v, err := (&builder{compiler: &compiler{}}).constant(a)
	if _, isDevice := v.(onDevice); isDevice {
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
