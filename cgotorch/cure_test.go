package cgotorch_test

import (
	"errors"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
)

// A message that LibTorch writes for Python's users names the cure in this library's words. It has
// at most 400 characters.
func TestError_Cures(t *testing.T) {
	leaf := func(x *Exec) *Tensor {
		v := x.Ones(Float32, 2, 2)
		if err := v.SetRequiresGrad(true); err != nil {
			t.Fatal(err)
		}
		return v
	}
	for want, fn := range map[string]func(x *Exec){
		"vision.Normalize": func(x *Exec) {
			x.Conv2d(x.Zeros(Uint8, 1, 3, 8, 8), x.Ones(Float32, 4, 3, 3, 3), nil, Conv2dOptions{})
		},
		"one dtype with x.To":       func(x *Exec) { x.Linear(x.Zeros(Float64, 1, 3), x.Ones(Float32, 4, 3), nil) },
		"BackwardOptions.Retain":    func(x *Exec) { l := x.Sum(x.Exp(leaf(x))); x.Backward(l); x.Backward(l) },
		"call SetRequiresGrad":      func(x *Exec) { x.Backward(x.Sum(x.Ones(Float32, 2))) },
		"reduce it with x.Mean":     func(x *Exec) { x.Backward(x.Exp(leaf(x))) },
		"an Exec of x.NoGrad":       func(x *Exec) { x.AddScalarInPlace(leaf(x), 1) },
		"has 4 elements; the slice": func(x *Exec) { FromSlice(x, []float32{1, 2, 3}, 2, 2) },
		"convert the tensor":        func(x *Exec) { x.Mean(x.Ones(Int64, 2)) },
		"class numbers are from 0":  func(x *Exec) { x.CrossEntropy(x.Ones(Float32, 2, 3), FromSlice(x, []int64{0, 5})) },
		"use x.Reshape": func(x *Exec) {
			x.Call("aten::view", x.Transpose(x.Ones(Float32, 2, 3), 0, 1), []int64{6})
		},
		"Clone the tensor before": func(x *Exec) { e := x.Exp(leaf(x)); x.AddScalarInPlace(e, 1); x.Backward(x.Sum(e)) },
	} {
		err := DefaultStream(CPU).Do(func(x *Exec) error { fn(x); return nil })
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, want) || !strings.Contains(e.Caller, "cure_test.go:") {
			t.Errorf("got %v, want %q in it", err, want)
		} else if n := len(e.Message); n > 400 {
			t.Errorf("%d characters: %v", n, err)
		}
	}
}
