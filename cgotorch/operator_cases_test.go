package cgotorch_test

import . "github.com/streamtorch/streamtorch/cgotorch"

// inputs holds the input tensors of testdata/operators.json. Each case gets new tensors.
type inputs map[string]*Tensor

// lists returns the lists of tensors for the operators that work on lists.
func (in inputs) lists(x *Exec) (ts, us, vs []*Tensor) {
	return []*Tensor{in["p"], x.Abs(in["v"])}, []*Tensor{in["q"], x.AddScalar(x.Abs(in["w"]), 0.5)}, []*Tensor{in["a"], in["v"]}
}

// An operatorCase runs an operator and returns its results. An in-place operator returns its
// result and the changed argument.
type operatorCase func(x *Exec, in inputs) []*Tensor

func unary(op func(*Exec, *Tensor) *Tensor, a string) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{op(x, in[a])} }
}

func binary(op func(*Exec, *Tensor, *Tensor) *Tensor, a, b string) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{op(x, in[a], in[b])} }
}

func withScalar(op func(*Exec, *Tensor, Scalar) *Tensor, a string, value Scalar) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{op(x, in[a], value)} }
}

func reduced[D any](op func(*Exec, *Tensor, D, ReduceOptions) *Tensor, a string, dim D, keepDim bool) operatorCase {
	return func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{op(x, in[a], dim, ReduceOptions{KeepDim: keepDim})}
	}
}

func summed[D any](op func(*Exec, *Tensor, D, SumOptions) *Tensor, a string, dim D, options SumOptions) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{op(x, in[a], dim, options)} }
}

// tensor returns a case with one result.
func tensor(run func(x *Exec, in inputs) *Tensor) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{run(x, in)} }
}

// pair returns a case with two results.
func pair(run func(x *Exec, in inputs) (*Tensor, *Tensor)) operatorCase {
	return func(x *Exec, in inputs) []*Tensor {
		a, b := run(x, in)
		return []*Tensor{a, b}
	}
}

// inPlace returns a case that changes the input with the name a.
func inPlace(a string, run func(x *Exec, a *Tensor, in inputs) *Tensor) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{run(x, in[a], in), in[a]} }
}

// out returns a case that writes to a given tensor.
func out(run func(x *Exec, in inputs, out *Tensor) *Tensor) operatorCase {
	return func(x *Exec, in inputs) []*Tensor {
		out := x.Empty(Float32, 0)
		return []*Tensor{run(x, in, out), out}
	}
}

// truth returns a case whose operator returns a Go bool.
func truth(run func(x *Exec, in inputs) bool) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{x.Full(Bool, run(x, in))} }
}

func foreach(run func(x *Exec, ts, us, vs []*Tensor) []*Tensor) operatorCase {
	return func(x *Exec, in inputs) []*Tensor {
		ts, us, vs := in.lists(x)
		return run(x, ts, us, vs)
	}
}

// foreachInPlace returns a case that changes the tensors in ts.
func foreachInPlace(run func(x *Exec, ts, us, vs []*Tensor)) operatorCase {
	return foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor {
		run(x, ts, us, vs)
		return ts
	})
}

// fused returns a case that runs one step of an optimizer on two parameters.
func fused(run func(x *Exec, params, grads, first, second, steps []*Tensor), step float64) operatorCase {
	return func(x *Exec, in inputs) []*Tensor {
		params, grads := []*Tensor{in["a"], in["v"]}, []*Tensor{in["b"], in["w"]}
		first, second := []*Tensor{in["p"], x.Abs(in["v"])}, []*Tensor{in["q"], x.Abs(in["w"])}
		run(x, params, grads, first, second, []*Tensor{x.Full(Float32, step), x.Full(Float32, step)})
		return append(append(params, first...), second...)
	}
}

