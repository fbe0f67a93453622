package nn

import (
	"errors"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Module maps a tensor to a tensor. Forward enqueues its work on x's stream and returns a new handle, which belongs to x's Do;
// it does not close in.
type Module interface {
	Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor
}

// Func is a function as a module without state.
type Func func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor

// Forward calls f.
func (f Func) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return f(x, in) }

// SetTraining puts m and all its children in training mode, or in evaluation mode: it sets each exported field "Eval bool"
// to !training. The zero value of every module is training. Whether gradients are recorded is the Exec's business.
func SetTraining(m any, training bool) {
	walk(m, func(v reflect.Value, _ []slot) { setEval(v, !training) })
}

// dependsOnMode says that a captured function has used a module in the mode that it is in.
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

// setEval sets the field Eval of a struct and of those it embeds.
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

// ZeroGrad removes the gradients of m's parameters, which costs no kernel.
func ZeroGrad(m any) error {
	var errs []error
	for _, p := range Parameters(m) {
		errs = append(errs, p.SetGrad(nil))
	}
	return errors.Join(errs...)
}

// Close frees every parameter and buffer of m and its children, once each, and their gradients. Closing twice does nothing.
// Where [Check] finds tensors that it cannot free, it returns that error.
func Close(m any) error {
	errs := []error{Check(m)}
	for _, n := range State(m) {
		errs = append(errs, n.Tensor.Close())
	}
	return errors.Join(errs...)
}
