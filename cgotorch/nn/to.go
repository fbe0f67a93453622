package nn

import (
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ToOptions are the options of [To].
type ToOptions struct {
	DType        cgotorch.DType // of the floating parameters and buffers; 0 leaves each as it is
	ChannelsLast bool           // lay out tensors of four dimensions channels last, as convolutions of such images want them
}

// To moves m to x's device, replacing each parameter and buffer that is not already as asked for; it waits for the device
// where they move between host and device. The old tensors are closed and their gradients dropped: make the optimizer
// afterwards. No work that reads them may be pending on another stream. It fails with the error of [Check],
// and with [cgotorch.ErrInvalidArgument] for a DType that is not floating.
func To(x *cgotorch.Exec, m any, o ToOptions) {
	if err := Check(m); err != nil {
		x.Fail("nn.To", err)
	}
	if o.DType != 0 && !o.DType.IsFloat() {
		refuse(x, "nn.To", "DType is %v; it must be a floating-point dtype", o.DType)
	}
	moved := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	err := Replace(m, func(n Named) *cgotorch.Tensor {
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

// Replace gives m other tensors: those that with returns in place of m's, which are closed, unless with returns nil. It fails, having replaced
// those before, at a tensor that m does not hold in a field of a struct that is held by pointer.
func Replace(m any, with func(Named) *cgotorch.Tensor) error {
	var failed error
	walk(m, func(_ reflect.Value, own []slot) {
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

// move returns t itself where there is nothing to do.
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
