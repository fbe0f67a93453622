package cgotorch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Captured is a function of tensors that captures itself. A program calls the function by
// [Captured.Run]. For each shape of inputs, the first Runs call the function eagerly: they are
// warm-up runs. Then the function is captured as a [Graph] for this shape. Later Runs launch the
// graph, so a training step costs the host one launch. Use a Captured inside a Do, in place of the
// function:
//
//	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
//		opt.ZeroGrad()
//		loss := x.CrossEntropy(model.Forward(x, in[0]), in[1])
//		x.Backward(loss)
//		opt.Step(x)
//		return []*cgotorch.Tensor{loss}
//	}, cgotorch.CapturedOptions{})
//
// Each Run has the same effect as a call of the function. This includes random numbers and the
// optimizer's schedule. Only what the function writes into its inputs is lost after the capture,
// unless CapturedOptions.InPlace is set: it writes into the graph's copies of them. After the
// capture the function is not called any more. If the function has read a value of the host, this
// value then stays as it was in the capture. For a value that changes, use [Exec.EachLaunch] or
// [Exec.DependsOn]. The optimizers of cgotorch/optim and the modules of cgotorch/nn use EachLaunch
// and DependsOn.
//
// The graphs of all shapes share memory. It is least if the largest shape is captured first. What
// the eager Runs before a capture have used stays with LibTorch's allocator:
// [Device.ReleaseCachedMemory] gives it back.
//
// Parameters that the function reads must live until Close. If the function cannot be captured, its
// Runs stay eager, and [Captured.Stats] says why. On the CPU all Runs are eager.
//
// A Captured may be used from any goroutine. With InPlace only one goroutine at a time may use the
// Captured. Runs exclude each other, on the host and on the device. The first Run on a CUDA device
// decides the CUDA device of the Captured. A shape is captured only on a thread that has done a
// warm-up run of this shape. Each stream has its own thread, so use few streams.
type Captured struct {
	fn func(x *Exec, in ...*Tensor) []*Tensor
	o  CapturedOptions

	mu     sync.Mutex
	runner atomic.Uint64 // thread of the Run that holds mu; 0 means none
	pool   *graphPool
	shapes map[string]*capturedShape
	closed bool

	counting sync.Mutex // guards stats
	stats    CapturedStats
}

// CapturedOptions are the options of [NewCaptured]. The zero value is good for a training step
// whose inputs come from a prefetcher.
type CapturedOptions struct {
	// WarmUp is the number of eager Runs of each shape before the capture of this shape. 0 means 3.
	// These Runs have results and effects like all other Runs. More eager Runs follow while a
	// Choice in the function is undecided.
	WarmUp    int
	MaxGraphs int // largest number of captured shapes; further shapes run eagerly; 0 means 8
	// InPlace makes graphs read the inputs at the addresses of the inputs, without a copy. There is
	// then one graph for each set of input addresses, and results are not copied either. Without
	// InPlace each Run copies the inputs and the results, on the device.
	InPlace bool
	Eager   bool // never capture

	// BatchSizes are the batch sizes that graphs are made for, such as 1, 8 and 32. The batch size
	// is the size of the first dimension. All inputs and results must have the same batch size. The
	// function must treat each entry of a batch independently, as models do in evaluation.
	//
	// If the batch size of an input is not in BatchSizes, the input is padded to the next larger
	// size in BatchSizes. The results are then cut back. A batch that is larger than all BatchSizes
	// runs eagerly. If BatchSizes is empty, each batch size gets a graph of its own. With
	// BatchSizes and InPlace together all Runs are eager. Sizes below 1 are passed over.
	BatchSizes []int

	// Agree makes decisions of several processes one decision, for functions whose processes wait
	// for each other. Run calls it with this process's wish to capture and with the success of a
	// capture. It returns whether all processes have given true. All processes then make the same
	// Runs: the same number, with inputs of the same shapes. So the inputs cannot come from a loader
	// with Options.EachOnce. nil means that this process decides alone. See Agree of distributed.Group.
	Agree func(yes bool) bool

	// Log is called with a text for each capture. If a function cannot be captured, Log is called
	// with the reason. Log may be nil. Log must not use the Captured, except for Stats.
	Log func(text string)

	lend bool // results are not copied, because only one Do at a time uses the Captured
}

