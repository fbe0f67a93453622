package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// seats is the device memory of some sequences that are computed beside each other: one row each.
// Each row has a [lane], through which its prompt runs.
type seats struct {
	d     *decoder
	pages *pages
	part  int // tokens of a prompt at once: see promptPart

	tokens    *cgotorch.Tensor // Int64 [rows]: the inputs of the next step
	positions *cgotorch.Tensor // Int64 [rows]: their positions; below 0 a step passes over the row
	one       *cgotorch.Tensor // Int32 [2]: 0 and 1
	arrived   *cgotorch.Tensor // Int32 [rows*8*keyHeads]: zeros, between the kernels of a token
	spans     []*seatSpan
	samplers  *sampler

	frequencies []*cgotorch.Tensor // of each rotation
	long        bool               // the frequencies are those of a long sequence
}

// seatSpan has the page tables of all rows, in the layers of one span.
type seatSpan struct {
	span
	tables *cgotorch.Tensor // Int64 [rows, layers, 2, width]: see [laneSpan]
	before *cgotorch.Tensor // Int64 [rows]
}

// newSeats makes n rows, whose positions are below 0.
func newSeats(x *cgotorch.Exec, d *decoder, p *pages, spans []span, context, part, n int) *seats {
	r := &seats{d: d, pages: p, part: part}
	of := int64(n)
	r.tokens, r.positions = x.Zeros(cgotorch.Int64, of), x.Full(cgotorch.Int64, -1, of)
	r.one = x.Arange(cgotorch.Int32, 0, 2, 1)
	r.arrived = x.Zeros(cgotorch.Int32, of*8*int64(d.c.keyHeads))
	for _, s := range spans {
		r.spans = append(r.spans, &seatSpan{
			span: s, tables: x.Zeros(cgotorch.Int64, of, int64(len(s.layers)), 2, int64(s.width)), before: x.Zeros(cgotorch.Int64, of),
		})
	}
	for _, f := range d.frequencies[0] {
		r.frequencies = append(r.frequencies, x.Clone(f))
	}
	r.samplers = newSampler(x, n, d.c.vocab, context)
	return r
}

func (r *seats) tensors() []*cgotorch.Tensor {
	all := slices.Concat(r.samplers.tensors(), []*cgotorch.Tensor{r.tokens, r.positions, r.one, r.arrived}, r.frequencies)
	for _, s := range r.spans {
		all = append(all, s.tables, s.before)
	}
	return all
}

func (r *seats) close() error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, t := range r.tensors() {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// chooseFrequencies copies the frequencies for a sequence of so many tokens, if they are not there.
func (r *seats) chooseFrequencies(x *cgotorch.Exec, tokens int) {
	if r.long == r.d.c.long(tokens) {
		return
	}
	for i, f := range r.d.frequenciesOf(tokens) {
		x.CopyInPlace(r.frequencies[i], f).Close()
	}
	r.long = !r.long
}
