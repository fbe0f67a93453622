package weights

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// slotModule is a module whose tensors lie in a slot.
type slotModule[M any] struct {
	module M
	state  []*cgotorch.Tensor // in the layout's order
	whole  *cgotorch.Tensor   // uint8, the memory of all tensors
}

// newSlotModule builds a module for units of kind k and moves its tensors into `memory`. The set
// `taken` holds the tensors of the modules of all slots.
func newSlotModule[M any](x *cgotorch.Exec, memory *cgotorch.Tensor, k *kind, build func(x *cgotorch.Exec, name string) (M, error), taken map[*cgotorch.Tensor]bool) (*slotModule[M], error) {
	module, err := build(x, k.first)
	if err != nil {
		return nil, err
	}
	switch v := reflect.ValueOf(module); {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return nil, fmt.Errorf("build has returned nil, and no error: %w", ErrInvalidOptions)
	case v.Kind() == reflect.Struct || v.Kind() == reflect.Array:
		return nil, errors.Join(fmt.Errorf("build has returned a %T by value: it must return a pointer: %w", module, ErrInvalidOptions), nn.Close(&module))
	}
	for _, n := range nn.State(module) {
		if taken[n.Tensor] {
			return nil, fmt.Errorf("build has returned a %T that lies in a slot already: it must make one at each call: %w", module, ErrInvalidOptions)
		}
	}
	m := &slotModule[M]{module: module, whole: x.Keep(x.Narrow(memory, 0, 0, int(k.bytes)))}
	if err = fits(x, module, k.layout); err != nil {
		return nil, errors.Join(err, m.close())
	}
	index := map[string]int{}
	for i, t := range k.tensors {
		index[t.Name] = i
		bytes := x.Narrow(memory, 0, int(k.begin[i]), int(k.size[i]))
		typed := x.Call1("aten::view.dtype", bytes, t.DType)
		m.state = append(m.state, x.Keep(x.View(typed, t.Shape...)))
		taken[m.state[i]] = true
	}
	if err = nn.Replace(module, func(n nn.Named) *cgotorch.Tensor { return m.state[index[n.Name]] }); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// fits fails if a module does not have the tensors of a layout.
func fits(x *cgotorch.Exec, module any, l *layout) error {
	dtypes := map[string]cgotorch.DType{}
	var entries []nn.Entry
	for _, t := range l.tensors {
		dtypes[t.Name] = t.DType
		entries = append(entries, nn.Entry{Name: t.Name, Shape: t.Shape, Text: t.text()})
	}
	matched, err := nn.Match(x, module, entries, nn.LoadOptions{})
	if err != nil {
		return fmt.Errorf("its tensors in the store are not those of the %T that was built for it: %w", module, err)
	}
	for _, n := range nn.State(module) {
		if _, ok := dtypes[n.Name]; !ok { // Match accepts a module whose num_batches_tracked has no entry
			return fmt.Errorf("the store has no %s of the %T that was built for it: %w", n.Name, module, ErrInvalidOptions)
		}
	}
	for _, n := range matched {
		if of := n.Tensor.DType(); of != dtypes[n.Name] {
			return fmt.Errorf("tensor %s is %v in the store and %v in the %T that was built for it: %w", n.Name, dtypes[n.Name], of, module, ErrInvalidOptions)
		}
	}
	return nil
}

func (m *slotModule[M]) close() error {
	errs := []error{nn.Close(m.module), m.whole.Close()}
	for _, t := range m.state {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
