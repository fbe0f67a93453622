package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Identity passes its input on.
type Identity struct{}

// Forward returns a second handle of in.
func (*Identity) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Alias(in) }
