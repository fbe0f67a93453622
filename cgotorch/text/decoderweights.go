package text

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// linear is a product with weights whose rows may come from several tensors of the files. In
// generation one product computes all of them. In training each tensor has its own product, because
// each is a parameter.
type linear struct {
	weight, bias *cgotorch.Tensor // [rows, in] and [rows]; bias is nil if there is none
	parts        []nn.Linear      // views of both, one for each tensor of the files
	codes        *codes           // in place of weight and parts, or nil: Note [Weights of 8 bits]
	ring         ring             // of a token's product: Note [Search of sizes]

	names []string // of the weights of the parts, in the files
	rows  []int    // of each part
	in    int
}

// forward maps `in` [n, in] to [n, rows].
func (l *linear) forward(x *cgotorch.Exec, in *cgotorch.Tensor, training bool) *cgotorch.Tensor {
	if l.codes != nil {
		return x.Tidy(func() *cgotorch.Tensor { return x.Linear(in, l.codes.weight(x, in.DType()), l.bias) })
	}
	if !training || len(l.parts) <= 1 {
		return x.Linear(in, l.weight, l.bias)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		var all []*cgotorch.Tensor
		for i := range l.parts {
			all = append(all, l.parts[i].Forward(x, in))
		}
		return x.Cat(all, 1)
	})
}

// product maps `in` [n, in] to [n, rows], or to [n, rows/2] with a gated activation as the
// epilogue: see csrc/kernels/rows_linear.cc. The result has the dtype of `in`, or with "float" the
// wide one. It has no gradients. Quantised weights ignore `early`.
func (l *linear) product(x *cgotorch.Exec, in *cgotorch.Tensor, epilogue string, early bool) *cgotorch.Tensor {
	if l.codes != nil {
		return x.Tidy(func() *cgotorch.Tensor {
			return call(x, "streamtorch::rows_linear", in, l.codes.weight(x, in.DType()), l.bias, epilogue, "full")
		})
	}
	return call(x, "streamtorch::rows_linear", in, l.weight, l.bias, epilogue, edgeOf(early))
}

// edgeOf returns "early" if a kernel may begin while earlier ones run, else "full".
func edgeOf(early bool) string {
	if early {
		return "early"
	}
	return "full"
}

// maker makes the tensors of a decoder, in the order of the files. The Do owns them until keep.
type maker struct {
	x     *cgotorch.Exec
	c     *decoderConfig
	dtype cgotorch.DType
	kernelChoice

	quantize bool      // the weights of layers' products are made later, one at a time
	later    []*linear // these products
	codes4   string    // the form of experts with weights of 4 bits, or ""
	wide4    bool      // there is room for the numbers of a layer of them
	packs    []*pack   // these experts

	table  *weights.Table    // of experts in host memory, or nil
	host   map[string][]byte // that memory, by the names of the files
	sparse int               // layers with experts so far

	named []nn.Named         // with the names of the files
	whole []*cgotorch.Tensor // tensors of which `named` has views
}

// tensor makes a tensor of its own.
func (m *maker) tensor(name string, dtype cgotorch.DType, shape ...int) *cgotorch.Tensor {
	t := m.empty(dtype, shape...)
	m.add(name, t)
	return t
}

func (m *maker) add(name string, t *cgotorch.Tensor) {
	m.named = append(m.named, nn.Named{Name: name, Tensor: t})
}

func (m *maker) empty(dtype cgotorch.DType, shape ...int) *cgotorch.Tensor {
	sizes := make([]int64, len(shape))
	for i, n := range shape {
		sizes[i] = int64(n)
	}
	t := m.x.Empty(dtype, sizes...)
	m.whole = append(m.whole, t)
	return t
}

// norm makes the weight of a norm in the wide dtype. It returns nil for a norm that the family does
// not have. Files get it back in their dtype.
func (m *maker) norm(prefix, name string, width int) *cgotorch.Tensor {
	if name == "" {
		return nil
	}
	return m.tensor(prefix+name+".weight", m.wide(), width)
}

// wide is the dtype of norms, routers and the residual stream: Float64 for a model in Float64, else
// Float32.
func (m *maker) wide() cgotorch.DType {
	if m.dtype == cgotorch.Float64 {
		return cgotorch.Float64
	}
	return cgotorch.Float32
}

// product makes a product of a layer, or lets its weight be made later if that is to be quantised.
func (m *maker) product(prefix string, names []string, in int, bias bool, rows ...int) *linear {
	return m.linear(m.quantize, m.dtype, prefix, names, in, bias, rows...)
}

// linear makes a product. rows has the rows of each tensor of the files, or of all of them
// together if the files have one.
func (m *maker) linear(later bool, dtype cgotorch.DType, prefix string, names []string, in int, bias bool, rows ...int) *linear {
	total := 0
	for _, n := range rows {
		total += n
	}
	if len(names) == 1 {
		rows = []int{total}
	}
	l := &linear{rows: rows, in: in}
	for _, name := range names {
		l.names = append(l.names, prefix+name+".weight")
	}
	if later {
		m.later = append(m.later, l)
	} else {
		m.weights(l, dtype)
	}
	if bias {
		m.biases(l, dtype, total)
	}
	return l
}

