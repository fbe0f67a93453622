package cgotorch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Captured is a function of tensors that is run eagerly at first, then captured as a [Graph] for each shape of its inputs, and launched
// from then on: a training step that costs the host one launch. Use it inside a Do, in place of the function:
//
//	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
//		opt.ZeroGrad()
//		loss := x.CrossEntropy(model.Forward(x, in[0]), in[1])
//		x.Backward(loss)
//		opt.Step(x)
//		return []*cgotorch.Tensor{loss}
//	}, cgotorch.CapturedOptions{})
//
// Each Run does what a call of the function would do, random numbers and the optimizer's schedule included. The function is called no
// more once it is captured: what it reads of the host then is what it read when it was captured, other than by [Exec.EachLaunch] and
// [Exec.DependsOn], which the optimizers of cgotorch/optim and the modules of cgotorch/nn use. The parameters that it reads must live until
// Close. Where it cannot be captured it goes on eagerly, and Stats says why; so it does on the CPU.
//
// A Captured may be used from any goroutine, with InPlace from one at a time; Runs exclude each other, on the host and on the device. It is of
// the device of its first Run. A shape is captured on a thread that has rehearsed it: use few streams.
type Captured struct {
	fn func(x *Exec, in ...*Tensor) []*Tensor
	o  CapturedOptions

	mu     sync.Mutex
	runner atomic.Uint64 // the thread of the Run that holds it, or 0
	pool   *graphPool
	shapes map[string]*capturedShape
	closed bool

	counting sync.Mutex // guards stats
	stats    CapturedStats
}

// CapturedOptions are the options of [NewCaptured]; the zero value is for a training step over a prefetcher.
type CapturedOptions struct {
	Rehearsal int  // eager Runs of each shape before it is captured; 0 means 3; they are Runs like the others. There are more where a Choice in the function is still to be made
	MaxGraphs int  // shapes that are captured; others run eagerly; 0 means 8
	InPlace   bool // graphs read the inputs where they lie, one graph for each set of addresses, and their results are not copied; false copies both, on the device
	Eager     bool // never capture

	// BatchSizes are what graphs are made for, such as 1, 8 and 32, where the function treats each entry along the first dimension of its
	// inputs and results by itself, as models do in evaluation: fewer entries are padded to the next of them, and the results cut. Those of more
	// run eagerly. Empty means that each size has a graph of its own; InPlace knows no padding.
	BatchSizes []int

	Log func(text string) // is told of captures, and of what cannot be captured and why; nil for nobody. It must not use the Captured, but for Stats

	lend bool // results are not copied, of a Captured whose Do is alone with it
}

func (o CapturedOptions) lends() bool { return o.InPlace || o.lend }

// CapturedStats counts since the Captured was made.
type CapturedStats struct {
	Graphs   int    // captured, that are there now
	Captures int    // also of graphs that were captured again
	Updates  int    // captures for which CUDA updated the graph that was there
	Launches int    // Runs that launched a graph
	Eager    int    // Runs that called the function
	Why      string // the last Run that was eager after its rehearsal was so for this reason; "" for none
}

// capturedShape is what is known of inputs of one shape.
type capturedShape struct {
	batch    int64           // along the first dimension, to which inputs are padded; 0 where they are not
	runs     int             // eager ones
	open     bool            // a Choice needs more of them
	threads  map[uint64]bool // on which they were: cuDNN and cuBLAS get ready for each
	graph    *Graph
	plain    *plainGraph // the same without anything side by side, while it is not known which one is faster; or nil
	in       []*Tensor   // that the graph reads; nil with InPlace
	out      []*Tensor
	launches int    // of the graph
	again    int    // captures one after another for a launch or none
	failures int    // of captures, one after another
	eager    string // why it is not captured
}

// NewCaptured makes a Captured of fn, which is given the inputs of a Run and returns its results. The caller must Close it.
func NewCaptured(fn func(x *Exec, in ...*Tensor) []*Tensor, o CapturedOptions) *Captured {
	if o.Rehearsal <= 0 {
		o.Rehearsal = 3
	}
	if o.MaxGraphs <= 0 {
		o.MaxGraphs = 8
	}
	o.BatchSizes = slices.DeleteFunc(slices.Sorted(slices.Values(o.BatchSizes)), func(n int) bool { return n < 1 })
	return &Captured{fn: fn, o: o, shapes: map[string]*capturedShape{}}
}

