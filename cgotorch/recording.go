package cgotorch

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// A recording captures the function of a Captured for inputs of one shape, in one Run.
type recording struct {
	c  *Captured
	x  *Exec
	s  *capturedShape
	in []*Tensor
}

const otherCannot = "another process of the group cannot capture it"

// again captures the function again after a value has changed. `what` is the text that a
// function given to DependsOn has returned. If the values change so often that several Runs in a
// row would need a new capture, again drops the graph. Later Runs are then eager.
func (r recording) again(what string) {
	c, s := r.c, r.s
	const often = 4
	if s.launches <= 1 {
		s.again++
	} else {
		s.again = 0
	}
	if s.again >= often {
		c.drop(s)
		s.closeInputs()
		s.eager = fmt.Sprintf("it was to be captured again at each of %d Runs: %s", often, what)
		c.log("%s runs eagerly: %s", describeInputs(r.in), s.eager)
		return
	}
	c.log("%s: capturing %s again", what, describeInputs(r.in))
	r.capture()
}

// capture captures the function for inputs like `in`. If the capture fails, the Run goes on
// eagerly.
func (r recording) capture() {
	c, x, s, in := r.c, r.x, r.s, r.in
	s.eager = r.refusal()
	if !c.agree(s.eager == "") {
		s.eager = cmp.Or(s.eager, otherCannot)
		c.drop(s)
		s.closeInputs()
		c.log("%s runs eagerly: %s", describeInputs(in), s.eager)
		return
	}
	from := in
	if !c.o.InPlace {
		for i := len(s.in); i < len(in); i++ {
			s.in = append(s.in, x.Keep(s.input(x, in[i])))
		}
		from = s.in
	}
	graph, out, err := r.try(from, false)
	if errors.Is(err, ErrOutOfMemory) { // in a capture LibTorch's allocator cannot free its cached memory
		if x.Device().ReleaseCachedMemory() == nil {
			graph, out, err = r.try(from, false)
		}
	}
	if !c.agree(err == nil) && err == nil {
		graph.end()
		closeAll(out)
		err = refuse("Captured.Run", ErrNotCapturable, otherCannot)
	}
	c.drop(s)
	if err != nil {
		r.failed(err)
		return
	}
	s.graph, s.out, s.launches, s.failures = graph, out, 0, 0
	c.count(func(stats *CapturedStats) {
		stats.Graphs++
		stats.Captures++
		if graph.updated {
			stats.Updates++
		}
	})
	var size ct.GraphSize
	if check("Captured.Run", ct.GraphCount(graph.h, &size)) == nil {
		c.log("%s is captured: %d nodes, %d kernels", describeInputs(in), size.Nodes, size.Kernels)
	}
	if c.agree(graph.parallel) {
		r.compare(from)
	}
}

// compare captures the function a second time, with nothing in parallel. The next Runs alternate
// between the two graphs: see comparison.
func (r recording) compare(from []*Tensor) {
	serial, out, err := func() (*Graph, []*Tensor, error) {
		defer func(parallel *Graph) { r.s.graph = parallel }(r.s.graph)
		r.s.graph = nil // otherwise CUDA would update the parallel graph to the serial one
		return r.try(from, true)
	}()
	if err != nil { // for example because memory is short
		r.c.log("parallel work is not compared with serial work: %v", err)
		return
	}
	r.s.serial = newComparison(serial, out)
}

func (r recording) try(from []*Tensor, serial bool) (*Graph, []*Tensor, error) {
	var out []*Tensor
	graph, err := r.c.pool.capture(r.x, r.c.keeping(&out, from), r.s.graph, serial)
	if err == nil {
		if err = r.s.check(out); err != nil {
			graph.end()
		}
	}
	if err != nil {
		closeAll(out)
		return nil, nil, err
	}
	return graph, out, nil
}

// failed is called after a capture has failed. If the function cannot be captured, or if memory is
// short, later Runs do not try again. Any other failure may be temporary, because it may come from
// the function itself. After such a failure later Runs try again, until three captures in a row
// have failed.
func (r recording) failed(err error) {
	c, s := r.c, r.s
	s.closeInputs()
	if errors.Is(err, ErrDeviceLost) {
		r.x.Fail("Captured.Run", err)
	}
	const tries = 3
	if s.failures++; errors.Is(err, ErrNotCapturable) || errors.Is(err, ErrOutOfMemory) || s.failures >= tries || c.o.Agree != nil {
		s.eager = err.Error()
	}
	c.log("%s runs eagerly: %v", describeInputs(r.in), err)
}

// refusal returns the reason why no capture is tried for inputs like `in`. "" means that a capture
// can be tried.
func (r recording) refusal() string {
	c, s := r.c, r.s
	graphs := c.Stats().Graphs
	switch {
	case checkingValues():
		return "CGOTORCH_CHECK=finite reads the results of each operator"
	case len(c.o.BatchSizes) > 0 && c.o.InPlace:
		return "CapturedOptions.BatchSizes pads, which InPlace cannot"
	case len(c.o.BatchSizes) > 0 && s.batch == 0:
		return fmt.Sprintf("no size in CapturedOptions.BatchSizes, which are %v, serves the inputs", c.o.BatchSizes)
	case s.graph == nil && graphs >= c.o.MaxGraphs:
		return fmt.Sprintf("%d shapes are captured already, which is all that CapturedOptions.MaxGraphs allows", graphs)
	}
	for i, t := range r.in {
		switch {
		case t.Device() != r.x.Device():
			return fmt.Sprintf("input %d lies on %v, which a graph would read only once: copy it to the device before", i, t.Device())
		case t.RequiresGrad():
			return fmt.Sprintf("input %d requires a gradient, which would go to the graph's copy of it", i)
		}
	}
	return ""
}

// keeping returns a function that calls the captured function with `in`. The returned function
// keeps the results and appends them to out.
func (c *Captured) keeping(out *[]*Tensor, in []*Tensor) func(x *Exec) error {
	return func(x *Exec) error {
		for _, t := range c.fn(x, in...) {
			x.open("Captured.Run", t)
			if t.owner != x.s || t.RequiresGrad() {
				t = x.Detach(t)
			}
			*out = append(*out, x.keep(t))
		}
		return nil
	}
}
