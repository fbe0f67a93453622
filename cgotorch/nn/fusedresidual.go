package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// fusedResidual is a Residual whose body ends in a convolution. Last is that convolution. It also
// adds the shortcut and applies the activation to the sum.
type fusedResidual struct {
	Body     Module // the body without Last; nil if Last is the whole body
	Last     *fusedConv2d
	Shortcut Module // nil means the input of the Residual
}

// Forward returns a tensor of the shape that Last returns.
func (m *fusedResidual) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	body, shortcut := in, in
	if m.Body != nil {
		body = m.Body.Forward(x, in)
	}
	if m.Shortcut != nil {
		shortcut = m.Shortcut.Forward(x, in)
	}
	out := m.Last.ForwardAdd(x, body, shortcut)
	closeUnless(in, body, shortcut)
	return out
}

func (f *Fusion) residual(x *cgotorch.Exec, m *Residual) Module {
	body, activation := f.chain(x, m.Body), f.chain(x, m.Activation)
	var shortcut Module
	if list := f.chain(x, m.Shortcut); len(list) > 0 {
		shortcut = sequence(list)
	}
	if len(body) > 0 {
		front := body[:len(body)-1]
		if last, ok := body[len(body)-1].(*fusedConv2d); ok && last.Activation == noActivation {
			out := &fusedResidual{Last: last, Shortcut: shortcut}
			if len(front) > 0 {
				out.Body = sequence(front)
			}
			if len(activation) > 0 && activationOf(activation[0]) != noActivation {
				out.Last = last.with(x, activationOf(activation[0]))
				activation = activation[1:]
			}
			return sequence(append([]Module{out}, activation...))
		}
	}
	out := &Residual{Body: sequence(body), Shortcut: shortcut, InPlace: m.InPlace}
	if len(activation) > 0 {
		out.Activation = sequence(activation)
	}
	return out
}
