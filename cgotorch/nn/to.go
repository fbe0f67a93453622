package nn

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ToOptions choose the dtype and the memory format of [To].
type ToOptions struct {
	DType        cgotorch.DType // dtype of the floating parameters and buffers; 0 means that each keeps its dtype
	ChannelsLast bool           // gives tensors of four dimensions the format channels last, for images in that format
}

// To moves m to x's device, and converts its parameters and buffers as o says. A tensor that
// already has the right device, dtype and format stays. To replaces every other tensor, closes
// the old tensor and drops its gradient. So make the optimizer after To. Buffers with Named.Host
// stay on the CPU. To waits for the device if tensors move between host and device. When To is
// called, only x's stream may still have work that reads the old tensors.
//
// To fails with the error of [Check]. It fails with [cgotorch.ErrInvalidArgument] for a DType
// that is not floating, and for a tensor that [Replace] cannot replace.
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

// Replace replaces tensors of m. The function `with` returns the new tensor for a tensor of m, or
// nil to keep the old one. Replace closes the tensors that it replaces. It fails at the first
// tensor that is not in a field of a struct held by pointer. The tensors before that tensor are
// then already replaced.
func Replace(m any, with func(Named) *cgotorch.Tensor) error {
	var failed error
	err := walk(m, func(_ reflect.Value, own []heldTensor) {
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
	return cmp.Or(err, failed)
}

// move returns t on x's device, converted as o says. If t needs no change, the result is t itself.
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
