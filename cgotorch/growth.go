package cgotorch

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
)

// Note [A Do that grows]
//
// Everything that a Do makes stays in memory until the Do ends. So a loop inside a Do needs more
// memory with each round, often without need. The library tells of it once for each place.
//
// A Do with many live tensors picks the next call as its mark. When the same call comes again from
// the same lines, a round has ended. The memory is told if the Do has more tensors at each look,
// for 64 rounds, and the new ones take more than 64 MB. One forward of a deep net or one sequence
// of a recurrent net has such rounds too, and a training needs all their results. So a round counts
// only if the program has begun something new several times: it has copied data, used a batch, run
// a backward or read a value. A round that the program's own lines begin, without records for
// backward, counts always.

const (
	growthTensors = 256      // a Do with fewer live tensors is not looked at
	growthRounds  = 64       // rounds before the memory is told
	growthBytes   = 64 << 20 // bytes that the rounds have to leave
	growthBegins  = 3        // see the Note
)

// growth is what a scope knows of its own growth.
type growth struct {
	mark   string    // the operator that ends a round
	stack  []uintptr // the call stack of the mark
	direct bool      // the program's own line calls the mark
	calls  int       // since the last round
	begins int       // since the mark was chosen
	rounds int
	first  int // tensors that the scope owned at the first look
	last   int // the same at the last look
	look   int // the round of the next look
	told   bool
}

// isBegin reports whether the call begins something new.
func isBegin(op string) bool {
	switch op {
	case "Exec.Backward", "FromSlice", "FromBytes", "CopyFrom", "CopyTo", "ToSlice", "ToBytes", "Exec.Item", "ItemAs", "Exec.ReadAsync", "Exec.Lend":
		return true
	}
	return false
}

// see is called for each call of a Do that has many tensors.
func (g *growth) see(x *Exec, op string) {
	if g.told || x.work != nil || x.from != nil {
		return // in a capture and in a second forward memory is not the Do's
	}
	if isBegin(op) {
		g.begins++
	}
	g.calls++
	if op != g.mark {
		if g.calls > 1<<14 {
			*g = growth{}
		}
		if g.mark == "" && strings.Contains(op, "::") {
			*g = growth{mark: op, look: growthRounds / 8, begins: g.begins}
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
	owned := x.s.owned()
	if g.rounds == 1 {
		g.first, g.last = len(owned), len(owned)
		return
	}
	if len(owned) <= g.last {
		*g = growth{} // the program frees what it makes
		return
	}
	g.last = len(owned)
	if g.rounds < growthRounds {
		g.look += growthRounds / 8
		return
	}
	g.look += max(growthRounds/8, g.look/4)
	bytes, recorded := bytesOf(owned[g.first:])
	if bytes < growthBytes || g.begins < growthBegins && (!g.direct || recorded) {
		return
	}
	g.told = true
	if _, told := streams.grown.LoadOrStore(programFunctions(stack), struct{}{}); !told {
		slog.Warn(fmt.Sprintf("cgotorch: a loop in a Do of %v leaves %d MB in memory in %d rounds, because a Do frees its tensors when it ends: run one Do for each round, or put the body into x.Tidy", x.stream, bytes>>20, g.rounds), "operator", op, "at", callerIn(stack, ownFrame))
	}
}

// programFunctions returns the names of the program's functions in the stack.
func programFunctions(stack []uintptr) string {
	var names []string
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if !ownFrame(f) {
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
	stack = pcs[:runtime.Callers(4, pcs[:])] // without markStack, see, check and run
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if rest, own := strings.CutPrefix(f.Function, modulePath+"cgotorch."); !own || strings.HasSuffix(f.File, "_test.go") {
			return slices.Clone(stack), !ownFrame(f)
		} else if !more || rest == "" {
			return slices.Clone(stack), false
		}
	}
}

// owned returns the tensors that the scope owns.
func (s *scope) owned() []*Tensor {
	var owned []*Tensor
	for _, t := range s.tensors {
		if t.owner == s {
			owned = append(owned, t)
		}
	}
	return owned
}

// bytesOf returns the size of the storages of ts, and whether one of ts has records for backward.
// It leaves out storages of which a tensor of ts sees only a part, because older tensors may hold
// them.
func bytesOf(ts []*Tensor) (bytes int64, recorded bool) {
	seen := map[uint64]bool{}
	for _, t := range ts {
		info := t.info()
		recorded = recorded || info.RequiresGrad != 0
		if !seen[info.Storage] && info.StorageBytes <= info.Elements*int64(DType(info.DType).Size()) {
			seen[info.Storage] = true
			bytes += info.StorageBytes
		}
	}
	return bytes, recorded
}
