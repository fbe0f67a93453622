package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Residual is Activation(Body(in) + Shortcut(in)).
type Residual struct {
	Body       Module
	Shortcut   Module // nil means in itself
	Activation Module // nil means none
	// InPlace adds into Body's result, which saves its memory. Backward of Body's last module must not
	// need its result: a convolution or a norm will do. Otherwise Backward fails.
	InPlace bool
}

// Forward keeps the shape that Body returns.
func (m *Residual) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
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

// closeUnless closes tensors but one.
func closeUnless(one *cgotorch.Tensor, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t != one {
			t.Close()
		}
	}
}