func (o CapturedOptions) lends() bool { return o.InPlace || o.lend }

// CapturedStats are counts since the Captured was made.
type CapturedStats struct {
	Graphs   int // shapes that have a graph now
	Captures int // captures, including repeated captures of one shape
	Updates  int // captures for which CUDA updated the shape's old graph
	Launches int // Runs that launched a graph
	Eager    int // Runs that called the function
	// Why is the reason why the last eager Run was eager. Runs that were eager only for warm-up do
	// not count. "" means that all eager Runs were for warm-up.
	Why string
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
	// `serial` is a second graph of the same work, in which nothing runs in parallel. It exists
	// while it is unknown which of the two graphs is faster. Otherwise it is nil.
	serial   *serialGraph
	in       []*Tensor // the graph's inputs; nil with InPlace
	out      []*Tensor
	launches int    // launches since the last capture
	again    int    // number of stale graphs in a row, each of them launched at most once
	failures int    // captures that failed in a row
	eager    string // why the shape cannot be captured; "" means that it can
}

// NewCaptured returns a Captured of fn. fn is called with the inputs of a Run and returns the
// results of the Run. The caller must Close the Captured.
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

// comparedLaunches is the number of launches in which a shape's parallel graph and its serial
// graph alternate. Afterwards the faster graph is kept.
const comparedLaunches = 42

const whoseResults = "a captured function with CapturedOptions.InPlace, whose next Run writes there"

