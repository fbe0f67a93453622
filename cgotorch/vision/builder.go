package vision

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// builder makes the layers of one model, in torchvision's order. If a layer cannot be made, the
// layers made before it are freed.
type builder struct {
	x       *cgotorch.Exec
	Options // with the defaults in place of zero values
	made    []any
	groups  int // of the 3x3 convolutions of bottlenecks
}

// build checks the options that all models share, and then calls `fn` to make the model. `classes`
// is the number of classes if the option Classes is 0.
func build[M nn.Module](x *cgotorch.Exec, where string, o Options, classes int, fn func(b *builder) M) M {
	if o.Classes < 0 || o.Channels < 0 {
		x.Fail(where, fmt.Errorf("%d classes of images with %d channels, want at least 1 of each, or 0 for the default: %w", o.Classes, o.Channels, cgotorch.ErrInvalidArgument))
	}
	if o.Recompute < 0 {
		x.Fail(where, fmt.Errorf("Recompute is %d, want a number of segments, or 0 for none: %w", o.Recompute, cgotorch.ErrInvalidArgument))
	}
	if o.Classes == 0 {
		o.Classes = classes
	}
	if o.Channels == 0 {
		o.Channels = 3
	}
	b := &builder{x: x, Options: o}
	complete := false
	defer func() {
		if !complete {
			nn.Close(b.made)
		}
	}()
	m := fn(b)
	complete = true
	return m
}

// conv makes a convolution without bias. With stride 1 its padding keeps the size of the image.
func (b *builder) conv(in, out, kernel, stride, groups int) *nn.Conv2d {
	return b.convWith(in, out, nn.Square(kernel), nn.Conv2dOptions{
		Stride: nn.Square(stride), Padding: nn.Square((kernel - 1) / 2), Groups: groups, NoBias: true,
	})
}

func (b *builder) convWith(in, out int, kernel nn.Size, o nn.Conv2dOptions) *nn.Conv2d {
	m := nn.NewConv2d(b.x, in, out, kernel, o)
	b.made = append(b.made, m)
	return m
}

func (b *builder) norm(channels int) *nn.BatchNorm2d {
	m := nn.NewBatchNorm2d(b.x, channels, nn.BatchNormOptions{})
	b.made = append(b.made, m)
	return m
}

// convNorm makes a convolution without bias, a norm, and an activation. A nil activation is left
// out.
func (b *builder) convNorm(in, out, kernel, stride, groups int, activation nn.Module) *nn.Sequential {
	layers := []nn.Module{b.conv(in, out, kernel, stride, groups), b.norm(out)}
	if activation != nil {
		layers = append(layers, activation)
	}
	return nn.NewSequential(layers...)
}

func (b *builder) linear(in, out int) *nn.Linear {
	m := nn.NewLinear(b.x, in, out, nn.LinearOptions{})
	b.made = append(b.made, m)
	return m
}

// redrawConvolutions gives the weights of all convolutions new random values, as torchvision
// does. It goes through the weights in the order of the state dict.
func (b *builder) redrawConvolutions(m nn.Module) {
	for _, p := range nn.Parameters(m) {
		if p.Dim() == 4 {
			nn.KaimingNormal(b.x, p, nn.KaimingOptions{FanOut: true})
		}
	}
}

// redrawTruncated gives the weights of all convolutions and linear layers new random values, in
// the order of the state dict. The values are normally distributed and lie in [-2, 2]. The
// function `deviation` returns the standard deviation for a weight. torchvision does this for
// models whose initial weights follow TensorFlow.
func (b *builder) redrawTruncated(m nn.Module, deviation func(weight *cgotorch.Tensor) float64) {
	for _, p := range nn.Parameters(m) {
		if p.Dim() > 1 {
			nn.TruncatedNormal(b.x, p, 0, deviation(p), -2, 2)
		}
	}
}

// probability returns the value of the option p, or `standard` if p is unset. It fails for a value
// outside [0, 1].
func probability(x *cgotorch.Exec, where, option string, p cgotorch.Opt[float64], standard float64) float64 {
	v := p.Or(standard)
	if !(v >= 0 && v <= 1) {
		x.Fail(where, fmt.Errorf("%s is %v, want from 0 to 1: %w", option, v, cgotorch.ErrInvalidArgument))
	}
	return v
}

// then runs modules on t, one after another, and closes each module's input.
func then(x *cgotorch.Exec, t *cgotorch.Tensor, modules ...nn.Module) *cgotorch.Tensor {
	for _, m := range modules {
		out := m.Forward(x, t)
		t.Close()
		t = out
	}
	return t
}

// rectify sets negative elements of t to 0.
func rectify(x *cgotorch.Exec, t *cgotorch.Tensor) { x.ReLUInPlace(t).Close() }
