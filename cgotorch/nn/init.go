package nn

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// KaimingOptions are the options of [KaimingUniform] and [KaimingNormal]. The zero value is for
// layers that a ReLU follows.
type KaimingOptions struct {
	FanOut bool    // keep the variance of the gradients, not of the activations
	Gain   float64 // factor of the standard deviation; 0 means sqrt(2), the gain of ReLU
}

// KaimingUniform fills a weight [out, in, ...] in place, as torch.nn.init does. It draws the
// numbers evenly from [-b, b) with b = sqrt(3)*gain/sqrt(fan). The number fan is `in` times the
// size of the kernel, or with FanOut `out` times that size. Nothing is recorded for backward.
func KaimingUniform(x *cgotorch.Exec, weight *cgotorch.Tensor, o KaimingOptions) {
	bound := math.Sqrt(3) * o.deviation(x, "nn.KaimingUniform", weight)
	Uniform(x, weight, -bound, bound)
}

// KaimingNormal is [KaimingUniform] with normally distributed numbers. Their mean is 0 and their
// standard deviation gain/sqrt(fan).
func KaimingNormal(x *cgotorch.Exec, weight *cgotorch.Tensor, o KaimingOptions) {
	Normal(x, weight, 0, o.deviation(x, "nn.KaimingNormal", weight))
}

func (o KaimingOptions) deviation(x *cgotorch.Exec, where string, weight *cgotorch.Tensor) float64 {
	checkFill(x, where, weight, number{"Gain", o.Gain, 0})
	shape := weight.Shape()
	if len(shape) < 2 || weight.Numel() == 0 {
		refuse(x, where, "the weight is %s, want at least two dimensions, and elements", weight)
	}
	fan := shape[1] * kernelSize(shape)
	if o.FanOut {
		fan = shape[0] * kernelSize(shape)
	}
	if o.Gain == 0 {
		o.Gain = math.Sqrt2
	}
	return o.Gain / math.Sqrt(float64(fan))
}

// kernelSize returns the number of elements of the kernel of a weight of shape [out, in, ...]. It
// is 1 for a linear layer.
func kernelSize(shape []int64) int64 {
	size := int64(1)
	for _, n := range shape[2:] {
		size *= n
	}
	return size
}

// XavierUniform fills a weight in place with random numbers. The numbers are evenly distributed
// in [-b, b) with b = gain*sqrt(6/(inputs+outputs)). For a weight [out, in, ...], `inputs` is `in`
// times the size of the kernel, and `outputs` is `out` times that size. Nothing is recorded for
// backward. It fails with [cgotorch.ErrInvalidArgument] for a tensor of fewer than two
// dimensions.
func XavierUniform(x *cgotorch.Exec, weight *cgotorch.Tensor, gain float64) {
	bound := math.Sqrt(3) * xavierDeviation(x, "nn.XavierUniform", weight, gain)
	Uniform(x, weight, -bound, bound)
}

// XavierNormal is [XavierUniform] with normally distributed numbers. Their mean is 0 and their
// standard deviation gain*sqrt(2/(inputs+outputs)).
func XavierNormal(x *cgotorch.Exec, weight *cgotorch.Tensor, gain float64) {
	Normal(x, weight, 0, xavierDeviation(x, "nn.XavierNormal", weight, gain))
}

func xavierDeviation(x *cgotorch.Exec, where string, weight *cgotorch.Tensor, gain float64) float64 {
	checkFill(x, where, weight, number{"gain", gain, 0})
	shape := weight.Shape()
	if len(shape) < 2 || weight.Numel() == 0 {
		refuse(x, where, "the weight is %s, want at least 2 dimensions, and elements", weight)
	}
	return gain * math.Sqrt(2/float64((shape[0]+shape[1])*kernelSize(shape)))
}

// Orthogonal fills a weight [out, ...] in place with a random matrix of `out` rows. Its rows are
// orthogonal and have the length `gain`. If there are more rows than columns, the columns are
// orthogonal and have this length instead. Nothing is recorded for backward. On a CUDA device it
// may wait for the device. It fails with [cgotorch.ErrInvalidArgument] for a tensor of fewer than
// two dimensions.
func Orthogonal(x *cgotorch.Exec, weight *cgotorch.Tensor, gain float64) {
	checkFill(x, "nn.Orthogonal", weight, number{"gain", gain, math.Inf(-1)})
	shape := weight.Shape()
	if len(shape) < 2 {
		refuse(x, "nn.Orthogonal", "the weight is %s, want at least 2 dimensions", weight)
	}
	x = x.NoGrad()
	x.Tidy(func() *cgotorch.Tensor {
		rows, columns := shape[0], shape[1]*kernelSize(shape)
		flat := x.Randn(weight.DType(), rows, columns)
		if rows < columns {
			flat = x.Transpose(flat, 0, 1)
		}
		parts := x.Call("aten::linalg_qr", flat)
		q, r := parts[0].(*cgotorch.Tensor), parts[1].(*cgotorch.Tensor)
		q = x.Mul(q, x.Sign(x.Diagonal(r, 0, 0, 1))) // makes the decomposition unique
		if rows < columns {
			q = x.Transpose(q, 0, 1)
		}
		x.CopyInPlace(weight, x.MulScalar(x.Reshape(q, shape...), gain))
		return nil
	})
}

