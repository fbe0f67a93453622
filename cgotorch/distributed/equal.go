package distributed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// CheckEqual fails x's Do if the parameters of a rank do not equal those of rank 0. It waits for
// the other ranks and for the device. All ranks call it, such as once an epoch. Parameters differ
// after a step whose gradients were not reduced, and if only one rank has loaded a checkpoint.
//
// An [optim.Optimizer], [optim.LBFGS] or [optim.Scaler] in place of a model is compared by its
// state, and an [optim.EMA] by its averages.
//
// The failure is of kind [cgotorch.ErrInvalidArgument], on all ranks. It names the rank and the
// first parameters that differ. CheckEqual fails with the same error for a model without
// parameters, and for a [Sharded], of whose state each rank has another part.
func CheckEqual(x *cgotorch.Exec, g *Group, model any) {
	const op = "distributed.CheckEqual"
	g.check(x, op)
	parameters, numbers, err := compared(x, model)
	if err == nil {
		err = g.compare(parameters, numbers...)
	}
	if err != nil {
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

// compared returns the tensors and numbers of a model, or of a state, that all ranks have alike.
func compared(x *cgotorch.Exec, model any) (tensors []nn.Named, numbers []string, err error) {
	switch m := model.(type) {
	case *optim.Optimizer:
		s := m.State(x)
		for _, r := range s.Tensors {
			if r.Tensor == nil {
				if r.Tensor, err = r.Load(x); err != nil {
					return nil, nil, err
				}
			}
			tensors = append(tensors, nn.Named{Name: fmt.Sprintf("%s of parameter %d", r.Name, r.Param), Tensor: r.Tensor})
		}
		steps := make([]string, len(s.Steps))
		for i, n := range s.Steps {
			steps[i] = fmt.Sprint(n)
		}
		return tensors, []string{fmt.Sprintf("%s with the learning rate %v, scaled by %v, of groups %v", s.Rule, s.LR, s.Scale, s.GroupLRs), "steps " + some(steps)}, nil
	case *optim.LBFGS:
		s := m.State()
		for name, all := range map[string][]*cgotorch.Tensor{"direction": {s.Direction}, "gradient": {s.Gradient}, "y": s.Y, "s": s.S} {
			for i, t := range all {
				if t != nil {
					tensors = append(tensors, nn.Named{Name: fmt.Sprint(name, i), Tensor: t})
				}
			}
		}
		slices.SortFunc(tensors, func(a, b nn.Named) int { return strings.Compare(a.Name, b.Name) })
		return tensors, []string{fmt.Sprintf("%d iterations and %d evaluations, length %v, scale %v, ro %v", s.Iterations, s.Evaluations, s.Length, s.Scale, s.Ro)}, nil
	case *optim.Scaler:
		return nil, []string{fmt.Sprintf("a scaler with the state %+v", m.State(x))}, nil
	case *optim.EMA:
		for i, t := range m.Averages() {
			tensors = append(tensors, nn.Named{Name: fmt.Sprint("average ", i), Tensor: t})
		}
		return tensors, nil, nil
	}
	if tensors = nn.NamedParameters(model); len(tensors) == 0 {
		return nil, nil, noTensors(model, "parameters")
	}
	return tensors, nil, nil
}

// noTensors returns the error for a model in which there is nothing.
func noTensors(model any, what string) error {
	return fmt.Errorf("%T has no %s: give a pointer to the model: %w", model, what, cgotorch.ErrInvalidArgument)
}
