package cgotorch_test

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
)

// A message that LibTorch writes for Python's users names the cure in this library's words. It has
// at most 400 characters.
func TestError_Cures(t *testing.T) {
	leaf := func(x *Exec) *Tensor {
		v := x.Ones(Float32, 2, 2)
		must.Do(t, v.SetRequiresGrad(true))
		return v
	}
	for want, fn := range map[string]func(x *Exec){
		"vision.Normalize": func(x *Exec) {
			x.Conv2d(x.Zeros(Uint8, 1, 3, 8, 8), x.Ones(Float32, 4, 3, 3, 3), nil, Conv2dOptions{})
		},
		"one dtype with x.To":                    func(x *Exec) { x.Linear(x.Zeros(Float64, 1, 3), x.Ones(Float32, 4, 3), nil) },
		"BackwardOptions.Retain":                 func(x *Exec) { l := x.Sum(x.Exp(leaf(x))); x.Backward(l); x.Backward(l) },
		"call SetRequiresGrad":                   func(x *Exec) { x.Backward(x.Sum(x.Ones(Float32, 2))) },
		"reduce it with x.Mean":                  func(x *Exec) { x.Backward(x.Exp(leaf(x))) },
		"an Exec of x.NoGrad":                    func(x *Exec) { x.AddScalarInPlace(leaf(x), 1) },
		"has 4 elements; the slice":              func(x *Exec) { FromSlice(x, []float32{1, 2, 3}, 2, 2) },
		"convert the tensor":                     func(x *Exec) { x.Mean(x.Ones(Int64, 2)) },
		"class numbers are from 0":               func(x *Exec) { x.CrossEntropy(x.Ones(Float32, 2, 3), FromSlice(x, []int64{0, 5})) },
		"dtype with x.To; vision":                func(x *Exec) { x.Linear(x.Zeros(Uint8, 1, 3), x.Ones(Float32, 4, 3), nil) },
		"x.To(t, cgotorch.Int64)":                func(x *Exec) { x.CrossEntropy(x.Ones(Float32, 2, 3), FromSlice(x, []int32{0, 1})) },
		"Long, Int; but got":                     func(x *Exec) { x.Call("aten::embedding", x.Ones(Float32, 4, 3), x.Ones(Float32, 2)) },
		"index; labels and indices are integers": func(x *Exec) { x.IndexSelect(x.Ones(Float32, 2), 0, x.Ones(Float32, 2)) },
		"x.To(t, cgotorch.Float32)": func(x *Exec) {
			if err := x.Ones(Int64, 2).SetRequiresGrad(true); err != nil {
				x.Fail("SetRequiresGrad", err)
			}
		},
		"type Long; an argument has another dtype than the result: give labels": func(x *Exec) {
			x.BinaryCrossEntropyWithLogits(x.Ones(Float32, 2), x.Ones(Int64, 2), BinaryCrossEntropyWithLogitsOptions{})
		},
		"expected Float; give labels of prob": func(x *Exec) {
			x.BinaryCrossEntropy(x.Ones(Float32, 2), x.Ones(Int64, 2), BinaryCrossEntropyOptions{})
		},
		"the CPU has no memory for 281475 GB; take smaller": func(x *Exec) { x.Zeros(Float32, 1<<46) }, // more than a process can address
		"oneDNN has no LSTM for these dtypes on this processor; give input and weights one": func(x *Exec) {
			state := x.Zeros(BFloat16, 1, 2, 5)
			weights := []*Tensor{x.Ones(Float32, 20, 4), x.Ones(Float32, 20, 5)}
			x.Call("aten::lstm.input", x.Ones(BFloat16, 3, 2, 4), []*Tensor{state, state}, weights, false, 1, 0.0, false, false, false)
		},
		"nn.MultiheadAttention.AttendWeights": func(x *Exec) {
			q := x.Ones(Float32, 1, 2, 3, 4)
			Check(q.SetRequiresGrad(true))
			loss := x.Sum(x.ScaledDotProductAttention(q, q, q, ScaledDotProductAttentionOptions{}))
			x.Backward(x.Sum(x.Gradients([]*Tensor{loss}, []*Tensor{q}, GradientOptions{CreateGraph: true})[0]))
		},
		"type Long; use the operator without": func(x *Exec) { x.AddInPlace(x.Ones(Int64, 2), x.Ones(Float32, 2)) },
		"has no kernel for this dtype":        func(x *Exec) { x.UniformInPlace(x.Ones(Int64, 2), 0, 1) },
		"num_classes; class numbers are":      func(x *Exec) { x.OneHot(FromSlice(x, []int64{1, 9}), 3) },
		"self; indices are from 0":            func(x *Exec) { x.Call("aten::embedding", x.Ones(Float32, 4, 3), FromSlice(x, []int64{1, 9})) },
		"compared from the right":             func(x *Exec) { x.Add(x.Ones(Float32, 2, 3), x.Ones(Float32, 2, 4)) },
		"the last size of the first must be":  func(x *Exec) { x.MatMul(x.Ones(Float32, 2, 3), x.Ones(Float32, 2, 3)) },
		"x.Permute(images, 0, 3, 1, 2)": func(x *Exec) {
			x.Conv2d(x.Ones(Float32, 1, 8, 8, 3), x.Ones(Float32, 4, 3, 3, 3), nil, Conv2dOptions{})
		},
		"or a larger padding": func(x *Exec) {
			x.Conv2d(x.Ones(Float32, 1, 3, 2, 2), x.Ones(Float32, 4, 3, 3, 3), nil, Conv2dOptions{})
		},
		"a smaller window": func(x *Exec) { x.MaxPool2d(x.Ones(Float32, 1, 1, 2, 2), []int64{5, 5}, MaxPool2dOptions{}) },
		"add a dimension with x.Unsqueeze": func(x *Exec) {
			x.Conv2d(x.Ones(Float32, 8, 8), x.Ones(Float32, 4, 3, 3, 3), nil, Conv2dOptions{})
		},
		"the layer for the number of channels": func(x *Exec) {
			x.BatchNorm(x.Ones(Float32, 2, 5, 3, 3), nil, nil, x.Zeros(Float32, 4), x.Ones(Float32, 4), BatchNormOptions{})
		},
		"self) cannot be None; a nil *Tensor":   func(x *Exec) { x.Add(nil, x.Ones(Float32)) },
		"other) cannot be None; a nil *Tensor":  func(x *Exec) { x.Add(x.Ones(Float32), nil) },
		"is nil; a nil *Tensor":                 func(x *Exec) { x.Cat([]*Tensor{x.Ones(Float32, 2), nil}, 0) },
		"the tensor is nil; a nil *Tensor":      func(x *Exec) { x.Item(nil) },
		"the layer for the last sizes":          func(x *Exec) { x.LayerNorm(x.Ones(Float32, 2, 5), []int64{4}, nil, nil, LayerNormOptions{}) },
		"dimensions count from 0":               func(x *Exec) { x.Softmax(x.Ones(Float32, 2, 3), 5) },
		"in the list; cut them with x.Narrow":   func(x *Exec) { x.Cat([]*Tensor{x.Ones(Float32, 2, 3), x.Ones(Float32, 3, 4)}, 0) },
		"give at least one tensor":              func(x *Exec) { x.Cat(nil, 0) },
		"at entry 1; cut them":                  func(x *Exec) { x.Stack([]*Tensor{x.Ones(Float32, 2, 3), x.Ones(Float32, 3, 4)}, 0) },
		"one of them may be -1":                 func(x *Exec) { x.Reshape(x.Ones(Float32, 2, 3), 4, 2) },
		"sizes are from 0 up":                   func(x *Exec) { x.Ones(Float32, -2) },
		"or read all with ToSlice":              func(x *Exec) { x.Item(x.Ones(Float32, 2)) },
		"only a dimension of size 1 expands":    func(x *Exec) { x.Expand(x.Ones(Float32, 2), 3) },
		"do not name each of the tensor's once": func(x *Exec) { x.Permute(x.Ones(Float32, 2, 3), 0) },
		"start + length is at most":             func(x *Exec) { x.Narrow(x.Ones(Float32, 2, 3), 0, 1, 5) },
		"k is from 0 to the size":               func(x *Exec) { x.TopK(x.Ones(Float32, 2), 5, 0, TopKOptions{}) },
		"use x.Sigmoid before":                  func(x *Exec) { x.Call("aten::binary_cross_entropy", x.Full(Float32, 3, 2), x.Ones(Float32, 2)) },
		"use x.LogicalXor":                      func(x *Exec) { x.Sub(x.Ones(Bool, 2), x.Ones(Bool, 2)) },
		"take smaller batches":                  func(x *Exec) { x.Ones(Float32, 1<<46) },
		" … ":                                   func(x *Exec) { x.Reshape(x.Ones(Float32, 2, 3), slices.Repeat([]int64{1 << 30}, 60)...) },
		"use x.Reshape,": func(x *Exec) {
			x.Call("aten::view", x.Transpose(x.Ones(Float32, 2, 3), 0, 1), []int64{6})
		},
		"or give probabilities of the logits":       func(x *Exec) { x.CrossEntropy(x.Ones(Float32, 8, 10), x.Zeros(Int64, 8, 1)) },
		"give one label for each row":               func(x *Exec) { x.CrossEntropy(x.Ones(Float32, 8, 10), x.Zeros(Int64, 4)) },
		"the layer for the number of channels of":   func(x *Exec) { x.Call("aten::group_norm", x.Ones(Float32, 4, 6, 5, 5), 4) },
		"behind -> stands before it":                func(x *Exec) { x.Einsum("ij,jk->il", x.Ones(Float32, 2, 3), x.Ones(Float32, 3, 4)) },
		"[B, N, M] and [B, M, P]":                   func(x *Exec) { x.BMM(x.Ones(Float32, 4, 2, 3), x.Ones(Float32, 5, 3, 2)) },
		"multiply to that of the dimension":         func(x *Exec) { x.Unflatten(x.Ones(Float32, 4, 12), 1, 5, 2) },
		"times the square of the factor":            func(x *Exec) { x.PixelShuffle(x.Ones(Float32, 1, 6, 4, 4), 2) },
		"two numbers for each of the last":          func(x *Exec) { x.Pad(x.Ones(Float32, 3), []int64{1, 1, 1, 1}, PadOptions{}) },
		"use x.Softmax on logits":                   func(x *Exec) { x.Multinomial(x.Full(Float32, -1, 4), 1, true) },
		"draw fewer, or with replacement":           func(x *Exec) { x.Multinomial(x.Ones(Float32, 4), 5, false) },
		"give a share, such as 0.5":                 func(x *Exec) { x.Call("aten::dropout", x.Ones(Float32, 4), 50, true) },
		"give shares: 0.9":                          func(x *Exec) { x.Quantile(x.Ones(Float32, 4), x.Full(Float32, 90), QuantileOptions{}) },
		"give numbers from 0 up, [N]":               func(x *Exec) { x.BinCount(x.Full(Int64, -1, 4), BinCountOptions{}) },
		"give a high above low":                     func(x *Exec) { x.RandInt(Int64, 5, 5, 3) },
		"use linalg.Pinv, or add":                   func(x *Exec) { x.Call("aten::linalg_inv", x.Zeros(Float32, 3, 3)) },
		"identity; the matrix must be":              func(x *Exec) { x.Call("aten::linalg_cholesky", x.Full(Float32, -1, 2, 2)) },
		"give [..., N, N]":                          func(x *Exec) { x.Call("aten::linalg_inv", x.Ones(Float32, 3, 2)) },
		"give at least one point":                   func(x *Exec) { x.Call("aten::fft_fft", x.Ones(Float32, 0)) },
		"the tensor has no elements; test Numel":    func(x *Exec) { x.Max(x.Ones(Float32, 0)) },
		"cgotorch.Schemas lists all":                func(x *Exec) { x.Call("aten::conv2D", x.Ones(Float32, 2)) },
		"(Tensor mat1) is missing and has no defau": func(x *Exec) { x.Call("aten::addmm", x.Ones(Float32, 2, 2)) },
		"string; give the arguments in the order":   func(x *Exec) { x.Call("aten::softmax.int", x.Ones(Float32, 2), "last") },
		"Clone the tensor before":                   func(x *Exec) { e := x.Exp(leaf(x)); x.AddScalarInPlace(e, 1); x.Backward(x.Sum(e)) },
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
