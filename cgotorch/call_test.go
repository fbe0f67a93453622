package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Call accepts an argument of each type. The result of each call must show that the operator has
// received the argument's value.
func TestCall_Arguments(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		d := x.Device()
		a, b := FromSlice(x, []float32{1, 2, 3, 4}, 2, 2), FromSlice(x, []float32{10, 20, 30, 40}, 2, 2)
		index := FromSlice(x, []int64{1, 0})
		for _, c := range []struct {
			op   string
			args []any
			want []float32
		}{
			{"aten::add.Tensor", []any{a, b}, []float32{11, 22, 33, 44}},
			{"aten::add.Tensor", []any{a, b, Default}, []float32{11, 22, 33, 44}},
			{"aten::add.Tensor", []any{a, b, 2}, []float32{21, 42, 63, 84}},
			{"aten::add.Tensor", []any{a, b, int64(2)}, []float32{21, 42, 63, 84}},
			{"aten::add.Tensor", []any{a, b, 0.5}, []float32{6, 12, 18, 24}},
			{"aten::add.Tensor", []any{a, b, float32(0.5)}, []float32{6, 12, 18, 24}},
			{"aten::add.Scalar", []any{a, true}, []float32{2, 3, 4, 5}},
			{"aten::add.Tensor", []any{a, true}, []float32{2, 3, 4, 5}},
			{"aten::mul.Tensor", []any{a, 0.5}, []float32{0.5, 1, 1.5, 2}},
			{"aten::sub.Tensor", []any{1.0, a}, []float32{0, -1, -2, -3}},
			{"aten::leaky_relu", []any{x.Neg(a), 2}, []float32{-2, -4, -6, -8}},
			{"aten::elu", []any{a, 1.0}, []float32{1, 2, 3, 4}},
			{"aten::clamp", []any{a, nil, 2.5}, []float32{1, 2, 2.5, 2.5}},
			{"aten::clamp", []any{a, Default, 3}, []float32{1, 2, 3, 3}},
			{"aten::linear", []any{a, b, nil}, []float32{50, 110, 110, 250}},
			{"aten::linear", []any{a, b, (*Tensor)(nil)}, []float32{50, 110, 110, 250}},
			{"aten::linear", []any{a, b, FromSlice(x, []float32{100, 200})}, []float32{150, 310, 210, 450}},
			{"aten::cat", []any{[]*Tensor{a, b}, 1}, []float32{1, 2, 10, 20, 3, 4, 30, 40}},
			{"aten::index.Tensor", []any{a, []*Tensor{nil, index}}, []float32{2, 1, 4, 3}},
			{"aten::permute", []any{a, []int64{1, 0}}, []float32{1, 3, 2, 4}},
			{"aten::permute", []any{a, []int{1, 0}}, []float32{1, 3, 2, 4}},
			{"aten::sum.dim_IntList", []any{a, 0, true, Float32}, []float32{4, 6}},
			{"aten::sum.dim_IntList", []any{a, []int{0}, true, nil}, []float32{4, 6}},
			{"aten::sum.dim_IntList", []any{a, nil}, []float32{10}},
			{"aten::sum.dim_IntList", []any{a, 1, 1}, []float32{3, 7}},
			{"aten::index.Tensor", []any{a, []*Tensor{index}}, []float32{3, 4, 1, 2}},
			{"aten::div.Tensor_mode", []any{b, a, "floor"}, []float32{10, 10, 10, 10}},
			{"aten::div.Tensor_mode", []any{b, a, nil}, []float32{10, 10, 10, 10}},
			{"aten::einsum", []any{"ij,jk->ik", []*Tensor{a, b}}, []float32{70, 100, 150, 220}},
			{"aten::clone", []any{a, Contiguous}, []float32{1, 2, 3, 4}},
			{"aten::upsample_nearest1d.vec", []any{FromSlice(x, []float32{1, 2}, 1, 1, 2), nil, []float64{2}}, []float32{1, 1, 2, 2}},
			{"aten::upsample_nearest1d.vec", []any{FromSlice(x, []float32{1, 2}, 1, 1, 2), nil, []int{2}}, []float32{1, 1, 2, 2}},
			{"aten::ones", []any{3}, []float32{1, 1, 1}},
			{"aten::conv2d", []any{x.Ones(Float32, 1, 1, 6, 6), x.Ones(Float32, 1, 1, 3, 3), nil, 2, 1, 1, 1}, []float32{4, 6, 6, 6, 9, 9, 6, 9, 9}},
			{"aten::mse_loss", []any{a, b, ReductionSum}, []float32{81 + 18*18 + 27*27 + 36*36}},
			{"aten::full", []any{[]int{2}, 7.0, Float32, Default, d}, []float32{7, 7}},
			{"aten::full", []any{[]int{2}, 7.0}, []float32{7, 7}},
		} {
			got := x.Call(c.op, c.args...)
			if len(got) != 1 {
				t.Errorf("%s returned %d results", c.op, len(got))
				continue
			}
			result := got[0].(*Tensor)
			if result.Device() != d {
				t.Errorf("%s: the result lies on %v", c.op, result.Device())
			}
			torchtest.Equal(t, x, result, c.want, result.Shape()...)
		}
		for _, scalars := range []any{[]Scalar{1, 0.5}, []Scalar{true, 0.5}, []float64{1, 0.5}} {
			list := x.Call("aten::_foreach_add.ScalarList", []*Tensor{a, b}, scalars)[0].([]*Tensor)
			torchtest.Equal(t, x, list[0], []float32{2, 3, 4, 5}, 2, 2)
			torchtest.Equal(t, x, list[1], []float32{10.5, 20.5, 30.5, 40.5}, 2, 2)
		}
		list := x.Call("aten::_foreach_add.ScalarList", []*Tensor{a}, []int{3})[0].([]*Tensor)
		torchtest.Equal(t, x, list[0], []float32{4, 5, 6, 7}, 2, 2)
		weight, grad := x.Ones(Float32, 2, 2, 1, 1), x.Ones(Float32, 1, 2, 1, 1)
		parts := x.Call("aten::convolution_backward", grad, FromSlice(x, []float32{3, 4}, 1, 2, 1, 1), weight, []int{2},
			[]int{1, 1}, []int{0, 0}, []int{1, 1}, false, []int{0, 0}, 1, []bool{true, false, true})
		torchtest.Equal(t, x, parts[0].(*Tensor), []float32{2, 2}, 1, 2, 1, 1)
		if parts[1].(*Tensor) != nil {
			t.Error("what LibTorch leaves undefined is not nil")
		}
		torchtest.Equal(t, x, parts[2].(*Tensor), []float32{1, 1})
	})
}

