package text

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Pieces is a step of the decoder, cut at its sparse layers, for experts that run elsewhere. A
// step computes the next token of each sequence. Piece 0 begins with the embeddings. Every later
// piece i begins with the results of the experts of sparse layer i-1. Piece i ends with the
// routing of sparse layer i. The last piece ends with the logits. Each piece can be captured. The
// results of a captured piece lie in the memory of its graph.
type Pieces struct {
	m                   *Switch
	c                   *Cache
	predicted, preGated bool
	sparse              []int // the numbers of the sparse blocks

	// `out` [tokens, d_model] holds the results of the current layer's experts. NewPieces allocates
	// it, because experts run outside of the graphs.
	out *cgotorch.Tensor

	// The fields below are results of the pieces. A piece must not write into its own input. Before
	// the capture of a piece, a warm-up runs the piece once. If the warm-up changed the input, the
	// capture would find the changed input.
	embedded, bias *cgotorch.Tensor
	hidden         []*cgotorch.Tensor // one for each sparse layer: its input, [batch, d_model]
	routed         []routed           // one for each sparse layer
	guesses        []*cgotorch.Tensor // one for each sparse layer: Int64 [tokens]
	logits         *cgotorch.Tensor

	first  *cgotorch.Graph // the graph of the method `begin`; nil without preGated, because piece 0 then does that work
	graphs []*cgotorch.Graph
}

// routed is the routing of a sparse layer: one expert for each token of all sequences together.
type routed struct {
	states        *cgotorch.Tensor // [tokens, d_model], normalized: the input of the experts
	ids           *cgotorch.Tensor // Int64 [tokens]: the chosen experts
	probabilities *cgotorch.Tensor // [tokens, 1]: the probabilities of the chosen experts
}

// NewPieces makes the Pieces of a decoder's step that uses the cache c. `gating` says when a sparse
// layer chooses its experts:
//
//   - "gated", or "": by its own input, as the Switch Transformer does.
//   - "predicted": by its own input too. The router of each layer also guesses earlier, from the
//     input of the previous sparse layer. So experts that must be copied can be copied earlier. The
//     results equal those of "gated".
//   - "pre-gated": by the input of the previous sparse layer. The first sparse layer chooses by the
//     embeddings of the tokens. Such a model has other results, and must be trained in this way.
//     Source: Hwang et al., Pre-gated MoE, 2023.
//
// NewPieces fails with [cgotorch.ErrInvalidArgument] for another gating. m may have been made
// without experts. The caller must Close the result before c and m.
func (m *Switch) NewPieces(x *cgotorch.Exec, c *Cache, gating string) *Pieces {
	switch gating {
	case "", "gated", "predicted", "pre-gated":
	default:
		refuse(x, "Switch.NewPieces", "gating is %q, want gated, predicted, pre-gated, or nothing for gated", gating)
	}
	x = plain(x)
	p := &Pieces{m: m, c: c, predicted: gating == "predicted", preGated: gating == "pre-gated"}
	for i, block := range m.Decoder.Block {
		if block.FF.Sparse != nil {
			p.sparse = append(p.sparse, i)
		}
	}
	n := len(p.sparse)
	p.hidden, p.routed, p.guesses = make([]*cgotorch.Tensor, n), make([]routed, n), make([]*cgotorch.Tensor, n)
	p.out = x.Keep(x.Zeros(m.Shared.Weight.DType(), int64(c.o.Batch), int64(m.Config.DModel)))
	return p
}

// leave keeps t, stores it in *place, and closes the tensor that *place had before.
func leave(x *cgotorch.Exec, place **cgotorch.Tensor, t *cgotorch.Tensor) {
	x.Keep(t)
	(*place).Close()
	*place = t
}

// Capture makes a graph of each piece. Step then launches these graphs. Capture waits for the
// device. Call [Decoder.Start] for the cache after Capture, because Capture runs the pieces.
func (p *Pieces) Capture(s *cgotorch.Stream) error {
	capture := func(work func(x *cgotorch.Exec)) (*cgotorch.Graph, error) {
		return s.Capture(func(x *cgotorch.Exec) error { work(x); return nil }, 1)
	}
	if p.graphs != nil {
		return fmt.Errorf("text: Pieces.Capture: the pieces are captured already: %w", cgotorch.ErrInvalidArgument)
	}
	var works []func(x *cgotorch.Exec)
	if p.preGated {
		works = append(works, p.begin)
	}
	for i := range len(p.sparse) + 1 {
		works = append(works, func(x *cgotorch.Exec) {
			if i == 0 && !p.preGated {
				p.begin(x)
			}
			p.piece(x, i)
		})
	}
	var graphs []*cgotorch.Graph
	for _, work := range works {
		g, err := capture(work)
		if err != nil {
			for _, g := range graphs {
				err = errors.Join(err, g.Close())
			}
			return err
		}
		graphs = append(graphs, g)
	}
	if p.preGated {
		p.first, graphs = graphs[0], graphs[1:]
	}
	p.graphs = graphs
	return nil
}

