package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
)

// spread returns the values of arguments. A list counts as its items.
func spread(f *Frame, args []Operand) (values []any) {
	for i := range args {
		if args[i].Of == TensorList { // PyTorch writes a list of tensors and numbers so, too
			for k := range args[i].List {
				values = append(values, args[i].List[k].Value(f))
			}
			continue
		}
		switch v := args[i].Value(f).(type) {
		case []int64:
			for _, n := range v {
				values = append(values, n)
			}
		default:
			values = append(values, v)
		}
	}
	return values
}

// Region runs a graph in another mode.
type Region struct {
	Graph *Graph
	Mode  mode
	DType cgotorch.DType // of autocast; 0 means that of the device
	Args  []Operand
	Outs  []int
}

// mode is how a region changes the Exec.
type mode int

const (
	sameMode mode = iota
	WithGrad
	NoGrad
	Autocast
	NoAutocast
)

func (r *Region) Reads() []*Operand { return Pointers(r.Args) }
func (r *Region) Fills() []int      { return r.Outs }

func (r *Region) Run(x *cgotorch.Exec, f *Frame) {
	store(x, f, r.Outs, r.Graph.Call(r.exec(x), spread(f, r.Args)))
}

// exec returns the Exec in the region's mode.
func (r *Region) exec(x *cgotorch.Exec) *cgotorch.Exec {
	switch r.Mode {
	case WithGrad:
		return x.WithGrad()
	case NoGrad:
		return x.NoGrad()
	case NoAutocast:
		return x.NoAutocast()
	case Autocast:
		dtype := r.DType
		if dtype == 0 {
			if dtype = cgotorch.BFloat16; x.Device().IsCUDA() {
				dtype = cgotorch.Float16
			}
		}
		return x.Autocast(dtype)
	}
	return x
}

// truth returns the value of a condition. It waits for the device if the condition is a tensor.
func truth(x *cgotorch.Exec, n *Node, v any) bool {
	switch v := v.(type) {
	case *cgotorch.Tensor:
		return x.Item(v) != 0
	default:
		holds, ok := expr.Integer(v)
		if !ok {
			x.Fail(n.Operator, fmt.Errorf("the condition is %v (a %T): %w", v, v, cgotorch.ErrInvalidArgument))
		}
		return holds != 0
	}
}

// Condition runs one of two graphs.
type Condition struct {
	Node            *Node
	Holds           Operand
	Then, Otherwise *Graph
	Args            []Operand
	Outs            []int
}

func (c *Condition) Reads() []*Operand { return append(Pointers(c.Args), &c.Holds) }
func (c *Condition) Fills() []int      { return c.Outs }

func (c *Condition) Run(x *cgotorch.Exec, f *Frame) {
	g := c.Otherwise
	if truth(x, c.Node, c.Holds.Value(f)) {
		g = c.Then
	}
	store(x, f, c.Outs, g.Call(x, spread(f, c.Args)))
}
