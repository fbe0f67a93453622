package cgotorch

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// A Choice measures which of two ways of doing a piece of work is faster on the device. After the
// measurement it uses the faster way. For example, the branches of [Exec.Parallel] can run in
// parallel or serially. A Choice may be used from any goroutine.
//
// The first dozen calls with inputs of one shape alternate between the two ways, and their time
// on the device is measured. The Choice adds no calls for the measurement. Eager calls, which are
// calls outside graphs, do not wait for the measurement. In the warm-up runs of a capture, the
// last measured call waits for the device.
//
// Work in graphs has decisions of its own, and is measured in the warm-up runs. These
// measurements leave out the time in which the host enqueues the work, because a launch of a
// graph does not enqueue the work again. A [Captured] does warm-up runs until all decisions are
// made. On the CPU all work runs serially.
type Choice struct {
	log func(text string)
	h   *ct.Choice

	mu        sync.Mutex
	decisions []decision
	told      int // number of decisions that were logged
}

// maxTrials is the largest number of additional warm-up runs that a capture does for undecided
// Choices.
const maxTrials = 48

// NewChoice returns a Choice that has decided nothing yet. It calls `log` once for each decision.
// The text has the decision, the times of both ways and the reason. `log` may be nil, and must not
// enqueue work. The garbage collector frees the Choice.
func NewChoice(log func(text string)) *Choice { return newChoice(log, 0, 0) }

// newChoice is NewChoice with two settings. `trials` is the number of calls that are measured.
// `gain` is a fraction of the serial time. The parallel way is chosen only if it saves more than
// this fraction. For both settings 0 means the default of the core.
func newChoice(log func(text string), trials int, gain float64) *Choice {
	c := &Choice{log: log, h: ct.ChoiceNew(int32(trials), float64(gain))}
	runtime.AddCleanup(c, func(h *ct.Choice) { ct.ChoiceFree(h) }, c.h)
	return c
}

// A decision is a result of a Choice.
type decision struct {
	What         string        // the inputs that the decision is for
	Graph        bool          // the decision is for work in graphs
	Parallel     bool          // the work runs in parallel
	SerialTime   time.Duration // median time on the device if the work runs serially
	ParallelTime time.Duration // median time on the device if the work runs in parallel
	HostTime     time.Duration // median time in which the host enqueues the work in parallel
	Why          string        // the reason of the decision
}

// String returns one line, such as "(float32[1 64 56 56]@cuda:0), captured: parallel: 61µs
// parallel, 105µs serial".
func (d decision) String() string {
	how := "eager"
	if d.Graph {
		how = "captured"
	}
	way := "serial: " + d.Why + "; "
	if d.Parallel {
		way = "parallel: "
	}
	return fmt.Sprintf("%s, %s: %s%v parallel, %v serial", d.What, how, way, d.ParallelTime, d.SerialTime)
}

// made returns the decisions so far, in the order in which they were made.
func (c *Choice) made() []decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take()
	return slices.Clone(c.decisions)
}

// take moves the new decisions of the core to c.decisions. The caller holds c.mu.
func (c *Choice) take() {
	var d ct.Decision
	for ct.ChoiceTake(c.h, &d) != 0 {
		us := func(v float64) time.Duration { return time.Duration(float64(v) * 1e3).Round(100 * time.Nanosecond) }
		n := decision{
			What: ct.Text(d.Key[:]), Graph: d.Graph != 0, Parallel: d.Second != 0,
			SerialTime: us(d.FirstUS), ParallelTime: us(d.SecondUS), HostTime: us(d.HostUS),
		}
		switch d.Why {
		case ct.Faster:
			n.Why = "the device does both at once"
		case ct.NotWaitedFor:
			n.Why = "about as fast, and nothing waits for the weights' gradients"
		case ct.FillsDevice:
			n.Why = "the kernels of one fill the device already"
		case ct.LaunchBound:
			n.Why = fmt.Sprintf("launch-bound, the host takes %v to enqueue it", n.HostTime)
		case ct.HiddenWait:
			n.Why = "a hidden wait, the host waits for the device in it"
		case ct.SharedQueue:
			n.Why = "the streams share the device's queues: set CUDA_DEVICE_MAX_CONNECTIONS, of at most 32, before the program starts"
		}
		c.decisions = append(c.decisions, n)
	}
	runtime.KeepAlive(c)
}

func (c *Choice) tell() {
	c.mu.Lock()
	c.take()
	anew := slices.Clone(c.decisions[c.told:])
	c.told = len(c.decisions)
	c.mu.Unlock()
	if c.log != nil {
		for _, d := range anew {
			c.log(d.String())
		}
	}
}

// A way is the answer of a [Choice] for one call.
type way struct {
	parallel  bool                 // the work runs in parallel
	open      bool                 // nothing is decided yet
	completed bool                 // set after the work, when all of the work is enqueued
	done      func(completed bool) // ends the measurement; nil if nothing is measured
}

// end is called after the work, also if the work has failed.
func (w *way) end() {
	if w.done != nil {
		w.done(w.completed)
	}
}

// undecided is called when a Choice in x's work has no decision yet. More warm-up runs then come
// before the capture.
func (x *Exec) undecided() {
	if x.work != nil {
		x.work.undecided = true
	}
}

// inTrial is the value of an Exec whose work a Choice measures.
type inTrial struct{}

// measured returns the Exec for work that runs in the way w. If this work is measured, the returned
// Exec has the value inTrial. Otherwise the returned Exec is x.
func (x *Exec) measured(w way) *Exec {
	if w.done == nil {
		return x
	}
	y := *x
	y.values = x.values.With(inTrial{}, seam.SameScope)
	return &y
}

// choose returns the way in which x runs the work with the inputs `in`. The argument `streams` is
// the number of streams that the parallel way uses.
func (x *Exec) choose(op string, c *Choice, in []*Tensor, streams int) way {
	if g := x.work; g != nil && g.serial {
		return way{}
	}
	if _, in := seam.Find[inTrial](x.values); in { // this work lies inside work that is measured
		x.undecided()
		return way{open: true}
	}
	key := describeInputs(in)
	for i, t := range in {
		if shape, strides := t.geometry(); !inOrder(shape, strides) {
			key += fmt.Sprintf(", strides %v of input %d", strides, i)
		}
	}
	if dtype := x.AutocastDType(); dtype != 0 {
		key += fmt.Sprintf(", autocast to %v", dtype)
	}
	if x.GradEnabled() {
		key += " with gradients"
	}
	if len(in) == 0 {
		key += " on " + x.Device().String()
	}
	var trial *ct.Trial
	var parallel, state int32
	x.must(op, ct.ChoiceBegin(c.h, x.c, key, cbool(x.work != nil), int32(streams), &trial, &parallel, &state))
	runtime.KeepAlive(c)
	w := way{parallel: parallel != 0, open: state == ct.Open}
	if g := x.work; g != nil && w.parallel {
		g.parallel = true
	}
	if trial == nil {
		if w.open {
			x.undecided()
		} else {
			c.tell()
		}
		return w
	}
	w.done = func(completed bool) {
		if !completed || x.s.err != nil {
			ct.TrialFree(trial)
			return
		}
		x.must(op, ct.TrialEnd(x.c, trial, &state))
		runtime.KeepAlive(c)
		if state == ct.Open {
			x.undecided()
		} else {
			c.tell()
		}
	}
	return w
}

// inOrder reports whether the elements lie in row-major order without gaps.
func inOrder(shape, strides []int64) bool {
	next := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}
