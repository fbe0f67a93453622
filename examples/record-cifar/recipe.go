package main

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// These are numbers of the recipe.
const (
	momentum       = 0.85
	decayPerKilo   = 0.0153 // weight decay for 1024 images, whatever the learning rate is
	biasFactor     = 64     // the learning rate of norms' biases, in terms of the others'
	smoothing      = 0.2
	whiteningPart  = 3 // epochs in which the whitening layer's bias is trained
	lookaheadEvery = 5 // steps
	whiteningFrom  = 5000
)

// newOptimizer returns SGD for the sum of a batch's losses. lr is the learning rate for 1024
// images. It is divided by the factor by which Nesterov momentum makes steps larger.
func newOptimizer(n *network, lr float64, batch int) (*optim.Optimizer, error) {
	const kilo = 1024 * (1 + 1/(1-momentum))
	lr /= kilo
	decay := decayPerKilo * float64(batch) / kilo
	return optim.NewSGD(optim.SGDOptions{Momentum: momentum, Nesterov: true},
		optim.Group{Params: n.biases(), LR: lr * biasFactor, WeightDecay: decay / (lr * biasFactor)},
		optim.Group{Params: n.others(), LR: lr, WeightDecay: decay / lr})
}

// triangle returns the learning rate's factor. It rises from 0.2 to 1 in the first 23 % of the
// steps, and then falls to 0.07.
func triangle(steps int) optim.Schedule {
	const first, last = 0.2, 0.07
	rise := int(0.23 * float64(steps))
	return optim.Warmup(rise, first, func(step int) float64 {
		return 1 - (1-last)*float64(step)/float64(steps-rise)
	})
}

// lookahead averages tensors of a network and writes the averages back into the network. Unlike
// optim.EMA it has another decay at each update.
type lookahead struct {
	now, averages []*cgotorch.Tensor
}

func newLookahead(x *cgotorch.Exec, tensors []*cgotorch.Tensor) *lookahead {
	l := &lookahead{now: tensors}
	for _, t := range tensors {
		l.averages = append(l.averages, x.Keep(x.NoGrad().Clone(t)))
	}
	return l
}

// update moves the averages towards the tensors by 1-decay of the distance. Then it sets the
// tensors to the averages.
func (l *lookahead) update(x *cgotorch.Exec, decay float64) {
	x = x.NoGrad()
	x.ForeachLerpInPlace(l.averages, l.now, 1-decay)
	x.ForeachCopyInPlace(l.now, l.averages)
}

// lookaheadDecay returns the decay of the update after `done` of all steps. It grows from 0.
func lookaheadDecay(done, steps int) float64 {
	return math.Pow(0.95, 5) * math.Pow(float64(done)/float64(steps), 3)
}

func (l *lookahead) close() {
	if l == nil {
		return
	}
	for _, t := range l.averages {
		t.Close()
	}
}
