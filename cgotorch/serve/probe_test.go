package serve

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

type served = func(x *cgotorch.Exec, in ...*tensor) []*tensor

// one returns a served function with one result.
func one(fn func(x *cgotorch.Exec, t *tensor) *tensor) served {
	return func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{fn(x, in[0])} }
}

// then serves fn behind another function.
func then(first, fn func(x *cgotorch.Exec, t *tensor) *tensor) served {
	return one(func(x *cgotorch.Exec, t *tensor) *tensor { return fn(x, first(x, t)) })
}

func batchMean(x *cgotorch.Exec, t *tensor) *tensor {
	return x.MeanDim(t, []int64{0}, cgotorch.SumOptions{KeepDim: true})
}

func cast(d cgotorch.DType) func(x *cgotorch.Exec, t *tensor) *tensor {
	return func(x *cgotorch.Exec, t *tensor) *tensor { return x.To(t, d) }
}

func inputs(d cgotorch.DType, shape ...int64) []Spec {
	return []Spec{{Name: "x", DType: d, Shape: shape}}
}

// dependence is a function whose results depend on more than their entry, and what New says.
type dependence struct {
	fn   served
	o    Options
	text string
}

const (
	changes  = "changes with the other entries"
	alone    = "is not the same alone as among others"
	repeated = "differs between two calls"
)

