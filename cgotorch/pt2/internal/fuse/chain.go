package fuse

import "github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"

// chain goes back from a step to those that compute its operands for it alone.
type chain struct {
	*fuser
	gone  map[int]bool
	at    int   // the present step
	steps []int // those that it was at
}

// step goes to the step that computes o for the present step alone.
func (c *chain) step(o graph.Operand) bool {
	from, ok := c.source(o, c.at, c.gone)
	if !ok || !o.IsTensor() {
		return false
	}
	c.at, c.steps = from, append(c.steps, from)
	return true
}

// back is step, if that step is a call of one of these operators. It returns nil and stays where it
// is otherwise.
func (c *chain) back(o graph.Operand, operators ...string) *graph.Call {
	before := *c
	if c.step(o) {
		if call := c.call(c.at, operators...); call != nil {
			return call
		}
	}
	*c = before
	return nil
}

// fixedSum goes to the sum of scores and of an input of the graph.
func (c *chain) fixedSum(o graph.Operand) *graph.Call {
	sum := c.back(o, "aten.add.Tensor")
	if sum == nil || !plainSum(sum) || !c.isFixed(sum.Args[1]) {
		return nil
	}
	return sum
}
