package cgotorch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// Note [Finite values]
//
// CGOTORCH_CHECK=finite in the environment names the operator that makes the first NaN or Inf. An
// operator fails the Do if it makes a NaN from inputs without NaN, or an Inf from finite inputs.
// Inputs are tensors and numbers. Backward fails for the operators that it runs. Its error names
// the line of the forward call too. Each operator waits for the device, and takes a few times as
// long.
//
// A mask of -Inf is no fault: x.Full, x.MaskedFill and x.Where get the -Inf as a number or a
// tensor. Nor is memory that x.Empty leaves as it is. NaN and Inf that come from the host are
// passed on. The loss of a Backward is looked at all the same: the error says that no operator has
// made its NaN.
//
// While the check is on, no function is captured: a [Captured] runs eagerly, and so does a [Graph].
// An [optim.Scaler] makes Inf on purpose where its scale is too large: begin with a scale of 1.

// StreamRace is a mistake that the stream checker has found: two accesses to the same memory
// without an order between them. At least one of the two accesses is a write. On a GPU the two
// accesses may happen in either order, or at the same time. The two may be of one stream, if a
// kernel reads early: before it waits for the kernel before it.
type StreamRace struct {
	Earlier, Later Access // in the order in which the program made the two accesses
	Memory         string // size and device of the memory, and the operator that allocated the memory
	Advice         string // how to put the two accesses in order
}

// Access is one of the two accesses of a [StreamRace].
type Access struct {
	Op     string // the operator, such as "aten::add_"
	Kind   string // "read", "read early", "written", "allocated" or "freed"
	Stream string // the text of [Stream.String]; "the host" if the program itself made the access
	Caller string // file:line of the call in the program; "" where unknown
	// CalledAt is the file:line at which the program calls the function that runs the Do. So the two
	// uses of a helper function are told apart. It is "" where unknown.
	CalledAt string
	// Forward is set if Op ran in a backward. It is the file:line of the forward call whose
	// derivative Op computes.
	Forward string
	From    int64 // offset of the first byte that Op reaches, counted from the start of the memory
	To      int64 // offset of the byte after the last byte that Op reaches, counted in the same way
}

func (a Access) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s by %s", a.Kind, a.Op)
	if a.Stream != hostName {
		fmt.Fprintf(&b, " on %s", a.Stream)
	}
	if a.Caller != "" {
		fmt.Fprintf(&b, " at %s", a.Caller)
	}
	if a.CalledAt != "" {
		fmt.Fprintf(&b, ", called at %s", a.CalledAt)
	}
	if a.Forward != "" {
		fmt.Fprintf(&b, ", in the backward of %s", a.Forward)
	}
	return b.String()
}

// Error describes the race in four lines.
func (r *StreamRace) Error() string {
	return fmt.Sprintf("stream race in %s\n\t%v\n\t%v\n\t%s", r.Memory, r.Earlier, r.Later, r.Advice)
}

const hostName = "the host"

// checker checks races and values, for theCheck.
type checker struct {
	values bool // CGOTORCH_CHECK has the word finite; see Note [Finite values]
	active atomic.Bool
	sites  place.Sites // places of calls; they stay when the checks are turned off

	sync.Mutex
	users []*checkUser  // one for each call of CheckStreams that is not stopped; the last one gets the reports
	found []*StreamRace // races that no Do has returned yet
}

type checkUser struct {
	report func(*StreamRace) // or nil
}

