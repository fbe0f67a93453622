package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// merged is a Parallel in which 1x1 convolutions of a kind, at the beginning of branches, are one.
// Each of these branches gets its channels of the merged result. A branch that was nothing but its
// 1x1 convolution becomes an [Identity], which needs no stream.
//
// Some channels of a channels-last tensor, or of a batch of several images, are strided. A
// convolution that follows copies them first.
type merged struct {
	Heads []*fusedConv2d
	Cuts  []cut `state:"-"` // by branch
	Parallel
}

// cut is a range of the channels of a head's result. A cut of length 0 stands for the input itself.
type cut struct{ Head, Start, Length int }

// Forward joins the branches' results.
func (m *merged) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	heads := make([]*cgotorch.Tensor, len(m.Heads))
	for i, h := range m.Heads {
		heads[i] = h.Forward(x, in)
	}
	results := make([]*cgotorch.Tensor, len(m.Branches))
	inputs := []*cgotorch.Tensor{in}
	var branches []func(x *cgotorch.Exec) *cgotorch.Tensor
	var places []int // the index in results of each branch
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

// parallel fuses the branches, and merges them where the options say so.
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

// headKind holds the properties that merged convolutions share.
type headKind struct {
	channels   int64 // of the input
	dtype      cgotorch.DType
	activation activation
}

// merge moves the first convolutions of chains into heads.
func (m *merged) merge(x *cgotorch.Exec, chains [][]Module) {
	m.Cuts = make([]cut, len(chains))
	begin := map[headKind][]int{} // the chains that begin with a convolution of this kind
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

// pointwise reports whether each pixel of the result depends only on the pixel of the input at its
// place, and on all its channels.
func (m *Conv2d) pointwise() bool {
	shape := m.Weight.Shape()
	return shape[2] == 1 && shape[3] == 1 && m.Stride.or(Size{1, 1}) == Size{1, 1} && m.Padding == Size{} && m.Groups <= 1
}

// stacked returns one convolution with the channels of several, one behind another.
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
