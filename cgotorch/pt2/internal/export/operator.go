package export

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// operator makes the action of an operator of LibTorch.
func (b *builder) operator(n *graph.Node, text *nodeText) (graph.Action, error) {
	dot := strings.LastIndexByte(n.Operator, '.')
	namespace, name, ok := strings.Cut(n.Operator[:max(dot, 0)], ".")
	if !ok {
		return nil, fmt.Errorf("%.100q names no operator", text.Target)
	}
	name = namespace + "::" + name
	if overload := n.Operator[dot+1:]; overload != "default" {
		name += "." + overload
	}
	c, err := graph.NewCall(name)
	if errors.Is(err, cgotorch.ErrNotFound) {
		if _, known := b.missing[name]; !known {
			b.missing[name] = n.Name
		}
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if c.Args, err = b.inSchemaOrder(c.Schema, text.Inputs); err != nil {
		return nil, err
	}
	b.inFloat(c, text.Outputs)
	c.Outs, err = b.results(text.Outputs)
	c.Single = len(c.Outs) == 1 && len(c.Schema.Results) == 1 && c.Schema.Results[0].Kind == "Tensor"
	return c, err
}

// inSchemaOrder returns the arguments in the order of the schema. The schema of an operator that
// LibTorch lacks has no text.
func (b *builder) inSchemaOrder(schema *opschema.Schema, inputs []namedArgument) ([]graph.Operand, error) {
	known := schema.Text != ""
	var args []graph.Operand
	for i := range inputs {
		in := &inputs[i]
		place := i
		if in.Kind == 2 && known {
			if place = schema.Place(in.Name); place < 0 {
				return nil, fmt.Errorf("the operator has no argument %.100q: its schema is %.200s", in.Name, schema.Text)
			}
		}
		if known && place >= len(schema.Arguments) {
			return nil, fmt.Errorf("it has more arguments than its schema %.200s", schema.Text)
		}
		for len(args) <= place {
			args = append(args, graph.ConstantOf(cgotorch.Default))
		}
		o, err := b.operand(&in.Arg)
		if err != nil {
			return nil, fmt.Errorf("argument %.100q: %w", in.Name, err)
		}
		// PyTorch writes an empty list of any kind as a list of tensors.
		if o.Of == graph.TensorList && len(o.List) == 0 && known && !strings.HasPrefix(schema.Arguments[place].Kind, "Tensor") {
			o = graph.ConstantOf([]int64{})
		}
		args[place] = o
	}
	for i, p := range schema.Arguments {
		if p.Fallback == "" && (i >= len(args) || args[i].IsDefault()) {
			return nil, fmt.Errorf("its argument %s is missing: its schema is %.200s", p.Name, schema.Text)
		}
	}
	return args, nil
}

// inFloat adds the argument dtype of an operator that makes a float32 tensor of no other one, such
// as torch.zeros(2), if another dtype stands for float32.
func (b *builder) inFloat(c *graph.Call, outputs []argument) {
	if b.float == 0 || len(outputs) != 1 || outputs[0].Tensor == nil || dtypes[b.text.Tensors[outputs[0].Tensor.Name].DType] != cgotorch.Float32 {
		return
	}
	at := c.Schema.Place("dtype")
	if at < 0 || c.Schema.Arguments[at].Kind != "ScalarType?" ||
		slices.ContainsFunc(c.Schema.Arguments, func(p opschema.Argument) bool { return strings.HasPrefix(p.Kind, "Tensor") }) {
		return
	}
	if a := c.Arg(at); a.IsDefault() || a.IsNone() {
		*a = graph.ConstantOf(b.float)
	}
}
