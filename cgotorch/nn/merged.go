package nn

import (
	"cmp"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// merged is a Parallel in which several branches began with a 1x1 convolution. One convolution,
// which is called a head, replaces all of these convolutions that have the same headKind. Each of
// these branches reads a range of channels from the head's result. If the 1x1 convolution was the
// whole branch, the branch's module becomes an [Identity], and the branch needs no stream.
//
// A range of channels is strided if the tensor is channels last or has several images. If the
// branch goes on with a convolution, that convolution copies the range first.
type merged struct {
	Heads []*fusedConv2d
	Cuts  []cut `state:"-"` // one cut for each branch
	Parallel
}

// cut is the range of channels that a branch reads from the result of a head. A head is a
// convolution that replaces several convolutions: see `merged`. A cut of length 0 means that the
// branch reads the input of the Parallel.
type cut struct{ Head, Start, Length int }

// Forward runs the heads and the branches on its argument `in`, and joins the results.
func (m *merged) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	heads := make([]*cgotorch.Tensor, len(m.Heads))
	for i, h := range m.Heads {
		heads[i] = h.Forward(x, in)
	}
	results := make([]*cgotorch.Tensor, len(m.Branches))
	inputs := []*cgotorch.Tensor{in}
	var branches []func(x *cgotorch.Exec) *cgotorch.Tensor
	var places []int // places[i] is the index in `results` for the result of branches[i]
	for i, b := range m.Branches {
		input := in
		if c := m.Cuts[i]; c.Length > 0 {
			input = x.Narrow(heads[c.Head], 1, c.Start, c.Length)
			if _, whole := b.Module.(*Identity); whole {
				results[i] = input
				continue
			}
			inputs = append(inputs, input)
		}
		branches = append(branches, func(x *cgotorch.Exec) *cgotorch.Tensor { return b.Module.Forward(x, input) })
		places = append(places, i)
	}
	for i, r := range m.run(x, inputs, branches) {
		results[places[i]] = r
	}
	closeUnless(in, append(heads, inputs...)...)
	return m.joined(x, results)
}

// parallel fuses the branches of m. If FuseOptions.Merge is set, it also merges them.
func (f *Fusion) parallel(x *cgotorch.Exec, m *Parallel) Module {
	chains := make([][]Module, len(m.Branches))
	for i, b := range m.Branches {
		chains[i] = f.chain(x, b.Module)
	}
	out := &merged{Parallel: Parallel{Join: m.Join, Parallelism: m.Parallelism, Log: m.Log}}
	if f.o.Merge {
		out.merge(x, chains)
	}
	for i, b := range m.Branches {
		out.Branches = append(out.Branches, Child{b.Name, sequence(chains[i])})
	}
	if len(out.Heads) == 0 {
		return &Parallel{Branches: out.Branches, Join: m.Join, Parallelism: m.Parallelism, Log: m.Log}
	}
	return out
}

// headKind holds the properties that convolutions must share to be merged.
type headKind struct {
	channels   int64 // number of channels of the input
	dtype      cgotorch.DType
	activation activation
}

// merge looks at the first convolution of each chain. Where at least two of them have the same
// headKind, it moves them from their chains into one head.
func (m *merged) merge(x *cgotorch.Exec, chains [][]Module) {
	m.Cuts = make([]cut, len(chains))
	begin := map[headKind][]int{} // the indices of the chains that begin with a convolution of the kind
	var kinds []headKind
	for i, c := range chains {
		if len(c) == 0 {
			continue
		}
		if head, ok := c[0].(*fusedConv2d); ok && head.pointwise() {
			k := headKind{head.Weight.Shape()[1], head.Weight.DType(), head.Activation}
			if begin[k] == nil {
				kinds = append(kinds, k)
			}
			begin[k] = append(begin[k], i)
		}
	}
	for _, k := range kinds {
		if len(begin[k]) < 2 {
			continue
		}
		var heads []*fusedConv2d
		start := 0
		for _, i := range begin[k] {
			head := chains[i][0].(*fusedConv2d)
			length := int(head.Weight.Shape()[0])
			m.Cuts[i] = cut{len(m.Heads), start, length}
			start += length
			heads = append(heads, head)
			chains[i] = chains[i][1:]
		}
		m.Heads = append(m.Heads, stacked(x, heads))
	}
}

// pointwise reports whether each pixel of the result depends on one pixel of the input only: on all
// channels of the pixel at the same position.
func (m *Conv2d) pointwise() bool {
	shape := m.Weight.Shape()
	return shape[2] == 1 && shape[3] == 1 && cmp.Or(m.Stride, Square(1)) == Size{1, 1} && m.Padding == Size{} && m.Groups <= 1
}

// stacked returns one convolution whose result has the channels of all convs, in their order.
func stacked(x *cgotorch.Exec, convs []*fusedConv2d) *fusedConv2d {
	var weights, biases []*cgotorch.Tensor
	biased := false
	for _, c := range convs {
		weights = append(weights, c.Weight)
		biased = biased || c.Bias != nil
	}
	out := &fusedConv2d{Conv2d: Conv2d{Weight: x.Cat(weights, 0), Conv2dOptions: Conv2dOptions{NoBias: !biased}}, Activation: convs[0].Activation}
	if !biased {
		return out
	}
	out.Bias = x.Tidy(func() *cgotorch.Tensor {
		for _, c := range convs {
			bias := c.Bias
			if bias == nil {
				bias = x.To(x.Zeros(cgotorch.Float32, c.Weight.Shape()[0]), c.Weight.DType())
			}
			biases = append(biases, bias)
		}
		return x.Cat(biases, 0)
	})
	return out
}
