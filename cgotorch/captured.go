package cgotorch

import (
	"fmt"
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
	shapes shapeTable
	lends  lending
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
	// with EachOnce. nil means that this process decides alone. See Agree of distributed.Group.
	Agree func(yes bool) bool

	// Log is called with a text for each capture. If a function cannot be captured, Log is called
	// with the reason. Log may be nil. Log must not use the Captured, except for Stats.
	Log func(text string)

	lend bool // results are not copied, because only one Do at a time uses the Captured
}

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
	return &Captured{
		fn: fn, o: o, lends: lending{o.InPlace || o.lend},
		shapes: shapeTable{batchSizes: o.BatchSizes, inPlace: o.InPlace, mostGraphs: o.MaxGraphs, of: map[string]*capturedShape{}},
	}
}

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
	return c.lends.eager(x, out)
}

// settled reports whether Runs of inputs like `in` need no more trials. There are two cases. Either
// their graph has been launched, and no comparison with a serial graph is under way. Or it is known
// that these Runs cannot be captured. The caller is the only user of c, and c is open.
func (c *Captured) settled(x *Exec, in ...*Tensor) bool {
	s := c.shapes.find(x, in)
	return s.eager != "" || s.graph != nil && s.serial == nil && s.launches > 0
}

func (c *Captured) run(x *Exec, in []*Tensor) []*Tensor {
	s := c.shapes.find(x, in)
	switch {
	case s.graph != nil:
		if what := s.graph.stale(); what != "" {
			recording{c, x, s, in}.again(what)
		}
	case s.eager == "" && s.runs >= c.o.WarmUp && c.agree(s.threads[x.s.thread] && !(s.open && s.runs < c.o.WarmUp+maxTrials)):
		recording{c, x, s, in}.capture()
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
	out := c.lends.launched(y, s, c.launch(x, s, in), in)
	c.pool.used(x)
	ended = true
	c.lends.untilEnd(x, c.pool)
	return out
}

// launch launches the shape's graph, or the graph that it is compared with. It returns the results
// of the launched graph.
func (c *Captured) launch(x *Exec, s *capturedShape, in []*Tensor) []*Tensor {
	s.launches++
	c.count(func(s *CapturedStats) { s.Launches++ })
	if s.serial != nil {
		out, ended := s.serial.launch(x, s, in)
		if !ended {
			return out
		}
		parallel, serial := s.serial.times()
		c.log("%s: %v a launch with parallel work, %v without", describeInputs(in), parallel, serial)
		s.serial.end()
		s.serial = nil
	}
	s.graph.launch(x)
	return s.out
}

// drop closes the graphs of a shape.
func (c *Captured) drop(s *capturedShape) {
	if s.drop() {
		c.count(func(s *CapturedStats) { s.Graphs-- })
	}
}

// agree returns whether all processes of the group say yes.
func (c *Captured) agree(yes bool) bool {
	if c.o.Agree == nil {
		return yes
	}
	return c.o.Agree(yes)
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
	c.lends.untilEnd(x, c.pool)
	return c.lends.eager(x, out)
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
	for _, s := range c.shapes.of {
		s.closeInputs()
		c.drop(s)
	}
	c.pool.mu.Unlock()
	c.shapes.of = nil
	return c.pool.Close("Captured.Close")
}

// Note [Eager, serial or parallel]
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
