package optim

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// MuonOptions are the settings of [NewMuon]. The zero value is PyTorch's default.
type MuonOptions struct {
	LR            float64                  // learning rate, above 0; 0 means 0.001
	WeightDecay   float64                  // at least 0; each step multiplies a parameter by 1 - WeightDecay*LR; 0 means 0.1
	NoWeightDecay bool                     // no weight decay, where WeightDecay 0 means 0.1
	Momentum      cgotorch.Opt[float64]    // decay of the mean of gradients, in [0, 1); unset means 0.95
	NoNesterov    bool                     // the change comes from the mean alone
	Coefficients  cgotorch.Opt[[3]float64] // of the iteration; unset means 3.4445, -4.775 and 2.0315
	Eps           float64                  // least norm by which a matrix is divided, above 0; 0 means 1e-7
	Iterations    int                      // of the iteration, below 100; 0 means 5
	// MatchAdamW scales the learning rate so that changes are as large as AdamW's. Otherwise the
	// factor is sqrt(max(1, rows/columns)).
	MatchAdamW bool
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewMuon returns an optimizer for matrices. It makes the mean of gradients nearly orthogonal, by
// some iterations in bfloat16. Give vectors, embeddings and the last layer to another optimizer.
// It has torch.optim.Muon's rule. The caller must Close the optimizer. NewMuon fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewMuon(o MuonOptions, groups ...Group) (*Optimizer, error) {
	r := &muon{
		listRule: listRule{"muon"}, momentum: o.Momentum.Or(0.95), nesterov: !o.NoNesterov, coefficients: o.Coefficients.Or([3]float64{3.4445, -4.7750, 2.0315}),
		eps: or(o.Eps, 1e-7), iterations: o.Iterations, matchAdamW: o.MatchAdamW,
	}
	if r.iterations == 0 {
		r.iterations = 5
	}
	if err := checkNumbers(r.title, fraction("Momentum", r.momentum), least("Eps", r.eps),
		number{"Iterations", float64(r.iterations), func(v float64) bool { return v >= 1 && v < 100 }, "from 1 to 99"}); err != nil {
		return nil, err
	}
	switch {
	case o.NoWeightDecay && o.WeightDecay != 0:
		return nil, fmt.Errorf("optim: muon: both a weight decay of %v and NoWeightDecay: leave one out: %w", o.WeightDecay, cgotorch.ErrInvalidArgument)
	case !o.NoWeightDecay:
		o.WeightDecay = or(o.WeightDecay, 0.1)
	}
	opt, err := newOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, groups)
	if err != nil {
		return nil, err
	}
	for i, p := range opt.parameters {
		if len(p.shape) != 2 {
			return nil, fmt.Errorf("optim: muon: parameter %d is %s, want a matrix: %w", i, p.tensor, cgotorch.ErrInvalidArgument)
		}
	}
	return opt, nil
}

type muon struct {
	listRule
	momentum, eps float64
	nesterov      bool
	coefficients  [3]float64
	iterations    int
	matchAdamW    bool
}

func (r *muon) remembers() []string { return []string{"momentum_buffer"} }

func (r *muon) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *muon) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *muon) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	means := b.state(0)
	x.ForeachLerpInPlace(means, b.grads, 1-r.momentum)
	n.decoupledOr(true)
	for i, p := range b.params {
		x.Tidy(func() *cgotorch.Tensor {
			change := means[i]
			if r.nesterov {
				change = x.Lerp(b.grads[i], change, r.momentum)
			}
			by := n.mul(n.rate, constant(-r.scale(p)))
			if by.device == nil {
				x.AddScaledInPlace(p, r.orthogonal(x, change), by.host)
			} else {
				x.AddInPlace(p, x.Mul(x.To(r.orthogonal(x, change), p.DType()), x.To(by.device, p.DType())))
			}
			return nil
		})
	}
}

// scale returns the factor of the learning rate for a matrix.
func (r *muon) scale(p *cgotorch.Tensor) float64 {
	rows, columns := float64(p.Shape()[0]), float64(p.Shape()[1])
	if r.matchAdamW {
		return 0.2 * math.Sqrt(max(rows, columns))
	}
	return math.Sqrt(max(1, rows/columns))
}

// orthogonal returns a matrix near the orthogonal matrix that is nearest to m, in bfloat16. It
// iterates as Newton and Schulz do.
//
// Source: https://kellerjordan.github.io/posts/muon/
func (r *muon) orthogonal(x *cgotorch.Exec, m *cgotorch.Tensor) *cgotorch.Tensor {
	tall := m.Shape()[0] > m.Shape()[1]
	now := x.To(m, cgotorch.BFloat16)
	if tall {
		now = x.Transpose(now, 0, 1)
	}
	now = x.Div(now, x.Clamp(x.VectorNorm(now, 2, nil, cgotorch.SumOptions{}), r.eps, nil))
	a, b, c := r.coefficients[0], r.coefficients[1], r.coefficients[2]
	for range r.iterations {
		gram := x.MM(now, x.Transpose(now, 0, 1))
		update := x.AddMM(gram, gram, gram, cgotorch.AddMMOptions{Beta: b, Alpha: c})
		now = x.AddMM(now, update, now, cgotorch.AddMMOptions{Beta: a})
	}
	if tall {
		now = x.Transpose(now, 0, 1)
	}
	return now
}