// CheckStreams is process-wide: it turns the stream checker on until the function `stop` is
// called. The checker follows every operator, copy, event and wait. It finds two accesses to the
// same memory without an order between them. The cause can be a missing wait, a buffer that is
// refilled too early, or memory that is freed too early. While the checker is on, an operator
// takes some microseconds longer.
//
// The checker looks at neither values nor times. So a run on the CPU shows the mistakes that
// would happen on a GPU, although a CPU stream runs its work at once.
//
// After each [Stream.Do], the goroutine that called Do calls the function `report` for each race
// since the last Do. If `report` is nil, the Do returns an [*Error] of [ErrStreamRace] instead,
// unless the Do has failed for a reason other than a race. The Error wraps all races that no
// earlier Error has wrapped. Each race is also printed to standard error, but races of the same
// two lines only once. The environment variable CGOTORCH_CHECK=streams turns the checker on with
// a nil `report`.
//
// A second call of CheckStreams takes over all reports, until the function `stop` of this second
// call is called. After that, the reports go to the first call again, or to the environment's nil
// `report`.
//
// The checker does not know work that was enqueued before the checker was turned on. The checker
// treats all goroutines as one host. It can learn from one goroutine that an event is done: the
// goroutine has waited for the event, or its [Event.Done] or [Event.Query] finds the event done.
// The checker then assumes that all goroutines know this. To find races between goroutines, use
// go test -race.
//
// CheckStreams fails if libcgotorch.so has another ABI version. It fails with
// [ErrInvalidArgument] if CGOTORCH_CHECK has an unknown value.
func CheckStreams(report func(*StreamRace)) (stop func(), err error) {
	if err := ready(); err != nil {
		return nil, err
	}
	c, _ := theChecker() // ready has returned its error
	return c.races(report)
}

// theChecker returns the checker of the process. Its first call turns on the checks that
// CGOTORCH_CHECK names.
var theChecker = sync.OnceValues(func() (*checker, error) {
	c := &checker{}
	return c, c.turnOn(os.Getenv("CGOTORCH_CHECK"))
})

// races turns the stream checker on for one more user.
func (c *checker) races(report func(*StreamRace)) (stop func(), err error) {
	c.tell() // reports the races so far to the earlier user
	c.Lock()
	defer c.Unlock()
	if err := check("CheckStreams", ct.CheckStreams(c.kinds(true))); err != nil {
		return nil, err
	}
	c.activate()
	user := &checkUser{report}
	c.users = append(c.users, user)
	return sync.OnceFunc(func() {
		c.tell()
		c.Lock()
		defer c.Unlock()
		c.users = slices.DeleteFunc(c.users, func(u *checkUser) bool { return u == user })
		if len(c.users) == 0 {
			c.active.Store(c.values)
			_ = check("CheckStreams", ct.CheckStreams(c.kinds(false)))
		}
	}), nil
}

// turnOn turns on the checks that `words` names, as in "streams,finite".
func (c *checker) turnOn(words string) error {
	if words == "" {
		return nil
	}
	races := false
	for _, word := range strings.Split(words, ",") {
		switch strings.TrimSpace(word) {
		case "streams":
			races = true
		case "finite":
			c.values = true
		default:
			return &Error{Op: "CGOTORCH_CHECK=" + words, Kind: ErrInvalidArgument,
				Message: fmt.Sprintf("%q is no check: the checks are streams, finite, and both as streams,finite", word)}
		}
	}
	if races {
		_, err := c.races(nil)
		return err
	}
	c.activate()
	return check("CGOTORCH_CHECK", ct.CheckStreams(c.kinds(false)))
}

func (c *checker) activate() {
	c.active.Store(true)
	by := processCheck(c)
	theCheck.CompareAndSwap(nil, &by)
}

// kinds returns the checks of the core that are on while the stream checker is on or off.
func (c *checker) kinds(races bool) (all int32) {
	if races {
		all += ct.CheckRaces
	}
	if c.values {
		all += ct.CheckValues
	}
	return all
}

// left returns the races that were reported to no function and returned by no Do, each of them
// once.
func (c *checker) left() []*StreamRace {
	c.tell()
	c.Lock()
	defer c.Unlock()
	found := c.found
	c.found = nil
	return found
}

// afterDo returns an error with all races that no Do has returned yet, or nil if there are none.
func (c *checker) afterDo(failed bool) error {
	if failed {
		c.tell()
		return nil
	}
	found := c.left()
	if len(found) == 0 {
		return nil
	}
	errs := make([]error, len(found))
	for i, r := range found {
		errs[i] = r
	}
	return &Error{Op: "Stream.Do", Kind: ErrStreamRace, Err: errors.Join(errs...)}
}