// Run has the same effect on x's stream as a call of the function with `in`, and returns the
// function's results. Run waits for captures of other goroutines. The eager Runs before a capture
// are warm-up runs. Run waits for the device before the first warm-up run, and in a capture if
// memory is short. A warm-up run that ends the measurement of a Choice or an Overlap waits for
// the device too.
//
// The Do owns the results. The results require no gradient. With InPlace the graph owns the
// results: they cannot be kept, and they are valid until the next Run.
//
// The function may leave gradients in parameters. These gradients are undefined after a later Run
// of a different shape. If the function runs work in parallel, the gradients are also undefined
// in the first 42 launches. These launches alternate between a parallel and a serial graph, and
// the faster graph is kept.
//
// Run fails if the function fails. It fails with [ErrClosed] if the Captured is closed. A Run
// inside a captured function only calls the function and captures nothing. The same holds for a
// Run inside the second call of a function given to [Exec.Recompute].
func (c *Captured) Run(x *Exec, in ...*Tensor) []*Tensor {
	const op = "Captured.Run"
	x.checkThread(op)
	for _, t := range in {
		x.open(op, t)
	}
	if x.hooked() {
		x.Fail(op, refuse(op, ErrNotCapturable, "called inside a function given to EachLaunch"))
	}
	if x.work != nil || x.Recomputing() { // in a Recompute a backward is under way, and a capture would wait for this backward
		return c.fn(x, in...)
	}
	if c.runner.Load() == x.s.thread { // an eager function has called Run of its own Captured
		return c.fn(x, in...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runner.Store(x.s.thread)
	defer c.runner.Store(0)
	if c.closed {
		x.Fail(op, refuse(op, ErrClosed, "the captured function is closed; close it after its last Run"))
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

// runEagerly calls the function with x, so that x's Do owns the function's tensors.
func (c *Captured) runEagerly(x *Exec, in []*Tensor) []*Tensor {
	why := "the CPU has no graphs"
	if c.o.Eager {
		why = "CapturedOptions.Eager asks for it"
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

// settled reports whether Runs of inputs like `in` need no more trials. There are two cases. Either
// their graph has been launched, and no comparison with a serial graph is under way. Or it is known
// that these Runs cannot be captured.
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
	case s.eager == "" && s.runs >= c.o.WarmUp && c.agree(s.threads[x.s.thread] && !(s.open && s.runs < c.o.WarmUp+maxTrials)):
		c.capture(x, s, in)
	}
	if s.graph == nil {
		return c.warmUp(x, s, in)
	}
	c.pool.await(x)
	ended := false
	defer func() {
		if !ended { // the next Run, perhaps on another stream, waits for what this one has enqueued
			_ = c.pool.usedRaw(x)
		}
	}()
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
	ended = true
	c.usedUntilEnd(x)
	return out
}

// usedUntilEnd tells the pool that x's Do may read lent results until it ends.
func (c *Captured) usedUntilEnd(x *Exec) {
	if !c.o.lends() {
		return
	}
	x.AtEnd(func() {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		if !c.pool.ended {
			c.pool.used(x)
		}
	})
}

// launch launches the shape's graph or the shape's serial graph. It returns the results of the
// launched graph.
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

const otherCannot = "another process of the group cannot capture it"

// agree returns whether all processes of the group say yes.
func (c *Captured) agree(yes bool) bool {
	if c.o.Agree == nil {
		return yes
	}
	return c.o.Agree(yes)
}

func firstOf(in []*Tensor) *Tensor {
	if len(in) == 0 {
		return nil
	}
	return in[0]
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

// warmUp does an eager Run on the pool's stream.
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
	c.usedUntilEnd(x)
	return c.lend(x, out)
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

// captureAgain captures the function again after a value has changed. `what` is the text that a
// function given to DependsOn has returned. If the values change so often that several Runs in a
// row would need a new capture, captureAgain drops the graph. Later Runs are then eager.
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

// capture captures the function for inputs like `in`. If the capture fails, the Run goes on
// eagerly.
func (c *Captured) capture(x *Exec, s *capturedShape, in []*Tensor) {
	s.eager = c.refusal(x, s, in)
	if !c.agree(s.eager == "") {
		s.eager = cmp.Or(s.eager, otherCannot)
		s.drop(c)
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
	if errors.Is(err, ErrOutOfMemory) { // in a capture LibTorch's allocator cannot free its cached memory
		if x.Device().ReleaseCachedMemory() == nil {
			graph, out, err = c.tryCapture(x, s, from, false)
		}
	}
	if !c.agree(err == nil) && err == nil {
		graph.end()
		closeAll(out)
		err = refuse("Captured.Run", ErrNotCapturable, otherCannot)
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
	if c.agree(graph.parallel) {
		c.captureSerial(x, s, from)
	}
}

// serialGraph is a graph in which every Choice runs its work serially.
type serialGraph struct {
	graph  *Graph
	out    []*Tensor
	choice *Choice // between this graph and the shape's parallel graph
}

// captureSerial captures the function a second time, with nothing in parallel. A Choice measures
// work that is enqueued kernel by kernel. Between such kernels the device waits longer than
// inside a graph, so the decision of the Choice may be wrong for a graph. The next Runs therefore
// alternate between the two graphs, and measure the whole function.
func (c *Captured) captureSerial(x *Exec, s *capturedShape, from []*Tensor) {
	serial, out, err := func() (*Graph, []*Tensor, error) {
		graph := s.graph
		s.graph = nil // otherwise CUDA would update the parallel graph to the serial one
		defer func() { s.graph = graph }()
		return c.tryCapture(x, s, from, true)
	}()
	if err != nil { // for example because memory is short
		c.log("parallel work is not compared with serial work: %v", err)
		return
	}
	s.serial = &serialGraph{graph: serial, out: out, choice: newChoice(ChoiceOptions{}, comparedLaunches, 0.003)}
}

// keepFaster ends the comparison of the shape's two graphs and closes the slower graph.
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

// failed is called after a capture has failed. If the function cannot be captured, or if memory is
// short, later Runs do not try again. Any other failure may be temporary, because it may come from
// the function itself. After such a failure later Runs try again, until three captures in a row
// have failed.
func (c *Captured) failed(x *Exec, s *capturedShape, in []*Tensor, err error) {
	closeAll(s.in)
	s.in = nil
	if errors.Is(err, ErrDeviceLost) {
		x.Fail("Captured.Run", err)
	}
	const tries = 3
	if s.failures++; errors.Is(err, ErrNotCapturable) || errors.Is(err, ErrOutOfMemory) || s.failures >= tries || c.o.Agree != nil {
		s.eager = err.Error()
	}
	c.log("%s runs eagerly: %v", describeInputs(in), err)
}

// refusal returns the reason why no capture is tried for inputs like `in`. "" means that a capture
// can be tried.
func (c *Captured) refusal(x *Exec, s *capturedShape, in []*Tensor) string {
	graphs := c.Stats().Graphs
	switch {
	case theChecker.finite:
		return "CGOTORCH_CHECK=finite reads the results of each operator"
	case len(c.o.BatchSizes) > 0 && c.o.InPlace:
		return "CapturedOptions.BatchSizes pads, which InPlace cannot"
	case len(c.o.BatchSizes) > 0 && s.batch == 0:
		return fmt.Sprintf("no size in CapturedOptions.BatchSizes, which are %v, serves the inputs", c.o.BatchSizes)
	case s.graph == nil && graphs >= c.o.MaxGraphs:
		return fmt.Sprintf("%d shapes are captured already, which is all that CapturedOptions.MaxGraphs allows", graphs)
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

// drop closes the shape's graphs and their results.
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

// shape returns the state for inputs like `in`. It makes a new state for a new shape.
func (c *Captured) shape(x *Exec, in []*Tensor) *capturedShape {
	key := c.key(x, in)
	s := c.shapes[key]
	if s == nil {
		if len(c.shapes) >= 64*c.o.MaxGraphs { // if new shapes keep coming, forget the shapes without a graph
			maps.DeleteFunc(c.shapes, func(_ string, s *capturedShape) bool { return s.graph == nil })
		}
		s = &capturedShape{batch: c.batch(in), threads: map[uint64]bool{}}
		c.shapes[key] = s
	}
	return s
}

// batch returns the batch size to which inputs like `in` are padded, or 0.
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

func closeAll(ts []*Tensor) {
	for _, t := range ts {
		t.Close()
	}
}

// lend returns the tensors that Run returns for the results ts. x's Do owns ts. With InPlace, and
// in an Inference, the returned tensors are lent handles of ts.
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

// key returns the key of x and `in` in c.shapes. Runs with equal keys can share a graph.
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

// Stats returns the counts so far. It does not wait for a Run that is under way.
func (c *Captured) Stats() CapturedStats {
	c.counting.Lock()
	defer c.counting.Unlock()
	return c.stats
}

// Memory returns the number of bytes on the device that the graphs hold. It waits for a Run that
// is under way.
func (c *Captured) Memory() (int64, error) {
	if runsOn(c.runner.Load()) {
		return 0, insideError("Captured.Memory")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool == nil || c.closed {
		return 0, nil
	}
	return c.pool.Memory("Captured.Memory")
}

// Close frees the graphs and their memory. It waits for a Run that is under way. Launches that
// are already enqueued still run. A second Close does nothing.
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
	return c.pool.Close("Captured.Close")
}

// Note [Eager, plain or side by side]
//
// A Captured first runs the function eagerly, on the pool's stream. After these runs, gradient
// accumulators belong to this stream, and cuDNN has chosen its kernels on the thread that
// captures. Then the function is captured. The Captured has one graph for each shape, dtype and
// mode of the inputs.
//
// In the eager runs a Choice measures its two ways, which are parallel and serial. Before each
// measurement a kernel sleeps on the device, while the host enqueues the work. So the host's time
// to enqueue does not count. This measurement favours the parallel way. Between kernels that are
// enqueued one by one, the device waits about a microsecond longer than in a graph. For chains of
// small kernels this wait is a tenth of the time or more.
//
// So if a Choice has decided for the parallel way, the Captured also captures a serial graph. It
// launches the two graphs in turn and keeps the faster one.
//
// Inputs are copied into memory of the graph, and results are copied out of it. With InPlace
// nothing is copied, and there is a graph for each set of addresses. In one measurement, a
// training with batches from a prefetcher's slots was compared with a training whose batch stays
// on the device. With InPlace the first training reached 99.85 % of the rate of the second, with
// three graphs. With copies it reached 99.75 %, with one graph. Copying is therefore the default.