// weights makes the weights of a product, and adds its parts to the named tensors.
func (m *maker) weights(l *linear, dtype cgotorch.DType) {
	total, at := 0, 0
	for _, n := range l.rows {
		total += n
	}
	l.weight = m.empty(dtype, total, l.in)
	for i, name := range l.names {
		part := nn.Linear{Weight: m.view(l.weight, at, l.rows[i])}
		m.add(name, part.Weight)
		l.parts = append(l.parts, part)
		at += l.rows[i]
	}
}

// biases makes the biases of a product.
func (m *maker) biases(l *linear, dtype cgotorch.DType, total int) {
	l.bias = m.empty(dtype, total)
	at := 0
	for i, name := range l.names {
		bias := m.view(l.bias, at, l.rows[i])
		m.add(strings.TrimSuffix(name, "weight")+"bias", bias)
		if l.parts != nil {
			l.parts[i].Bias = bias
		}
		at += l.rows[i]
	}
}

// view returns rows of a tensor, or the tensor itself if it has no others.
func (m *maker) view(t *cgotorch.Tensor, from, rows int) *cgotorch.Tensor {
	if int64(rows) == t.Shape()[0] {
		return t
	}
	return m.x.Narrow(t, 0, from, rows)
}

// experts makes the experts of a layer. Files have two or three matrices for each expert, or one
// tensor for all of them, whose matrices are then transposed.
func (m *maker) experts(prefix string) *experts {
	c, n := m.c, m.c.names
	e := &experts{c: c, router: m.linear(false, m.wide(), prefix, []string{n.router}, c.width, c.experts.bias, c.experts.count)}
	if m.table != nil {
		held := m.table.Layer(m.sparse)
		e.number, e.held, e.gateUp, e.down = m.sparse, &held, held.Experts[0], held.Experts[1]
		m.sparse++
	} else {
		dtype, matrices := c.matrices(m.dtype, m.codes4)
		e.gateUp = m.empty(dtype, c.experts.count, matrices[0][0], matrices[0][1])
		e.down = m.empty(dtype, c.experts.count, matrices[1][0], matrices[1][1])
	}
	if m.codes4 != "" {
		m.pack(prefix, e)
		return e
	}
	if !strings.Contains(n.expertDown, "%d") {
		e.gateUpParameter, e.downParameter = m.x.Transpose(e.gateUp, 1, 2), m.x.Transpose(e.down, 1, 2)
		m.add(prefix+n.expertGateUp[0], e.gateUpParameter)
		m.add(prefix+n.expertDown, e.downParameter)
		m.expertBiases(prefix, e)
		return e
	}
	for i := range c.experts.count {
		gateUp := m.x.Select(e.gateUp, 0, i)
		one := expert{down: nn.Linear{Weight: m.x.Select(e.down, 0, i)}}
		for k, name := range n.expertGateUp {
			part := nn.Linear{Weight: m.x.Narrow(gateUp, 0, k*c.experts.inner, c.experts.inner)}
			m.expert(prefix+fmt.Sprintf(name, i)+".weight", part.Weight, e, 0, i*len(n.expertGateUp)+k)
			one.gateUp = append(one.gateUp, part)
		}
		m.expert(prefix+fmt.Sprintf(n.expertDown, i)+".weight", one.down.Weight, e, 1, i)
		e.each = append(e.each, one)
	}
	return e
}

// expertBiases makes the biases of the experts of a layer.
func (m *maker) expertBiases(prefix string, e *experts) {
	c, n := m.c, m.c.names
	e.gateUpBias = m.tensor(prefix+n.expertGateUp[0]+"_bias", m.dtype, c.experts.count, 2*c.experts.inner)
	e.downBias = m.tensor(prefix+n.expertDown+"_bias", m.dtype, c.experts.count, c.width)
}

// pack lets the experts of a layer get codes of 4 bits later, from where the files have them.
func (m *maker) pack(prefix string, e *experts) {
	c, n := m.c, m.c.names
	e.packed, e.form, e.wide = m.dtype, m.codes4, m.wide4
	count, inner, width := int64(c.experts.count), int64(c.experts.inner), int64(c.width)
	if !strings.Contains(n.expertDown, "%d") {
		m.packs = append(m.packs, &pack{to: e.gateUp, form: m.codes4, name: prefix + n.expertGateUp[0], shape: []int64{count, width, 2 * inner}},
			&pack{to: e.down, form: m.codes4, name: prefix + n.expertDown, shape: []int64{count, inner, width}})
		m.expertBiases(prefix, e)
		return
	}
	for i := range c.experts.count {
		gateUp := &linear{in: c.width}
		for _, name := range n.expertGateUp {
			gateUp.names, gateUp.rows = append(gateUp.names, prefix+fmt.Sprintf(name, i)+".weight"), append(gateUp.rows, c.experts.inner)
		}
		down := &linear{names: []string{prefix + fmt.Sprintf(n.expertDown, i) + ".weight"}, rows: []int{c.width}, in: c.experts.inner}
		m.packs = append(m.packs, &pack{to: e.gateUp, form: m.codes4, expert: i, one: gateUp}, &pack{to: e.down, form: m.codes4, expert: i, one: down})
	}
}

