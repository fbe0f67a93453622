package fuse

import (
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// activationOf returns the name that streamtorch::channel_affine has for the activation of step i,
// or "".
func (f *fuser) activationOf(i int) string {
	c, ok := f.graph.Steps[i].Act.(*graph.Call)
	if !ok || !c.Single {
		return ""
	}
	is := func(n int, want float64) bool {
		v, err := expr.ToFloat(c.Args[n].Constant)
		return err == nil && c.Args[n].Slot < 0 && v == want
	}
	switch f.graph.Steps[i].Node.Operator {
	case "aten.relu.default", "aten.relu_.default":
		return "relu"
	case "aten.relu6.default", "aten.relu6_.default":
		return "relu6"
	case "aten.hardtanh.default", "aten.hardtanh_.default":
		if len(c.Args) == 3 && is(1, 0) && is(2, 6) {
			return "relu6"
		}
	case "aten.silu.default", "aten.silu_.default":
		return "silu"
	case "aten.hardswish.default", "aten.hardswish_.default":
		return "hardswish"
	case "aten.gelu.default":
		if len(c.Args) < 2 || c.Args[1].IsDefault() || c.Args[1].Constant == "none" {
			return "gelu"
		}
	}
	return ""
}

// normActivations makes batch norms behind convolutions part of the activation or the sum that
// alone reads them. It leaves those with a ReLU, which goes into the convolution, unless the
// convolution has groups. A batch norm that a convolution reads becomes a kernel of its own. `own`
// is the weight of an argument that nobody else reads.
func (f *fuser) normActivations(x *cgotorch.Exec, own func(c *graph.Call, i int) *graph.Variable) {
	readers := map[int]int{} // by slot: the last step that reads it
	for i := range f.graph.Steps {
		for _, slot := range graph.SlotsOf(f.graph.Steps[i].Act.Reads()...) {
			readers[slot] = i
		}
	}
	gone := map[int]bool{}
	for _, n := range f.norms() {
		out := n.norm.Outs[0]
		i, ok := readers[out]
		if !ok || f.read[out] != 1 || f.graph.Steps[n.step].Node.Operator != "aten.conv2d.default" || f.writesBetween(n.normStep, i) {
			continue
		}
		groups, given := constantArg[int64](n.convolution, convolutionGroups)
		grouped := given && groups != 1
		a := &normActivation{name: f.activationOf(i), addend: graph.ConstantOf(nil), outs: f.graph.Steps[i].Act.Fills()}
		sum, parts := f.sum(i)
		for _, k := range parts {
			if sum.Args[k].Slot != out {
				continue
			}
			behind, read := readers[sum.Outs[0]]
			if isReLU := read && f.read[sum.Outs[0]] == 1 && f.activationOf(behind) == "relu"; !isReLU {
				a.name, a.addend, a.inPlace = "none", sum.Args[1-k], len(parts) == 1
			}
		}
		to := i
		if f.call(i, "aten.conv2d.default") != nil {
			a.name, a.outs, to = "none", n.norm.Outs, n.normStep
		}
		if a.name == "" || a.name == "relu" && !grouped {
			continue
		}
		if scale, shift, ok := f.affine(x, &n, own); ok {
			a.args = []graph.Operand{n.norm.Args[0], scale, shift}
			f.graph.Steps[to].Act = a
			gone[n.normStep] = to != n.normStep
			f.done.normActivations++
		}
	}
	f.remove(gone)
}

// affine computes what a batch norm multiplies by and adds, in float32, and writes both in the
// places of two of its tensors. It returns false and changes nothing if others read them too.
func (f *fuser) affine(x *cgotorch.Exec, n *normedConvolution, own func(c *graph.Call, i int) *graph.Variable) (scale, shift graph.Operand, ok bool) {
	var all [normVar + 1]*graph.Variable
	for i := normWeight; i <= normVar; i++ {
		if n.norm.Args[i].Slot < 0 {
			continue
		}
		if all[i] = own(n.norm, i); all[i] == nil || !all[i].Tensor.DType().IsFloat() || all[i].Tensor.DType() == cgotorch.Float64 {
			return scale, shift, false
		}
	}
	place := func(i, other int) int {
		if all[i] == nil {
			return other
		}
		return i
	}
	scaleAt, shiftAt := place(normWeight, normVar), place(normBias, normMean)
	double := func(i int) *cgotorch.Tensor { return x.To(all[i].Tensor, cgotorch.Float64) }
	factor := x.Rsqrt(x.AddScalar(double(normVar), n.eps))
	if all[normWeight] != nil {
		factor = x.Mul(factor, double(normWeight))
	}
	offset := x.Neg(x.Mul(double(normMean), factor))
	if all[normBias] != nil {
		offset = x.Add(offset, double(normBias))
	}
	prefix := ""
	if at := strings.LastIndexByte(all[scaleAt].Name, '.'); at >= 0 {
		prefix = all[scaleAt].Name[:at+1]
	}
	for _, put := range []struct {
		at   int
		name string
		t    *cgotorch.Tensor
	}{{scaleAt, "weight", factor}, {shiftAt, "bias", offset}} {
		w := all[put.at]
		old := w.Tensor
		w.Tensor, w.Name, w.Parameter, w.RequiresGrad = x.To(put.t, cgotorch.Float32), prefix+put.name, true, false
		old.Close()
	}
	return n.norm.Args[scaleAt], n.norm.Args[shiftAt], true
}

// normActivation is activation(norm + addend), where the norm is a batch norm of evaluation. Nobody
// else reads its input, the result of a convolution.
type normActivation struct {
	args    []graph.Operand // the input, the scale and the shift
	addend  graph.Operand
	inPlace bool   // the sum keeps the norm's dtype
	name    string // of the activation
	outs    []int
}

func (a *normActivation) Reads() []*graph.Operand { return append(graph.Pointers(a.args), &a.addend) }

func (a *normActivation) Fills() []int { return a.outs }

func (a *normActivation) Run(x *cgotorch.Exec, f *graph.Frame) {
	in := a.args[0].Tensor(f)
	out := affine{in: in, scale: a.args[1].Tensor(f), bias: a.args[2].Tensor(f), addend: a.addend.Tensor(f), activation: a.name, reuse: true}.compute(x)
	if of := in.DType(); a.inPlace && out.DType() != of {
		wide := out
		out = x.To(wide, of)
		wide.Close()
	}
	f.Values[a.outs[0]] = out
}
