package linalg_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The error of a function names the operator, the shapes and the line of the program, as that of a
// method of Exec does.
func TestErrors(t *testing.T) {
	torchtest.CheckLeaks(t)
	line := 0
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a := x.Zeros(cgotorch.Float32, 2, 3)
		_, _, line, _ = runtime.Caller(0)
		linalg.Inv(x, a)
	})
	where := fmt.Sprintf("linalg_test.go:%d", line+1)
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "aten::linalg_inv(float32[2 3])", where)
}

// A function of the package refuses what a method of Exec refuses.
func TestMisuse(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, test := range []struct {
		sentinel error
		want     string
		run      func(x *cgotorch.Exec, a *cgotorch.Tensor)
	}{
		{cgotorch.ErrClosed, "a tensor is closed", func(x *cgotorch.Exec, a *cgotorch.Tensor) { a.Close(); linalg.Det(x, a) }},
		{cgotorch.ErrInvalidArgument, "cannot be None", func(x *cgotorch.Exec, a *cgotorch.Tensor) { linalg.Det(x, nil) }},
		{cgotorch.ErrInvalidArgument, "is not a number", func(x *cgotorch.Exec, a *cgotorch.Tensor) { linalg.Cond(x, a, "fro") }},
		{cgotorch.ErrInvalidArgument, "mode 'whole'", func(x *cgotorch.Exec, a *cgotorch.Tensor) { linalg.QR(x, a, "whole") }},
		{cgotorch.ErrInvalidArgument, "tensor 1 of argument", func(x *cgotorch.Exec, a *cgotorch.Tensor) { linalg.MultiDot(x, a, nil) }},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { test.run(x, x.Ones(cgotorch.Float32, 2, 2)) })
		torchtest.WantError(t, err, test.sentinel, test.want, "linalg_test.go")
	}
}

// A gradient flows through a function of the package.
func TestGradient(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a := cgotorch.FromSlice(x, []float32{2, 1, 0, 4}, 2, 2)
		a.SetRequiresGrad(true)
		x.Backward(linalg.Det(x, a))
		torchtest.Equal(t, x, x.Round(a.Grad()), []float32{4, 0, -1, 2}, 2, 2)
	})
}