func dependences() map[string]dependence {
	sized := Options{BatchSizes: []int{1, 2, 4, 8}}
	outer := one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.MatMul(t, x.Transpose(t, 0, 1)) })
	minusMean := func(x *cgotorch.Exec, t *tensor) *tensor { return x.Sub(t, batchMean(x, t)) }
	list := map[string]dependence{
		"a product with all": {outer, sized, `result 0, "output0", of an entry has the shape [4] in a batch of 4, and [8] in one of 8`},
		"the same, one size": {outer, Options{BatchSizes: []int{8}}, "has the shape [4] in a batch of 4, and [8] in one of 8"},
		"the same, padded":   {outer, Options{BatchSizes: []int{8}, Pad: true}, changes},
		"the size": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.Mul(t, x.Full(cgotorch.Float32, float64(t.Shape()[0]), 1))
		}), sized, alone},
		"the place":           {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Add(t, places(x, t)) }), sized, alone},
		"the place, integers": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.To(places(x, t), cgotorch.Int64) }), sized, alone},
		"mean":                {one(minusMean), sized, changes},
		"a little of it":      {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Add(t, x.MulScalar(batchMean(x, t), 1e-3)) }), sized, changes},
		"sizes 1 and 32":      {one(minusMean), Options{BatchSizes: []int{1, 32}}, changes},
		"sizes 1 and 2":       {one(minusMean), Options{BatchSizes: []int{1, 2}}, changes},
		"one size, padded":    {one(minusMean), Options{BatchSizes: []int{4}, Pad: true}, changes},
		"batch norm in training": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.BatchNorm(t, nil, nil, nil, nil, cgotorch.BatchNormOptions{Training: true})
		}), Options{}, changes},
		"softmax over dim 0": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Softmax(t, 0) }), sized, changes},
		"cumsum over dim 0":  {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.CumSum(t, 0) }), sized, changes},
		"cumsum from behind": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Flip(x.CumSum(x.Flip(t, 0), 0), 0) }), sized, changes},
		"the neighbour":      {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Add(t, x.Roll(t, []int64{1}, []int64{0})) }), sized, changes},
		"the next but one":   {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Add(t, x.Roll(t, []int64{2}, []int64{0})) }), sized, changes},
		"a little of the next but one": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.Add(t, x.MulScalar(x.Roll(t, []int64{2}, []int64{0}), 0.01))
		}), sized, changes},
		"a little of the next but four": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.Add(t, x.MulScalar(x.Roll(t, []int64{4}, []int64{0}), 0.01))
		}), sized, changes},
		"a little of a far one": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.Add(t, x.MulScalar(x.Roll(t, []int64{13}, []int64{0}), 0.01))
		}), Options{BatchSizes: []int{1, 32}}, changes},
		"a little of the other half": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			n := t.Shape()[0] / 2
			return x.Add(t, x.MulScalar(x.Roll(t, []int64{n}, []int64{0}), 0.01))
		}), Options{BatchSizes: []int{4, 8}, Pad: true}, changes},
		"sorted over dim 0": {one(func(x *cgotorch.Exec, t *tensor) *tensor { v, _ := x.Sort(t, 0, cgotorch.SortOptions{}); return v }), sized, changes},
		"the rank, integers": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.ArgSort(x.ArgSort(t, 0, cgotorch.SortOptions{}), 0, cgotorch.SortOptions{})
		}), sized, changes},
		"more than the mean": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Gt(t, batchMean(x, t)) }), sized, changes},
		"float16":            {then(minusMean, cast(cgotorch.Float16)), sized, changes},
		"bfloat16":           {then(minusMean, cast(cgotorch.BFloat16)), sized, changes},
		"float64":            {then(minusMean, cast(cgotorch.Float64)), sized, changes},
		"complex":            {then(minusMean, cast(cgotorch.Complex64)), sized, changes},
		"bfloat16 inputs":    {one(minusMean), Options{Inputs: inputs(cgotorch.BFloat16, 3)}, changes},
		"float16 inputs":     {one(minusMean), Options{Inputs: inputs(cgotorch.Float16, 3)}, changes},
		"float64 inputs":     {one(minusMean), Options{Inputs: inputs(cgotorch.Float64, 3)}, changes},
		"numbers as entries": {one(minusMean), Options{Inputs: inputs(cgotorch.Float32)}, changes},
		"lengths":            {one(minusMean), Options{Inputs: inputs(cgotorch.Float32, -1, 2), Lengths: []int64{4, 7}}, changes},
		"attention over dim 0": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			q := x.Unsqueeze(t, 0)
			return x.Squeeze(x.ScaledDotProductAttention(q, q, q, cgotorch.ScaledDotProductAttentionOptions{}), 0)
		}), sized, changes},
		"no batch dimension": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return cgotorch.FromSlice(x, []float32{1, 2, 3, 4}) }), Options{BatchSizes: []int{4}, Pad: true}, alone},
		"the same, all sizes": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return cgotorch.FromSlice(x, []float32{1, 2, 3, 4}) }), Options{BatchSizes: []int{4}},
			"is float32[4] for 1 entries; its first dimension"},
		"the second result": {func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{in[0], minusMean(x, in[0])} }, Options{Outputs: []string{"good", "bad"}},
			`result 1, "bad", of an entry changes`},
		"another input": {func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.Add(in[0], batchMean(x, in[1]))} },
			Options{Inputs: []Spec{{Name: "ids", DType: cgotorch.Int64, Shape: []int64{3}}, {Name: "y", DType: cgotorch.Float32, Shape: []int64{3}}}}, changes},
		"dropout": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Dropout(t, 0.5, true) }), sized, repeated},
		"random":  {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.RandLike(t) }), sized, repeated},
		"random classes": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			return x.ArgMax(x.RandLike(x.Expand(x.Unsqueeze(t, 2), -1, -1, 50)), 2, cgotorch.ReduceOptions{})
		}), sized, repeated},
		"more results in larger batches": {func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			return []*tensor{in[0], in[0]}[:min(2, in[0].Shape()[0])]
		}, sized, "the function has 1 results in a batch of 1 of length 0, and had 2 before"},
		"another dtype in larger batches": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			if t.Shape()[0] > 1 {
				return t
			}
			return x.To(t, cgotorch.Float64)
		}), sized, "is float64[3] in a batch of 1 of length 0, and was float32[3] before"},
		"other dimensions with the length": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
			if t.Shape()[1] > 4 {
				return t
			}
			return x.SumDim(t, []int64{1}, cgotorch.SumOptions{})
		}), Options{Inputs: inputs(cgotorch.Float32, -1), Lengths: []int64{4, 7}}, "give the same dtype and number of dimensions"},
		"ids, by samples": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return minusMean(x, x.To(t, cgotorch.Float32)) }),
			Options{Inputs: inputs(cgotorch.Int64, 2), Samples: []Array{Of([]int64{1, 2, 30, 40, 5, 60}, 3, 2)}}, changes},
		"ids of a length, by two samples": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return minusMean(x, x.To(t, cgotorch.Float32)) }),
			Options{Inputs: inputs(cgotorch.Int32, -1), Lengths: []int64{2, 5}, Samples: []Array{Of([]int32{1, 2, 3, 30, 40, 50}, 2, 3)}}, changes},
	}
	return list
}

