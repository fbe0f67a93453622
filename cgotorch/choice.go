package cgotorch

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Choice finds out which of two ways to do a piece of work is faster on the device, such as [Exec.Parallel] or one branch after another, and
// keeps to it. The first dozen calls for inputs of a shape go one way and the other in turn and are timed on the device; nothing is run for
// the sake of timing. Eagerly the host does not wait; the last call in the rehearsals of a capture waits for the device. Work that is captured
// is timed in those rehearsals, without the time that the host takes to enqueue it, which a graph does not have, and has decisions of its own;
// a [Captured] rehearses until they are made. The CPU does one thing after another. A Choice may be used from any goroutine.
type Choice struct {
	o ChoiceOptions
	h *ct.Choice

	mu        sync.Mutex
	decisions []Decision
	told      int // of them, Log
}

// ChoiceOptions are the options of [NewChoice].
type ChoiceOptions struct {
	Log func(text string) // is told of each decision, with the times of both ways and the reason; nil for nobody. It must not enqueue work
}

// maxTrials bounds the rehearsals that Choices ask for.
const maxTrials = 48

// NewChoice returns a Choice that has decided nothing yet. The garbage collector frees it.
func NewChoice(o ChoiceOptions) *Choice { return newChoice(o, 0, 0) }

// newChoice is NewChoice with so many trials, and a share of the time that the second way has to save; 0 for the core's own numbers.
func newChoice(o ChoiceOptions, trials int, gain float64) *Choice {
	c := &Choice{o: o, h: ct.ChoiceNew(int32(trials), float64(gain))}
	runtime.AddCleanup(c, func(h *ct.Choice) { ct.ChoiceFree(h) }, c.h)
	return c
}

// Decision is what a [Choice] has found.
type Decision struct {
	What     string        // the inputs that it is for
	Graph    bool          // it is for work in graphs
	Parallel bool          // the work is done side by side
	Serial   time.Duration // that one after another takes on the device, median
	Beside   time.Duration // that side by side takes
	Host     time.Duration // that the host takes to enqueue it side by side
	Why      string
}

// String is one line, such as "(float32[1 64 56 56]@cuda:0), captured: side by side: 61µs side by side, 105µs one after another".
func (d Decision) String() string {
	how := "eager"
	if d.Graph {
		how = "captured"
	}
	way := "one after another: " + d.Why + "; "
	if d.Parallel {
		way = "side by side: "
	}
	return fmt.Sprintf("%s, %s: %s%v side by side, %v one after another", d.What, how, way, d.Beside, d.Serial)
}

// Decisions are those made so far, in the order in which they were made.
func (c *Choice) Decisions() []Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take()
	return slices.Clone(c.decisions)
}

// take takes decisions from the core, with c.mu held.
func (c *Choice) take() {
	var d ct.Decision
	for ct.ChoiceTake(c.h, &d) != 0 {
		us := func(v float64) time.Duration { return time.Duration(float64(v) * 1e3).Round(100 * time.Nanosecond) }
		n := Decision{What: ct.Text(d.Key[:]), Graph: d.Graph != 0, Parallel: d.Second != 0, Serial: us(d.FirstUS), Beside: us(d.SecondUS), Host: us(d.HostUS)}
		switch d.Why {
		case ct.Faster:
			n.Why = "the device does both at once"
		case ct.NotWaitedFor:
			n.Why = "about as fast, and nothing waits for the weights' gradients"
		case ct.FillsDevice:
			n.Why = "the kernels of one fill the device already"
		case ct.LaunchBound:
			n.Why = fmt.Sprintf("launch-bound, the host takes %v to enqueue it", n.Host)
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
	if c.o.Log != nil {
		for _, d := range anew {
			c.o.Log(d.String())
		}
	}
}

// A way is what a [Choice] says of one call.
type way struct {
	second    bool                 // the second one
	open      bool                 // nothing is decided yet
	completed bool                 // to be set when the work is enqueued to its end
	done      func(completed bool) // of what is measured; or nil
}

// end is to be called behind the work, also where it has failed.
func (w *way) end() {
	if w.done != nil {
		w.done(w.completed)
	}
}

// undecided notes that a capture is to come later: a Choice has to measure first.
func (x *Exec) undecided() {
	if x.work != nil {
		x.work.undecided = true
	}
}

// measured is x for work that w measures.
func (x *Exec) measured(w way) *Exec {
	if w.done == nil {
		return x
	}
	y := *x
	y.trial = true
	return &y
}

// choose says which way x's work on in is to go.
func (x *Exec) choose(op string, c *Choice, in []*Tensor, streams int) way {
	if g := x.work; g != nil && g.plain {
		return way{}
	}
	if x.trial { // inside of what is measured
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
	var second, state int32
	x.must(op, ct.ChoiceBegin(c.h, x.c, key, cbool(x.work != nil), int32(streams), &trial, &second, &state))
	runtime.KeepAlive(c)
	w := way{second: second != 0, open: state == ct.Open}
	if g := x.work; g != nil && w.second {
		g.beside = true
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

// inOrder reports whether elements lie one behind another, the last dimension innermost.
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