func TestCall_Results(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
		for _, c := range []struct {
			op   string
			args []any
			want []any
		}{
			{"aten::equal", []any{a, a}, []any{true}},
			{"aten::size.int", []any{a, 1}, []any{int64(2)}},
			{"aten::item", []any{x.Full(Float64, -1.5)}, []any{-1.5}},
			{"aten::item", []any{x.Full(Float64, math.Inf(1))}, []any{math.Inf(1)}},
			{"aten::item", []any{x.Full(Int64, -9)}, []any{int64(-9)}},
			{"aten::item", []any{x.Eq(x.Ones(Float32), x.Ones(Float32))}, []any{true}},
			{"aten::_foreach_zero_", []any{[]*Tensor{x.Ones(Float32, 1)}}, nil},
		} {
			if got := x.Call(c.op, c.args...); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s returns %#v, want %#v", c.op, got, c.want)
			}
		}
		pair := x.Call("aten::max.dim", a, 1)
		torchtest.Equal(t, x, pair[0].(*Tensor), []float32{2, 4})
		torchtest.Equal(t, x, pair[1].(*Tensor), []int64{1, 1})
		rows := x.Call("aten::unbind.int", a)[0].([]*Tensor)
		torchtest.Equal(t, x, rows[1], []float32{3, 4})
	})
}

// Some operators return more results than a call has room for. The next calls return fewer
// results. All results must be right.
func TestCall_ManyResults(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for _, n := range []int64{1000, 3, 17, 16, 1, 5000, 2} {
			rows := x.Unbind(x.Arange(Float32, 0, n, 1), 0)
			if len(rows) != int(n) {
				t.Errorf("%d results, want %d", len(rows), n)
			}
			if got := x.Item(rows[n-1]); got != float64(n-1) {
				t.Errorf("the last of %d is %v", n, got)
			}
			values, indices := x.MaxDim(x.Ones(Float32, 2, 2), 0, ReduceOptions{})
			torchtest.Equal(t, x, values, []float32{1, 1})
			torchtest.Equal(t, x, indices, []int64{0, 0})
			list := make([]*Tensor, n)
			for i := range list {
				list[i] = rows[0]
			}
			if got := x.Stack(list, 0).Shape()[0]; got != n {
				t.Errorf("%d arguments arrived as %d", n, got)
			}
		}
	})
}

