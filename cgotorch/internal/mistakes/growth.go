package mistakes

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// Note [A Do that grows]
//
// Everything that a Do makes stays in memory until the Do ends. So a loop inside a Do needs more
// memory with each round, often without need. The library warns once for each chain of program
// functions.
//
// A Do with many live tensors picks the next call as its mark. When the same call comes again from
// the same lines, a round has ended. The memory is told if the Do has more tensors at each look,
// for 64 rounds, and the new ones take more than 64 MB. One forward of a deep net or one sequence
// of a recurrent net has such rounds too, and a training needs all their results. So a round counts
// only if the program has begun something new several times: it has copied data, used a batch, run
// a backward or read a value. A round that the program's own lines begin, without records for
// backward, counts always.

// ManyTensors is the number of live tensors from which on a Do gets a Growth.
const ManyTensors = 256

const (
	growthRounds = 64       // rounds before the memory is told
	growthBytes  = 64 << 20 // bytes that the rounds have to leave
	growthBegins = 3        // see the Note
)

// A Do is what a Growth sees of a Do.
type Do interface {
	String() string // the Do's stream
	Tensors() int   // the Do's live tensors
	// Memory returns the bytes that the tensors from number `from` on keep, and whether one of them
	// has records for backward.
	Memory(from int) (bytes int64, recorded bool)
}

// A Growth is what is known of the growth of one Do. Only the Do's thread uses it.
type Growth struct {
	of     *Process
	mark   string    // the operator that ends a round
	stack  []uintptr // the call stack of the mark
	direct bool      // the program's own line calls the mark
	calls  int       // since the last round
	begins int       // calls that begin something new, since the last reset
	rounds int
	first  int // tensors of the Do at the first look
	last   int // the same at the last look
	look   int // the round of the next look
	ended  bool
}

// NewGrowth returns the Growth of a Do.
func (p *Process) NewGrowth() *Growth { return &Growth{of: p} }

// isBegin reports whether the call begins something new.
func isBegin(op string) bool {
	switch op {
	case "Exec.Backward", "FromSlice", "FromBytes", "CopyFrom", "CopyTo", "ToSlice", "ToBytes", "Exec.Item", "Exec.ReadAsync", "Exec.Lend":
		return true
	}
	return false
}

// See is called for each call of a Do that has many tensors. It logs a loop that grows.
func (g *Growth) See(do Do, op string) {
	if g.ended {
		return
	}
	if isBegin(op) {
		g.begins++
	}
	g.calls++
	if op != g.mark {
		if g.calls > 1<<14 {
			*g = Growth{of: g.of}
		}
		if g.mark == "" && strings.Contains(op, "::") {
			*g = Growth{of: g.of, mark: op, look: growthRounds / 8, begins: g.begins}
			g.stack, g.direct = markStack()
		}
		return
	}
	stack, _ := markStack()
	if !slices.Equal(stack, g.stack) {
		return
	}
	g.calls = 0
	if g.rounds++; g.rounds < g.look && g.rounds > 1 {
		return
	}
	owned := do.Tensors()
	if g.rounds == 1 {
		g.first, g.last = owned, owned
		return
	}
	if owned <= g.last {
		*g = Growth{of: g.of} // the program frees what it makes
		return
	}
	g.last = owned
	if g.rounds < growthRounds {
		g.look += growthRounds / 8
		return
	}
	g.look += max(growthRounds/8, g.look/4)
	bytes, recorded := do.Memory(g.first)
	if bytes < growthBytes || g.begins < growthBegins && (!g.direct || recorded) {
		return
	}
	g.ended = true
	if _, told := g.of.grown.LoadOrStore(programFunctions(stack), struct{}{}); !told {
		slog.Warn(fmt.Sprintf("cgotorch: a loop in a Do of %v leaves %d MB in memory in %d rounds, because a Do frees its tensors when it ends: run one Do for each round, or put the body into x.Tidy", do, bytes>>20, g.rounds), "operator", op, "at", place.In(stack, place.Own))
	}
}

// programFunctions returns the names of the program's functions in the stack.
func programFunctions(stack []uintptr) string {
	var names []string
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if !place.Own(f) {
			names = append(names, f.Function)
		}
		if !more {
			return strings.Join(names, " ")
		}
	}
}

// markStack returns the stack of the call that is under way, and whether the program's own line
// calls the operator.
func markStack() (stack []uintptr, direct bool) {
	var pcs [64]uintptr
	stack = pcs[:runtime.Callers(3, pcs[:])] // without markStack and See
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if !place.Core(f) {
			return slices.Clone(stack), !place.Own(f)
		} else if !more {
			return slices.Clone(stack), false
		}
	}
}
