package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/convrelu"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// convolutionReLU is max(0, convolution + addend).
type convolutionReLU struct {
	graph.Call
	addend  *graph.Operand // nil means 0
	inPlace bool           // the sum keeps the convolution's dtype
	outs    []int
}

func (c *convolutionReLU) Reads() []*graph.Operand {
	all := c.Call.Reads()
	if c.addend != nil {
		all = append(all, c.addend)
	}
	return all
}
func (c *convolutionReLU) Fills() []int { return c.outs }

func (c *convolutionReLU) Run(x *cgotorch.Exec, f *graph.Frame) {
	var z *cgotorch.Tensor
	if c.addend != nil {
		z = c.addend.Tensor(f)
	}
	if out := c.atOnce(x, f, z); out != nil {
		f.Values[c.outs[0]] = out
		return
	}
	call := opcall.Begin(x, c.Op)
	c.Pass(call, f)
	out := call.Run1()
	switch {
	case z != nil && c.inPlace:
		x.AddInPlace(out, z).Close()
	case z != nil:
		sum := x.Add(out, z)
		out.Close()
		out = sum
	}
	f.Values[c.outs[0]] = out
	x.ReLUInPlace(out).Close()
}

// atOnce does all of the work with one operator of cuDNN. If that operator does not fit, atOnce
// returns nil.
func (c *convolutionReLU) atOnce(x *cgotorch.Exec, f *graph.Frame, z *cgotorch.Tensor) *cgotorch.Tensor {
	in, weight := c.Args[0].Tensor(f), c.Args[convolutionWeight].Tensor(f)
	if groups, ok := constantArg[int64](&c.Call, convolutionGroups); ok && groups != 1 || x.GradEnabled() || in == nil || weight == nil || !convrelu.Fits(x, in, weight) {
		return nil
	}
	sizes := [3][]int64{{1, 1}, {0, 0}, {1, 1}} // stride, padding, dilation
	for i := range sizes {
		if at := convolutionStride + i; at < len(c.Args) && !c.Args[at].IsDefault() {
			given, ok := c.Args[at].Constant.([]int64)
			if !ok || len(given) != 2 {
				return nil
			}
			sizes[i] = given
		}
	}
	if slices.Min(sizes[0]) < 1 {
		return nil // the convolution says why
	}
	var bias *cgotorch.Tensor
	if convolutionBias < len(c.Args) {
		bias = c.Args[convolutionBias].Tensor(f)
	}
	return convrelu.Forward(x, in, weight, bias, z, sizes[0], sizes[1], sizes[2])
}
