package cgotorch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Captured is a function of tensors that is run eagerly at first and then captured as a [Graph]
// for each shape of its inputs. Later calls launch the graph, so a training step costs the host
// one launch. Use it inside a Do, in place of the function:
//
//	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
//		opt.ZeroGrad()
//		loss := x.CrossEntropy(model.Forward(x, in[0]), in[1])
//		x.Backward(loss)
//		opt.Step(x)
//		return []*cgotorch.Tensor{loss}
//	}, cgotorch.CapturedOptions{})
//
// Each Run has the effect of a call of the function, random numbers and the optimizer's
// schedule included. The function is called no more once it is captured. Values of the host
// then stay as they were at the capture, except through [Exec.EachLaunch] and [Exec.DependsOn].
// The optimizers of cgotorch/optim and the modules of cgotorch/nn use both.
//
// Parameters that the function reads must live until Close. A function that cannot be captured
// goes on eagerly, and Stats says why. On the CPU every Run is eager.
//
// A Captured may be used from any goroutine, with InPlace from one goroutine at a time. Runs
// exclude each other, on the host and on the device. The first Run decides the device of the
// Captured. A shape is captured on a thread that has done its warm-up runs: use few streams.
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

// CapturedOptions are the options of [NewCaptured]. The zero value is for a training step over
// a prefetcher.
type CapturedOptions struct {
	// WarmUp is the number of eager Runs of each shape before its capture; 0 means 3. They are Runs
	// like the others. More follow while a Choice in the function is undecided.
	WarmUp    int
	MaxGraphs int // shapes that are captured; others run eagerly; 0 means 8
	// InPlace makes graphs read the inputs where they lie: one graph for each set of addresses.
	// Results are then not copied. false copies inputs and results, on the device.
	InPlace bool
	Eager   bool // never capture

	// BatchSizes are the sizes that graphs are made for, such as 1, 8 and 32. The function must
	// treat each entry along the first dimension of its inputs by itself, as models do in
	// evaluation. Its results must have the same first dimension. Fewer entries are padded to the
	// next size, and the results cut. More entries run eagerly. Empty means a graph for each size.
	// InPlace knows no padding.
	BatchSizes []int

	// Log is called with a text for each capture, and for each function that cannot be captured and
	// why. nil calls nothing. Log must not use the Captured, except for Stats.
	Log func(text string)

	lend bool // results are not copied: the Captured's Do is alone with it
}

func (o CapturedOptions) lends() bool { return o.InPlace || o.lend }

// CapturedStats counts since the Captured was made.
type CapturedStats struct {
	Graphs   int // graphs that exist now
	Captures int // captures, repeated captures of one shape among them
	Updates  int // captures for which CUDA updated the existing graph
	Launches int // Runs that launched a graph
	Eager    int // Runs that called the function
	// Why is the reason of the last Run that was eager after its warm-up; "" for none.
	Why string
}

// capturedShape is what a Captured knows of inputs of one shape.
type capturedShape struct {
	// The size along the first dimension to which inputs are padded; 0 for no padding.
	batch int64
	runs  int  // eager Runs
	open  bool // a Choice needs more of them
	// The threads of these Runs. cuDNN and cuBLAS get ready for each thread.
	threads map[uint64]bool
	graph   *Graph
	// The same work with nothing parallel, while the faster graph is unknown; or nil.
	serial   *serialGraph
	in       []*Tensor // the graph's inputs; nil with InPlace
	out      []*Tensor
	launches int    // of the graph
	again    int    // captures in a row with at most one launch between them
	failures int    // captures that failed in a row
	eager    string // why the shape is not captured; "" while it can be
}

// NewCaptured makes a Captured of fn. fn is called with the inputs of a Run and returns its
// results. The caller must Close the Captured.
func NewCaptured(fn func(x *Exec, in ...*Tensor) []*Tensor, o CapturedOptions) *Captured {
	if o.WarmUp <= 0 {
		o.WarmUp = 3
	}
	if o.MaxGraphs <= 0 {
		o.MaxGraphs = 8
	}
	o.BatchSizes = slices.DeleteFunc(slices.Sorted(slices.Values(o.BatchSizes)), func(n int) bool { return n < 1 })
	return &Captured{fn: fn, o: o, shapes: map[string]*capturedShape{}}
}

