package distributed

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// Note [Lockstep]
//
// If two ranks make different collectives, NCCL and Gloo hang or mix up memory, and say nothing. So
// each rank counts its collectives, and keeps a hash over all of them so far. Beside the run it
// tells the others the newest count and hash. Two ranks with equal counts must have equal hashes.
// When they differ, both tell the last collectives that they made, and the first difference is the
// error. A collective costs the check a hash of a few words. Nothing is exchanged on its way.
//
// A collective of a graph counts at each launch.
//
// On the CPU each collective begins with a comparison of the hashes, because Gloo ends the process
// when two ranks give different sizes. There it is one more collective, of 16 bytes. The C++ core
// compares the collectives of a backward likewise. On CUDA a backward counts as one collective of
// Gradients, and those of SumOverRanks do not count. Send and Receive do not count either.

// A call is one collective, as all ranks must make it.
type call struct {
	what string // the operation and its tensors
	at   string // file:line on this rank, which may differ between ranks
}

// of returns the call of an operation on tensors.
func of(op string, tensors ...*cgotorch.Tensor) call {
	texts := make([]string, len(tensors))
	for i, t := range tensors {
		texts[i] = fmt.Sprintf("%v%v", t.DType(), t.Shape())
		if strides := otherStrides(t); strides != nil {
			texts[i] += fmt.Sprint(" strides ", strides)
		}
	}
	return call{what: op + "(" + some(texts) + ")"}
}

// otherStrides returns the strides of a tensor that is not contiguous, and otherwise nil. A
// dimension of one element has the stride 0.
func otherStrides(t *cgotorch.Tensor) []int64 {
	strides, shape, want, other := t.Strides(), t.Shape(), int64(1), false
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] == 1 {
			strides[d] = 0
			continue
		}
		other = other || strides[d] != want
		want *= shape[d]
	}
	if !other || want == 0 {
		return nil
	}
	return strides
}

// some returns a list of texts. Of a long list it returns the first four, and a hash of the rest.
func some(texts []string) string {
	if len(texts) > 5 {
		h := fnv.New32a()
		fmt.Fprint(h, texts[4:])
		texts = append(texts[:4:4], fmt.Sprintf("… %d more #%08x", len(texts)-4, h.Sum32()))
	}
	return strings.Join(texts, ", ")
}

// remembered is the number of collectives that a rank remembers.
const remembered = 256

// lockstep counts the collectives of a rank.
type lockstep struct {
	mu    sync.Mutex
	count int64 // collectives so far
	hash  uint64
	ring  [remembered]struct {
		call
		hash uint64 // over all collectives up to this one
	}
}

func (l *lockstep) add(c call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintf(h, "%x %s", l.hash, c.what)
	l.hash = h.Sum64()
	at := &l.ring[l.count%remembered]
	at.call, at.hash = c, l.hash
	l.count++
}

// drop takes back the last add.
func (l *lockstep) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	l.hash = 0
	if l.count > 0 {
		l.hash = l.ring[(l.count-1)%remembered].hash
	}
}

// now returns the count and the hash.
func (l *lockstep) now() (count int64, hash uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count, l.hash
}

// at returns the hash after `count` collectives. `known` is false if this rank has not made them
// yet, or has forgotten them.
func (l *lockstep) at(count int64) (hash uint64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if count < 1 || count > l.count || count <= l.count-remembered {
		return 0, false
	}
	return l.ring[(count-1)%remembered].hash, true
}

// last describes the last collective.
func (l *lockstep) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == 0 {
		return "none"
	}
	c := l.ring[(l.count-1)%remembered].call
	return fmt.Sprintf("number %d, %s%s", l.count, c.what, atLine(c.at))
}

// compareCalls fails x's Do if another rank makes another collective than this rank has noted. It
// does nothing on CUDA, and beside ranks of Python.
func (g *Group) compareCalls(x *cgotorch.Exec, op string) {
	if !g.comparesCalls() {
		return
	}
	_, hash := g.lockstep.now()
	var most []int64
	x.Tidy(func() *cgotorch.Tensor {
		x := inside.Core.Unwatched(x.NoGrad()) // on CUDA nothing of this runs
		hashes := []*cgotorch.Tensor{cgotorch.FromSlice(x, []int64{int64(hash), ^int64(hash)})}
		c, handles := inside.Core.Prepare(x, op, hashes)
		g.must(x, op, ct.AllReduce(c, g.h, &handles[0], 1, ct.Max), hashes)
		most = cgotorch.ToSlice[int64](x, hashes[0])
		return nil
	})
	if most[0] != ^most[1] {
		x.Fail(op, g.explain(errors.New("another rank makes another collective")))
	}
}

func atLine(at string) string {
	if at == "" {
		return ""
	}
	return " at " + at
}

// made is what a rank tells of a collective after a difference.
type made struct {
	Number int64
	What   string
	At     string
}

// history returns the collectives that are remembered, the oldest first.
func (l *lockstep) history() []made {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []made
	for n := max(0, l.count-remembered); n < l.count; n++ {
		c := l.ring[n%remembered].call
		all = append(all, made{n + 1, c.what, c.at})
	}
	return all
}

// difference describes the first collective in which two histories differ, or returns "".
func difference(a, b []made, nameA, nameB string) string {
	of := map[int64]made{}
	for _, m := range a {
		of[m.Number] = m
	}
	for _, m := range b {
		if first, known := of[m.Number]; known && first.What != m.What {
			return fmt.Sprintf("collective %d differs: %s makes %s%s, and %s makes %s%s; all ranks must make the same collectives in the same order",
				m.Number, nameA, first.What, atLine(first.At), nameB, m.What, atLine(m.At))
		}
	}
	return ""
}
