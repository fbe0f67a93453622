package nn

import (
	"errors"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Module maps a tensor to a tensor. Forward enqueues its work on x's stream. It returns a new
// handle, which belongs to x's Do. It does not close its argument `in`.
type Module interface {
	Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor
}

// Func is a module without state that consists of one function.
type Func func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor

// Forward calls f.
func (f Func) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return f(x, in) }

// SetTraining puts m and all its children in training mode or in evaluation mode. It sets each
// exported field "Eval bool" to !training. Every module begins in training mode, because the zero
// value of Eval means training. The mode does not decide whether gradients are recorded: the Exec
// does. m is a pointer to a module. SetTraining finds the modules that [State] finds, and fails
// as State does.
func SetTraining(m any, training bool) { setFlags(m, "Eval", !training) }

// Freeze makes the parameters of m collect no gradient. Tensor.SetRequiresGrad(true) of each is the
// way back. Give an optimizer only the others, or all if m trains later. Batch norms of m still
// collect statistics in training mode. Freeze finds the parameters that [Parameters] finds, and
// fails as it does.
func Freeze(m any) {
	for _, p := range Parameters(m) {
		cgotorch.Check(p.SetRequiresGrad(false))
	}
}

// setFlags sets the field "name bool" of m and of every module below m.
func setFlags(m any, name string, to bool) {
	cgotorch.Check(walk(m, func(v reflect.Value, _ []heldTensor) { setFlag(v, name, to) }))
}

// dependsOnMode makes a captured graph out of date if the module's mode changes after the
// capture.
func dependsOnMode(x *cgotorch.Exec, what string, eval *bool) {
	dependsOn(x, eval, what+" has changed between training and evaluation")
}

// isFused reports whether a layer may use kernels of this library. `unfused` is the layer's field.
func isFused(x *cgotorch.Exec, what string, unfused *bool) bool {
	dependsOn(x, unfused, "SetFused has changed "+what)
	return !*unfused
}

// dependsOn makes a captured graph out of date if the flag changes after the capture. The argument
// `changed` is the reason.
func dependsOn(x *cgotorch.Exec, flag *bool, changed string) {
	if !x.Capturing() {
		return
	}
	used := *flag
	x.DependsOn(func() string {
		if *flag != used {
			return changed
		}
		return ""
	})
}

// setFlag sets the field "name bool" of a struct and of the structs that it embeds.
func setFlag(v reflect.Value, name string, to bool) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch value := v.Field(i); {
		case f.Anonymous:
			if embedded, ok := structUnder(value); ok {
				setFlag(embedded, name, to)
			}
		case f.Name == name && value.Kind() == reflect.Bool && value.CanSet():
			value.SetBool(to)
		}
	}
}

// Apply calls fn for m and for every module below m, children before their parents, as
// torch.nn.Module.apply does. fn gets pointers, such as *Linear. Lists and modules that are not
// structs, such as a [Func], are left out. Apply finds the modules that [State] looks into.
//
//	nn.Apply(model, func(m any) {
//		if linear, ok := m.(*nn.Linear); ok {
//			nn.XavierUniform(x, linear.Weight, 1)
//		}
//	})
func Apply(m any, fn func(m any)) {
	w := walker{path: map[any]int{}, visit: func(reflect.Value, []heldTensor) {}}
	w.leave = func(v reflect.Value) {
		if p := addressOf(v); p != nil && v.Kind() == reflect.Struct {
			fn(p)
		}
	}
	cgotorch.Check(w.walk(m))
}

// ZeroGrad removes the gradients of m's parameters. It enqueues nothing. It fails with
// [cgotorch.ErrInvalidArgument] if m is no pointer to a module.
func ZeroGrad(m any) error {
	state, err := stateOf(m)
	errs := []error{err}
	for _, p := range trained(state) {
		errs = append(errs, p.Tensor.SetGrad(nil))
	}
	return errors.Join(errs...)
}

// Close frees every parameter and buffer of m and its children, with their gradients. A second
// Close does nothing. If m holds tensors that Close cannot find, Close returns the error of
// [Check]. It closes the others.
func Close(m any) error {
	errs := []error{Check(m)}
	state, _ := stateOf(m) // its error is one of Check's
	for _, n := range state {
		errs = append(errs, n.Tensor.Close())
	}
	return errors.Join(errs...)
}
