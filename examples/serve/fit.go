package main

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// fit leaves out lengths and batch sizes that the network does not accept, and logs them. It fails
// if nothing is left. An image has `side` pixels in each dimension that may change.
func (n *network) fit(o *serve.Options, side int, log func(format string, args ...any)) error {
	if n.accepts == nil || len(o.BatchSizes) == 0 {
		return nil
	}
	lengths := o.Lengths
	if len(lengths) == 0 {
		lengths = []int64{int64(side)}
	}
	accepts := func(size int, length int64) error {
		shapes := make([][]int64, len(n.inputs))
		for i, in := range n.inputs {
			shapes[i] = []int64{int64(size)}
			for _, d := range in.Shape {
				if d < 0 {
					d = length
				}
				shapes[i] = append(shapes[i], d)
			}
		}
		return n.accepts(shapes...)
	}
	var why error
	refused := func(length int64) func(size int) bool {
		return func(size int) bool {
			err := accepts(size, length)
			if err != nil {
				why = err
			}
			return err != nil
		}
	}
	lengths = slices.DeleteFunc(slices.Clone(lengths), func(length int64) bool {
		gone := !slices.ContainsFunc(o.BatchSizes, func(size int) bool { return !refused(length)(size) })
		if gone && len(o.Lengths) > 0 {
			log("length %d is left out: %v", length, why)
		}
		return gone
	})
	if len(lengths) == 0 {
		return fmt.Errorf("no length and no batch size fits: %w", why)
	}
	if len(o.Lengths) > 0 {
		o.Lengths = lengths
	}
	o.BatchSizes = slices.DeleteFunc(slices.Clone(o.BatchSizes), func(size int) bool {
		gone := slices.ContainsFunc(lengths, func(length int64) bool { return refused(length)(size) })
		if gone {
			log("batches of %d are left out: %v", size, why)
		}
		return gone
	})
	if len(o.BatchSizes) == 0 {
		return fmt.Errorf("no batch size fits all lengths %v: %w", lengths, why)
	}
	for size := range slices.Max(o.BatchSizes) { // a size between would fail, so batches are padded
		for _, length := range lengths {
			o.Pad = o.Pad || refused(length)(size+1)
		}
	}
	return nil
}