// Step runs a whole step, as [Switch.Step] does. It returns the logits [batch, vocab_size]. The
// logits are valid until the next Step. Step fails with [cgotorch.ErrInvalidArgument] if the model
// has no experts and [Decoder].Experts is nil.
func (p *Pieces) Step(x *cgotorch.Exec) *cgotorch.Tensor {
	x = plain(x)
	if p.first != nil {
		x.Launch(p.first)
	} else if p.graphs == nil {
		p.begin(x)
	}
	if p.preGated && len(p.sparse) > 0 {
		p.route(x, 0)
	}
	for i := range len(p.sparse) + 1 {
		if p.graphs != nil {
			x.Launch(p.graphs[i])
		} else {
			p.piece(x, i)
		}
		if i < len(p.sparse) {
			p.tell(x, i)
			x.Tidy(func() *cgotorch.Tensor {
				x.CopyInPlace(p.out, p.run(x, i))
				return nil
			})
		}
	}
	return x.Alias(p.logits)
}

// tell announces the choices and guesses of piece i.
func (p *Pieces) tell(x *cgotorch.Exec, i int) {
	if !p.preGated {
		p.route(x, i)
	}
	switch experts := p.m.Decoder.Experts; {
	case i+1 == len(p.sparse):
	case p.preGated:
		p.route(x, i+1)
	case p.predicted && experts != nil:
		experts.Predict(x, i+1, p.guesses[i+1])
	}
}

// route announces the choice of sparse layer i. The model's own experts need no announcement.
func (p *Pieces) route(x *cgotorch.Exec, i int) {
	if experts := p.m.Decoder.Experts; experts != nil {
		experts.Route(x, i, p.routed[i].ids)
	}
}

// run runs the experts of sparse layer i.
func (p *Pieces) run(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	r := p.routed[i]
	if experts := p.m.Decoder.Experts; experts != nil {
		return experts.Run(x, i, r.states)
	}
	return p.layer(i).Sparse.own(x).Forward(x, r.states, r.ids)
}

// begin enqueues the work that comes before the first block.
func (p *Pieces) begin(x *cgotorch.Exec) {
	x = plain(x)
	x.Tidy(func() *cgotorch.Tensor {
		hidden, bias := p.m.Decoder.begin(x, p.c)
		leave(x, &p.embedded, hidden)
		leave(x, &p.bias, bias)
		if p.preGated && len(p.sparse) > 0 {
			p.choose(x, 0, p.layer(0).norm(x, hidden))
		}
		return nil
	})
}

func (p *Pieces) layer(i int) *FeedForward { return p.m.Decoder.Block[p.sparse[i]].FF }

func (p *Pieces) piece(x *cgotorch.Exec, i int) {
	x = plain(x)
	x.Tidy(func() *cgotorch.Tensor {
		blocks := p.m.Decoder.Block
		hidden, next := (*cgotorch.Tensor)(nil), 0
		if i == 0 {
			hidden = x.Alias(p.embedded)
		} else {
			hidden = combine(x, p.hidden[i-1], p.routed[i-1].probabilities, p.out)
			next = p.sparse[i-1] + 1
		}
		for ; next < len(blocks); next++ {
			hidden = then(hidden, p.m.Decoder.attend(x, p.c, next, hidden, p.bias))
			if ff := blocks[next].FF; ff.Sparse != nil {
				p.reach(x, i, ff, hidden)
				return nil
			}
			hidden = then(hidden, blocks[next].FF.forward(x, hidden, nil))
		}
		leave(x, &p.logits, p.m.predict(x, hidden))
		return nil
	})
}

// reach stores the results of piece i, which ends at sparse layer i. These are the input of the
// layer, the choice of experts, and the guess for the next sparse layer.
func (p *Pieces) reach(x *cgotorch.Exec, i int, ff *FeedForward, hidden *cgotorch.Tensor) {
	states, last := ff.norm(x, hidden), i+1 == len(p.sparse)
	leave(x, &p.hidden[i], hidden)
	leave(x, &p.routed[i].states, states)
	if !p.preGated {
		p.choose(x, i, states)
	} else if !last {
		p.choose(x, i+1, states)
	}
	if p.predicted && !last {
		next := p.layer(i + 1)
		ids, _ := next.Sparse.Router.choose(x, next.norm(x, hidden))
		leave(x, &p.guesses[i+1], ids)
	}
}

// choose lets the router of sparse layer i choose experts for `states`. It stores the choice.
func (p *Pieces) choose(x *cgotorch.Exec, i int, states *cgotorch.Tensor) {
	ids, probabilities := p.layer(i).Sparse.Router.choose(x, states)
	leave(x, &p.routed[i].ids, ids)
	leave(x, &p.routed[i].probabilities, probabilities)
}

// Close frees the graphs and the results of the pieces. A second Close does nothing.
func (p *Pieces) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, g := range append(p.graphs, p.first) {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	for _, t := range append(slices.Concat(p.hidden, p.guesses), p.embedded, p.bias, p.out, p.logits) {
		errs = append(errs, t.Close())
	}
	for _, r := range p.routed {
		errs = append(errs, r.states.Close(), r.ids.Close(), r.probabilities.Close())
	}
	return errors.Join(errs...)
}
