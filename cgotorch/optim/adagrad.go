package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// AdagradOptions are the settings of [NewAdagrad]. The zero value is PyTorch's default.
type AdagradOptions struct {
	LR          float64 // learning rate, above 0; 0 means 0.01
	LRDecay     float64 // step number n, from 0, divides the learning rate by 1 + n*LRDecay; at least 0
	WeightDecay float64 // at least 0; a parameter times WeightDecay is added to its gradient
	Initial     float64 // the sums of squares begin with this number; at least 0
	Eps         float64 // added to the root of the sum of squares, above 0; 0 means 1e-10
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewAdagrad returns an optimizer that changes the parameters of all groups by
// torch.optim.Adagrad's rule. The caller must Close the optimizer. NewAdagrad fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewAdagrad(o AdagradOptions, groups ...Group) (*Optimizer, error) {
	r := &adagrad{listRule{"adagrad"}, o.LRDecay, o.Initial, or(o.Eps, 1e-10)}
	if err := checkNumbers(r.title, fromZero("LRDecay", r.lrDecay), fromZero("Initial", r.initial), least("Eps", r.eps)); err != nil {
		return nil, err
	}
	opt, err := newOptimizer(r, settings{lr: or(o.LR, 0.01), weightDecay: o.WeightDecay, masters: o.MasterWeights}, groups)
	if err != nil {
		return nil, err
	}
	for _, p := range opt.parameters {
		p.initial = r.initial
	}
	return opt, nil
}

type adagrad struct {
	listRule
	lrDecay, initial, eps float64
}

func (r *adagrad) remembers() []string { return []string{"sum"} }

func (r *adagrad) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *adagrad) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *adagrad) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	grads, sums := b.decayed(x), b.state(0)
	x.ForeachAddCMulInPlace(sums, grads, grads, 1)
	rate := n.div(n.rate, n.add(constant(1), n.mul(n.add(n.step, constant(-1)), constant(r.lrDecay))))
	n.addDivided(grads, n.roots(sums, constant(1), r.eps), n.mul(constant(-1), rate))
}