// Gain returns the gain that keeps the variance behind an activation, as
// torch.nn.init.calculate_gain does. The names are linear, sigmoid, tanh, relu, leaky_relu and
// selu. `slope` is that of leaky_relu. For another name it returns NaN, which the functions of this
// package refuse as a gain.
func Gain(activation string, slope float64) float64 {
	switch activation {
	case "linear", "sigmoid":
		return 1
	case "tanh":
		return 5.0 / 3
	case "relu":
		return math.Sqrt2
	case "leaky_relu":
		return math.Sqrt(2 / (1 + slope*slope))
	case "selu":
		return 3.0 / 4
	}
	return math.NaN()
}

// A number is an argument of an initialiser, with its name and the smallest legal value.
type number struct {
	name  string
	value float64
	least float64
}

// checkFill makes the Do fail if t is nil or of integers, or if a number is below its least
// value, infinite or NaN.
func checkFill(x *cgotorch.Exec, where string, t *cgotorch.Tensor, numbers ...number) {
	if t == nil {
		refuse(x, where, "the tensor is nil")
	}
	if d := t.DType(); !t.Closed() && !d.IsFloat() && d != cgotorch.Complex64 && d != cgotorch.Complex128 {
		refuse(x, where, "the tensor is %s, want a floating dtype: convert it with x.To", t)
	}
	for _, n := range numbers {
		if !(n.value >= n.least) || math.IsInf(n.value, 0) {
			want := "want a number"
			if n.least == 0 {
				want = "want a number from 0 up"
			}
			if math.IsNaN(n.value) {
				want += "; nn.Gain gives NaN for an activation that it does not know"
			}
			refuse(x, where, "%s is %v, %s", n.name, n.value, want)
		}
	}
}

// Uniform fills t in place with numbers drawn evenly from [from, to). Nothing is recorded for
// backward. Uniform fails with [cgotorch.ErrInvalidArgument] for a tensor of integers. It also
// fails if `from` or `to` is infinite or NaN, or if `from` is above `to`.
func Uniform(x *cgotorch.Exec, t *cgotorch.Tensor, from, to float64) {
	checkFill(x, "nn.Uniform", t, number{"from", from, math.Inf(-1)}, number{"to", to, math.Inf(-1)})
	if from > to {
		refuse(x, "nn.Uniform", "from is %v and to is %v, want from at most to", from, to)
	}
	x.NoGrad().UniformInPlace(t, from, to).Close()
}

// Normal fills t in place with normally distributed numbers. Nothing is recorded for backward.
func Normal(x *cgotorch.Exec, t *cgotorch.Tensor, mean, deviation float64) {
	checkFill(x, "nn.Normal", t, number{"mean", mean, math.Inf(-1)}, number{"deviation", deviation, 0})
	x.NoGrad().NormalInPlace(t, mean, deviation).Close()
}

// TruncatedNormal fills t in place with normally distributed numbers between `from` and `to`.
// Nothing is recorded for backward. About one number in 16 million is exactly `from`, even if
// `from` is far below the mean. The reason is the lowest number of the uniform generator: its
// quantile may be -Inf, and -Inf becomes `from`. torch.nn.init does the same.
func TruncatedNormal(x *cgotorch.Exec, t *cgotorch.Tensor, mean, deviation, from, to float64) {
	checkFill(x, "nn.TruncatedNormal", t, number{"mean", mean, math.Inf(-1)})
	if !(deviation > 0 && from < to) {
		refuse(x, "nn.TruncatedNormal", "deviation is %v, from %v, to %v: want a deviation above 0, and from below to", deviation, from, to)
	}
	x = x.NoGrad()
	// probability(v) is 2p-1, where p is the probability of a number below v. Numbers are drawn
	// evenly between the probabilities of the two bounds. The calls after Uniform turn these into
	// normally distributed numbers.
	probability := func(v float64) float64 { return 2*((1+math.Erf((v-mean)/deviation/math.Sqrt2))/2) - 1 }
	Uniform(x, t, probability(from), probability(to))
	x.Call1("aten::erfinv_", t).Close()
	x.MulScalarInPlace(t, deviation*math.Sqrt2).Close()
	x.AddScalarInPlace(t, mean).Close()
	x.ClampInPlace(t, from, to).Close()
}

// Constant fills t in place with value. Nothing is recorded for backward.
func Constant(x *cgotorch.Exec, t *cgotorch.Tensor, value float64) {
	if t == nil {
		refuse(x, "nn.Constant", "the tensor is nil")
	}
	x.NoGrad().FillInPlace(t, value).Close()
}

// initLayer sets the weight and the bias of a linear layer or a convolution to random numbers, as
// torch.nn does. The numbers are evenly distributed in [-b, b) with b = 1/sqrt(fan), up to
// rounding. The number fan is that of [KaimingUniform] without FanOut. A nil bias is skipped.
func initLayer(x *cgotorch.Exec, weight, bias *cgotorch.Tensor) {
	KaimingUniform(x, weight, KaimingOptions{Gain: Gain("leaky_relu", math.Sqrt(5))})
	if bias == nil {
		return
	}
	shape := weight.Shape()
	bound := 1 / math.Sqrt(float64(shape[1]*kernelSize(shape)))
	Uniform(x, bias, -bound, bound)
}

// keepParameters makes tensors trainable, and keeps them after the Do. It skips nil tensors.
func keepParameters(x *cgotorch.Exec, where string, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t == nil {
			continue
		}
		if err := t.SetRequiresGrad(true); err != nil {
			x.Fail(where, err)
		}
	}
	keepBuffers(x, tensors...)
}

// keepBuffers keeps tensors after the Do. It skips nil tensors.
func keepBuffers(x *cgotorch.Exec, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t != nil {
			x.Keep(t)
		}
	}
}
