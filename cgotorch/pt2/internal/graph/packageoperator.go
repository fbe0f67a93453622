package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// PackageOperators are operators that a package of Python adds to PyTorch, and that LibTorch lacks.
// Each returns its only result.
var PackageOperators = map[string]func(x *cgotorch.Exec, args []*cgotorch.Tensor) (*cgotorch.Tensor, error){
	"transformers.grouped_mm_fallback.default": groupedProduct,
}

// PackageCall calls one of these operators with tensors.
type PackageCall struct {
	Node *Node
	Of   func(x *cgotorch.Exec, args []*cgotorch.Tensor) (*cgotorch.Tensor, error)
	Args []Operand
	Out  int
}

func (c *PackageCall) Reads() []*Operand { return Pointers(c.Args) }
func (c *PackageCall) Fills() []int      { return []int{c.Out} }

func (c *PackageCall) Run(x *cgotorch.Exec, f *Frame) {
	args := make([]*cgotorch.Tensor, len(c.Args))
	for i := range c.Args {
		args[i] = c.Args[i].Tensor(f)
	}
	f.Values[c.Out] = x.Tidy(func() *cgotorch.Tensor {
		result, err := c.Of(x, args)
		if err != nil {
			x.Fail(c.Node.Operator, fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument))
		}
		return result
	})
}

// groupedProduct multiplies groups of rows by a matrix each. Models with experts use it. The
// arguments are the rows [rows, in], the matrices [groups, in, out], and the ends of the groups
// [groups]. Rows after the last end become 0. It waits for the device, which knows the ends.
//
// Source: transformers.integrations.moe, grouped_mm_fallback
func groupedProduct(x *cgotorch.Exec, args []*cgotorch.Tensor) (*cgotorch.Tensor, error) {
	if len(args) != 3 || args[0] == nil || args[1] == nil || args[2] == nil || args[0].Dim() != 2 || args[1].Dim() != 3 || args[2].Dim() != 1 ||
		args[1].Shape()[0] != args[2].Numel() {
		return nil, fmt.Errorf("the arguments are %v, want rows, a matrix for each group, and the ends of the groups", args)
	}
	rows, matrices := args[0], args[1]
	ends := cgotorch.ToSlice[int64](x, x.To(args[2], cgotorch.Int64))
	var parts []*cgotorch.Tensor
	at, last := int64(0), rows.Shape()[0]
	for i, end := range ends {
		if end < at || end > last {
			return nil, fmt.Errorf("the ends of the groups are %.60v, with %d rows", ends, last)
		}
		if end > at {
			parts = append(parts, x.MatMul(x.Narrow(rows, 0, int(at), int(end-at)), x.Select(matrices, 0, i)))
		}
		at = end
	}
	if at < last || len(parts) == 0 {
		parts = append(parts, x.Zeros(rows.DType(), last-at, matrices.Shape()[2]))
	}
	return x.Cat(parts, 0), nil
}