// comparedLaunches is the number of launches in which a graph and its serial form alternate.
const comparedLaunches = 42

const whoseResults = "a captured function with Options.InPlace, whose next Run writes there"

// Run has the effect on x's stream of a call of the function with in, and returns the
// function's results. It waits for captures of other goroutines. It waits for the device before
// the first warm-up run and where memory is short in a capture. It also waits at the end of
// measurements of Choices and Overlaps in warm-up runs.
//
// The results belong to the Do and require no gradient. With InPlace they belong to the graph,
// cannot be kept, and hold until the next Run. Gradients that the function leaves behind are
// undefined after the next Run of another shape. They are undefined too in the first 42
// launches where work in the function runs in parallel. These launches alternate between a
// parallel and a serial graph, and the faster graph stays.
//
// Run fails like the function, and with [ErrClosed]. Inside a captured function, Run calls the
// function. In the second call of a function given to [Exec.Recompute] it does so too.
func (c *Captured) Run(x *Exec, in ...*Tensor) []*Tensor {
	const op = "Captured.Run"
	x.checkThread(op)
	for _, t := range in {
		x.open(op, t)
	}
	if x.hook {
		x.Fail(op, refuse(op, ErrNotCapturable, "called inside a function given to EachLaunch"))
	}
	if x.work != nil || x.from != nil { // in the latter a backward is under way, and a capture would wait for it
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
		x.Fail(op, refuse(op, ErrClosed, "the captured function is closed"))
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

// settled reports whether Runs of inputs like in need no more trials: they launch a graph, or
// the reason against a graph is known.
func (c *Captured) settled(x *Exec, in ...*Tensor) bool {
	s := c.shape(x, in)
	return s.eager != "" || s.graph != nil && s.serial == nil && s.launches > 0
}

func (c *Captured) run(x *Exec, in []*Tensor) []*Tensor {
	s := c.shape(x, in)
	switch {
	case s.graph != nil:
		if what := s.graph.stale(); what != "" {
			c.captureAgain(x, s, in, what)
		}
	case s.eager == "" && s.runs >= c.o.WarmUp && s.threads[x.s.thread] && !(s.open && s.runs < c.o.WarmUp+maxTrials):
		c.capture(x, s, in)
	}
	if s.graph == nil {
		return c.warmUp(x, s, in)
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
	if c.o.lends() { // once more behind the Do's reads
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
	if s.serial != nil {
		w := x.choose("Captured.Run", s.serial.choice, in, 1)
		if !w.open {
			s.keepFaster(c, in, w.parallel)
		} else {
			graph, out := s.graph, s.out
			if !w.parallel {
				graph, out = s.serial.graph, s.serial.out
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

// cut returns the first entries of t, as many as in has. t has the shape's batch.
func (s *capturedShape) cut(x *Exec, t, in *Tensor) *Tensor {
	if s.batch == 0 {
		return t
	}
	if n := in.Shape()[0]; n < s.batch {
		return x.Narrow(t, 0, 0, int(n))
	}
	return t
}

// warmUp calls the function on the pool's stream.
func (c *Captured) warmUp(x *Exec, s *capturedShape, in []*Tensor) []*Tensor {
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
	if s.open, err = c.pool.warmUp(x, c.keeping(&out, in), s.eager == ""); err != nil {
		closeAll(out)
		x.Fail("Captured.Run", err)
	}
	for _, t := range out {
		x.adopt(t)
	}
	return c.lend(x, out)
}

// keeping returns the function for inputs in. It keeps its results and adds them to out.
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

// captureAgain captures the function in place of an outdated graph, but not at each Run.
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

// capture captures the function for inputs like in, or notes why it cannot.
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
	if errors.Is(err, ErrOutOfMemory) { // LibTorch's allocator keeps its cache while it captures
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
	if graph.parallel {
		c.captureSerial(x, s, from)
	}
}

// serialGraph is a graph for which every Choice was serial.
type serialGraph struct {
	graph  *Graph
	out    []*Tensor
	choice *Choice // between this graph and the shape's
}

// captureSerial captures the function once more, with nothing parallel. Choices measure work
// that is enqueued piece by piece. The device waits longer between such pieces than inside a
// graph. So the next Runs alternate between both graphs and measure the whole function.
func (c *Captured) captureSerial(x *Exec, s *capturedShape, from []*Tensor) {
	serial, out, err := func() (*Graph, []*Tensor, error) {
		graph := s.graph
		s.graph = nil // keeps CUDA from updating it
		defer func() { s.graph = graph }()
		return c.tryCapture(x, s, from, true)
	}()
	if err != nil { // for want of memory, say
		c.log("parallel work is not compared with serial work: %v", err)
		return
	}
	s.serial = &serialGraph{graph: serial, out: out, choice: newChoice(ChoiceOptions{}, comparedLaunches, 0.003)}
}

// keepFaster ends the comparison of the shape's two graphs.
func (s *capturedShape) keepFaster(c *Captured, in []*Tensor, parallel bool) {
	for _, d := range s.serial.choice.Decisions() {
		c.log("%s: %v a launch with parallel work, %v without", describeInputs(in), d.ParallelTime, d.SerialTime)
	}
	if !parallel {
		s.graph, s.serial.graph = s.serial.graph, s.graph
		s.out, s.serial.out = s.serial.out, s.out
	}
	s.serial.end()
	s.serial = nil
}

func (p *serialGraph) end() {
	p.graph.end()
	closeAll(p.out)
}

func (c *Captured) tryCapture(x *Exec, s *capturedShape, from []*Tensor, serial bool) (*Graph, []*Tensor, error) {
	var out []*Tensor
	graph, err := c.pool.capture(x, c.keeping(&out, from), s.graph, serial)
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

// failed notes a failed capture. A function that cannot be captured is not tried again. Another
// failure may be the function's own, and pass: the next Run then meets it.
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

// refusal says why inputs like in are not even tried to be captured; "" for no reason.
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

// drop frees the shape's graphs.
func (s *capturedShape) drop(c *Captured) {
	if s.graph == nil {
		return
	}
	s.graph.end()
	closeAll(s.out)
	s.graph, s.out = nil, nil
	if s.serial != nil {
		s.serial.end()
		s.serial = nil
	}
	c.count(func(s *CapturedStats) { s.Graphs-- })
}

// shape returns the shape of inputs like in.
func (c *Captured) shape(x *Exec, in []*Tensor) *capturedShape {
	key := c.key(x, in)
	s := c.shapes[key]
	if s == nil {
		if len(c.shapes) >= 64*c.o.MaxGraphs { // of ever new shapes none comes often enough
			maps.DeleteFunc(c.shapes, func(_ string, s *capturedShape) bool { return s.graph == nil })
		}
		s = &capturedShape{batch: c.batch(in), threads: map[uint64]bool{}}
		c.shapes[key] = s
	}
	return s
}

// batch returns the size to which inputs like in are padded, or 0.
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

// input makes memory for an input like t.
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
	if len(strides) > 0 && strides[0] == rest { // entries lie one behind another, each in any order
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

// lend returns the results of Run for results that belong to x's Do.
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

// key returns a text that is equal for inputs and Execs that can share a graph.
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

// Memory returns the bytes of the device that the graphs hold. It waits for a Run.
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

// Close frees the graphs and their memory. It waits for a Run; launches under way go on.
// Closing twice does nothing.
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

// Note [Eager, plain or side by side]
//
// A Captured runs the function eagerly at first, on the pool's stream. Gradient accumulators
// then belong to that stream, and cuDNN has chosen on the thread that captures. Afterwards it
// has one graph for each shape, dtype and mode of the inputs.
//
// A rehearsal times both ways of a Choice behind a kernel that sleeps. That flatters side by
// side: between kernels that are enqueued one by one the device waits about a microsecond longer
// than in a graph. For chains of small kernels this is a tenth of the time or more. So a
// Captured whose Choices are for side by side captures the plain form too, launches the two
// graphs in turn and keeps the faster one.
//
// Inputs are copied into memory of the graph, and results out of it. With InPlace neither is
// copied, and there is a graph for each set of addresses. Over a prefetcher's slots that gave
// 99.85 % of the resident rate and the copy 99.75 %, for three graphs in place of one. Copying
// is therefore the default.
