package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Residual computes Activation(Body(in) + Shortcut(in)).
type Residual struct {
	Body       Module
	Shortcut   Module // nil means Shortcut(in) is `in`
	Activation Module // nil means no activation
	// InPlace adds Shortcut(in) into Body's result, which saves the memory of a second tensor. Use it
	// only if the backward of Body's last module does not need this result. A convolution or a norm
	// does not need it. For a module that needs it, Backward fails. A result that shares memory with
	// `in`, as of a Dropout in evaluation, stays as it is.
	InPlace bool
}

// Forward returns a tensor of the shape that Body returns. If Body is a [Sequential] that ends in
// a [BatchNorm2d], the norm, the sum and the activation run as one operator, as in [NormAddReLU].
// A shortcut of a [Conv2d] and a BatchNorm2d then runs as in [NormAddNormReLU].
func (m *Residual) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := CastWeights(x, m)
	defer release()
	if absent(m.Body) {
		refuse(x, "nn.Residual", "Body is nil, want a module")
	}
	if front, norm := m.fused(); norm != nil {
		return m.forwardFused(x, in, front, norm)
	}
	body := m.Body.Forward(x, in)
	shortcut := in
	if !absent(m.Shortcut) {
		shortcut = m.Shortcut.Forward(x, in)
	}
	var out *cgotorch.Tensor
	if m.InPlace && !body.SharesMemory(in) {
		out = x.AddInPlace(body, shortcut)
	} else {
		out = x.Add(body, shortcut)
	}
	closeUnless(in, body, shortcut)
	if absent(m.Activation) {
		return out
	}
	sum := out
	out = m.Activation.Forward(x, sum)
	closeUnless(out, sum)
	return out
}

// fused splits Body into its last norm and the modules before it. The norm is nil if it cannot run
// as one operator with the sum and the activation.
func (m *Residual) fused() (front []Module, norm *BatchNorm2d) {
	body, ok := m.Body.(*Sequential)
	if !ok || body.Recompute != 0 || activationName(m.Activation) == "" {
		return nil, nil
	}
	modules := body.present()
	if len(modules) == 0 {
		return nil, nil
	}
	norm, _ = modules[len(modules)-1].(*BatchNorm2d)
	return modules[:len(modules)-1], norm
}

func (m *Residual) forwardFused(x *cgotorch.Exec, in *cgotorch.Tensor, front []Module, norm *BatchNorm2d) *cgotorch.Tensor {
	body, activation := chain(x, in, front), activationName(m.Activation)
	defer body.Close()
	shortcut := in
	if s, ok := m.Shortcut.(*Sequential); ok && s != nil && s.Recompute == 0 {
		if modules := s.present(); len(modules) == 2 {
			conv, isConv := modules[0].(*Conv2d)
			norm2, isNorm := modules[1].(*BatchNorm2d)
			if isConv && isNorm {
				// The gradients of both readers of `in` reach the norm before it separately.
				second := x.Call1("streamtorch::branch", in)
				shortcut = conv.Forward(x, second)
				second.Close()
				defer shortcut.Close()
				return norm.activatedWith(x, body, norm2, shortcut, activation)
			}
		}
	}
	if !absent(m.Shortcut) {
		shortcut = m.Shortcut.Forward(x, in)
		defer closeUnless(in, shortcut)
	}
	return norm.activated(x, body, shortcut, activation)
}

// closeUnless closes all tensors except the tensor `one`.
func closeUnless(one *cgotorch.Tensor, tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		if t != one {
			t.Close()
		}
	}
}
