package streams

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

const (
	tokenRoute   = "streamtorch::token_route"
	tokenExperts = "streamtorch::token_experts"
)

// mixture is a table of three layers of four experts, of which two have slots, and what a token
// needs besides. A token picks two experts.
type mixture struct {
	*weights.Table
	in, router, arrived *cgotorch.Tensor
}

func (s *scene) mixture() *mixture {
	s.Helper()
	m := &mixture{in: s.shared(1, 8), router: s.shared(4, 8), arrived: s.sharedOf(cgotorch.Int32, 1)}
	s.do(s.a, func(x *cgotorch.Exec) {
		x.ZeroInPlace(m.arrived).Close()
		m.Table = cgotorch.Must(weights.NewTable(x, weights.TableOptions{
			Layers: 3, Experts: 4, Matrices: [][2]int64{{16, 8}, {8, 8}}, DType: cgotorch.BFloat16, Slots: 2, Passes: true,
		}))
	})
	s.must(s.a.Synchronize())
	s.always(s.a, s.b)
	s.Cleanup(func() { m.Close() })
	return m
}

// route picks the experts of a token in layer 0.
func (m *mixture) route(x *cgotorch.Exec) (picks, shares *cgotorch.Tensor) {
	l := m.Layer(0)
	out := x.Call(tokenRoute, m.in, m.router, nil, nil, 0.0, false, 2, true, m.arrived, "early", l.Places, l.Counts, l.LFU)
	return out[0].(*cgotorch.Tensor), out[1].(*cgotorch.Tensor)
}

// product multiplies the token with the first matrix of its experts.
func (m *mixture) product(x *cgotorch.Exec, picks *cgotorch.Tensor) {
	l := m.Layer(0)
	x.Call1(tokenExperts, m.in, l.Experts[0], picks, l.Slots[0])
}

func (m *mixture) token(x *cgotorch.Exec) {
	picks, _ := m.route(x)
	m.product(x, picks)
}

// onTable runs a token on stream a, and then `then` on stream b, in the right form behind it.
func onTable(then func(x *cgotorch.Exec, m *mixture)) func(s *scene) {
	return func(s *scene) {
		m := s.mixture()
		s.do(s.a, m.token)
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { then(x, m) })
		s.always(s.b, s.a)
	}
}

// tableMistakes are races with the experts in host memory, and with the slots for them.
var tableMistakes = []mistake{
	{"experts written by the host while a token may read them", [2]string{tokenExperts, "the host"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, m.token)
		s.hostWaits(s.a)
		m.Layer(0).Memory[0].Touch(true)
	}},
	{"experts read by the host while a stream writes them", [2]string{"aten::add_", "the host"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, func(x *cgotorch.Exec) { add(x, m.Layer(0).Experts[1]) })
		s.hostWaits(s.a)
		m.Layer(0).Memory[1].Touch(false)
	}},
	{"experts written on another stream than a token's", [2]string{tokenExperts, "aten::add_"}, false, onTable(func(x *cgotorch.Exec, m *mixture) {
		add(x, m.Layer(0).Experts[0])
	})},
	{"one expert written, which a token may have picked", [2]string{tokenExperts, "aten::add_"}, false, onTable(func(x *cgotorch.Exec, m *mixture) {
		add(x, x.Narrow(m.Layer(0).Experts[0], 0, 3, 1))
	})},
	{"slots read on another stream than a token's", [2]string{tokenExperts, "aten::sum"}, false, onTable(func(x *cgotorch.Exec, m *mixture) {
		readOnly(x, m.Layer(0).Slots[0])
	})},
	{"picks read early by the kernel behind their own", [2]string{tokenRoute, tokenExperts}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, func(x *cgotorch.Exec) {
			l := m.Layer(0)
			picks, shares := m.route(x)
			inner := x.Call1(tokenExperts, m.in, l.Experts[0], picks, l.Slots[0], nil, nil, nil, 0.0, false, "silu", nil, 0.0, 0.0, s.edge("wait"))
			x.Call1(tokenExperts, inner, l.Experts[1], picks, l.Slots[1], shares, nil, nil, 0.0, false, "add", m.in, 0.0, 0.0, "early")
		})
	}},
	{"slots emptied beside a token", [2]string{tokenRoute, "aten::copy_"}, false, onTable(func(x *cgotorch.Exec, m *mixture) { m.Forget(x) })},
	{"counts read beside a token", [2]string{tokenRoute, "aten::sum"}, false, onTable(func(x *cgotorch.Exec, m *mixture) { readOnly(x, m.Layer(0).Counts) })},
	{"a layer of two tokens on two streams", [2]string{tokenRoute, tokenRoute}, false, onTable(func(x *cgotorch.Exec, m *mixture) { m.route(x) })},
	{"experts written inside a graph beside a token", [2]string{tokenExperts, "aten::add_"}, false, func(s *scene) {
		m := s.mixture()
		g := s.graph(func(x *cgotorch.Exec) { add(x, m.Layer(0).Experts[0]) })
		s.do(s.a, m.token)
		s.order(s.a, s.b)
		s.must(g.Launch(s.b))
		s.always(s.b, s.a)
	}},
	{"experts of a pass read behind its Done", [2]string{"aten::copy_", "aten::sum"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, func(x *cgotorch.Exec) {
			p := m.Pass(x)
			matrices := p.Experts(x, 0)
			if s.right {
				readOnly(x, matrices[0])
			}
			p.Done(x) // the copies of layer 2 begin
			if !s.right {
				readOnly(x, matrices[0])
			}
		})
	}},
	{"experts of a pass read on a stream that has not waited for them", [2]string{"aten::copy_", "aten::sum"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, func(x *cgotorch.Exec) {
			p := m.Pass(x)
			matrices := p.Experts(x, 0)
			y := x.On(s.b)
			if s.right {
				there := x.Record()
				defer there.Close()
				y.Wait(there)
			}
			readOnly(y, matrices[0])
			back := y.Record()
			defer back.Close()
			x.Wait(back)
			p.Done(x)
		})
	}},
	{"experts written beside the copies of a pass", [2]string{"aten::copy_", "aten::add_"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, func(x *cgotorch.Exec) {
			p := m.Pass(x)
			if s.right {
				for i := range 3 { // each layer's copy has been waited for
					p.Experts(x, i)
					p.Done(x)
				}
			}
			add(x, m.Layer(1).Experts[0])
		})
	}},
	{"table closed while a token may read it", [2]string{tokenExperts, "the end of the slab"}, false, func(s *scene) {
		m := s.mixture()
		s.do(s.a, m.token)
		s.hostWaits(s.a)
		m.Close()
	}},
}
