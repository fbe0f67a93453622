//go:build bench

package main

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/bench/handwritten"
	"github.com/streamtorch/streamtorch/cgotorch"
)

const (
	opElements = 4
	// A block takes about a millisecond. Other work on the machine does not interrupt most blocks of
	// this length.
	opsPerBlock = 1000
	opsPerTidy  = 100
)

// benchOp measures the cost of one small operator that is called from Go. All sides run on the
// same thread. Each block runs inside one Do.
func benchOp(c *config, emit func(row)) error {
	stream := cgotorch.DefaultStream(c.device)
	a, err := handwritten.Full(opElements, 1, c.device.IsCUDA())
	if err != nil {
		return err
	}
	defer a.Free()
	var x0, x1 *cgotorch.Tensor
	err = stream.Do(func(x *cgotorch.Exec) error {
		x0 = x.Keep(x.Full(cgotorch.Float32, 1, opElements))
		x1 = x.Keep(x.Full(cgotorch.Float32, 1, opElements))
		return nil
	})
	if err != nil {
		return err
	}
	defer x0.Close()
	defer x1.Close()

	// block makes one side of the comparison. The side runs the function `work` on the stream's
	// thread, and measures the nanoseconds of one operator.
	block := func(work func(x *cgotorch.Exec) error) side {
		return func() (float64, error) {
			var elapsed time.Duration
			err := stream.Do(func(x *cgotorch.Exec) error {
				began := time.Now()
				if err := work(x.NoGrad()); err != nil {
					return err
				}
				if err := c.device.Synchronize(); err != nil {
					return err
				}
				elapsed = time.Since(began)
				return nil
			})
			return float64(elapsed.Nanoseconds()) / opsPerBlock, err
		}
	}
	values, err := interleave(c.roundsOr(1001),
		block(func(x *cgotorch.Exec) error {
			for range opsPerBlock {
				x.Add(x0, x1).Close()
			}
			return nil
		}),
		block(func(x *cgotorch.Exec) error { return handwritten.AddTimes(a, a, opsPerBlock) }),
		block(func(x *cgotorch.Exec) error {
			for range opsPerBlock / opsPerTidy {
				x.Tidy(func() *cgotorch.Tensor {
					for range opsPerTidy {
						x.Add(x0, x1)
					}
					return nil
				})
			}
			return nil
		}),
		block(func(x *cgotorch.Exec) error {
			for range opsPerBlock {
				sum, err := handwritten.Add(a, a)
				if err != nil {
					return err
				}
				sum.Free()
			}
			return nil
		}),
		block(func(x *cgotorch.Exec) error {
			var sums [opsPerTidy]*handwritten.Tensor
			for i := range opsPerBlock {
				sum, err := handwritten.Add(a, a)
				if err != nil {
					return err
				}
				if sums[i%opsPerTidy] = sum; i%opsPerTidy == opsPerTidy-1 {
					for _, sum := range sums {
						sum.Free()
					}
				}
			}
			return nil
		}),
	)
	if err != nil {
		return err
	}
	if err := benchGuard(c, emit); err != nil {
		return err
	}
	native := values[1]
	for _, ours := range []struct {
		name    string
		values  sample
		how     string
		wrapped sample
	}{
		{"", values[0], "each result freed at once", values[3]},
		{"/tidy", values[2], fmt.Sprintf("results freed by Tidy, %d at a time, and so in the hand-written wrapper", opsPerTidy), values[4]},
	} {
		for _, peer := range []struct {
			name   string
			values sample
			what   string
		}{
			{"", native, "at::add in C++"},
			{"/handwritten", ours.wrapped, "hand-written cgo wrapper"},
		} {
			emit(inTurns("op/add/"+kind(c.device)+ours.name+peer.name, ours.values, "ns", peer.what, peer.values, lower,
				fmt.Sprintf("float32 [%d], no grad, %s; %s; ours %v; peer %v", opElements, ours.how, c.settings(), ours.values, peer.values)))
		}
	}
	return nil
}

// benchGuard measures the cost to set LibTorch's state for one call and to restore it. The figure
// is an upper bound, because the call also checks its arguments.
func benchGuard(c *config, emit func(row)) error {
	const calls = 100_000
	for _, own := range []bool{false, true} {
		values, err := interleave(c.roundsOr(31), func() (float64, error) {
			began := time.Now()
			err := handwritten.GuardTimes(c.device.IsCUDA(), own, calls)
			return float64(time.Since(began).Nanoseconds()) / calls, err
		})
		if err != nil {
			return err
		}
		name, text := "/default-stream", "on the default stream, which is current already"
		if own {
			name, text = "/own-stream", "on a stream of its own, which is made current and back"
		}
		emit(alone("op/guard/"+kind(c.device)+name, values[0].median(), "ns", fmt.Sprintf("a call of the core in C++ that enqueues nothing, %s; blocks of %d calls; %s; %v",
			text, calls, c.settings(), values[0])))
	}
	return nil
}