// comparedLaunches are those in which a graph and the plain form of it take turns.
const comparedLaunches = 42

const whoseResults = "a captured function with Options.InPlace, whose next Run writes there"

// Run does on x's stream what a call of the function with in would do, and returns its results, which are the Do's and require no gradient.
// With InPlace they are the graph's, cannot be kept, and hold until the next Run. Gradients that the function leaves behind are
// not defined after the next Run of another shape, nor in the first 42 launches where anything in the function runs side by side: these
// alternate between two graphs, one with it and one without, of which the faster one stays. It waits for the device before the first
// rehearsal, at the end of what Choices and Overlaps measure in rehearsals and where memory is short in a capture, and for captures of other
// goroutines. It fails like the function, and with [ErrClosed].
//
// Inside a captured function, and in the second call of one given to [Exec.Recompute], it calls the function.
func (c *Captured) Run(x *Exec, in ...*Tensor) []*Tensor {
	const op = "Captured.Run"
	x.checkThread(op)
	for _, t := range in {
		x.open(op, t)
	}
	if x.hook {
		x.Fail(op, &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "called inside a function given to EachLaunch"})
	}
	if x.work != nil || x.from != nil { // a backward is under way in the latter, which a capture would wait for
		return c.fn(x, in...)
	}
	if c.runner.Load() == x.s.thread { // only the CPU gets here: elsewhere x's work is for the pool
		return c.fn(x, in...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runner.Store(x.s.thread)
	defer c.runner.Store(0)
	if c.closed {
		x.Fail(op, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the captured function is closed"})
	}
	if c.o.Eager || !x.Device().IsCUDA() {
		return c.runEagerly(x, in)
	}
	if c.pool == nil {
		var err error
		if c.pool, err = newGraphPool(x.Device()); err != nil {
			x.Fail(op, err)
		}
	}
	c.pool.lock(op, x)
	defer c.pool.unlock()
	if err := c.pool.usable(op, x); err != nil {
		x.Fail(op, err)
	}
	return c.run(x, in)
}

// runEagerly calls the function in x's own scope.
func (c *Captured) runEagerly(x *Exec, in []*Tensor) []*Tensor {
	why := "the CPU has no graphs"
	if c.o.Eager {
		why = "Options.Eager asks for it"
	}
	first := false
	c.count(func(s *CapturedStats) {
		s.Eager++
		first = s.Why == ""
		s.Why = why
	})
	if first {
		c.log("%s runs eagerly: %s", describeInputs(in), why)
	}
	var out []*Tensor
	for _, t := range c.fn(x, in...) {
		x.open("Captured.Run", t)
		out = append(out, x.Detach(t))
	}
	return c.lend(x, out)
}

// settled reports whether nothing more is to be found out for inputs of that shape: Runs launch a graph, or it is known why not.
func (c *Captured) settled(x *Exec, in ...*Tensor) bool {
	s := c.shape(x, in)
	return s.eager != "" || s.graph != nil && s.plain == nil && s.launches > 0
}

func (c *Captured) run(x *Exec, in []*Tensor) []*Tensor {
	s := c.shape(x, in)
	switch {
	case s.graph != nil:
		if what := s.graph.stale(); what != "" {
			c.captureAgain(x, s, in, what)
		}
	case s.eager == "" && s.runs >= c.o.Rehearsal && s.threads[x.s.thread] && !(s.open && s.runs < c.o.Rehearsal+maxTrials):
		c.capture(x, s, in)
	}
	if s.graph == nil {
		return c.rehearse(x, s, in)
	}
	c.pool.await(x)
	y := x.NoGrad()
	for i, t := range s.in {
		x.Tidy(func() *Tensor { y.CopyInPlace(s.cut(y, t, in[i]), in[i]); return nil })
	}
	results := c.launch(x, s, in)
	out := make([]*Tensor, len(results))
	for i, t := range results {
		if c.o.lends() {
			out[i] = s.cut(y, x.Lend(t, whoseResults), firstOf(in))
		} else {
			out[i] = y.Clone(s.cut(y, t, firstOf(in)))
		}
	}
	c.pool.used(x)
	if c.o.lends() { // and again when the Do has read them
		x.AtEnd(func() {
			c.pool.mu.Lock()
			defer c.pool.mu.Unlock()
			if !c.pool.ended {
				c.pool.used(x)
			}
		})
	}
	return out
}

// launch launches the shape's graph and returns its results.
func (c *Captured) launch(x *Exec, s *capturedShape, in []*Tensor) []*Tensor {
	s.launches++
	c.count(func(s *CapturedStats) { s.Launches++ })
	if s.plain != nil {
		w := x.choose("Captured.Run", s.plain.choice, in, 1)
		if !w.open {
			s.keepFaster(c, in, w.second)
		} else {
			graph, out := s.graph, s.out
			if !w.second {
				graph, out = s.plain.graph, s.plain.out
			}
			defer w.end()
			graph.launch(x.measured(w))
			w.completed = true
			return out
		}
	}
	s.graph.launch(x)
	return s.out
}

func firstOf(in []*Tensor) *Tensor {
	if len(in) == 0 {
		return nil
	}
	return in[0]
}

// cut is the part of t, which has the shape's batch, that holds as many entries as in.
func (s *capturedShape) cut(x *Exec, t, in *Tensor) *Tensor {
	if s.batch == 0 {
		return t
	}
	if n := in.Shape()[0]; n < s.batch {
		return x.Narrow(t, 0, 0, int(n))
	}
	return t
}

// rehearse calls the function on the pool's stream.
func (c *Captured) rehearse(x *Exec, s *capturedShape, in []*Tensor) []*Tensor {
	s.runs++
	s.threads[x.s.thread] = true
	c.count(func(stats *CapturedStats) {
		stats.Eager++
		if s.eager != "" {
			stats.Why = s.eager
		}
	})
	var out []*Tensor
	var err error
	if s.open, err = c.pool.rehearse(x, c.keeping(&out, in), s.eager == ""); err != nil {
		closeAll(out)
		x.Fail("Captured.Run", err)
	}
	for _, t := range out {
		x.adopt(t)
	}
	return c.lend(x, out)
}

// keeping is the function for inputs in, whose results it keeps and adds to out.
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

// captureAgain captures the function in place of a graph with which something has changed, but not at each Run.
func (c *Captured) captureAgain(x *Exec, s *capturedShape, in []*Tensor, what string) {
	const often = 4
	if s.launches <= 1 {
		s.again++
	} else {
		s.again = 0
	}
	if s.again >= often {
		s.drop(c)
		s.eager = fmt.Sprintf("it was to be captured again at each of %d Runs: %s", often, what)
		c.log("%s runs eagerly: %s", describeInputs(in), s.eager)
		return
	}
	c.log("%s: capturing %s again", what, describeInputs(in))
	c.capture(x, s, in)
}

// capture captures the function for inputs like in, or notes why it cannot be.
func (c *Captured) capture(x *Exec, s *capturedShape, in []*Tensor) {
	if s.eager = c.refusal(x, s, in); s.eager != "" {
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
	graph, out, err := c.tryCapture(x, s, from, false)
	if errors.Is(err, ErrOutOfMemory) { // LibTorch's allocator keeps what it has cached while it captures
		if x.Device().ReleaseCachedMemory() == nil {
			graph, out, err = c.tryCapture(x, s, from, false)
		}
	}
	s.drop(c)
	if err != nil {
		c.failed(x, s, in, err)
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
	if size, err := graph.size(); err == nil {
		c.log("%s is captured: %d nodes, %d kernels", describeInputs(in), size.Nodes, size.Kernels)
	}
	if graph.beside {
		c.capturePlain(x, s, from)
	}
}

// A plainGraph is a graph whose Choices all went the first way.
type plainGraph struct {
	graph  *Graph
	out    []*Tensor
	choice *Choice // between it and the shape's graph
}

// capturePlain captures the function once more with nothing side by side. What Choices measure is enqueued piece by piece, between which the
// device waits longer than in a graph: so the next Runs launch both graphs in turn and find out for all of the function.
func (c *Captured) capturePlain(x *Exec, s *capturedShape, from []*Tensor) {
	plain, out, err := func() (*Graph, []*Tensor, error) {
		graph := s.graph
		s.graph = nil // it is not to be updated
		defer func() { s.graph = graph }()
		return c.tryCapture(x, s, from, true)
	}()
	if err != nil { // such as for want of memory
		c.log("side by side is not compared with the plain way: %v", err)
		return
	}
	s.plain = &plainGraph{graph: plain, out: out, choice: newChoice(ChoiceOptions{}, comparedLaunches, 0.003)}
}

// keepFaster ends the comparison of the shape's two graphs.
func (s *capturedShape) keepFaster(c *Captured, in []*Tensor, beside bool) {
	for _, d := range s.plain.choice.Decisions() {
		c.log("%s: %v a launch with work side by side, %v without", describeInputs(in), d.Beside, d.Serial)
	}
	if !beside {
		s.graph, s.plain.graph = s.plain.graph, s.graph
		s.out, s.plain.out = s.plain.out, s.out
	}
	s.plain.end()
	s.plain = nil
}

func (p *plainGraph) end() {
	p.graph.end()
	closeAll(p.out)
}

func (c *Captured) tryCapture(x *Exec, s *capturedShape, from []*Tensor, plain bool) (*Graph, []*Tensor, error) {
	var out []*Tensor
	graph, err := c.pool.capture(x, c.keeping(&out, from), s.graph, plain)
	if err == nil {
		if err = s.check(out); err != nil {
			graph.end()
		}
	}
	if err != nil {
		closeAll(out)
		return nil, nil, err
	}
	return graph, out, nil
}

// failed notes that a capture has failed. What cannot be captured is not tried again. Another failure may be the function's own, which the
// Run then meets, and pass.
func (c *Captured) failed(x *Exec, s *capturedShape, in []*Tensor, err error) {
	closeAll(s.in)
	s.in = nil
	if errors.Is(err, ErrDeviceLost) {
		x.Fail("Captured.Run", err)
	}
	const tries = 3
	if s.failures++; errors.Is(err, ErrNotCapturable) || errors.Is(err, ErrOutOfMemory) || s.failures >= tries {
		s.eager = err.Error()
	}
	c.log("%s runs eagerly: %v", describeInputs(in), err)
}

// refusal is why inputs like in are not even tried to be captured, or "".
func (c *Captured) refusal(x *Exec, s *capturedShape, in []*Tensor) string {
	graphs := c.Stats().Graphs
	switch {
	case len(c.o.BatchSizes) > 0 && c.o.InPlace:
		return "Options.BatchSizes pads, which Options.InPlace cannot"
	case len(c.o.BatchSizes) > 0 && s.batch == 0:
		return fmt.Sprintf("no size in Options.BatchSizes, which are %v, serves the inputs", c.o.BatchSizes)
	case s.graph == nil && graphs >= c.o.MaxGraphs:
		return fmt.Sprintf("%d shapes are captured already, which is all that Options.MaxGraphs allows", graphs)
	}
	for i, t := range in {
		switch {
		case t.Device() != x.Device():
			return fmt.Sprintf("input %d lies on %v, which a graph would read only once: copy it to the device before", i, t.Device())
		case t.RequiresGrad():
			return fmt.Sprintf("input %d requires a gradient, which would go to the graph's copy of it", i)
		}
	}
	return ""
}

// drop frees the shape's graphs, if it has one.
func (s *capturedShape) drop(c *Captured) {
	if s.graph == nil {
		return
	}
	s.graph.end()
	closeAll(s.out)
	s.graph, s.out = nil, nil
	if s.plain != nil {
		s.plain.end()
		s.plain = nil
	}
	c.count(func(s *CapturedStats) { s.Graphs-- })
}

// shape is what is known of inputs like in.
func (c *Captured) shape(x *Exec, in []*Tensor) *capturedShape {
	key := c.key(x, in)
	s := c.shapes[key]
	if s == nil {
		if len(c.shapes) >= 64*c.o.MaxGraphs { // of ever new ones, none comes often enough
			maps.DeleteFunc(c.shapes, func(_ string, s *capturedShape) bool { return s.graph == nil })
		}
		s = &capturedShape{batch: c.batch(in), threads: map[uint64]bool{}}
		c.shapes[key] = s
	}
	return s
}

// batch is the size to which inputs like in are padded, or 0.
func (c *Captured) batch(in []*Tensor) int64 {
	if len(c.o.BatchSizes) == 0 || len(in) == 0 || c.o.InPlace {
		return 0
	}
	size := int64(-1)
	for _, t := range in {
		shape := t.Shape()
		if len(shape) == 0 || size >= 0 && shape[0] != size {
			return 0
		}
		size = shape[0]
	}
	if i, _ := slices.BinarySearch(c.o.BatchSizes, int(size)); size > 0 && i < len(c.o.BatchSizes) {
		return int64(c.o.BatchSizes[i])
	}
	return 0
}

// input is memory for an input like t.
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
	if len(strides) > 0 && strides[0] == rest { // images one behind another, in whatever order their elements are
		padded := x.Call("aten::empty_strided", shape, strides, t.DType(), nil, x.Device())[0].(*Tensor)
		return x.ZeroInPlace(padded)
	}
	return x.Zeros(t.DType(), shape...)
}

// check fails unless results can be cut.
func (s *capturedShape) check(out []*Tensor) error {
	for i, t := range out {
		if s.batch != 0 && (t.Dim() == 0 || t.Shape()[0] != s.batch) {
			return fmt.Errorf("result %d is %v: Options.BatchSizes wants results with an entry for each of the inputs'", i, t)
		}
	}
	return nil
}

func closeAll(ts []*Tensor) {
	for _, t := range ts {
		t.Close()
	}
}

// lend returns what Run does of results that belong to x's Do.
func (c *Captured) lend(x *Exec, ts []*Tensor) []*Tensor {
	if !c.o.lends() {
		return ts
	}
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		out[i] = x.Lend(t, whoseResults)
	}
	return out
}

// key is equal for inputs and Execs that one graph serves.
func (c *Captured) key(x *Exec, in []*Tensor) string {
	var key []byte
	key = fmt.Append(key, x.c.Grad, x.c.Autocast)
	batch := c.batch(in)
	for _, t := range in {
		info := t.info()
		shape, strides := t.geometry()
		if batch != 0 {
			shape[0] = batch
		}
		key = fmt.Append(key, "|", int(info.DType), deviceOf(info.Device), shape, strides, int(info.RequiresGrad))
		if c.o.InPlace {
			key = fmt.Append(key, "@", info.Address)
		}
	}
	return string(key)
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

func (c *Captured) log(format string, args ...any) {
	if c.o.Log != nil {
		c.o.Log(fmt.Sprintf(format, args...))
	}
}

func (c *Captured) count(add func(s *CapturedStats)) {
	c.counting.Lock()
	defer c.counting.Unlock()
	add(&c.stats)
}

// Stats returns the counts so far. It does not wait for a Run.
func (c *Captured) Stats() CapturedStats {
	c.counting.Lock()
	defer c.counting.Unlock()
	return c.stats
}

// Memory is what the graphs hold of the device, in bytes. It waits for a Run.
func (c *Captured) Memory() (int64, error) {
	if runsOn(c.runner.Load()) {
		return 0, insideError("Captured.Memory")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool == nil || c.closed {
		return 0, nil
	}
	return c.pool.Memory()
}

// Close frees the graphs and their memory; launches under way go on. Closing twice does nothing.
func (c *Captured) Close() error {
	if c == nil {
		return nil
	}
	if runsOn(c.runner.Load()) {
		return insideError("Captured.Close")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if c.pool == nil {
		return nil
	}
	c.pool.mu.Lock()
	for _, s := range c.shapes {
		closeAll(s.in)
		s.drop(c)
	}
	c.pool.mu.Unlock()
	c.shapes = nil
	return c.pool.Close()
}
