package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// graphWork describes work of one of three kinds: work under capture, a warm-up run of a capture,
// or a launch of an eager graph. [Exec] points to the graphWork that its work belongs to.
type graphWork struct {
	pool      workPool
	eager     bool                // launch of an eager graph, or a warm-up run on the CPU
	capturing bool                // work under capture
	alone     bool                // the pool has no other graph
	undecided bool                // a Choice in the work is undecided
	parallel  bool                // a Choice ran work in parallel
	serial    bool                // every Choice runs its work serially, whatever the Choice has decided
	ended     bool                // the capture or warm-up run has ended
	h         *ct.Graph           // graph under capture; nil before and after the capture
	outside   *ct.Stream          // stream of the Exec that asked for the capture
	forked    map[*ct.Stream]bool // streams that belong to the capture
	hooks     []func(x *Exec)
	depends   []func() string
}

// A workPool is what the core asks of the pool of graphs that work belongs to.
type workPool interface {
	// standIn returns the stream that the work uses in place of a stream of the program. `stand`
	// returns it if there is one already, and otherwise nil.
	standIn(of *Stream) (*ct.Stream, error)
	stand(of *Stream) *Stream
	// shared reports whether other graphs use the memory of the work.
	shared() bool
	handle() *ct.GraphPool
}

// capture returns the capture that x's work is part of, or nil.
func (x *Exec) capture() *graphWork {
	if g := x.work; g != nil && g.capturing && x.c.Stream != g.outside {
		return g
	}
	return nil
}