// places returns the place of each entry in its batch, as a column.
func places(x *cgotorch.Exec, t *tensor) *tensor {
	return x.CumSum(x.OnesLike(x.Narrow(t, 1, 0, 1)), 0)
}

func TestNew_Dependence(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for name, c := range dependences() {
			t.Run(name, func(t *testing.T) {
				if c.o.Inputs == nil {
					c.o.Inputs = vector
				}
				if len(c.o.BatchSizes) == 1 && d.IsCUDA() { // batches of 4 and 1 are padded there
					c.text = ""
				}
				b, err := New(d, c.fn, c.o)
				torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.text)
				if b != nil {
					t.Error("a Batcher besides the error")
				}
			})
		}
	})
}

// What does not depend on the batch is served, whatever its rounding and its elements are.
func TestNew_NoDependence(t *testing.T) {
	nan := func(x *cgotorch.Exec, t *tensor) *tensor { return x.Log(x.AddScalar(t, -0.5)) }
	convolution := func(x *cgotorch.Exec) nn.Module {
		return nn.NewSequential(nn.NewConv2d(x, 3, 16, nn.Square(3), nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 16, nn.BatchNormOptions{}), &nn.ReLU{},
			nn.NewConv2d(x, 16, 8, nn.Square(3), nn.Conv2dOptions{}), &nn.Flatten{}, nn.NewLinear(x, 8*8*8, 100, nn.LinearOptions{}))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var model, cast16 nn.Module
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			model, cast16 = convolution(x), convolution(x)
			nn.SetTraining(model, false)
			nn.SetTraining(cast16, false)
			nn.To(x, cast16, nn.ToOptions{DType: cgotorch.BFloat16})
		})
		defer nn.Close(model)
		defer nn.Close(cast16)
		pictures := inputs(cgotorch.Float32, 3, 12, 12)
		for name, c := range map[string]struct {
			fn served
			o  Options
		}{
			"a network": {one(model.Forward), Options{Inputs: pictures}},
			"autocast":  {one(model.Forward), Options{Inputs: pictures, Autocast: cgotorch.BFloat16}},
			"bfloat16 inside": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.To(cast16.Forward(x, x.To(t, cgotorch.BFloat16)), cgotorch.Float32)
			}), Options{Inputs: pictures}},
			"classes": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.ArgMax(model.Forward(x, t), 1, cgotorch.ReduceOptions{})
			}), Options{Inputs: pictures}},
			"classes, bfloat16": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.ArgMax(cast16.Forward(x, x.To(t, cgotorch.BFloat16)), 1, cgotorch.ReduceOptions{})
			}), Options{Inputs: pictures}},
			"best ten, integers": {func(x *cgotorch.Exec, in ...*tensor) []*tensor {
				v, i := x.TopK(model.Forward(x, in[0]), 10, 1, cgotorch.TopKOptions{})
				return []*tensor{v, i}
			}, Options{Inputs: pictures}},
			"ties": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.ArgMax(x.ZerosLike(t), 1, cgotorch.ReduceOptions{})
			}), Options{}},
			"NaN":            {one(nan), Options{}},
			"NaN, float16":   {then(nan, cast(cgotorch.Float16)), Options{}},
			"Inf":            {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Reciprocal(x.MulScalar(t, 0)) }), Options{}},
			"zeros":          {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Sub(t, t) }), Options{}},
			"a rounded zero": {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Sub(x.Exp(x.Log(t)), t) }), Options{}},
			"large":          {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.MulScalar(t, 1e30) }), Options{}},
			"bools":          {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.GtScalar(t, 0.5) }), Options{}},
			"a constant":     {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.OnesLike(t) }), Options{}},
			"one size":       {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Softmax(t, 1) }), Options{BatchSizes: []int{8}}},
			"one entry":      {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.MatMul(t, x.Transpose(t, 0, 1)) }), Options{BatchSizes: []int{1}}},
			"no elements":    {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Narrow(t, 1, 0, 0) }), Options{}},
			"lengths":        {one(func(x *cgotorch.Exec, t *tensor) *tensor { return x.Softmax(t, 1) }), Options{Inputs: inputs(cgotorch.Float32, -1, 2), Lengths: []int64{1, 4, 7}}},
			"ids": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.Embedding(cgotorch.FromSlice(x, []float32{1, 2}, 1, 2), t, cgotorch.EmbeddingOptions{})
			}), Options{Inputs: inputs(cgotorch.Int64, 5)}},
			"an index in floats": {one(func(x *cgotorch.Exec, t *tensor) *tensor {
				return x.Embedding(cgotorch.FromSlice(x, []float32{1, 2}, 1, 2), x.To(t, cgotorch.Int64), cgotorch.EmbeddingOptions{})
			}), Options{}},
		} {
			t.Run(name, func(t *testing.T) {
				open(t, d, c.fn, c.o)
			})
		}
	})
}

