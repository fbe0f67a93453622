package cgotorch

import "time"

// comparedLaunches is the number of launches in which a shape's parallel graph and its serial
// graph alternate. Afterwards the faster graph is kept.
const comparedLaunches = 42

// A comparison is a second graph of a shape, in which every Choice runs its work serially. A Choice
// measures work that is enqueued kernel by kernel. Between such kernels the device waits longer
// than inside a graph, so the decision of the Choice may be wrong for a graph. So Runs alternate
// between the two graphs, and measure the whole function.
type comparison struct {
	graph  *Graph
	out    []*Tensor
	choice *Choice // between this graph and the shape's parallel graph
}

func newComparison(serial *Graph, out []*Tensor) *comparison {
	return &comparison{graph: serial, out: out, choice: newChoice(nil, comparedLaunches, 0.003)}
}

// launch launches one of the two graphs, and returns its results. If the comparison has ended, it
// launches nothing, puts the faster graph into s, and returns `ended`.
func (p *comparison) launch(x *Exec, s *capturedShape, in []*Tensor) (out []*Tensor, ended bool) {
	w := x.choose("Captured.Run", p.choice, in, 1)
	if !w.open {
		if !w.parallel {
			s.graph, p.graph = p.graph, s.graph
			s.out, p.out = p.out, s.out
		}
		return nil, true
	}
	defer w.end()
	graph, out := s.graph, s.out
	if !w.parallel {
		graph, out = p.graph, p.out
	}
	graph.launch(x.measured(w))
	w.completed = true
	return out, false
}

// times returns the times of a launch that were measured.
func (p *comparison) times() (parallel, serial time.Duration) {
	for _, d := range p.choice.made() {
		parallel, serial = d.ParallelTime, d.SerialTime
	}
	return parallel, serial
}

// end closes the slower graph. The comparison may be nil.
func (p *comparison) end() {
	if p != nil {
		p.graph.end()
		closeAll(p.out)
	}
}
