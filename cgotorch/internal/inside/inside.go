// Package inside gives the packages inside folder cgotorch what package cgotorch keeps from
// programs.
package inside

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Core is package cgotorch, seen from inside.
var Core = seam.Registered().(seam.Core[*cgotorch.Exec, *cgotorch.Tensor, cgotorch.Device, *cgotorch.Error])

// An Observer follows a Do: see seam.Observer.
type Observer = seam.Observer[*cgotorch.Exec, *cgotorch.Tensor]
