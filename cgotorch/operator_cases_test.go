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

// tensor returns a case with one result.
func tensor(run func(x *Exec, in inputs) *Tensor) operatorCase {
	return func(x *Exec, in inputs) []*Tensor { return []*Tensor{run(x, in)} }
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

var operatorCases = map[string]operatorCase{"Empty": tensor(func(x *Exec, in inputs) *Tensor { return x.ZeroInPlace(x.Empty(Int32, 2, 3)) }),
	"EmptyLike":   tensor(func(x *Exec, in inputs) *Tensor { return x.ZeroInPlace(x.EmptyLike(in["a"])) }),
	"CopyInPlace": inPlace("a", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.CopyInPlace(a, x.Select(in["n"], 0, 0)) }),
	"Contiguous":  tensor(func(x *Exec, in inputs) *Tensor { return x.Contiguous(x.Transpose(in["a"], 0, 1), Contiguous) }),
	"AddOut":      out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.AddOut(in["a"], in["b"], out) }),
	"SubOut":      out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.SubOut(in["a"], in["b"], out) }),
	"MulOut":      out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.MulOut(in["a"], in["b"], out) }),
	"DivOut":      out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.DivOut(in["a"], in["p"], out) }),
	"AddCMulOut":  out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.AddCMulOut(in["a"], in["b"], in["p"], 2, out) }),
	"IsClose/options": tensor(func(x *Exec, in inputs) *Tensor {
		return x.IsClose(in["s"], x.AddScalar(in["s"], 0.25), ToleranceOptions{Absolute: Set(0.3), Relative: Set(0.0), EqualNaN: true})
	}),
	"AllClose": truth(func(x *Exec, in inputs) bool {
		return x.AllClose(in["a"], x.AddScalar(in["a"], 1e-9), ToleranceOptions{})
	}),
	"AllClose/options": truth(func(x *Exec, in inputs) bool {
		return x.AllClose(in["a"], x.AddScalar(in["a"], 0.5), ToleranceOptions{Absolute: Set(1.0)})
	}),
	"WhereOut":      out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.WhereOut(in["c"], in["a"], in["b"], out) }),
	"MatMul/vector": tensor(func(x *Exec, in inputs) *Tensor { return x.MatMul(in["x3"], x.Select(in["g"], 0, 0)) }),
	"Linear":        tensor(func(x *Exec, in inputs) *Tensor { return x.Linear(in["a"], x.Transpose(in["g"], 0, 1), in["b4"]) }),
	"Linear/nil":    tensor(func(x *Exec, in inputs) *Tensor { return x.Linear(in["a"], x.Transpose(in["g"], 0, 1), nil) }),
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
	"ReLU6":        tensor(func(x *Exec, in inputs) *Tensor { return x.ReLU6(x.To(in["n"], Float32)) }),
	"ReLU6InPlace": inPlace("emb", func(x *Exec, a *Tensor, in inputs) *Tensor { return x.ReLU6InPlace(x.MulScalarInPlace(a, 5)) }),
	"ScaledDotProductAttention/mask": tensor(func(x *Exec, in inputs) *Tensor {
		return x.ScaledDotProductAttention(in["query"], in["key"], in["value"], ScaledDotProductAttentionOptions{Mask: x.Eye(Bool, 3)})
	}),
	"Reshape":        tensor(func(x *Exec, in inputs) *Tensor { return x.Reshape(x.Transpose(in["a"], 0, 1), 2, -1) }),
	"CatOut":         out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.CatOut([]*Tensor{in["a"], in["b"]}, 1, out) }),
	"IndexSelectOut": out(func(x *Exec, in inputs, out *Tensor) *Tensor { return x.IndexSelectOut(in["g"], 1, in["rows"], out) }),
	"Scatter":        tensor(func(x *Exec, in inputs) *Tensor { return x.Scatter(in["p"], 1, x.Narrow(in["ix"], 1, 0, 1), in["b"]) }),
	"ScatterScalar":  tensor(func(x *Exec, in inputs) *Tensor { return x.ScatterScalar(in["p"], 1, x.Narrow(in["ix"], 1, 1, 2), 5) }),
	"Index": tensor(func(x *Exec, in inputs) *Tensor {
		return x.Index(in["g"], []*Tensor{in["rows"], x.Narrow(in["target"], 0, 0, 2)})
	}),
	"Index/nil": tensor(func(x *Exec, in inputs) *Tensor { return x.Index(in["g"], []*Tensor{nil, in["rows"]}) }),
	"IndexPut/accumulate": tensor(func(x *Exec, in inputs) *Tensor {
		twice := x.Cat([]*Tensor{in["rows"], in["rows"]}, 0)
		return x.IndexPut(in["v"], []*Tensor{twice}, in["one"], IndexPutOptions{Accumulate: true})
	}),
	"ForeachMulTensorInPlace": foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachMulTensorInPlace(ts, x.Full(Float32, 3)) }),
	"ForeachDivTensorInPlace": foreachInPlace(func(x *Exec, ts, us, vs []*Tensor) { x.ForeachDivTensorInPlace(ts, x.Full(Float32, 3)) }),
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
