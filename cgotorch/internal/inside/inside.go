// Package inside gives the packages inside folder cgotorch what package cgotorch keeps from
// programs.
package inside

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Core is package cgotorch, seen from inside.
var Core = seam.Registered().(seam.Core[*cgotorch.Exec, *cgotorch.Tensor, cgotorch.Device, *cgotorch.Error])

// An Observer follows a Do: see seam.Observer.
type Observer = seam.Observer[*cgotorch.Exec, *cgotorch.Tensor]

// Dense reports whether the elements fill their memory, in any order of the dimensions. A view of
// some columns has gaps, and the elements of an expanded tensor share memory: these are not dense.
func Dense(t *cgotorch.Tensor) bool {
	shape, strides := t.Shape(), t.Strides()
	order := make([]int, len(shape))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(strides[a], strides[b]) })
	next := int64(1)
	for _, i := range order {
		if shape[i] != 1 && strides[i] != next {
			return t.Numel() == 0
		}
		next *= shape[i]
	}
	return true
}
