package cgotorch

import (
	"fmt"
	"maps"
	"slices"
)

// shapeTable holds what a Captured knows of each shape, dtype and mode of its inputs.
type shapeTable struct {
	batchSizes []int // sorted; no padding if there are none
	inPlace    bool  // there is a state for each set of addresses
	mostGraphs int
	of         map[string]*capturedShape
}

// find returns the state for inputs like `in`. It makes a new state for a new shape.
func (t *shapeTable) find(x *Exec, in []*Tensor) *capturedShape {
	batch := t.batch(in)
	key := t.key(x, in, batch)
	s := t.of[key]
	if s == nil {
		if len(t.of) >= 64*t.mostGraphs { // if new shapes keep coming, forget the shapes without a graph
			maps.DeleteFunc(t.of, func(_ string, s *capturedShape) bool {
				if s.graph == nil {
					s.closeInputs()
				}
				return s.graph == nil
			})
		}
		s = &capturedShape{batch: batch, threads: map[uint64]bool{}}
		t.of[key] = s
	}
	return s
}

// key returns the key of x and `in`, whose batches are padded to `batch`. Runs with equal keys can
// share a graph.
func (t *shapeTable) key(x *Exec, in []*Tensor, batch int64) string {
	var key []byte
	key = fmt.Append(key, x.c.Grad, x.c.Autocast)
	for _, input := range in {
		info := input.info()
		shape, strides := input.geometry()
		if batch != 0 {
			shape[0] = batch
		}
		key = fmt.Append(key, "|", int(info.DType), deviceOf(info.Device), shape, strides, int(info.RequiresGrad))
		if t.inPlace {
			key = fmt.Append(key, "@", info.Address)
		}
	}
	return string(key)
}

// batch returns the batch size to which inputs like `in` are padded, or 0.
func (t *shapeTable) batch(in []*Tensor) int64 {
	if len(t.batchSizes) == 0 || len(in) == 0 || t.inPlace {
		return 0
	}
	size := int64(-1)
	for _, input := range in {
		shape := input.Shape()
		if len(shape) == 0 || size >= 0 && shape[0] != size {
			return 0
		}
		size = shape[0]
	}
	if i, _ := slices.BinarySearch(t.batchSizes, int(size)); size > 0 && i < len(t.batchSizes) {
		return int64(t.batchSizes[i])
	}
	return 0
}

// capturedShape is the state of a Captured for inputs of one shape.
type capturedShape struct {
	// `batch` is the batch size to which inputs are padded. 0 means no padding.
	batch int64
	runs  int  // number of eager Runs
	open  bool // a Choice needs more eager Runs
	// `threads` are the threads of the eager Runs. cuDNN and cuBLAS must be initialized on a thread
	// before a capture on this thread.
	threads map[uint64]bool
	graph   *Graph
	// `serial` compares the graph with one in which nothing runs in parallel. It is nil unless it is
	// unknown which of the two is faster.
	serial   *comparison
	in       []*Tensor // the graph's inputs; nil with InPlace
	out      []*Tensor
	launches int    // launches since the last capture
	again    int    // number of stale graphs in a row, each of them launched at most once
	failures int    // captures that failed in a row
	eager    string // why the shape cannot be captured; "" means that it can
}

// closeInputs closes the graph's copies of inputs.
func (s *capturedShape) closeInputs() {
	closeAll(s.in)
	s.in = nil
}

// drop closes the shape's graphs and their results. It reports whether there was a graph.
func (s *capturedShape) drop() bool {
	if s.graph == nil {
		return false
	}
	s.graph.end()
	closeAll(s.out)
	s.graph, s.out = nil, nil
	s.serial.end()
	s.serial = nil
	return true
}

// cut returns t without padding. The tensor t is an input or a result of a graph, and the returned
// part of t has the batch size of `in`. If no input was padded, `cut` returns t itself.
func (s *capturedShape) cut(x *Exec, t, in *Tensor) *Tensor {
	if s.batch == 0 {
		return t
	}
	if n := in.Shape()[0]; n < s.batch {
		return x.Narrow(t, 0, 0, int(n))
	}
	return t
}

// input makes memory for the graph's copy of an input like t.
func (s *capturedShape) input(x *Exec, t *Tensor) *Tensor {
	shape, strides := t.geometry()
	if s.batch == 0 || s.batch == shape[0] {
		return x.EmptyLike(t)
	}
	rest := int64(1)
	for _, n := range shape[1:] {
		rest *= n
	}
	shape[0] = s.batch
	if len(strides) > 0 && strides[0] == rest { // the entries lie one after another in memory, so the strides of t fit more entries too
		padded := x.Call1("aten::empty_strided", shape, strides, t.DType(), nil, x.Device())
		return x.ZeroInPlace(padded)
	}
	return x.Zeros(t.DType(), shape...)
}

// check returns an error if results cannot be cut to the batch size of the inputs.
func (s *capturedShape) check(out []*Tensor) error {
	for i, t := range out {
		if s.batch != 0 && (t.Dim() == 0 || t.Shape()[0] != s.batch) {
			return fmt.Errorf("result %d is %s: CapturedOptions.BatchSizes wants results with an entry for each of the inputs'", i, t)
		}
	}
	return nil
}

func firstOf(in []*Tensor) *Tensor {
	if len(in) == 0 {
		return nil
	}
	return in[0]
}

func closeAll(ts []*Tensor) {
	for _, t := range ts {
		t.Close()
	}
}

func describeInputs(in []*Tensor) string {
	text := "("
	for i, t := range in {
		if i > 0 {
			text += ", "
		}
		text += t.String()
	}
	return text + ")"
}
