package nn

import (
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ToOptions choose the dtype and the memory format of [To].
type ToOptions struct {
	DType        cgotorch.DType // of the floating parameters and buffers; 0 leaves each as it is
	ChannelsLast bool           // give tensors of four dimensions the memory format channels last, for convolutions of such images
}

// To moves m to x's device, and replaces each parameter and buffer that does not already fit x and
// o. Buffers of the host stay on the CPU. It waits for the device if tensors move between host and
// device. It closes the old tensors and drops their gradients, so make the optimizer afterwards. No
// pending work on another stream may read the old tensors. It fails with the error of [Check], and
// with [cgotorch.ErrInvalidArgument] for a DType that is not floating.
func To(x *cgotorch.Exec, m any, o ToOptions) {
	if err := Check(m); err != nil {
		x.Fail("nn.To", err)
	}
	if o.DType != 0 && !o.DType.IsFloat() {
		refuse(x, "nn.To", "DType is %v; it must be a floating-point dtype", o.DType)
	}
	moved := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	err := Replace(m, func(n Named) *cgotorch.Tensor {
		if n.Host {
			return nil
		}
		t, ok := moved[n.Tensor]
		if !ok {
			t = o.move(x, n.Tensor)
			moved[n.Tensor] = t
		}
		if t == n.Tensor {
			return nil
		}
		return x.Keep(t)
	})
	if err != nil {
		refuse(x, "nn.To", "%v", err)
	}
}

// Replace gives m other tensors. with returns the tensor in place of its argument, or nil to leave
// it. Replaced tensors are closed. Replace fails at a tensor outside of a field of a struct that m
// holds by pointer. Tensors before it are then replaced already.
func Replace(m any, with func(Named) *cgotorch.Tensor) error {
	var failed error
	walk(m, func(_ reflect.Value, own []heldTensor) {
		for _, s := range own {
			if failed != nil {
				return
			}
			if !s.field.CanSet() {
				failed = fmt.Errorf("%s cannot be replaced: hold it in a field of type *cgotorch.Tensor of a struct that is held by pointer", s.Name)
				return
			}
			if t := with(s.Named); t != nil && t != s.Tensor {
				s.field.Set(reflect.ValueOf(t))
				s.Tensor.Close()
			}
		}
	})
	return failed
}

// move returns t itself where it needs no change.
func (o ToOptions) move(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	dtype, format := t.DType(), cgotorch.Preserve
	if o.DType != 0 && dtype.IsFloat() {
		dtype = o.DType
	}
	if o.ChannelsLast && t.Dim() == 4 {
		format = cgotorch.ChannelsLast
	}
	to := x.NoGrad().Call("aten::to.device", t, x.Device(), dtype, false, false, format)[0].(*cgotorch.Tensor)
	if to.SharesMemory(t) {
		to.Close()
		return t
	}
	if t.RequiresGrad() {
		if err := to.SetRequiresGrad(true); err != nil {
			x.Fail("nn.To", err)
		}
	}
	return to
}
