package nn

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// KaimingOptions are the options of [KaimingUniform] and [KaimingNormal]. The zero value is for
// layers followed by a ReLU.
type KaimingOptions struct {
	FanOut bool    // keep the variance of the gradients instead of that of the activations
	Gain   float64 // factor of the standard deviation; 0 means sqrt(2), ReLU's
}

// KaimingUniform fills a weight [out, in, ...] in place with numbers drawn evenly from [-b, b), b =
// sqrt(3)*gain/sqrt(fan). fan is in (or out) times the size of the kernel. Nothing is recorded for
// backward. Source: torch.nn.init.
func KaimingUniform(x *cgotorch.Exec, weight *cgotorch.Tensor, o KaimingOptions) {
	bound := math.Sqrt(3) * o.deviation(x, "nn.KaimingUniform", weight)
	Uniform(x, weight, -bound, bound)
}

// KaimingNormal is [KaimingUniform] with normal numbers of standard deviation gain/sqrt(fan).
func KaimingNormal(x *cgotorch.Exec, weight *cgotorch.Tensor, o KaimingOptions) {
	Normal(x, weight, 0, o.deviation(x, "nn.KaimingNormal", weight))
}

func (o KaimingOptions) deviation(x *cgotorch.Exec, where string, weight *cgotorch.Tensor) float64 {
	shape := weight.Shape()
	if len(shape) < 2 {
		refuse(x, where, "the weight is %v, want at least two dimensions", weight)
	}
	fan := shape[1]
	if o.FanOut {
		fan = shape[0]
	}
	for _, n := range shape[2:] {
		fan *= n
	}
	if o.Gain == 0 {
		o.Gain = math.Sqrt2
	}
	return o.Gain / math.Sqrt(float64(fan))
}

// Uniform fills t in place with numbers drawn evenly from [from, to).
// Nothing is recorded for backward.
func Uniform(x *cgotorch.Exec, t *cgotorch.Tensor, from, to float64) {
	x.NoGrad().UniformInPlace(t, from, to).Close()
}

// Normal fills t in place with normal numbers. Nothing is recorded for backward.
func Normal(x *cgotorch.Exec, t *cgotorch.Tensor, mean, deviation float64) {
	x.NoGrad().NormalInPlace(t, mean, deviation).Close()
}

// TruncatedNormal fills t in place with normal numbers between from and to. Nothing is recorded for
// backward. A draw of 0, about one in 16 million, gives from itself, as in torch.nn.init: its
// quantile is -Inf.
func TruncatedNormal(x *cgotorch.Exec, t *cgotorch.Tensor, mean, deviation, from, to float64) {
	if !(deviation > 0 && from < to) {
		refuse(x, "nn.TruncatedNormal", "deviation is %v, from %v, to %v: want a deviation above 0, and from below to", deviation, from, to)
	}
	x = x.NoGrad()
	// probability(v) is 2p-1, where p is the probability of numbers below v. Values are drawn evenly
	// between those of the bounds, and mapped back.
	probability := func(v float64) float64 { return 2*((1+math.Erf((v-mean)/deviation/math.Sqrt2))/2) - 1 }
	Uniform(x, t, probability(from), probability(to))
	x.Call("aten::erfinv_", t)[0].(*cgotorch.Tensor).Close()
	x.MulScalarInPlace(t, deviation*math.Sqrt2).Close()
	x.AddScalarInPlace(t, mean).Close()
	x.ClampInPlace(t, from, to).Close()
}

// Constant fills t in place. Nothing is recorded for backward.
func Constant(x *cgotorch.Exec, t *cgotorch.Tensor, value float64) {
	x.NoGrad().FillInPlace(t, value).Close()
}

// initLayer draws the weight and the bias (nil for none) of a linear layer or a convolution as
// torch.nn does. The numbers are even within 1/sqrt(fan in), up to rounding.
func initLayer(x *cgotorch.Exec, weight, bias *cgotorch.Tensor) {
	slope := math.Sqrt(5)
	KaimingUniform(x, weight, KaimingOptions{Gain: math.Sqrt(2 / (1 + slope*slope))})
	if bias == nil {
		return
	}
	shape := weight.Shape()
	fan := shape[1]
	for _, n := range shape[2:] {
		fan *= n
	}
	bound := 1 / math.Sqrt(float64(fan))
	Uniform(x, bias, -bound, bound)
}

// keepParameters makes tensors trainable, and keeps them beyond the Do.
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

// keepBuffers keeps tensors beyond the Do.
func keepBuffers(x *cgotorch.Exec, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t != nil {
			x.Keep(t)
		}
	}
}
