package nn

import (
	"errors"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Module maps a tensor to a tensor. Forward enqueues its work on x's stream. It returns a new
// handle, which belongs to x's Do, and does not close in.
type Module interface {
	Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor
}

// Func is a function as a module without state.
type Func func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor

// Forward calls f.
func (f Func) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return f(x, in) }

// SetTraining puts m and all its children in training mode or in evaluation mode. It sets each
// exported field "Eval bool" to !training. The zero value of every module is training. The Exec,
// not the mode, decides whether gradients are recorded.
func SetTraining(m any, training bool) {
	walk(m, func(v reflect.Value, _ []heldTensor) { setEval(v, !training) })
}

// dependsOnMode ties a captured function to the mode in which it used a module.
func dependsOnMode(x *cgotorch.Exec, what string, eval *bool) {
	if !x.Capturing() {
		return
	}
	used := *eval
	x.DependsOn(func() string {
		if *eval != used {
			return what + " has changed between training and evaluation"
		}
		return ""
	})
}

// setEval sets the field Eval of a struct, and of the structs that it embeds.
func setEval(v reflect.Value, eval bool) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch value := v.Field(i); {
		case f.Anonymous:
			if embedded, ok := structUnder(value); ok {
				setEval(embedded, eval)
			}
		case f.Name == "Eval" && value.Kind() == reflect.Bool && value.CanSet():
			value.SetBool(eval)
		}
	}
}

// ZeroGrad removes the gradients of m's parameters. It runs no kernel.
func ZeroGrad(m any) error {
	var errs []error
	for _, p := range Parameters(m) {
		errs = append(errs, p.SetGrad(nil))
	}
	return errors.Join(errs...)
}

// Close frees every parameter and buffer of m and its children, and their gradients. A second Close
// does nothing. It returns the error of [Check] for tensors that it cannot find.
func Close(m any) error {
	errs := []error{Check(m)}
	for _, n := range State(m) {
		errs = append(errs, n.Tensor.Close())
	}
	return errors.Join(errs...)
}
