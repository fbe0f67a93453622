package main

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Work that keeps the device busy for long after it has been enqueued, and operators that take it less time than they take the host.
const (
	starvationProducts  = 20
	starvationSide      = 8192 // of a bfloat16 product's matrices
	starvationOperators = 600
	starvationElements  = 1 << 20 // float32, of each operator's tensor

	// A shorter time between two kernels is what the device takes to go from one to the next, however far ahead the host is.
	starvationGap = 2 * time.Microsecond
)

// benchStarvation measures how long the device has nothing to do where one Do ends and the next begins, from the driver's records:
// large products in the first Do, small operators in the second, and between them nothing, or a wait for the device, after which the
// host has lost its lead. PyTorch does the same without a boundary of Dos.
func benchStarvation(c *config, emit func(row)) error {
	if !c.device.IsCUDA() {
		return fmt.Errorf("work on the CPU is done when it is enqueued: run with -device cuda")
	}
	s := switches{}
	p, err := c.startPeer("starvation.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	side := c.or(1024, starvationSide)
	shape := []any{"products", starvationProducts, "side", side, "operators", starvationOperators, "elements", starvationElements}
	if err := p.do(nil, "prepare", append(shape, "device", c.device.String())...); err != nil {
		return err
	}
	b, err := newBoundary(c.device, int64(side))
	if err != nil {
		return err
	}
	defer b.close()
	ours, waiting := &gaps{}, &gaps{}
	values, err := interleave(c.roundsOr(15),
		func() (float64, error) { return ours.add(b.run(false)) },
		func() (float64, error) { return waiting.add(b.run(true)) },
		p.value("idle", "block", "wait", false), p.value("idle", "block", "wait", true))
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d products of bfloat16 [%d, %d], then %d operators on %d float32 numbers, of %.1f us each on the device; from CUPTI's records on both sides; %s; %v; %s",
		starvationProducts, side, side, starvationOperators, starvationElements, b.operator.median(), c.settings(), s, p.versions)
	report := func(name, what string, value sample, peer string, theirs sample) {
		emit(against("starvation/"+name, value.median(), "us", peer, theirs.median(), lower,
			fmt.Sprintf("%s; %.1f %% of the peer's is gone; ours %v; peer %v; %s", what, 100*(1-value.median()/theirs.median()), value, theirs, note)))
	}
	const first = "idle from the last product's end to the first operator's start"
	const all = "idle from the last product's end to the last operator's end, in gaps of more than 2 us"
	report("gap", first, ours.first[1:], "ours, with a wait at the boundary", waiting.first[1:])
	report("idle", all, values[0], "ours, with a wait at the boundary", values[1])
	report("idle/pytorch", all, values[0], "PyTorch eager, no wait", values[2])
	report("idle/pytorch-wait", all+", with a wait on both sides", values[1], "PyTorch eager, with a wait", values[3])
	return nil
}

// gaps keeps the time to the first operator of each round, the one that does not count among them.
type gaps struct{ first sample }

func (g *gaps) add(first, all float64, err error) (float64, error) {
	g.first = append(g.first, first)
	return all, err
}

// boundary is a stream with what its two Dos work on.
type boundary struct {
	device   cgotorch.Device
	stream   *cgotorch.Stream
	matrix   *cgotorch.Tensor
	numbers  *cgotorch.Tensor
	operator sample // microseconds that a small operator takes the device, of each round
}

func newBoundary(d cgotorch.Device, side int64) (*boundary, error) {
	stream, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
	if err != nil {
		return nil, err
	}
	b := &boundary{device: d, stream: stream}
	err = stream.Do(func(x *cgotorch.Exec) error {
		b.matrix = x.Keep(x.Zeros(cgotorch.BFloat16, side, side))
		b.numbers = x.Keep(x.Zeros(cgotorch.Float32, starvationElements))
		return nil
	})
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// run returns how many microseconds the device was idle after the last product, until the first operator and in all.
func (b *boundary) run(wait bool) (first, all float64, err error) {
	if err := b.device.Synchronize(); err != nil {
		return 0, 0, err
	}
	trace, err := cgotorch.StartTrace()
	if err != nil {
		return 0, 0, err
	}
	var boundary time.Duration
	err = b.enqueue(wait, func() { boundary = trace.Now() })
	r, stopErr := trace.Stop()
	if err == nil {
		err = stopErr
	}
	if err != nil {
		return 0, 0, err
	}
	return b.idle(r, boundary)
}

func (b *boundary) enqueue(wait bool, between func()) error {
	err := b.stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		for range starvationProducts {
			x.MM(b.matrix, b.matrix).Close()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if wait {
		if err := b.stream.Synchronize(); err != nil {
			return err
		}
	}
	between()
	return b.stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		for range starvationOperators {
			x.AddScalarInPlace(b.numbers, 1.0)
		}
		return nil
	})
}

// idle reads the times from the records: what was enqueued before the boundary are the products.
func (b *boundary) idle(r *cgotorch.TraceRecords, boundary time.Duration) (first, all float64, err error) {
	var ended, busy, starved time.Duration
	operators := 0
	for _, w := range r.Work { // one stream: they follow one another
		if w.Kind != cgotorch.TraceKernel {
			continue
		}
		if w.Launch >= boundary {
			gap := w.Start - ended
			if operators++; operators == 1 {
				first = micros(gap)
			}
			if gap > starvationGap {
				starved += gap
			}
			busy += w.End - w.Start
		}
		ended = w.End
	}
	if operators != starvationOperators || len(r.Work) < operators+starvationProducts {
		return 0, 0, fmt.Errorf("the trace has %d kernels, %d of them after the boundary, want %d there", len(r.Work), operators, starvationOperators)
	}
	b.operator = append(b.operator, micros(busy)/float64(operators))
	return first, micros(starved), nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func (b *boundary) close() {
	b.matrix.Close()
	b.numbers.Close()
	b.stream.Close()
}
