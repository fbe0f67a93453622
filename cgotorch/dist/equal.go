package dist

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// CheckEqual fails x's Do if the parameters of a rank do not equal those of rank 0. It waits for
// the other ranks and for the device. All ranks call it, such as once an epoch. Parameters differ
// after a step whose gradients were not reduced, and if only one rank has loaded a checkpoint.
//
// The failure is of kind [cgotorch.ErrInvalidArgument], on all ranks. It names the rank and the
// first parameters that differ.
func CheckEqual(x *cgotorch.Exec, g *Group, model any) {
	const op = "dist.CheckEqual"
	g.check(x, op)
	parameters := nn.NamedParameters(model)
	if err := g.compare(parameters); err != nil {
		x.Fail(op, err)
	}
	x = x.NoGrad().NoAutocast()
	var names []string
	for _, p := range parameters {
		differs := x.Tidy(func() *cgotorch.Tensor {
			first := x.Clone(p.Tensor)
			g.Broadcast(x, first, 0)
			notNaN := x.LogicalNot(x.LogicalAnd(x.IsNaN(first), x.IsNaN(p.Tensor)))
			return x.Any(x.LogicalAnd(x.Ne(first, p.Tensor), notNaN))
		})
		if cgotorch.ToSlice[bool](x, differs)[0] {
			names = append(names, p.Name)
		}
	}
	texts, err := g.exchange("CheckEqual", some(names))
	if err != nil {
		x.Fail(op, err)
	}
	for i, text := range texts {
		if text != "" {
			x.Fail(op, fmt.Errorf("%s has other values than rank 0 in %s: reduce the gradients in every step, and load checkpoints on all ranks: %w", g.names[i], text, cgotorch.ErrInvalidArgument))
		}
	}
}
