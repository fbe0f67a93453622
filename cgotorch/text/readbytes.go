package text

import (
	"slices"
	"strings"
)

// Context returns the largest number of tokens of a conversation.
func (m *Model) Context() int { return m.context }

// Context returns the largest number of tokens of a request, with its answer: that of the model, or
// what the whole cache has room for.
func (b *Batcher) Context() int { return b.context }

// Ends returns the tokens that end an answer. The list belongs to the caller.
func (m *Model) Ends() []int64 { return slices.Clone(m.eos) }

// ReadBytes returns how many bytes of weights and of the cache the device reads to compute one
// token, after `tokens` tokens. The memory's bandwidth bounds how many tokens a second a
// conversation gets, and ReadBytes tells the bound.
func (m *Model) ReadBytes(tokens int) int64 {
	c := m.d.c
	total := 0.0
	for _, n := range m.Weights {
		bytes := float64(n.Tensor.Numel() * int64(n.Tensor.DType().Size()))
		switch {
		case n.Tensor == m.d.embed && m.d.head.weight != m.d.embed:
			bytes /= float64(c.vocab) // one row
		case strings.Contains(n.Name, ".experts."):
			bytes *= float64(c.experts.top) / float64(c.experts.count)
		}
		total += bytes
	}
	narrow := m.d.later
	if c.tied && m.d.head.codes != nil {
		narrow = append(slices.Clone(narrow), m.d.head)
	}
	for _, l := range narrow {
		total += float64(l.codes.numbers.Numel() + 4*l.codes.scale.Numel())
	}
	for _, l := range m.d.layers {
		if e := l.experts; e != nil && e.packed != 0 {
			total += float64(e.gateUp.Numel()+e.down.Numel()) * float64(c.experts.top) / float64(c.experts.count)
		}
	}
	for _, l := range c.layers {
		seen := tokens
		if l.window > 0 {
			seen = min(seen, l.window)
		}
		total += float64(2 * seen * c.keyHeads * c.head * m.d.dtype.Size())
	}
	return int64(total)
}