// With Options.Dependent the same functions are served as they are.
func TestNew_Dependent(t *testing.T) {
	for name, c := range dependences() {
		if strings.HasPrefix(name, "no batch") || strings.Contains(c.text, "give the same") || strings.Contains(c.text, "first dimension") || strings.Contains(c.text, " before") {
			continue
		}
		c.o.Dependent = true
		b := open(t, cgotorch.CPU, c.fn, c.o)
		if name == "a product with all" {
			if got := fmt.Sprint(b.Outputs()[0].Shape); got != "[-1]" {
				t.Errorf("the result is %s", got)
			}
			out, err := b.Predict(context.Background(), row(1))
			if err != nil || fmt.Sprint(out[0].Shape) != "[1 1]" {
				t.Errorf("%+v %v", out, err)
			}
		}
	}
}

func TestNew_Samples_Refused(t *testing.T) {
	ids := inputs(cgotorch.Int64, 2)
	ids[0].Least, ids[0].Most = 0, 9
	for _, c := range []struct {
		samples []Array
		text    string
	}{
		{[]Array{Of([]int64{1, 2, 3, 4}, 2, 2), Of([]int64{1, 2}, 1, 2)}, "Samples: there are 2, want one Array for each of 1 inputs"},
		{[]Array{Of([]int64{1, 2}, 1, 2)}, "two or more"},
		{[]Array{Of([]int64{1, 2, 3, 4, 5, 6}, 2, 3)}, "has the shape [2 3]"},
		{[]Array{Of([]int32{1, 2, 3, 4}, 2, 2)}, "is int32, want int64"},
		{[]Array{Of([]int64{1, 2, 3, 10}, 2, 2)}, "has the element 10"},
		{[]Array{{Files: [][]byte{{1}, {2}}}}, "encoded files"},
	} {
		_, err := New(cgotorch.CPU, one(func(x *cgotorch.Exec, t *tensor) *tensor { return t }), Options{Inputs: ids, Samples: c.samples})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.text)
	}
}

// A function that fails for the compared entries fails New, which tells of Samples.
func TestNew_Samples_FunctionFails(t *testing.T) {
	fn := func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		if sum := x.Item(x.Sum(in[0])); sum != float64(int(sum)) {
			x.Fail("forward", fmt.Errorf("%v is no whole number: %w", sum, cgotorch.ErrInvalidArgument))
		}
		return plusOne(x, in...)
	}
	_, err := New(cgotorch.CPU, fn, Options{Inputs: vector})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Options.Samples has other entries", "is no whole number")
	open(t, cgotorch.CPU, fn, Options{Samples: []Array{Of([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, 3)}})
}
