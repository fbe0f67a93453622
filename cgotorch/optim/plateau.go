package optim

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// PlateauOptions are the options of [NewPlateau]. The zero value is PyTorch's default.
type PlateauOptions struct {
	Max       bool              // the metric shall rise, as an accuracy does
	Factor    float64           // multiplies the scale at a plateau, in (0, 1); 0 means 0.1
	Patience  cgotorch.Opt[int] // number of Updates without progress that change nothing; unset means 10
	Threshold float64           // smallest progress, a fraction of the best metric, at least 0; 0 means 1e-4
	Absolute  bool              // Threshold is a difference, and not a fraction
	Cooldown  int               // number of Updates after a change that do not count
	Floor     float64           // smallest scale
	Eps       float64           // a smaller change of the scale is left out; 0 means 1e-8
}

// Plateau lowers the learning rate if a metric makes no progress. It is PyTorch's
// ReduceLROnPlateau. A [Schedule] knows the step alone, so a Plateau is a type of its own. Its
// exported fields are all its state: save them, for instance as JSON, and set them again.
type Plateau struct {
	Scale    float64 // the factor that Update returns
	Best     float64 // the best metric, if Known
	Known    bool    // there was a metric, which was a number
	Bad      int     // number of Updates without progress since the last progress or change
	Cooling  int     // number of Updates that will not count
	options  PlateauOptions
	patience int
}

// NewPlateau returns a Plateau with a scale of 1. It fails with [cgotorch.ErrInvalidArgument] if an
// option is not valid.
//
//	opt.SetScale(plateau.Update(validationLoss)) // once for each epoch
func NewPlateau(o PlateauOptions) (*Plateau, error) {
	o.Factor, o.Threshold, o.Eps = or(o.Factor, 0.1), or(o.Threshold, 1e-4), or(o.Eps, 1e-8)
	p := &Plateau{Scale: 1, options: o, patience: o.Patience.Or(10)}
	if err := checkNumbers("plateau", positive("Factor", o.Factor), fraction("Factor", o.Factor), fromZero("Threshold", o.Threshold), fromZero("Eps", o.Eps),
		fromZero("Floor", o.Floor)); err != nil {
		return nil, err
	}
	if p.patience < 0 || o.Cooldown < 0 {
		return nil, fmt.Errorf("optim: plateau: Patience is %d and Cooldown %d, want numbers from 0 up: %w", p.patience, o.Cooldown, cgotorch.ErrInvalidArgument)
	}
	return p, nil
}

// Update takes the metric of an epoch and returns the factor of the learning rate. Give the factor
// to [Optimizer.SetScale]. A metric that is NaN is no progress.
func (p *Plateau) Update(metric float64) float64 {
	if p.better(metric) {
		p.Best, p.Known, p.Bad = metric, true, 0
	} else {
		p.Bad++
	}
	if p.Cooling > 0 {
		p.Cooling--
		p.Bad = 0
	}
	if p.Bad > p.patience {
		if lower := math.Max(p.Scale*p.options.Factor, p.options.Floor); p.Scale-lower > p.options.Eps {
			p.Scale = lower
		}
		p.Cooling, p.Bad = p.options.Cooldown, 0
	}
	return p.Scale
}

// better reports whether a metric is progress.
func (p *Plateau) better(metric float64) bool {
	if !p.Known {
		return p.options.Max && metric > math.Inf(-1) || !p.options.Max && metric < math.Inf(1)
	}
	bound := p.options.Threshold
	if p.options.Max {
		bound = -bound
	}
	if p.options.Absolute {
		bound = p.Best - bound
	} else {
		bound = p.Best * (1 - bound)
	}
	if p.options.Max {
		return metric > bound
	}
	return metric < bound
}
