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
	out := p.exported.Signature.Out
	paths := out.Paths("", nil)
	if out.Named {
		paths = nil
		for i, c := range out.Children {
			paths = c.Paths(out.Keys[i], paths)
		}
	}
	var names []string
	for i, o := range p.exported.Results() {
		switch {
		case !o.IsTensor():
		case out.Named || strings.Contains(paths[i], `["`):
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
	values := p.run(x, op, p.flatten(x, op, args))
	var tensors []*cgotorch.Tensor
	for i, o := range p.exported.Results() {
		if !o.IsTensor() {
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
