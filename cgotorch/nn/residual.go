package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Residual computes Activation(Body(in) + Shortcut(in)).
type Residual struct {
	Body       Module
	Shortcut   Module // nil means Shortcut(in) is `in`
	Activation Module // nil means no activation
	// InPlace adds Shortcut(in) into Body's result, which saves the memory of a second tensor. Use it
	// only if the backward of Body's last module does not need this result. A convolution or a norm
	// does not need it. For a module that needs it, Backward fails.
	InPlace bool
}

// Forward returns a tensor of the shape that Body returns.
func (m *Residual) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := CastWeights(x, m)
	defer release()
	body := m.Body.Forward(x, in)
	shortcut := in
	if m.Shortcut != nil {
		shortcut = m.Shortcut.Forward(x, in)
	}
	var out *cgotorch.Tensor
	if m.InPlace {
		out = x.AddInPlace(body, shortcut)
	} else {
		out = x.Add(body, shortcut)
	}
	closeUnless(in, body, shortcut)
	if m.Activation == nil {
		return out
	}
	sum := out
	out = m.Activation.Forward(x, sum)
	closeUnless(out, sum)
	return out
}

// closeUnless closes all tensors except the tensor `one`.
func closeUnless(one *cgotorch.Tensor, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t != one {
			t.Close()
		}
	}
}
