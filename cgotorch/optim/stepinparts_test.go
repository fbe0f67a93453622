package optim_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A step in parts changes each parameter as Step does, and calls its function after each part. A
// parameter in no part stays unchanged.
func TestStepInParts(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			var lists [2][]*cgotorch.Tensor
			var opts [2]*optim.Optimizer
			for k := range opts {
				for i := range 4 {
					p := x.Full(cgotorch.Float32, float64(i+1), 3)
					cgotorch.Check(p.SetRequiresGrad(true))
					lists[k] = append(lists[k], p)
				}
				o := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.1}, optim.Group{Params: lists[k][:2]}, optim.Group{Params: lists[k][2:], LR: 0.2}))
				defer o.Close()
				opts[k] = o
			}
			var order []int
			for step := range 3 {
				for k := range opts {
					for i, p := range lists[k] {
						cgotorch.Check(p.SetGrad(x.Full(cgotorch.Float32, float64(step-i), 3)))
					}
				}
				opts[0].Step(x)
				opts[1].StepInParts(x, [][]int{{2}, {}, {1, 0}}, func(part int) { order = append(order, part) })
			}
			if want := []int{0, 1, 2, 0, 1, 2, 0, 1, 2}; !slices.Equal(order, want) {
				t.Errorf("got the parts %v, want %v", order, want)
			}
			for i := range 3 {
				if !x.Equal(lists[0][i], lists[1][i]) {
					t.Errorf("parameter %d: got %v, want %v", i, lists[1][i], lists[0][i])
				}
			}
			if got := x.Item(x.Sum(lists[1][3])); got != 12 {
				t.Errorf("the parameter in no part has the sum %v, want 12", got)
			}
		})
		err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
			p := x.Ones(cgotorch.Float32, 3)
			cgotorch.Check(p.SetRequiresGrad(true))
			o := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: []*cgotorch.Tensor{p}}))
			defer o.Close()
			o.StepInParts(x, [][]int{{1}}, func(int) {})
			return nil
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument)
	})
}

// A parameter in two parts would be changed twice.
func TestStepInParts_Twice(t *testing.T) {
	leaf := func(x *cgotorch.Exec) *cgotorch.Tensor {
		p := x.Ones(cgotorch.Float32, 3)
		must.Do(t, p.SetRequiresGrad(true))
		return p
	}
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		o := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 1}, optim.Group{Params: []*cgotorch.Tensor{leaf(x), leaf(x)}}))
		defer o.Close()
		o.StepInParts(x, [][]int{{0, 0}, {1, 0}}, func(int) {})
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "parameter 0 is in the parts 0 and 1")
}
