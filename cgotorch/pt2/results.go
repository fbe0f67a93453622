package pt2

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Outputs returns the names of the tensors of the result, in Python's order. A name is as in
// `logits` or `boxes["left"][0]`. A tensor to which no key and no field leads is `output0`,
// `output1` and so on, by its place. Results that are no tensors, such as None, are left out.
func (p *Program) Outputs() []string {
	paths := p.out.paths("", nil)
	if p.out.named {
		paths = nil
		for i, c := range p.out.children {
			paths = c.paths(p.out.keys[i], paths)
		}
	}
	var names []string
	for i, o := range p.results() {
		switch {
		case !o.isTensor():
		case p.out.named || strings.Contains(paths[i], `["`):
			names = append(names, paths[i])
		default:
			names = append(names, fmt.Sprint("output", len(names)))
		}
	}
	return names
}

// Tensors is [Program.Call], and returns the tensors of the result alone, in the order of
// [Program.Outputs].
func (p *Program) Tensors(x *cgotorch.Exec, args ...any) []*cgotorch.Tensor {
	const op = "pt2.Program.Tensors"
	leaves, err := p.flatten(args)
	if err != nil {
		x.Fail(op, fmt.Errorf("%s: %w: %w", p.file, err, cgotorch.ErrInvalidArgument))
	}
	values := p.run(x, op, leaves)
	var tensors []*cgotorch.Tensor
	for i, o := range p.results() {
		if !o.isTensor() {
			continue
		}
		t, ok := values[i].(*cgotorch.Tensor)
		if !ok || t == nil {
			p.fail(x, op, "%s: result %d is %s, want a tensor", p.file, i, shown(values[i]))
		}
		tensors = append(tensors, t)
	}
	return tensors
}

// results returns the outputs of the graph that are results.
func (p *Program) results() (list []operand) {
	for i, o := range p.outputs {
		if o == (programOutput{-1, -1, -1}) {
			list = append(list, p.graph.outputs[i])
		}
	}
	return list
}
