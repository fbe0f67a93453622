// Package opcall lets packages linalg, fft, special and pt2 call operators in the same way as the
// generated methods of Exec. The calls do not look up names, and need not box their arguments.
package opcall

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// A Call takes the arguments of one operator in the order of its schema. Then one of the methods
// Run runs the operator and returns its results. The Call is not used after that.
type Call interface {
	Tensor(t *cgotorch.Tensor)
	OptTensor(t *cgotorch.Tensor) // nil means None
	TensorList(ts []*cgotorch.Tensor)
	OptTensorList(ts []*cgotorch.Tensor)
	Int(v int64)
	Float(v float64)
	Bool(v bool)
	Text(v string)
	Scalar(v cgotorch.Scalar)
	ScalarList(vs []cgotorch.Scalar)
	IntList(vs []int64)
	AllDims(t *cgotorch.Tensor) // a list of all dimensions of t
	FloatList(vs []float64)
	DType(v cgotorch.DType)
	Device() // the device of the Exec
	None()
	Default()     // the argument's default
	RestDefault() // the defaults of all arguments from here on
	Any(v any)    // an argument of a type that Exec.Call takes

	Run1() *cgotorch.Tensor
	Run2() (*cgotorch.Tensor, *cgotorch.Tensor)
	Run3() (*cgotorch.Tensor, *cgotorch.Tensor, *cgotorch.Tensor)
	Run4() (*cgotorch.Tensor, *cgotorch.Tensor, *cgotorch.Tensor, *cgotorch.Tensor)
	RunAll() []any // the results as Exec.Call returns them
}

// Operator is an operator of LibTorch, found at its first call.
type Operator struct{ found seam.Operator[*cgotorch.Exec] }

// New returns the operator of a name such as "aten::linalg_svd".
func New(name string) Operator { return Operator{inside.Core.Operator(name)} }

// Schema returns the operator's schema. It fails with [cgotorch.ErrNotFound] if LibTorch has no
// such operator.
func (o Operator) Schema() (string, error) { return o.found.Schema() }

// Begin begins a call of the operator with the Exec x.
func Begin(x *cgotorch.Exec, op Operator) Call { return op.found.Begin(x).(Call) }