// expert adds a matrix of an expert to the named tensors. `i` counts the matrices of this size in
// the layer's memory of gate and up, or of down.
func (m *maker) expert(name string, weight *cgotorch.Tensor, e *experts, matrix, i int) {
	m.add(name, weight)
	if e.held != nil {
		bytes := int(weight.Numel()) * m.dtype.Size()
		m.host[name] = e.held.Memory[matrix].Bytes()[i*bytes:][:bytes]
	}
}

// layer makes the tensors of one layer.
func (m *maker) layer(prefix string, l layerConfig) *decoderLayer {
	c, n := m.c, m.c.names
	d := &decoderLayer{layerConfig: l}
	d.beforeMix = m.norm(prefix, n.beforeMix, c.width)
	d.qkv = m.product(prefix, n.qkv, c.width, c.queryBias, c.heads*c.head, c.keyHeads*c.head, c.keyHeads*c.head)
	switch c.headNorm {
	case eachHead:
		d.queryNorm, d.keyNorm = m.norm(prefix, n.queryNorm, c.head), m.norm(prefix, n.keyNorm, c.head)
	case allHeads:
		d.queryNorm, d.keyNorm = m.norm(prefix, n.queryNorm, c.heads*c.head), m.norm(prefix, n.keyNorm, c.keyHeads*c.head)
	}
	if c.sinks {
		d.sinks = m.tensor(prefix+n.sinks, m.dtype, c.heads)
	}
	d.out = m.product(prefix, []string{n.out}, c.heads*c.head, c.outBias, c.width)
	d.afterMix = m.norm(prefix, n.afterMix, c.width)
	d.beforeFeed = m.norm(prefix, n.beforeFeed, c.width)
	if l.sparse {
		d.experts = m.experts(prefix)
	} else {
		d.gateUp = m.product(prefix, n.gateUp, c.width, c.innerBias, c.inner, c.inner)
		d.down = m.product(prefix, []string{n.down}, c.inner, c.innerBias, c.width)
	}
	d.afterFeed = m.norm(prefix, n.afterFeed, c.width)
	return d
}

// decoder makes all tensors. Their values are undefined.
func (m *maker) decoder() *decoder {
	prefix := m.c.names.prefix[0]
	m.host = map[string][]byte{}
	d := &decoder{c: m.c, dtype: m.dtype, wide: m.wide(), embed: m.tensor(prefix+"embed_tokens.weight", m.dtype, m.c.vocab, m.c.width)}
	for i, l := range m.c.layers {
		d.layers = append(d.layers, m.layer(fmt.Sprintf("%slayers.%d.", prefix, i), l))
	}
	d.norm = m.norm(prefix, "norm", m.c.width)
	d.head = &linear{weight: d.embed}
	if !m.c.tied {
		d.head = m.product("", []string{strings.TrimSuffix(headName, ".weight")}, m.c.width, false, m.c.vocab)
	}
	d.table, d.host = m.table, m.host
	if m.table != nil {
		d.byEngine = m.table.ByEngine
	}
	d.packs = m.packs
	d.later, d.Weights, d.whole, d.kernelChoice = m.later, m.named, m.whole, m.kernelChoice
	if d.notOwn == "" {
		d.edge = "early"
	}
	for i, tokens := range []int{1, m.c.context} {
		for _, r := range m.c.ropes {
			d.frequencies[i] = append(d.frequencies[i], m.x.Keep(r.frequencies(m.x, tokens)))
		}
	}
	return d
}

// keep hands the tensors out of the Do. The named ones require gradients, as parameters do.
func (m *maker) keep() {
	for _, t := range m.whole {
		m.x.Keep(t)
	}
	for _, n := range m.named {
		cgotorch.Check(m.x.Keep(n.Tensor).SetRequiresGrad(true))
	}
}

// seedBy gives the generators a seed that depends on the model's seed and on a name alone.
func seedBy(seed uint64, name string) {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", seed, name)
	sum := hash.Sum64()
	cgotorch.Check(cgotorch.Seed(sum ^ sum>>32)) // the CPU's generator takes the low half
}

// randomize draws weights on the device, as transformers draws those of a new model: a normal
// distribution for matrices, 1 for norms and 0 for biases and sinks. The numbers depend on the seed
// and on the tensor's name alone.
func (d *decoder) randomize(x *cgotorch.Exec, seed uint64, named []nn.Named) error {
	return withSeed(seed, func() {
		for _, n := range named {
			seedBy(seed, n.Name)
			switch {
			case strings.HasSuffix(n.Name, "norm.weight"):
				value := 1.0
				if d.c.normOffset {
					value = 0
				}
				nn.Constant(x, n.Tensor, value)
			case strings.HasSuffix(n.Name, "bias"), strings.HasSuffix(n.Name, "sinks"):
				nn.Constant(x, n.Tensor, 0)
			default:
				nn.Normal(x, n.Tensor, 0, d.c.deviation)
			}
		}
	})
}
