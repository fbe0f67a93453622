package main

import (
	"context"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
)

// untilAll returns the context of a training epoch. With several ranks a signal does not end it:
// the stopper does, on all ranks.
func (t *trainer) untilAll(ctx context.Context) context.Context {
	if t.group.World() == 1 {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// stopper makes all ranks stop after the same step. A signal reaches them at different times, and a
// rank that stopped alone would leave the others in a collective. It serves all epochs, which may
// have fewer steps than stopDepth.
type stopper struct {
	group *distributed.Group
	read  []*cgotorch.HostRead // of the last steps: 1 if a rank wants to stop
}

// stopDepth is the number of steps after which a rank looks. The values are there by then, so the
// host does not wait for the device.
const stopDepth = 4

// add tells the other ranks whether this one wants to stop.
func (s *stopper) add(x *cgotorch.Exec, stop bool) {
	if s.group.World() == 1 {
		return
	}
	wish := 0.0
	if stop {
		wish = 1
	}
	x.Tidy(func() *cgotorch.Tensor {
		t := x.NoGrad().Full(cgotorch.Float32, wish, 1)
		s.group.AllReduce(x, t, distributed.Max)
		s.read = append(s.read, x.ReadAsync(t))
		return nil
	})
}

// next reports whether all ranks stop after this step.
func (s *stopper) next(ctx context.Context) (bool, error) {
	if s.group.World() == 1 {
		return ctx.Err() != nil, nil
	}
	if len(s.read) <= stopDepth {
		return false, nil
	}
	first := s.read[0]
	s.read = s.read[1:]
	defer first.Close()
	stop, err := first.Item()
	return stop > 0, err
}

func (s *stopper) close() {
	for _, r := range s.read {
		r.Close()
	}
}