// tell takes the new races from the core and reports them. While it calls a function `report`, it
// holds no mutex.
func (c *checker) tell() {
	c.Lock()
	var report func(*StreamRace)
	if n := len(c.users); n > 0 {
		report = c.users[n-1].report
	}
	var found []*StreamRace
	var next ct.Race
	for ct.RaceTake(&next) != 0 {
		r := c.race(&next)
		found = append(found, r)
		if report == nil && next.Again == 0 {
			fmt.Fprintf(os.Stderr, "cgotorch: %v\n", r)
		}
	}
	if report == nil {
		c.found = append(c.found, found...)
	}
	c.Unlock()
	if report != nil {
		for _, r := range found {
			report(r)
		}
	}
}

func (c *checker) race(of *ct.Race) *StreamRace {
	r := &StreamRace{Earlier: c.access(&of.Earlier), Later: c.access(&of.Later)}
	if of.Slab != 0 {
		r.Memory = fmt.Sprintf("a slab of %d bytes of host memory", of.Bytes)
	} else {
		r.Memory = fmt.Sprintf("%d bytes of %v memory", of.Bytes, deviceOf(of.Device))
		if by := ct.Text(of.MadeBy[:]); by != "" {
			r.Memory += ", allocated by " + by
		}
		if at := c.caller(site(of.MadeAt)); at != "" {
			r.Memory += " at " + at
		}
	}
	r.Advice = advice(of, r)
	return r
}

func advice(c *ct.Race, r *StreamRace) string {
	first, second := r.Earlier.Stream, r.Later.Stream
	switch {
	case c.Slab != 0 && c.Kind == ct.RaceFree:
		return fmt.Sprintf("close the slab when %s is done: record an event behind the first (x.Record) and wait for it (Event.Synchronize or Done) before Close", first)
	case c.Kind == ct.RaceFree:
		return fmt.Sprintf("the memory is handed out again in the order of %s: record an event on %s behind the first (x.Record) and make %s wait for it (Wait) before the tensor is freed", second, first, second)
	case c.Kind == ct.RaceEarly:
		return fmt.Sprintf("the second reads this before it waits for earlier kernels of %s: call it with the edge wait or full, or let another kernel begin between the two", second)
	case second == hostName:
		return fmt.Sprintf("the host must wait first: record an event on %s behind the first (x.Record) and wait for it (Event.Synchronize or Done)", first)
	default:
		return fmt.Sprintf("record an event on %s behind the first (x.Record) and make %s wait for it (Wait) before the second", first, second)
	}
}

func (c *checker) access(of *ct.Access) Access {
	a := Access{Op: ct.Text(of.Op[:]), Kind: ct.Text(of.What[:]), From: of.Begin, To: of.End,
		Caller: c.caller(site(of.Site)), CalledAt: c.sites.CalledAt(site(of.Site)), Forward: c.caller(site(of.Forward))}
	name, known := streams.names.Load(of.Stream)
	switch {
	case of.Stream == ct.StreamHost:
		a.Stream = hostName
	case of.IsDefault != 0:
		a.Stream = fmt.Sprintf("%s of %v", defaultName, deviceOf(of.Device))
	case known:
		a.Stream = fmt.Sprintf("%v of %v", name, deviceOf(of.Device))
	default: // the stream was made before the checker was turned on, or by another library
		a.Stream = fmt.Sprintf("unnamed stream %d of %v", int(of.Number), deviceOf(of.Device))
	}
	if a.Op == "" {
		a.Op = "an operation of LibTorch's"
		if a.Kind == "freed" {
			a.Op = "Close, or by the end of its Do,"
		}
	}
	return a
}

func (c *checker) on() bool                  { return c.active.Load() }
func (c *checker) finite() bool              { return c.values }
func (c *checker) here() site                { return c.sites.Here(2, 0) } // without callSite
func (c *checker) caller(at site) string     { return c.sites.Caller(at) }
func (c *checker) observer(do site) observer { return sited{c, do} }

// sited gives the core the place of each call.
type sited struct {
	by *checker
	do site
}

func (sited) After(*Exec, string, []*Tensor) {}
func (sited) End()                           {}

// Before skips itself and the methods before and check of Exec.
func (s sited) Before(x *Exec, _ string) {
	x.c.Site = uint64(s.by.sites.Here(3, s.do, x.forward()...))
}
