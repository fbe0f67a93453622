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
)

// benchOp measures the cost of one small operator that is called from Go. All sides run on the
// same thread, inside one Do, and free each result before the next call.
func benchOp(c *config, emit func(row)) error {
	stream := cgotorch.DefaultStream(c.device)
	a, err := handwritten.Full(opElements, 1, c.device.IsCUDA())
	if err != nil {
		return err
	}
	defer a.Free()
	var ours *cgotorch.Tensor
	err = stream.Do(func(x *cgotorch.Exec) error {
		ours = x.Keep(x.Full(cgotorch.Float32, 1, opElements))
		return nil
	})
	if err != nil {
		return err
	}
	defer ours.Close()

	values, err := interleave(c.roundsOr(1001),
		c.opBlock(func(x *cgotorch.Exec) error {
			for range opsPerBlock {
				x.Add(ours, ours).Close()
			}
			return nil
		}),
		c.opBlock(func(*cgotorch.Exec) error { return handwritten.AddTimes(a, a, opsPerBlock) }),
		c.opBlock(func(*cgotorch.Exec) error {
			for range opsPerBlock {
				sum, err := handwritten.Add(a, a)
				if err != nil {
					return err
				}
				sum.Free()
			}
			return nil
		}),
	)
	if err != nil {
		return err
	}
	for i, peer := range []struct{ name, text string }{{"", "at::add in C++"}, {"/handwritten", "hand-written cgo wrapper"}} {
		emit(inTurns("op/add/"+c.kind()+peer.name, values[0], "ns", peer.text, values[1+i], lower,
			fmt.Sprintf("float32 [%d], no grad, each result freed at once; %s; ours %v; peer %v", opElements, c.settings(), values[0], values[1+i])))
	}
	return nil
}

// opBlock makes a side that runs `work` on the stream's thread. It measures the nanoseconds of one
// operator.
func (c *config) opBlock(work func(x *cgotorch.Exec) error) side {
	return func() (nanoseconds float64, err error) {
		err = cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
			began := time.Now()
			if err := work(x.NoGrad()); err != nil {
				return err
			}
			err := c.device.Synchronize()
			nanoseconds = float64(time.Since(began).Nanoseconds()) / opsPerBlock
			return err
		})
		return nanoseconds, err
	}
}
