package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/dist"
)

// The method `join` makes this process one rank of those that the launcher has started.
func (t *trainer) join(ctx context.Context) (*dist.Group, error) {
	o := dist.Options{OnCPU: t.Device == "cpu"}
	if strings.HasPrefix(t.Device, "cuda:") { // plain "cuda" and "auto" mean the GPU of this rank
		device, err := cgotorch.ParseDevice(t.Device)
		if err != nil {
			return nil, err
		}
		o.Device = device
	}
	if _, err := cgotorch.ParseDevice(t.Device); err != nil {
		return nil, err
	}
	if t.Device == "cuda" {
		if err := cgotorch.CUDA(0).Check(); err != nil {
			return nil, err
		}
	}
	group, err := dist.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	if each := (t.BatchSize + group.World() - 1) / group.World(); each*group.World() != t.BatchSize && group.Rank() == 0 {
		fmt.Printf("-batch %d does not divide among %d ranks: each takes %d images, %d a step in all\n", t.BatchSize, group.World(), each, each*group.World())
	}
	return group, nil
}

// The method `first` reports whether this rank writes the log and the checkpoints.
func (t *trainer) first() bool { return t.group.Rank() == 0 }

// The method `share` returns how many images of a step this rank takes. -batch is for all ranks
// together, so the run does not depend on their number.
func (t *trainer) share() int { return (t.BatchSize + t.group.World() - 1) / t.group.World() }

// workers returns the number of decode threads. The ranks of a machine share its cores.
func (t *trainer) workers() int {
	if t.Workers > 0 || t.group.World() == 1 {
		return t.Workers
	}
	return max(1, runtime.NumCPU()/t.group.LocalWorld())
}

// drawApart makes each rank draw other random numbers, such as those of a dropout.
func (t *trainer) drawApart() error {
	if t.group.World() == 1 {
		return nil
	}
	return cgotorch.Seed(t.Seed + uint64(t.progress.Step)<<20 + uint64(t.group.Rank())<<48)
}

// tracePath returns the file of this rank's trace.
func (t *trainer) tracePath() string {
	if t.Trace == "" || t.first() {
		return t.Trace
	}
	return fmt.Sprintf("%s.rank%d", t.Trace, t.group.Rank())
}

// The method `untilAll` returns the context of a training epoch. With several ranks a signal does not
// end it: the stopper does, on all ranks.
func (t *trainer) untilAll(ctx context.Context) context.Context {
	if t.group.World() == 1 {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// stopper makes all ranks stop after the same step. A signal reaches them at different times, and a
// rank that stopped alone would leave the others in a collective.
type stopper struct {
	group *dist.Group
	read  []*cgotorch.HostRead // of the last steps: 1 if a rank wants to stop
}

// stopDepth is the number of steps after which a rank looks. The values are there by then, so the
// host does not wait for the device.
const stopDepth = 4

// The method `add` tells the other ranks whether this one wants to stop.
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
		s.group.AllReduce(x, t, dist.Max)
		s.read = append(s.read, x.ReadAsync(t))
		return nil
	})
}

// The method `next` reports whether all ranks stop after this step.
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

func (s *stopper) close() error {
	for _, r := range s.read {
		r.Close()
	}
	s.read = nil
	return nil
}