// The dtypes of the results are PyTorch's: a number for a tensor does not decide them.
func TestCall_NumberForATensor(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		halves, floats, integers := x.Full(Float16, 2, 3), x.Full(Float32, 2, 3), x.Full(Int32, 2, 3)
		for _, c := range []struct {
			a, b  any
			dtype DType
			want  complex128 // each element
		}{
			{halves, 1.5, Float16, 3}, {halves, 2, Float16, 4}, {1.5, halves, Float16, 3}, {floats, 2.5, Float32, 5},
			{integers, 3, Int32, 6}, {integers, true, Int32, 2}, {integers, 1.5, Float32, 3}, {floats, 2i, Complex64, 4i},
			{floats, complex64(1 + 2i), Complex64, 2 + 4i},
		} {
			got := x.Call1("aten::mul.Tensor", c.a, c.b)
			if got.DType() != c.dtype || !slices.Equal(got.Shape(), []int64{3}) {
				t.Errorf("%v * %v is %v, want %v[3]", c.a, c.b, got, c.dtype)
			}
			if value := ToSlice[complex128](x, x.To(got, Complex128)); value[2] != c.want {
				t.Errorf("%v * %v holds %v, want %v", c.a, c.b, value, c.want)
			}
		}
	})
}

func TestCall_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, c := range []struct {
			sentinel error
			op       string
			text     string
			args     func(x *Exec, a *Tensor) []any
		}{
			{ErrNotFound, "aten::adds", "LibTorch has no operator aten::adds", func(x *Exec, a *Tensor) []any { return []any{a, a} }},
			{ErrNotFound, "aten::add.Nothing", "LibTorch has no operator aten::add.Nothing", func(x *Exec, a *Tensor) []any { return nil }},
			{ErrNotFound, "", "LibTorch has no operator", func(x *Exec, a *Tensor) []any { return nil }},
			{ErrInvalidArgument, "aten::add.Tensor", "argument 2 (Tensor other) is missing", func(x *Exec, a *Tensor) []any { return []any{a} }},
			{ErrInvalidArgument, "aten::transpose.int", "argument 2 (int dim0) cannot be a complex number", func(x *Exec, a *Tensor) []any { return []any{a, 1i, 0} }},
			{ErrInvalidArgument, "aten::add.Tensor", "argument 2 (Tensor other) cannot be None", func(x *Exec, a *Tensor) []any { return []any{a, nil} }},
			{ErrInvalidArgument, "aten::add.Tensor", "argument 3 (Scalar alpha) cannot be a tensor", func(x *Exec, a *Tensor) []any { return []any{a, a, a} }},
			{ErrInvalidArgument, "aten::add.Tensor", "got more arguments than the 3 of the schema", func(x *Exec, a *Tensor) []any { return []any{a, a, 1, 1} }},
			{ErrInvalidArgument, "aten::add.Tensor", "{} (a struct {}) is not a number", func(x *Exec, a *Tensor) []any { return []any{a, a, struct{}{}} }},
			{ErrInvalidArgument, "aten::add.Tensor", "1 (a int32) is not a number", func(x *Exec, a *Tensor) []any { return []any{a, a, int32(1)} }},
			{ErrInvalidArgument, "aten::zeros", "is -1; there is none of that number", func(x *Exec, a *Tensor) []any { return []any{[]int{2}, DType(-1)} }},
			{ErrInvalidArgument, "aten::contiguous", "is 9; there is none of that number", func(x *Exec, a *Tensor) []any { return []any{a, MemoryFormat(9)} }},
			{ErrInvalidArgument, "aten::cat", "argument 1 (Tensor[] tensors) cannot be a tensor", func(x *Exec, a *Tensor) []any { return []any{a} }},
			{ErrInvalidArgument, "aten::cat", "tensor 1 of argument 1 (Tensor[] tensors) is nil", func(x *Exec, a *Tensor) []any { return []any{[]*Tensor{a, nil}} }},
			{ErrInvalidArgument, "aten::zeros", "cuda:7 (a cgotorch.Device) is not the Exec's device, " + d.String(), func(x *Exec, a *Tensor) []any { return []any{[]int{1}, nil, nil, CUDA(7)} }},
			{ErrInvalidArgument, "aten::zeros", "is cuda:7, where the exec is on " + d.String(), func(x *Exec, a *Tensor) []any { return []any{[]int{1}, nil, nil, "cuda:7"} }},
			{ErrInvalidArgument, "aten::div.Tensor_mode", "rounding_mode", func(x *Exec, a *Tensor) []any { return []any{a, a, "sideways"} }},
			{ErrInvalidArgument, "aten::add.Tensor", "The size of tensor a (3) must match the size of tensor b (2)", func(x *Exec, a *Tensor) []any { return []any{x.Ones(Float32, 3), x.Ones(Float32, 2)} }},
			{ErrUnsupported, "aten::item", "a result of type complex cannot be returned", func(x *Exec, a *Tensor) []any { return []any{x.Ones(Complex64)} }},
			{ErrUnsupported, "aten::floor", "not supported for complex", func(x *Exec, a *Tensor) []any { return []any{x.Ones(Complex64)} }},
			{ErrUnsupported, "aten::_nested_tensor_from_tensor_list", "a nested tensor", func(x *Exec, a *Tensor) []any { return []any{[]*Tensor{a}} }},
		} {
			t.Run(fmt.Sprint(c.op, " ", c.text), func(t *testing.T) {
				err := torchtest.TryDo(t, d, func(x *Exec) {
					got := x.Call(c.op, c.args(x, x.Ones(Float32, 2))...)
					t.Errorf("returned %v", got)
				})
				wantError(t, err, c.sentinel, c.op, c.text, "call_test.go")
			})
		}
	})
}

