package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/linalg"
	"github.com/streamtorch/streamtorch/cgotorch/special"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Arguments with which LibTorch would end the process are refused, in a typed call and in a call by
// name. A guard that is taken away ends this test with a signal.
func TestGuards(t *testing.T) {
	torchtest.CheckLeaks(t)
	attention := func(x *Exec, query, key []int64, options ScaledDotProductAttentionOptions) {
		k := x.Zeros(Float32, key...)
		x.ScaledDotProductAttention(x.Zeros(Float32, query...), k, k, options)
	}
	bag := func(x *Exec, indices, offsets []int64, mode int) {
		x.EmbeddingBag(x.Ones(Float32, 3, 2), x.Zeros(Int64, indices...), x.Zeros(Int64, offsets...), mode, EmbeddingBagOptions{})
	}
	least := func(x *Exec, dtype DType) *Tensor {
		return x.To(FromSlice(x, []int64{map[DType]int64{Int64: math.MinInt64, Int32: math.MinInt32}[dtype]}), dtype)
	}
	ldl := func(x *Exec, pivots *Tensor) {
		linalg.LDLSolve(x, x.Eye(Float32, 3), pivots, x.Ones(Float32, 3, 1), linalg.LDLOptions{})
	}
	ctc := func(x *Exec, labels *Tensor, lengths ...int64) {
		x.CTCLoss(x.LogSoftmax(x.Randn(Float32, 5, 2, 3), 2), labels, []int64{5, 5}, lengths, CTCLossOptions{})
	}
	for name, test := range map[string]struct {
		want string // "" for a call that is not refused
		run  func(x *Exec)
	}{
		"step below 1":         {"the step 0.5 is 0 as an int64", func(x *Exec) { x.Arange(Int64, 0, 5, 0.5) }},
		"step above -1":        {"the step -0.25 is 0 as an int64", func(x *Exec) { x.Arange(Int64, 5, 0, -0.25) }},
		"step by name":         {"the step 0.5 is 0 as an int64", func(x *Exec) { x.Call("aten::arange.start_step", 0, 5, 0.5, Int64) }},
		"step into out":        {"the step 0.5 is 0 as an int64", func(x *Exec) { x.Call("aten::arange.start_out", 0, 5, 0.5, x.Empty(Int64, 0)) }},
		"step of range":        {"the step 0.5 is 0 as an int64", func(x *Exec) { x.Call("aten::range.step", 0, 5, 0.5, Int64) }},
		"step 0":               {"step must be nonzero", func(x *Exec) { x.Arange(Int64, 0, 5, 0) }},
		"step NaN":             {"step must be ", func(x *Exec) { x.Arange(Float32, 0, 5, math.NaN()) }},
		"step +Inf":            {"the step +Inf is no int64", func(x *Exec) { x.Arange(Int64, 0, 5, math.Inf(1)) }},
		"step NaN of an int64": {"the step NaN is no int64", func(x *Exec) { x.Arange(Int64, 0, 5, math.NaN()) }},
		"end 1e300":            {"the end 1e+300 is no int64", func(x *Exec) { x.Arange(Int64, 0, 1e300, nil) }},
		"step of a float":      {"", func(x *Exec) { x.Arange(Float32, 0, 5, 0.5) }},
		"step of an int32":     {"", func(x *Exec) { x.Arange(Int32, 0, 5, 0.5) }},
		"step above 1":         {"", func(x *Exec) { x.Arange(Int64, 0, 5, 1.5) }},
		"step without a dtype": {"", func(x *Exec) { x.Call("aten::arange.start_step", 0, 5, 0.5) }},
		"no heads": {"key has no heads", func(x *Exec) {
			attention(x, []int64{2, 0, 3, 4}, []int64{2, 0, 3, 4}, ScaledDotProductAttentionOptions{})
		}},
		"no heads of keys": {"key has no heads", func(x *Exec) {
			attention(x, []int64{2, 4, 3, 4}, []int64{2, 0, 3, 4}, ScaledDotProductAttentionOptions{GroupedQuery: true})
		}},
		"no heads, grouped": {"key has no heads", func(x *Exec) {
			attention(x, []int64{2, 0, 0, 4}, []int64{2, 0, 3, 4}, ScaledDotProductAttentionOptions{GroupedQuery: true})
		}},
		"no heads and no queries": {"", func(x *Exec) {
			attention(x, []int64{2, 0, 0, 4}, []int64{2, 0, 3, 4}, ScaledDotProductAttentionOptions{})
		}},
		"no samples": {"", func(x *Exec) {
			attention(x, []int64{0, 1, 3, 4}, []int64{0, 1, 3, 4}, ScaledDotProductAttentionOptions{})
		}},
		"no keys": {"", func(x *Exec) {
			attention(x, []int64{2, 1, 3, 4}, []int64{2, 1, 0, 4}, ScaledDotProductAttentionOptions{})
		}},
		"no size": {"", func(x *Exec) {
			attention(x, []int64{2, 1, 3, 0}, []int64{2, 1, 3, 0}, ScaledDotProductAttentionOptions{})
		}},
		"no pivots":                {"the pivots have the shape [0], and those of these matrices have [3]", func(x *Exec) { x.LUUnpack(x.Ones(Float32, 3, 3), x.Ones(Int32, 0)) }},
		"pivots of no batch":       {"the pivots have the shape [3], and those of these matrices have [2 3]", func(x *Exec) { x.LUUnpack(x.Ones(Float32, 2, 3, 4), x.Ones(Int32, 3)) }},
		"pivots":                   {"", func(x *Exec) { x.LUUnpack(x.Ones(Float32, 2, 3, 4), x.Ones(Int32, 2, 3)) }},
		"pivots that are not read": {"", func(x *Exec) { x.Call("aten::lu_unpack", x.Ones(Float32, 3, 3), x.Ones(Int32, 0), true, false) }},
		"no bag":                   {"there is no offset", func(x *Exec) { bag(x, []int64{4}, []int64{0}, 0) }},
		"bags of two dimensions":   {"indices and offsets must be vectors", func(x *Exec) { bag(x, []int64{1, 3}, []int64{2, 0}, 0) }},
		"mode 3":                   {"there is no mode 3", func(x *Exec) { bag(x, []int64{4}, []int64{1}, 3) }},
		"mode -1":                  {"there is no mode -1", func(x *Exec) { bag(x, []int64{4}, []int64{1}, -1) }},
		"no indices and no bag":    {"", func(x *Exec) { bag(x, []int64{0}, []int64{0}, 1) }},
		"interpolation mode": {"there is no interpolation mode 3", func(x *Exec) {
			x.GridSample(x.Ones(Float32, 1, 1, 2, 2), x.Ones(Float32, 1, 1, 1, 2), GridSampleOptions{Interpolation: 3})
		}},
		"padding mode": {"there is no padding mode -1", func(x *Exec) {
			x.GridSample(x.Ones(Float32, 1, 1, 2, 2), x.Ones(Float32, 1, 1, 1, 2), GridSampleOptions{Outside: -1})
		}},
		"last modes": {"", func(x *Exec) {
			x.GridSample(x.Ones(Float32, 1, 1, 2, 2), x.Ones(Float32, 1, 1, 1, 2), GridSampleOptions{Interpolation: 2, Outside: 2})
		}},
		"LCM of the smallest int64": {"-9223372036854775808, the smallest int64, is in a least common multiple", func(x *Exec) { x.LCM(least(x, Int64), FromSlice(x, []int64{5})) }},
		"LCM of the smallest int32": {"-2147483648, the smallest int32, is in a least", func(x *Exec) { x.LCM(least(x, Int32), FromSlice(x, []int32{5})) }},
		"LCM in place":              {"in a least common multiple", func(x *Exec) { x.Call("aten::lcm_", least(x, Int64), FromSlice(x, []int64{5})) }},
		"LCM by name":               {"in a least common multiple", func(x *Exec) { x.Call("aten::lcm.out", least(x, Int64), 5, x.Empty(Int64, 0)) }},
		"LCM with 0":                {"", func(x *Exec) { x.LCM(FromSlice(x, []int64{math.MinInt64, 3}), FromSlice(x, []int64{0, 5})) }},
		"LCM with 0 elsewhere":      {"in a least common multiple", func(x *Exec) { x.LCM(FromSlice(x, []int64{math.MinInt64, 3}), FromSlice(x, []int64{5, 0})) }},
		"LCM in a wider dtype":      {"", func(x *Exec) { x.LCM(least(x, Int32), FromSlice(x, []int64{5})) }},
		"LCM of int16": {"", func(x *Exec) {
			x.LCM(x.To(FromSlice(x, []int64{-32768}), Int16), x.To(FromSlice(x, []int64{5}), Int16))
		}},
		"GCD of the smallest":       {"", func(x *Exec) { x.GCD(least(x, Int64), FromSlice(x, []int64{-1})) }},
		"DivTrunc by -1":            {"-9223372036854775808, the smallest int64, is divided by -1", func(x *Exec) { x.DivTrunc(least(x, Int64), FromSlice(x, []int64{-1})) }},
		"DivTrunc by the scalar -1": {"divided by -1", func(x *Exec) { x.Call("aten::div.Scalar_mode", least(x, Int64), -1, "trunc") }},
		"DivTrunc without a mode":   {"", func(x *Exec) { x.Call("aten::div.Tensor_mode", least(x, Int64), -1, nil) }},
		"divide by name": {"divided by -1", func(x *Exec) {
			x.Call("aten::divide_.Tensor_mode", least(x, Int32), FromSlice(x, []int32{-1}), "floor")
		}},
		"FloorDivide by -1":     {"divided by -1", func(x *Exec) { x.Call("aten::floor_divide", least(x, Int64), FromSlice(x, []int64{-1})) }},
		"Remainder by -1":       {"divided by -1", func(x *Exec) { x.Remainder(least(x, Int64), FromSlice(x, []int64{-1})) }},
		"Remainder of a number": {"divided by -1", func(x *Exec) { x.Call("aten::remainder.Scalar_Tensor", math.MinInt64, FromSlice(x, []int64{-1})) }},
		"Fmod by -1":            {"divided by -1", func(x *Exec) { x.Call("aten::fmod_.Scalar", least(x, Int64), -1) }},
		"Remainder by -2":       {"", func(x *Exec) { x.Remainder(least(x, Int64), FromSlice(x, []int64{-2})) }},
		"Remainder by -1.0":     {"", func(x *Exec) { x.Call("aten::remainder.Scalar", least(x, Int64), -1.0) }},
		"Remainder of a view":   {"divided by -1", func(x *Exec) { x.Remainder(x.Expand(least(x, Int64), 3), x.Expand(FromSlice(x, []int64{-1}), 3)) }},
		"EigVals of NaN":        {"the matrices have NaN or Inf", func(x *Exec) { linalg.EigVals(x, x.Full(Float32, math.NaN(), 3, 3)) }},
		"EigVals of Inf":        {"the matrices have NaN or Inf", func(x *Exec) { linalg.EigVals(x, x.Full(Complex64, math.Inf(-1), 3, 3)) }},
		"EigVals of one of a batch": {"the matrices have NaN or Inf", func(x *Exec) {
			linalg.EigVals(x, x.Cat([]*Tensor{x.Ones(Complex128, 1, 3, 3), x.Full(Complex128, math.NaN(), 1, 3, 3)}, 0))
		}},
		"EigVals by name": {"the matrices have NaN or Inf", func(x *Exec) {
			x.Call("aten::linalg_eigvals.out", x.Full(Float64, math.NaN(), 3, 3), x.Empty(Complex128, 3))
		}},
		"EigVals, no error": {"", func(x *Exec) { linalg.EigVals(x, x.Eye(Float32, 3)) }},
		"EigVals of none":   {"", func(x *Exec) { linalg.EigVals(x, x.Empty(Float32, 0, 3, 3)) }},
		"MatrixPower":       {"the exponent is the smallest int64", func(x *Exec) { linalg.MatrixPower(x, x.Eye(Float32, 2), math.MinInt64) }},
		"LDL pivot above":   {"pivot 2 is 4; pivots are from 1 to 3", func(x *Exec) { ldl(x, FromSlice(x, []int32{1, 2, 4})) }},
		"LDL pivot 0":       {"pivot 0 is 0;", func(x *Exec) { ldl(x, x.To(FromSlice(x, []int32{0, 2, 3}), Int16)) }},
		"LDL half a pair":   {"are no pairs", func(x *Exec) { ldl(x, FromSlice(x, []int32{1, 2, -3})) }},
		"LDL pair":          {"", func(x *Exec) { ldl(x, FromSlice(x, []int32{-1, -1, 3})) }},
		"order 1e300":       {"an order is above 16777216", func(x *Exec) { special.LegendrePolynomialP(x, x.Ones(Float64, 1), x.Full(Float64, 1e300)) }},
		"order as a number": {"an order is above 16777216", func(x *Exec) { special.HermitePolynomialHScalar(x, x.Ones(Float64, 1), int64(1)<<40) }},
		"order 3":           {"", func(x *Exec) { special.HermitePolynomialHScalar(x, x.Ones(Float64, 1), 3) }},
		"no heads of values": {"value has no heads", func(x *Exec) {
			x.ScaledDotProductAttention(x.Ones(Float32, 1, 2, 3, 4), x.Ones(Float32, 1, 1, 3, 4), x.Ones(Float32, 0, 3, 3), ScaledDotProductAttentionOptions{GroupedQuery: true})
		}},
		"step of other shapes": {"tensor 0 of list 1 has the shape [0 0]", func(x *Exec) {
			one := func(t *Tensor) []*Tensor { return []*Tensor{t} }
			x.FusedSGDInPlace(one(x.Ones(Float32, 2, 3)), one(x.Empty(Float32, 0, 0)), nil, 0.1, FusedSGDOptions{})
		}},
		"step with too few gradients": {"list 1 has 1 tensors, and there are 2 parameters", func(x *Exec) {
			x.FusedSGDInPlace([]*Tensor{x.Ones(Float32, 2), x.Ones(Float32, 2)}, []*Tensor{x.Ones(Float32, 2)}, nil, 0.1, FusedSGDOptions{})
		}},
		"label of int16": {"label 0 of sample 0 is -32768;", func(x *Exec) {
			ctc(x, x.To(FromSlice(x, []int64{-32768, 1, 1, 1}, 2, 2), Int16), 2, 2)
		}},
		"label 3 of 3 classes": {"label 0 of sample 1 is 3; labels are from 0 to 2", func(x *Exec) { ctc(x, FromSlice(x, []int64{1, 2, 3, 1}, 2, 2), 2, 2) }},
		"label far away":       {"label 1 of sample 0 is 1099511627776;", func(x *Exec) { ctc(x, FromSlice(x, []int64{1, 1 << 40, 2}), 2, 1) }},
		"label -1":             {"label 1 of sample 1 is -1;", func(x *Exec) { ctc(x, FromSlice(x, []int32{1, 2, 1, -1}, 2, 2), 2, 2) }},
		"label in a view": {"label 0 of sample 1 is 7;", func(x *Exec) {
			ctc(x, x.Transpose(FromSlice(x, []int64{1, 7, 2, 1}, 2, 2), 0, 1), 2, 2)
		}},
		"label with lengths in a tensor": {"label 0 of sample 1 is 7;", func(x *Exec) {
			x.Call("aten::ctc_loss.Tensor", x.LogSoftmax(x.Randn(Float32, 5, 2, 3), 2), FromSlice(x, []int64{1, 2, 7}), FromSlice(x, []int64{5, 5}), FromSlice(x, []int64{2, 1}))
		}},
		"label in the padding":           {"", func(x *Exec) { ctc(x, FromSlice(x, []int64{1, -1, 2, 99}, 2, 2), 1, 1) }},
		"length of labels -1":            {"at least 0", func(x *Exec) { ctc(x, FromSlice(x, []int64{1, 1, 2, 1}, 2, 2), 2, -1) }},
		"length of labels far too large": {"argument #2 'targets'", func(x *Exec) { ctc(x, FromSlice(x, []int64{1, 1, 2, 1}, 2, 2), 2, 1<<40) }},
		"chunks":                         {"greater than 0", func(x *Exec) { x.Chunk(x.Ones(Float32, 4), 0, 0) }},
		"split":                          {"split_size can only be 0 if", func(x *Exec) { x.Split(x.Ones(Float32, 4), 0, 0) }},
		"stride of a window": {"stride should not be zero", func(x *Exec) {
			x.MaxPool2d(x.Ones(Float32, 1, 1, 4, 4), []int64{2, 2}, MaxPool2dOptions{Stride: []int64{0, 0}})
		}},
		"step of a window": {"step is 0 but must be > 0", func(x *Exec) { x.UnfoldDim(x.Ones(Float32, 4), 0, 2, 0) }},
		"groups":           {"num groups to be greater than 0", func(x *Exec) { x.GroupNorm(x.Ones(Float32, 1, 4, 4), 0, nil, nil, GroupNormOptions{}) }},
		"factor":           {"upscale_factor", func(x *Exec) { x.PixelShuffle(x.Ones(Float32, 1, 4, 4, 4), 0) }},
	} {
		err := torchtest.TryDo(t, CPU, test.run)
		if test.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if test.want != "" {
			wantError(t, err, ErrInvalidArgument, test.want, "guard_test.go")
		}
	}
}
