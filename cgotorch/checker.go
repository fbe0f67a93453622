package cgotorch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// StreamRace is a result of the stream checker: two accesses to the same memory that nothing
// orders, at least one of them a write. On a GPU they may happen in either order, or at once.
type StreamRace struct {
	Earlier, Later Access // as the program made them
	Memory         string // its size, its device and the operator that allocated it
	Advice         string // how to order them
}

// Access is one half of a [StreamRace].
type Access struct {
	Op     string // the operator, such as "aten::add_"
	Kind   string // "read", "written", "allocated" or "freed"
	Stream string // as [Stream.String] gives it; "the host" for the program itself
	Caller string // file:line of the call in the program; "" where unknown
	// In backward, Forward is the file:line of the call that Op is a derivative of.
	Forward string
	From    int64 // the first byte of the memory that Op reaches
	To      int64 // the byte behind the last
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

// theChecker is the stream checker of the process. LibTorch calls its hooks for the operators
// of all threads.
var theChecker struct {
	on atomic.Bool

	sync.Mutex
	users []*checkUser  // have turned the checker on; the last is told
	found []*StreamRace // no Do has returned them yet

	environment sync.Once // looks at CGOTORCH_CHECK
	environErr  error

	sites struct {
		sync.Mutex
		numbers map[stack]site
		stacks  []stack // by number - 1
	}
}

type checkUser struct {
	report func(*StreamRace) // or nil
}

// CheckStreams is process-wide: it turns the stream checker on until stop is called. The
// checker follows every operator, copy, event and wait. It finds two accesses to the same
// memory that nothing orders. Examples are a missing wait, a buffer refilled too early, and
// memory freed under use. An operator takes some microseconds longer meanwhile.
//
// The checker does not look at values or times. So it finds the mistakes of a GPU on the CPU
// too, where streams run their work at once.
//
// report is called for each race by the next [Stream.Do] that has ended, in its goroutine. With
// a nil report each race is printed to standard error. That Do then also returns an [*Error] of
// [ErrStreamRace], unless it has failed otherwise. The causes of the Error are the races found
// since the last such Error. The environment variable CGOTORCH_CHECK=streams turns the checker
// on in the same way, with a nil report. A second call takes over from the first, or from the
// environment, until the second is stopped.
//
// Work before the checker was turned on is unknown to it. All goroutines count as one host: a
// wait of one goroutine is known to all. The same holds for an [Event.Done] or [Event.Query]
// that finds an event done. Races between goroutines are for go test -race.
//
// CheckStreams fails as any first call of this package does.
func CheckStreams(report func(*StreamRace)) (stop func(), err error) {
	if err := ready(); err != nil {
		return nil, err
	}
	return checkStreams(report)
}

func checkStreams(report func(*StreamRace)) (stop func(), err error) {
	tellRaces() // the earlier user is told so far
	theChecker.Lock()
	defer theChecker.Unlock()
	if err := check("CheckStreams", ct.CheckStreams(1)); err != nil {
		return nil, err
	}
	theChecker.on.Store(true)
	user := &checkUser{report}
	theChecker.users = append(theChecker.users, user)
	return sync.OnceFunc(func() {
		tellRaces()
		theChecker.Lock()
		defer theChecker.Unlock()
		theChecker.users = slices.DeleteFunc(theChecker.users, func(u *checkUser) bool { return u == user })
		if len(theChecker.users) == 0 {
			theChecker.on.Store(false)
			_ = check("CheckStreams", ct.CheckStreams(0))
		}
	}), nil
}

// checkFromEnvironment turns the checker on where CGOTORCH_CHECK says so.
func checkFromEnvironment() error {
	theChecker.environment.Do(func() {
		switch v := os.Getenv("CGOTORCH_CHECK"); v {
		case "":
		case "streams":
			_, theChecker.environErr = checkStreams(nil)
		default:
			theChecker.environErr = &Error{Op: "cgotorch", Kind: ErrInvalidArgument,
				Message: fmt.Sprintf("CGOTORCH_CHECK=%s in the environment: the only check is streams", v)}
		}
	})
	return theChecker.environErr
}

// StreamRaces is process-wide: it returns the races that neither a report nor a Do has told
// yet, and forgets them. It serves the end of a program, behind the last Do.
func StreamRaces() []*StreamRace {
	tellRaces()
	theChecker.Lock()
	defer theChecker.Unlock()
	found := theChecker.found
	theChecker.found = nil
	return found
}

// raceError returns the error of a Do that has not failed otherwise.
func raceError() error {
	found := StreamRaces()
	if len(found) == 0 {
		return nil
	}
	errs := make([]error, len(found))
	for i, r := range found {
		errs[i] = r
	}
	return &Error{Op: "Stream.Do", Kind: ErrStreamRace, Err: errors.Join(errs...)}
}

// tellRaces takes the races from the core and reports them, with nothing locked.
func tellRaces() {
	theChecker.Lock()
	var report func(*StreamRace)
	if n := len(theChecker.users); n > 0 {
		report = theChecker.users[n-1].report
	}
	var found []*StreamRace
	var c ct.Race
	for ct.RaceTake(&c) != 0 {
		found = append(found, newRace(&c))
	}
	if report == nil {
		theChecker.found = append(theChecker.found, found...)
	}
	theChecker.Unlock()
	for _, r := range found {
		if report != nil {
			report(r)
		} else {
			fmt.Fprintf(os.Stderr, "cgotorch: %v\n", r)
		}
	}
}

func newRace(c *ct.Race) *StreamRace {
	r := &StreamRace{Earlier: newAccess(&c.Earlier), Later: newAccess(&c.Later)}
	if c.Slab != 0 {
		r.Memory = fmt.Sprintf("a slab of %d bytes of host memory", c.Bytes)
	} else {
		r.Memory = fmt.Sprintf("%d bytes of %v memory", c.Bytes, deviceOf(c.Device))
		if by := ct.Text(c.MadeBy[:]); by != "" {
			r.Memory += ", allocated by " + by
		}
		if at := site(c.MadeAt).caller(); at != "" {
			r.Memory += " at " + at
		}
	}
	r.Advice = advice(c, r)
	return r
}

func advice(c *ct.Race, r *StreamRace) string {
	first, second := r.Earlier.Stream, r.Later.Stream
	switch {
	case c.Slab != 0 && c.Kind == ct.RaceFree:
		return fmt.Sprintf("close the slab when %s is done: record an event behind the first (x.Record) and wait for it (Event.Synchronize or Done) before Close", first)
	case c.Kind == ct.RaceFree:
		return fmt.Sprintf("the memory is handed out again in the order of %s: record an event on %s behind the first (x.Record) and make %s wait for it (Wait) before the tensor is freed", second, first, second)
	case second == hostName:
		return fmt.Sprintf("the host must wait first: record an event on %s behind the first (x.Record) and wait for it (Event.Synchronize or Done)", first)
	default:
		return fmt.Sprintf("record an event on %s behind the first (x.Record) and make %s wait for it (Wait) before the second", first, second)
	}
}

func newAccess(c *ct.Access) Access {
	a := Access{Op: ct.Text(c.Op[:]), Kind: ct.Text(c.What[:]), Caller: site(c.Site).caller(), Forward: site(c.Forward).caller(),
		From: c.Begin, To: c.End}
	name, known := streams.names.Load(c.Stream)
	switch {
	case c.Stream == ct.StreamHost:
		a.Stream = hostName
	case c.IsDefault != 0:
		a.Stream = fmt.Sprintf("%s of %v", defaultName, deviceOf(c.Device))
	case known:
		a.Stream = fmt.Sprintf("%v of %v", name, deviceOf(c.Device))
	default: // the stream was made before the checker was turned on, or by another library
		a.Stream = fmt.Sprintf("unnamed stream %d of %v", int(c.Number), deviceOf(c.Device))
	}
	if a.Op == "" {
		a.Op = "an operation of LibTorch's"
		if a.Kind == "freed" {
			a.Op = "Close, or by the end of its Do,"
		}
	}
	return a
}

// site is a number for a place in the program, with the calls that led there; 0 is none.
type site uint64

type stack [24]uintptr

// callSite returns the site of the library call that called callSite. The frames in from follow
// behind it.
func callSite(from ...uintptr) site {
	var s stack
	copy(s[runtime.Callers(2, s[:]):], from)
	theChecker.sites.Lock()
	defer theChecker.sites.Unlock()
	n, ok := theChecker.sites.numbers[s]
	if !ok {
		if theChecker.sites.numbers == nil {
			theChecker.sites.numbers = map[stack]site{}
		}
		theChecker.sites.stacks = append(theChecker.sites.stacks, s)
		n = site(len(theChecker.sites.stacks))
		theChecker.sites.numbers[s] = n
	}
	return n
}

// caller returns the file and line of the innermost frame of the program. A goroutine of the
// prefetcher has none: there it is the innermost frame outside this package.
func (n site) caller() string {
	if n == 0 {
		return ""
	}
	theChecker.sites.Lock()
	s := theChecker.sites.stacks[n-1]
	theChecker.sites.Unlock()
	depth := 0
	for depth < len(s) && s[depth] != 0 {
		depth++
	}
	if at := callerIn(s[:depth], ownFrame); at != "" {
		return at
	}
	return callerIn(s[:depth], func(f runtime.Frame) bool {
		return strings.HasPrefix(f.Function, modulePath+"cgotorch.") || strings.HasPrefix(f.Function, "runtime.") ||
			strings.HasPrefix(f.Function, "iter.")
	})
}