// Call1 returns the one tensor, and refuses operators with other results.
func TestCall1(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			a := FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
			torchtest.Equal(t, x, x.Call1("aten::add.Tensor", a, a), []float32{2, 4, 6, 8}, 2, 2)
			if x.Call1("aten::rms_norm", a, []int{2}, nil, 1e-5) == nil {
				t.Error("got nil")
			}
		})
		for want, call := range map[string]func(x *Exec, a *Tensor){
			"the result is 2 results, and not one tensor: use Call": func(x *Exec, a *Tensor) { x.Call1("aten::max.dim", a, 0) },
			"the result is a list of 2 tensors, and not one":        func(x *Exec, a *Tensor) { x.Call1("aten::unbind.int", a) },
			"the result is true (a bool), and not":                  func(x *Exec, a *Tensor) { x.Call1("aten::equal", a, a) },
			"the result is 0 results, and":                          func(x *Exec, a *Tensor) { x.Call1("aten::_foreach_zero_", []*Tensor{a}) },
			"argument 2 (Tensor other) is missing":                  func(x *Exec, a *Tensor) { x.Call1("aten::add.Tensor", a) },
		} {
			err := torchtest.TryDo(t, d, func(x *Exec) { call(x, x.Ones(Float32, 2)) })
			wantError(t, err, ErrInvalidArgument, want, "call_test.go")
		}
	})
}

// The error for an unknown overload names those that exist, in at most 400 characters.
func TestCall_NamesOverloads(t *testing.T) {
	for op, want := range map[string]string{
		"aten::add":               "LibTorch has no operator aten::add; it has aten::add.Scalar, ",
		"aten::add.Nothing":       "LibTorch has no operator aten::add.Nothing; it has aten::add.Scalar, ",
		"sum":                     "LibTorch has no operator sum; it has aten::sum, aten::sum.",
		"max.dim":                 "it has aten::max, aten::max.dim, ",
		"aten::norm":              ", aten::norm.out",
		"aten::ad":                "LibTorch has no operator aten::ad; names look like aten::add.Tensor",
		strings.Repeat("x", 1000): "names look like",
	} {
		err := torchtest.TryDo(t, CPU, func(x *Exec) { x.Call(op) })
		wantError(t, err, ErrNotFound, want)
		var e *Error
		if errors.As(err, &e); len(e.Message) > 400 && len(op) < 100 {
			t.Errorf("%s: the message has %d characters: %s", op, len(e.Message), e.Message)
		}
	}
	for _, test := range []struct {
		names int
		want  string
	}{{2, "; it has aten::op.Overload, aten::op.Overload"}, {40, "aten::op.Overload and 22 more"}} {
		got := JoinOverloads("aten::op", slices.Repeat([]string{"aten::op.Overload"}, test.names))
		if len(got) > 400 || !strings.HasSuffix(got, test.want) {
			t.Errorf("%d names: got %d characters, %q", test.names, len(got), got)
		}
	}
}

func TestCall_ShapesOfALongList(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		list := make([]*Tensor, 100)
		for i := range list {
			list[i] = x.Ones(Float32, int64(i+1), 2)
		}
		list[50] = x.Ones(Float32, 1, 3)
		x.Cat(list, 0)
	})
	wantError(t, err, ErrInvalidArgument, "aten::cat(float32[1 2], float32[2 2], ", "float32[8 2], …) at ")
}