var operatorCases = map[string]operatorCase{
	"Empty":        tensor(func(x *Exec, in inputs) *Tensor { return x.ZeroInPlace(x.Empty(Int32, 2, 3)) }),
	"Zeros":        tensor(func(x *Exec, in inputs) *Tensor { return x.Zeros(Float32, 2, 3) }),
	"Zeros/scalar": tensor(func(x *Exec, in inputs) *Tensor { return x.Zeros(Bool) }),
	"Ones":         tensor(func(x *Exec, in inputs) *Tensor { return x.Ones(Float64, 2) }),
	"Full":         tensor(func(x *Exec, in inputs) *Tensor { return x.Full(Float32, 2.5, 2, 2) }),
	"Full/int":     tensor(func(x *Exec, in inputs) *Tensor { return x.Full(Uint8, 7, 2) }),
	"Arange":       tensor(func(x *Exec, in inputs) *Tensor { return x.Arange(Float32, 1, 2, 0.25) }),
	"Arange/step":  tensor(func(x *Exec, in inputs) *Tensor { return x.Arange(Int64, 0, 5, nil) }),
	"Linspace":     tensor(func(x *Exec, in inputs) *Tensor { return x.Linspace(Float32, -1, 1, 5) }),
	"Eye":          tensor(func(x *Exec, in inputs) *Tensor { return x.Eye(Float32, 3) }),
	"Rand":         tensor(func(x *Exec, in inputs) *Tensor { return x.Rand(Float32, 2, 3) }),
	"Randn":        tensor(func(x *Exec, in inputs) *Tensor { return x.Randn(Float32, 2, 3) }),
	"RandInt":      tensor(func(x *Exec, in inputs) *Tensor { return x.RandInt(Int64, 3, 9, 2, 4) }),
	"RandPerm":     tensor(func(x *Exec, in inputs) *Tensor { return x.RandPerm(7) }),
	"EmptyLike":    tensor(func(x *Exec, in inputs) *Tensor { return x.ZeroInPlace(x.EmptyLike(in["a"])) }),
	"ZerosLike":    unary((*Exec).ZerosLike, "n"),
	"OnesLike":     unary((*Exec).OnesLike, "a"),
	"FullLike":     withScalar((*Exec).FullLike, "a", -1.5),
	"RandLike":     unary((*Exec).RandLike, "a"),
	"RandnLike":    unary((*Exec).RandnLike, "a"),

	"FillInPlace":         inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.FillInPlace(a, 3) }),
	"ZeroInPlace":         inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.ZeroInPlace(a) }),
	"CopyInPlace":         inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.CopyInPlace(a, x.Select(in["n"], 0, 0)) }),
	"UniformInPlace":      inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.UniformInPlace(a, 2, 4) }),
	"NormalInPlace":       inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.NormalInPlace(a, 5, 0.5) }),
	"BernoulliInPlace":    inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.BernoulliInPlace(a, 0.25) }),
	"Bernoulli":           unary((*Exec).Bernoulli, "u"),
	"Clone":               unary((*Exec).Clone, "a"),
	"CloneAs":             tensor(func(x *Exec, in inputs) *Tensor { return x.CloneAs(in["img"], ChannelsLast) }),
	"Contiguous":          tensor(func(x *Exec, in inputs) *Tensor { return x.Contiguous(x.Transpose(in["a"], 0, 1), Contiguous) }),
	"Contiguous/channels": tensor(func(x *Exec, in inputs) *Tensor { return x.Contiguous(in["img"], ChannelsLast) }),
	"Detach":              unary((*Exec).Detach, "a"),
	"To":                  tensor(func(x *Exec, in inputs) *Tensor { return x.To(in["a"], Int64) }),
	"To/half":             tensor(func(x *Exec, in inputs) *Tensor { return x.To(in["a"], BFloat16) }),
	"ToFormat":            tensor(func(x *Exec, in inputs) *Tensor { return x.ToFormat(in["img"], Float64, ChannelsLast) }),

	"Add":              binary((*Exec).Add, "a", "b"),
	"Add/broadcast":    binary((*Exec).Add, "a", "v"),
	"Add/promote":      binary((*Exec).Add, "n", "a"),
	"AddScalar":        withScalar((*Exec).AddScalar, "a", 1.5),
	"AddScalar/int":    withScalar((*Exec).AddScalar, "n", 2),
	"AddScalar/float":  withScalar((*Exec).AddScalar, "n", 0.5),
	"AddInPlace":       inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.AddInPlace(a, in["b"]) }),
	"AddScalarInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.AddScalarInPlace(a, 2) }),
	"AddOut":           out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.AddOut(in["a"], in["b"], out) }),
	"AddScaled":        tensor(func(x *Exec, in inputs) *Tensor { return x.AddScaled(in["a"], in["b"], -2.5) }),
	"AddScaledInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.AddScaledInPlace(a, in["b"], 0.5) }),
	"Sub":              binary((*Exec).Sub, "a", "b"),
	"SubScalar":        withScalar((*Exec).SubScalar, "a", 0.5),
	"SubInPlace":       inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.SubInPlace(a, in["b"]) }),
	"SubOut":           out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.SubOut(in["a"], in["b"], out) }),
	"ScalarSub":        withScalar((*Exec).ScalarSub, "a", 1),
	"Mul":              binary((*Exec).Mul, "a", "b"),
	"MulScalar":        withScalar((*Exec).MulScalar, "a", 3),
	"MulInPlace":       inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.MulInPlace(a, in["b"]) }),
	"MulScalarInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.MulScalarInPlace(a, -1) }),
	"MulOut":           out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.MulOut(in["a"], in["b"], out) }),
	"Div":              binary((*Exec).Div, "n", "o"),
	"DivScalar":        withScalar((*Exec).DivScalar, "a", int64(4)),
	"DivInPlace":       inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.DivInPlace(a, in["p"]) }),
	"DivScalarInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.DivScalarInPlace(a, 8.0) }),
	"DivOut":           out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.DivOut(in["a"], in["p"], out) }),
	"DivFloor":         binary((*Exec).DivFloor, "n", "o"),
	"DivTrunc":         binary((*Exec).DivTrunc, "n", "o"),
	"Remainder":        binary((*Exec).Remainder, "n", "o"),
	"RemainderScalar":  withScalar((*Exec).RemainderScalar, "n", -3),
	"Pow":              binary((*Exec).Pow, "p", "a"),
	"PowScalar":        withScalar((*Exec).PowScalar, "a", 2),
	"ScalarPow":        tensor(func(x *Exec, in inputs) *Tensor { return x.ScalarPow(2.0, in["a"]) }),
	"Maximum":          binary((*Exec).Maximum, "a", "b"),
	"Minimum":          binary((*Exec).Minimum, "a", "b"),
	"Lerp":             tensor(func(x *Exec, in inputs) *Tensor { return x.Lerp(in["a"], in["b"], 0.25) }),
	"LerpTensor":       tensor(func(x *Exec, in inputs) *Tensor { return x.LerpTensor(in["a"], in["b"], in["u"]) }),
	"LerpInPlace":      inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.LerpInPlace(a, in["b"], 0.75) }),
	"AddCMul":          tensor(func(x *Exec, in inputs) *Tensor { return x.AddCMul(in["a"], in["b"], in["p"], nil) }),
	"AddCMul/value":    tensor(func(x *Exec, in inputs) *Tensor { return x.AddCMul(in["a"], in["b"], in["p"], -0.5) }),
	"AddCMulInPlace":   inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.AddCMulInPlace(a, in["b"], in["p"], 2) }),
	"AddCMulOut":       out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.AddCMulOut(in["a"], in["b"], in["p"], 2, out) }),
	"AddCDiv":          tensor(func(x *Exec, in inputs) *Tensor { return x.AddCDiv(in["a"], in["b"], in["p"], nil) }),
	"AddCDivInPlace":   inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.AddCDivInPlace(a, in["b"], in["p"], -1) }),

	"Abs":          unary((*Exec).Abs, "a"),
	"Neg":          unary((*Exec).Neg, "a"),
	"NegInPlace":   inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.NegInPlace(a) }),
	"Sign":         unary((*Exec).Sign, "n"),
	"Sqrt":         unary((*Exec).Sqrt, "p"),
	"Rsqrt":        unary((*Exec).Rsqrt, "q"),
	"Square":       unary((*Exec).Square, "a"),
	"Reciprocal":   unary((*Exec).Reciprocal, "p"),
	"Exp":          unary((*Exec).Exp, "a"),
	"Expm1":        unary((*Exec).Expm1, "a"),
	"Log":          unary((*Exec).Log, "u"),
	"Log1p":        unary((*Exec).Log1p, "u"),
	"Log2":         unary((*Exec).Log2, "q"),
	"Sin":          unary((*Exec).Sin, "a"),
	"Cos":          unary((*Exec).Cos, "a"),
	"Erf":          unary((*Exec).Erf, "a"),
	"Floor":        unary((*Exec).Floor, "a"),
	"Ceil":         unary((*Exec).Ceil, "a"),
	"Round":        unary((*Exec).Round, "s"),
	"Trunc":        unary((*Exec).Trunc, "a"),
	"Clamp":        tensor(func(x *Exec, in inputs) *Tensor { return x.Clamp(in["a"], -0.5, 1) }),
	"Clamp/max":    tensor(func(x *Exec, in inputs) *Tensor { return x.Clamp(in["a"], nil, 0) }),
	"ClampInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.ClampInPlace(a, 0.25, nil) }),
	"NaNToNum":     tensor(func(x *Exec, in inputs) *Tensor { return x.NaNToNum(in["s"], NaNToNumOptions{}) }),
	"NaNToNum/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.NaNToNum(in["s"], NaNToNumOptions{NaN: Set(-1.0), PositiveInfinity: Set(2.0), NegativeInfinity: Set(-3.0)})
	}),

	"Eq":         binary((*Exec).Eq, "n", "o"),
	"EqScalar":   withScalar((*Exec).EqScalar, "n", 3),
	"Ne":         binary((*Exec).Ne, "n", "o"),
	"NeScalar":   withScalar((*Exec).NeScalar, "n", 3),
	"Lt":         binary((*Exec).Lt, "a", "b"),
	"LtScalar":   withScalar((*Exec).LtScalar, "a", 0.5),
	"Le":         binary((*Exec).Le, "n", "o"),
	"LeScalar":   withScalar((*Exec).LeScalar, "n", 2),
	"Gt":         binary((*Exec).Gt, "a", "b"),
	"GtScalar":   withScalar((*Exec).GtScalar, "a", 0.5),
	"Ge":         binary((*Exec).Ge, "n", "o"),
	"GeScalar":   withScalar((*Exec).GeScalar, "n", 2),
	"LogicalAnd": binary((*Exec).LogicalAnd, "c", "d"),
	"LogicalOr":  binary((*Exec).LogicalOr, "c", "d"),
	"LogicalXor": binary((*Exec).LogicalXor, "c", "d"),
	"LogicalNot": unary((*Exec).LogicalNot, "n"),
	"IsNaN":      unary((*Exec).IsNaN, "s"),
	"IsInf":      unary((*Exec).IsInf, "s"),
	"IsFinite":   unary((*Exec).IsFinite, "s"),
	"IsClose":    tensor(func(x *Exec, in inputs) *Tensor { return x.IsClose(in["a"], in["b"], ToleranceOptions{}) }),
	"IsClose/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.IsClose(in["s"], x.AddScalar(in["s"], 0.25), ToleranceOptions{Absolute: Set(0.3), Relative: Set(0.0), EqualNaN: true})
	}),
	"AllClose": truth(func(x *Exec, in inputs) bool {
		return x.AllClose(in["a"], x.AddScalar(in["a"], 1e-9), ToleranceOptions{})
	}),
	"AllClose/no": truth(func(x *Exec, in inputs) bool { return x.AllClose(in["a"], in["b"], ToleranceOptions{}) }),
	"AllClose/options": truth(func(x *Exec, in inputs) bool {
		return x.AllClose(in["a"], x.AddScalar(in["a"], 0.5), ToleranceOptions{Absolute: Set(1.0)})
	}),
	"Equal":             truth(func(x *Exec, in inputs) bool { return x.Equal(in["a"], in["a"]) }),
	"Equal/no":          truth(func(x *Exec, in inputs) bool { return x.Equal(in["a"], in["b"]) }),
	"Where":             tensor(func(x *Exec, in inputs) *Tensor { return x.Where(in["c"], in["a"], in["b"]) }),
	"WhereScalar":       tensor(func(x *Exec, in inputs) *Tensor { return x.WhereScalar(in["c"], in["a"], 9.0) }),
	"WhereOut":          out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.WhereOut(in["c"], in["a"], in["b"], out) }),
	"MaskedFill":        tensor(func(x *Exec, in inputs) *Tensor { return x.MaskedFill(in["a"], in["c"], -1) }),
	"MaskedFillInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.MaskedFillInPlace(a, in["c"], 4.5) }),

	"Sum":         unary((*Exec).Sum, "a"),
	"Sum/int":     unary((*Exec).Sum, "c"),
	"SumDim":      summed((*Exec).SumDim, "x3", []int64{0, 2}, SumOptions{}),
	"SumDim/all":  summed((*Exec).SumDim, "a", nil, SumOptions{DType: Set(Float64)}),
	"SumDim/keep": summed((*Exec).SumDim, "a", []int64{-1}, SumOptions{KeepDim: true}),
	"Mean":        unary((*Exec).Mean, "a"),
	"MeanDim":     summed((*Exec).MeanDim, "x3", []int64{1}, SumOptions{KeepDim: true}),
	"MeanDim/all": summed((*Exec).MeanDim, "n", nil, SumOptions{DType: Set(Float32)}),
	"Prod":        unary((*Exec).Prod, "a"),
	"ProdDim":     summed((*Exec).ProdDim, "o", 1, SumOptions{}),
	"Var":         tensor(func(x *Exec, in inputs) *Tensor { return x.Var(in["x3"], []int64{1, 2}, VarianceOptions{}) }),
	"Var/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Var(in["a"], nil, VarianceOptions{Correction: 0, KeepDim: true})
	}),
	"Std":        tensor(func(x *Exec, in inputs) *Tensor { return x.Std(in["x3"], []int64{2}, VarianceOptions{}) }),
	"VectorNorm": tensor(func(x *Exec, in inputs) *Tensor { return x.VectorNorm(in["a"], nil, nil, SumOptions{}) }),
	"VectorNorm/dim": tensor(func(x *Exec, in inputs) *Tensor {
		return x.VectorNorm(in["a"], 1, []int64{0}, SumOptions{KeepDim: true})
	}),
	"Max":         unary((*Exec).Max, "a"),
	"MaxDim":      pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.MaxDim(in["a"], 1, ReduceOptions{}) }),
	"MaxDim/keep": pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.MaxDim(in["a"], 0, ReduceOptions{KeepDim: true}) }),
	"Min":         unary((*Exec).Min, "a"),
	"MinDim":      pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.MinDim(in["a"], -1, ReduceOptions{}) }),
	"AMax":        reduced((*Exec).AMax, "x3", []int64{0, 1}, false),
	"AMax/all":    reduced((*Exec).AMax, "a", nil, false),
	"AMin":        reduced((*Exec).AMin, "x3", []int64{2}, true),
	"ArgMax":      reduced((*Exec).ArgMax, "a", 1, false),
	"ArgMin":      reduced((*Exec).ArgMin, "a", 0, true),
	"Any":         unary((*Exec).Any, "c"),
	"AnyDim":      reduced((*Exec).AnyDim, "n", 1, false),
	"All":         unary((*Exec).All, "c"),
	"AllDim":      reduced((*Exec).AllDim, "n", 0, true),
	"LogSumExp":   reduced((*Exec).LogSumExp, "x3", []int64{1, 2}, false),
	"CumSum":      tensor(func(x *Exec, in inputs) *Tensor { return x.CumSum(in["a"], 1) }),

	"Sort":            pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.Sort(in["a"], 1, SortOptions{}) }),
	"Sort/options":    pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.Sort(in["ties"], 1, SortOptions{true, true}) }),
	"ArgSort":         tensor(func(x *Exec, in inputs) *Tensor { return x.ArgSort(in["a"], 0, SortOptions{}) }),
	"ArgSort/options": tensor(func(x *Exec, in inputs) *Tensor { return x.ArgSort(in["ties"], 1, SortOptions{true, true}) }),
	"TopK":            pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.TopK(in["a"], 2, 1, TopKOptions{}) }),
	"TopK/options":    pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.TopK(in["a"], 1, 0, TopKOptions{true, true}) }),
	"NonZero":         unary((*Exec).NonZero, "c"),
	"MaskedSelect":    binary((*Exec).MaskedSelect, "a", "c"),

	"MatMul":        binary((*Exec).MatMul, "a", "g"),
	"MatMul/vector": tensor(func(x *Exec, in inputs) *Tensor { return x.MatMul(in["x3"], x.Select(in["g"], 0, 0)) }),
	"MM":            binary((*Exec).MM, "a", "g"),
	"BMM":           binary((*Exec).BMM, "x3", "y3"),
	"AddMM":         tensor(func(x *Exec, in inputs) *Tensor { return x.AddMM(in["b4"], in["a"], in["g"], AddMMOptions{}) }),
	"AddMM/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.AddMM(in["b4"], in["a"], in["g"], AddMMOptions{Beta: 0.5, Alpha: 2})
	}),
	"Linear":     tensor(func(x *Exec, in inputs) *Tensor { return x.Linear(in["a"], x.Transpose(in["g"], 0, 1), in["b4"]) }),
	"Linear/nil": tensor(func(x *Exec, in inputs) *Tensor { return x.Linear(in["a"], x.Transpose(in["g"], 0, 1), nil) }),
	"Dot":        binary((*Exec).Dot, "v", "w"),
	"Outer":      binary((*Exec).Outer, "v", "b4"),
	"Einsum":     tensor(func(x *Exec, in inputs) *Tensor { return x.Einsum("bij,bjk->bik", in["x3"], in["y3"]) }),

	"Conv1d": tensor(func(x *Exec, in inputs) *Tensor { return x.Conv1d(in["seq"], in["w1"], nil, Conv1dOptions{}) }),
	"Conv1d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Conv1d(in["seq"], in["w1"], in["b2"], Conv1dOptions{Stride: []int64{2}, Padding: []int64{1}, Dilation: []int64{2}})
	}),
	"Conv2d": tensor(func(x *Exec, in inputs) *Tensor { return x.Conv2d(in["img"], in["w2"], in["b4"], Conv2dOptions{}) }),
	"Conv2d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Conv2d(in["img"], in["w2g"], in["b4"],
			Conv2dOptions{Stride: []int64{2, 1}, Padding: []int64{1, 0}, Dilation: []int64{1, 2}, Groups: 2})
	}),
	"Conv3d": tensor(func(x *Exec, in inputs) *Tensor { return x.Conv3d(in["vol"], in["w3"], nil, Conv3dOptions{}) }),
	"Conv3d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Conv3d(in["vol"], in["w3"], in["b2"], Conv3dOptions{Padding: []int64{1, 0, 0}, Stride: []int64{2, 1, 1}})
	}),
	"ConvTranspose2d": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ConvTranspose2d(in["img"], in["wt"], nil, ConvTranspose2dOptions{})
	}),
	"ConvTranspose2d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ConvTranspose2d(in["img"], in["wt"], in["b4"], ConvTranspose2dOptions{Stride: []int64{2, 2},
			Padding: []int64{1, 1}, OutputPadding: []int64{1, 1}, Groups: 2, Dilation: []int64{1, 2}})
	}),

	"MaxPool2d": tensor(func(x *Exec, in inputs) *Tensor { return x.MaxPool2d(in["img"], []int64{2, 2}, MaxPool2dOptions{}) }),
	"MaxPool2d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.MaxPool2d(in["img"], []int64{3, 2},
			MaxPool2dOptions{Stride: []int64{2, 2}, Padding: []int64{1, 0}, Dilation: []int64{1, 2}, CeilMode: true})
	}),
	"MaxPool2dWithIndices": pair(func(x *Exec, in inputs) (*Tensor, *Tensor) {
		return x.MaxPool2dWithIndices(in["img"], []int64{2, 2}, MaxPool2dOptions{})
	}),
	"AvgPool2d": tensor(func(x *Exec, in inputs) *Tensor { return x.AvgPool2d(in["img"], []int64{2, 2}, AvgPool2dOptions{}) }),
	"AvgPool2d/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.AvgPool2d(in["img"], []int64{3, 3},
			AvgPool2dOptions{Stride: []int64{2, 2}, Padding: []int64{1, 1}, CeilMode: true, ExcludePadding: true})
	}),
	"AvgPool2d/divisor": tensor(func(x *Exec, in inputs) *Tensor {
		return x.AvgPool2d(in["img"], []int64{3, 3}, AvgPool2dOptions{Padding: []int64{1, 1}, Divisor: 2})
	}),
	"AdaptiveAvgPool2d":          tensor(func(x *Exec, in inputs) *Tensor { return x.AdaptiveAvgPool2d(in["img"], []int64{2, 3}) }),
	"AdaptiveMaxPool2d":          pair(func(x *Exec, in inputs) (*Tensor, *Tensor) { return x.AdaptiveMaxPool2d(in["img"], []int64{2, 2}) }),
	"UpsampleNearest2d":          tensor(func(x *Exec, in inputs) *Tensor { return x.UpsampleNearest2d(in["img"], []int64{7, 3}) }),
	"UpsampleBilinear2d":         tensor(func(x *Exec, in inputs) *Tensor { return x.UpsampleBilinear2d(in["img"], []int64{3, 8}, false) }),
	"UpsampleBilinear2d/corners": tensor(func(x *Exec, in inputs) *Tensor { return x.UpsampleBilinear2d(in["img"], []int64{3, 8}, true) }),

	"BatchNorm": func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{x.BatchNorm(in["img"], in["p4"], in["b4"], in["mean4"], in["var4"], BatchNormOptions{}), in["mean4"], in["var4"]}
	},
	"BatchNorm/training": func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{x.BatchNorm(in["img"], in["p4"], in["b4"], in["mean4"], in["var4"], BatchNormOptions{Training: true}),
			in["mean4"], in["var4"]}
	},
	"BatchNorm/options": func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{x.BatchNorm(in["img"], nil, nil, in["mean4"], in["var4"],
			BatchNormOptions{Training: true, Momentum: Set(0.5), Eps: Set(0.01)}), in["mean4"], in["var4"]}
	},
	"InstanceNorm": func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{x.InstanceNorm(in["img"], in["p4"], in["b4"], in["mean4"], in["var4"], InstanceNormOptions{}), in["mean4"]}
	},
	"InstanceNorm/options": func(x *Exec, in inputs) []*Tensor {
		return []*Tensor{x.InstanceNorm(in["img"], nil, nil, in["mean4"], in["var4"],
			InstanceNormOptions{UseRunningStatistics: true, Eps: Set(0.5)}), in["mean4"]}
	},
	"LayerNorm": tensor(func(x *Exec, in inputs) *Tensor {
		return x.LayerNorm(in["a"], []int64{3}, in["v"], in["w"], LayerNormOptions{})
	}),
	"LayerNorm/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.LayerNorm(in["x3"], []int64{3, 4}, nil, nil, LayerNormOptions{Eps: Set(0.5)})
	}),
	"GroupNorm": tensor(func(x *Exec, in inputs) *Tensor {
		return x.GroupNorm(in["img"], 2, in["p4"], in["b4"], GroupNormOptions{})
	}),
	"GroupNorm/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.GroupNorm(in["img"], 4, nil, nil, GroupNormOptions{Eps: Set(0.5)})
	}),

	"ReLU":             unary((*Exec).ReLU, "a"),
	"ReLUInPlace":      inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.ReLUInPlace(a) }),
	"ReLU6":            tensor(func(x *Exec, in inputs) *Tensor { return x.ReLU6(x.To(in["n"], Float32)) }),
	"ReLU6InPlace":     inPlace("emb", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.ReLU6InPlace(x.MulScalarInPlace(a, 5)) }),
	"LeakyReLU":        withScalar((*Exec).LeakyReLU, "a", nil),
	"LeakyReLU/slope":  withScalar((*Exec).LeakyReLU, "a", 0.2),
	"ELU":              withScalar((*Exec).ELU, "a", nil),
	"ELU/alpha":        withScalar((*Exec).ELU, "a", 0.5),
	"GELU":             unary((*Exec).GELU, "a"),
	"GELUTanh":         unary((*Exec).GELUTanh, "a"),
	"SiLU":             unary((*Exec).SiLU, "a"),
	"HardSwish":        unary((*Exec).HardSwish, "a"),
	"SiLUInPlace":      inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.SiLUInPlace(a) }),
	"HardSwishInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.HardSwishInPlace(a) }),
	"HardSigmoid":      unary((*Exec).HardSigmoid, "a"),
	"HardTanh":         tensor(func(x *Exec, in inputs) *Tensor { return x.HardTanh(in["a"], nil, nil) }),
	"HardTanh/bounds":  tensor(func(x *Exec, in inputs) *Tensor { return x.HardTanh(in["a"], -0.5, 0.25) }),
	"Sigmoid":          unary((*Exec).Sigmoid, "a"),
	"LogSigmoid":       unary((*Exec).LogSigmoid, "a"),
	"Tanh":             unary((*Exec).Tanh, "a"),
	"Softplus":         tensor(func(x *Exec, in inputs) *Tensor { return x.Softplus(in["a"], SoftplusOptions{}) }),
	"Softplus/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Softplus(in["a"], SoftplusOptions{Beta: 2, Threshold: 1})
	}),
	"Softmax":      tensor(func(x *Exec, in inputs) *Tensor { return x.Softmax(in["a"], 1) }),
	"LogSoftmax":   tensor(func(x *Exec, in inputs) *Tensor { return x.LogSoftmax(in["a"], 0) }),
	"Dropout":      tensor(func(x *Exec, in inputs) *Tensor { return x.Dropout(in["img"], 0.5, true) }),
	"Dropout/eval": tensor(func(x *Exec, in inputs) *Tensor { return x.Dropout(in["a"], 0.5, false) }),

	"Embedding":         tensor(func(x *Exec, in inputs) *Tensor { return x.Embedding(in["emb"], in["tok"], EmbeddingOptions{}) }),
	"Embedding/padding": tensor(func(x *Exec, in inputs) *Tensor { return x.Embedding(in["emb"], in["tok"], EmbeddingOptions{Set(0)}) }),
	"OneHot":            tensor(func(x *Exec, in inputs) *Tensor { return x.OneHot(in["target"], 6) }),
	"OneHot/unknown":    tensor(func(x *Exec, in inputs) *Tensor { return x.OneHot(in["target"], -1) }),
	"ScaledDotProductAttention": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ScaledDotProductAttention(in["query"], in["key"], in["value"], ScaledDotProductAttentionOptions{})
	}),
	"ScaledDotProductAttention/causal": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ScaledDotProductAttention(in["query"], in["key"], in["value"],
			ScaledDotProductAttentionOptions{Causal: true, Scale: Set(0.25)})
	}),
	"ScaledDotProductAttention/mask": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ScaledDotProductAttention(in["query"], in["key"], in["value"], ScaledDotProductAttentionOptions{Mask: x.Eye(Bool, 3)})
	}),
	"ScaledDotProductAttention/grouped": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ScaledDotProductAttention(in["query"], in["key1"], in["value1"], ScaledDotProductAttentionOptions{GroupedQuery: true})
	}),

	"CrossEntropy": binary((*Exec).CrossEntropy, "logits", "target"),
	"CrossEntropyWith": tensor(func(x *Exec, in inputs) *Tensor {
		return x.CrossEntropyWith(in["logits"], in["target"], CrossEntropyOptions{})
	}),
	"CrossEntropyWith/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.CrossEntropyWith(in["logits"], in["target"],
			CrossEntropyOptions{Weight: in["p5"], Reduction: ReductionSum, IgnoreIndex: Set(0), LabelSmoothing: 0.1})
	}),
	"CrossEntropyWith/none": tensor(func(x *Exec, in inputs) *Tensor {
		return x.CrossEntropyWith(in["logits"], in["target"], CrossEntropyOptions{Reduction: ReductionNone})
	}),
	"NLLLoss": tensor(func(x *Exec, in inputs) *Tensor { return x.NLLLoss(in["logits"], in["target"], NLLLossOptions{}) }),
	"NLLLoss/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.NLLLoss(in["logits"], in["target"], NLLLossOptions{in["p5"], ReductionNone, Set(4)})
	}),
	"BinaryCrossEntropyWithLogits": tensor(func(x *Exec, in inputs) *Tensor {
		return x.BinaryCrossEntropyWithLogits(in["a"], in["u"], BinaryCrossEntropyWithLogitsOptions{})
	}),
	"BinaryCrossEntropyWithLogits/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.BinaryCrossEntropyWithLogits(in["a"], in["u"],
			BinaryCrossEntropyWithLogitsOptions{Weight: in["p"], PositiveWeight: in["q"], Reduction: ReductionSum})
	}),
	"MSELoss":      tensor(func(x *Exec, in inputs) *Tensor { return x.MSELoss(in["a"], in["b"], LossOptions{}) }),
	"MSELoss/none": tensor(func(x *Exec, in inputs) *Tensor { return x.MSELoss(in["a"], in["b"], LossOptions{ReductionNone}) }),
	"L1Loss":       tensor(func(x *Exec, in inputs) *Tensor { return x.L1Loss(in["a"], in["b"], LossOptions{ReductionSum}) }),
	"SmoothL1Loss": tensor(func(x *Exec, in inputs) *Tensor { return x.SmoothL1Loss(in["a"], in["b"], SmoothL1LossOptions{}) }),
	"SmoothL1Loss/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.SmoothL1Loss(in["a"], in["b"], SmoothL1LossOptions{Reduction: ReductionNone, Beta: Set(0.25)})
	}),
	"KLDiv":         tensor(func(x *Exec, in inputs) *Tensor { return x.KLDiv(in["a"], in["u"], KLDivOptions{}) }),
	"KLDiv/options": tensor(func(x *Exec, in inputs) *Tensor { return x.KLDiv(in["a"], in["b"], KLDivOptions{ReductionSum, true}) }),

	"View":             tensor(func(x *Exec, in inputs) *Tensor { return x.View(in["a"], 3, 2) }),
	"View/infer":       tensor(func(x *Exec, in inputs) *Tensor { return x.View(in["a"], -1) }),
	"Reshape":          tensor(func(x *Exec, in inputs) *Tensor { return x.Reshape(x.Transpose(in["a"], 0, 1), 2, -1) }),
	"Flatten":          tensor(func(x *Exec, in inputs) *Tensor { return x.Flatten(in["img"], 1, -1) }),
	"Permute":          tensor(func(x *Exec, in inputs) *Tensor { return x.Permute(in["x3"], 2, 0, 1) }),
	"Transpose":        tensor(func(x *Exec, in inputs) *Tensor { return x.Transpose(in["x3"], 0, -1) }),
	"MoveDim":          tensor(func(x *Exec, in inputs) *Tensor { return x.MoveDim(in["x3"], 0, 2) }),
	"Squeeze":          tensor(func(x *Exec, in inputs) *Tensor { return x.Squeeze(in["seq"], 0, 1) }),
	"Unsqueeze":        tensor(func(x *Exec, in inputs) *Tensor { return x.Unsqueeze(in["a"], 1) }),
	"Expand":           tensor(func(x *Exec, in inputs) *Tensor { return x.Expand(in["row"], 2, -1) }),
	"Repeat":           tensor(func(x *Exec, in inputs) *Tensor { return x.Repeat(in["a"], 2, 1, 2) }),
	"RepeatInterleave": tensor(func(x *Exec, in inputs) *Tensor { return x.RepeatInterleave(in["a"], 2, 1) }),
	"Cat":              tensor(func(x *Exec, in inputs) *Tensor { return x.Cat([]*Tensor{in["a"], in["b"], in["row"]}, 0) }),
	"CatOut":           out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.CatOut([]*Tensor{in["a"], in["b"]}, 1, out) }),
	"Stack":            tensor(func(x *Exec, in inputs) *Tensor { return x.Stack([]*Tensor{in["a"], in["b"]}, -1) }),
	"Split":            func(x *Exec, in inputs) []*Tensor { return x.Split(in["g"], 3, 1) },
	"SplitWithSizes":   func(x *Exec, in inputs) []*Tensor { return x.SplitWithSizes(in["g"], []int64{1, 0, 3}, 1) },
	"Chunk":            func(x *Exec, in inputs) []*Tensor { return x.Chunk(in["g"], 2, 0) },
	"Unbind":           func(x *Exec, in inputs) []*Tensor { return x.Unbind(in["a"], 1) },
	"Narrow":           tensor(func(x *Exec, in inputs) *Tensor { return x.Narrow(in["g"], 1, 1, 2) }),
	"Slice": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Slice(in["g"], 1, SliceOptions{Start: 1, End: Set(4), Step: 2})
	}),
	"Slice/end":     tensor(func(x *Exec, in inputs) *Tensor { return x.Slice(in["g"], 0, SliceOptions{Start: -2}) }),
	"Slice/all":     tensor(func(x *Exec, in inputs) *Tensor { return x.Slice(in["g"], 0, SliceOptions{}) }),
	"Select":        tensor(func(x *Exec, in inputs) *Tensor { return x.Select(in["g"], 1, -1) }),
	"Diagonal":      tensor(func(x *Exec, in inputs) *Tensor { return x.Diagonal(in["g"], 1, 0, 1) }),
	"Diagonal/dims": tensor(func(x *Exec, in inputs) *Tensor { return x.Diagonal(in["x3"], 0, 1, 2) }),
	"Triu":          tensor(func(x *Exec, in inputs) *Tensor { return x.Triu(in["g"], 1) }),
	"Tril":          tensor(func(x *Exec, in inputs) *Tensor { return x.Tril(in["g"], -1) }),
	"Flip":          tensor(func(x *Exec, in inputs) *Tensor { return x.Flip(in["x3"], 0, 2) }),
	"Roll":          tensor(func(x *Exec, in inputs) *Tensor { return x.Roll(in["g"], []int64{1, -1}, []int64{0, 1}) }),
	"Pad":           tensor(func(x *Exec, in inputs) *Tensor { return x.Pad(in["a"], []int64{1, 0, 0, 2}, PadOptions{}) }),
	"Pad/value":     tensor(func(x *Exec, in inputs) *Tensor { return x.Pad(in["a"], []int64{1, -1}, PadOptions{Value: 7}) }),
	"Pad/reflect": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Pad(in["img"], []int64{1, 2, 2, 1}, PadOptions{Mode: "reflect"})
	}),
	"Meshgrid":    func(x *Exec, in inputs) []*Tensor { return x.Meshgrid([]*Tensor{in["v"], in["b2"]}, "ij") },
	"Meshgrid/xy": func(x *Exec, in inputs) []*Tensor { return x.Meshgrid([]*Tensor{in["v"], in["b2"]}, "xy") },

	"IndexSelect":    tensor(func(x *Exec, in inputs) *Tensor { return x.IndexSelect(in["g"], 0, in["rows"]) }),
	"IndexSelectOut": out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.IndexSelectOut(in["g"], 1, in["rows"], out) }),
	"IndexAdd":       tensor(func(x *Exec, in inputs) *Tensor { return x.IndexAdd(in["emb"], 0, in["rows"], in["a"], nil) }),
	"IndexAdd/alpha": tensor(func(x *Exec, in inputs) *Tensor { return x.IndexAdd(in["emb"], 0, in["rows"], in["a"], -2) }),
	"Gather":         tensor(func(x *Exec, in inputs) *Tensor { return x.Gather(in["a"], 1, in["ix"]) }),
	"Scatter":        tensor(func(x *Exec, in inputs) *Tensor { return x.Scatter(in["p"], 1, x.Narrow(in["ix"], 1, 0, 1), in["b"]) }),
	"ScatterScalar":  tensor(func(x *Exec, in inputs) *Tensor { return x.ScatterScalar(in["p"], 1, x.Narrow(in["ix"], 1, 1, 2), 5) }),
	"ScatterAdd":     tensor(func(x *Exec, in inputs) *Tensor { return x.ScatterAdd(in["a"], 1, in["ix"], in["b"]) }),
	"Index": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Index(in["g"], []*Tensor{in["rows"], x.Narrow(in["target"], 0, 0, 2)})
	}),
	"Index/nil":  tensor(func(x *Exec, in inputs) *Tensor { return x.Index(in["g"], []*Tensor{nil, in["rows"]}) }),
	"Index/mask": tensor(func(x *Exec, in inputs) *Tensor { return x.Index(in["a"], []*Tensor{in["c"]}) }),
	"IndexPut": tensor(func(x *Exec, in inputs) *Tensor {
		return x.IndexPut(in["a"], []*Tensor{in["c"]}, in["one"], IndexPutOptions{})
	}),
	"IndexPut/accumulate": tensor(func(x *Exec, in inputs) *Tensor {
		twice := x.Cat([]*Tensor{in["rows"], in["rows"]}, 0)
		return x.IndexPut(in["v"], []*Tensor{twice}, in["one"], IndexPutOptions{Accumulate: true})
	}),
	"IndexPutInPlace": inPlace("g", func(x *Exec, g *Tensor, in inputs) *Tensor {
		return x.IndexPutInPlace(g, []*Tensor{in["rows"]}, in["b4"], IndexPutOptions{})
	}),

	"ForeachAdd":               foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachAdd(ts, us, nil) }),
	"ForeachAdd/alpha":         foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachAdd(ts, us, -2) }),
	"ForeachAddScalar":         foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachAddScalar(ts, 1.5) }),
	"ForeachAddInPlace":        foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachAddInPlace(ts, us, 0.5) }),
	"ForeachAddScalarInPlace":  foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachAddScalarInPlace(ts, 2) }),
	"ForeachSub":               foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachSub(ts, us, nil) }),
	"ForeachSubInPlace":        foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachSubInPlace(ts, us, 3) }),
	"ForeachMul":               foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachMul(ts, us) }),
	"ForeachMulScalar":         foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachMulScalar(ts, 3) }),
	"ForeachMulInPlace":        foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachMulInPlace(ts, us) }),
	"ForeachMulScalarInPlace":  foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachMulScalarInPlace(ts, 0.5) }),
	"ForeachMulTensorInPlace":  foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachMulTensorInPlace(ts, x.Full(Float32, 3)) }),
	"ForeachDiv":               foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachDiv(ts, us) }),
	"ForeachDivInPlace":        foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachDivInPlace(ts, us) }),
	"ForeachDivScalarInPlace":  foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachDivScalarInPlace(ts, 4) }),
	"ForeachDivTensorInPlace":  foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachDivTensorInPlace(ts, x.Full(Float32, 3)) }),
	"ForeachNegInPlace":        foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachNegInPlace(ts) }),
	"ForeachSqrt":              foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachSqrt(ts) }),
	"ForeachSqrtInPlace":       foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachSqrtInPlace(ts) }),
	"ForeachReciprocalInPlace": foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachReciprocalInPlace(ts) }),
	"ForeachMaximumInPlace":    foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachMaximumInPlace(ts, us) }),
	"ForeachClampMinInPlace":   foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachClampMinInPlace(ts, 0.75) }),
	"ForeachClampMaxInPlace":   foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachClampMaxInPlace(ts, 0.75) }),
	"ForeachLerpInPlace":       foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachLerpInPlace(ts, us, 0.25) }),
	"ForeachAddCMulInPlace":    foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachAddCMulInPlace(ts, us, vs, nil) }),
	"ForeachAddCDivInPlace":    foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachAddCDivInPlace(ts, vs, us, -0.5) }),
	"ForeachCopyInPlace":       foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachCopyInPlace(ts, us) }),
	"ForeachZeroInPlace":       foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachZeroInPlace(ts) }),
	"ForeachNorm":              foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachNorm(vs, nil) }),
	"ForeachNorm/order":        foreach(func(x *Exec, ts, us, vs []*Tensor) []*Tensor { return x.ForeachNorm(vs, 1) }),

	"FusedSGDInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedSGDInPlace(params, grads, nil, 0.1, FusedSGDOptions{})
	}, 1),
	"FusedSGDInPlace/options": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedSGDInPlace(params, grads, first, 0.1, FusedSGDOptions{WeightDecay: 0.1, Momentum: 0.9, Dampening: 0.2, Maximize: true})
	}, 1),
	"FusedSGDInPlace/nesterov": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedSGDInPlace(params, grads, first, 0.1, FusedSGDOptions{Momentum: 0.9, Nesterov: true, FirstStep: true})
	}, 1),
	"FusedSGDTensorLRInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedSGDTensorLRInPlace(params, grads, first, x.Full(Float32, 0.125), FusedSGDOptions{Momentum: 0.9, Nesterov: true})
	}, 1),
	"FusedAdamInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamInPlace(params, grads, first, second, nil, steps, 0.01, FusedAdamOptions{})
	}, 2),
	"FusedAdamInPlace/options": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamInPlace(params, grads, first, second, x.ForeachMulScalar(second, 2), steps, 0.01, FusedAdamOptions{
			Beta1: Set(0.8), Beta2: Set(0.9), WeightDecay: 0.1, Eps: Set(0.1), AMSGrad: true, Maximize: true})
	}, 2),
	"FusedAdamInPlace/scaled": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamInPlace(params, grads, first, second, nil, steps, 0.01,
			FusedAdamOptions{GradScale: x.Full(Float32, 4), FoundInf: x.Zeros(Float32)})
	}, 2),
	"FusedAdamTensorLRInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamTensorLRInPlace(params, grads, first, second, nil, steps, x.Full(Float32, 0.125), FusedAdamOptions{WeightDecay: 0.1})
	}, 2),
	"FusedAdamWInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamWInPlace(params, grads, first, second, nil, steps, 0.01, FusedAdamOptions{WeightDecay: 0.1})
	}, 3),
	"FusedAdamWTensorLRInPlace": fused(func(x *Exec, params, grads, first, second, steps []*Tensor) {
		x.FusedAdamWTensorLRInPlace(params, grads, first, second, nil, steps, x.Full(Float32, 0.125), FusedAdamOptions{WeightDecay: 0.1})
	}, 3),
	"AMPForeachNonFiniteCheckAndUnscaleInPlace": func(x *Exec, in inputs) []*Tensor {
		found := x.Zeros(Float32)
		x.AMPForeachNonFiniteCheckAndUnscaleInPlace([]*Tensor{in["a"], in["s"]}, found, x.Full(Float32, 0.5))
		return []*Tensor{in["a"], found}
	},
	"AMPUpdateScaleInPlace": func(x *Exec, in inputs) []*Tensor {
		scale, tracker := x.Full(Float32, 8), x.Full(Int32, 1)
		return []*Tensor{x.AMPUpdateScaleInPlace(scale, tracker, x.Zeros(Float32), 2, 0.5, 2), scale, tracker}
	},
}
