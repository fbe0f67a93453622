package streams

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const (
	tokenLinear    = "streamtorch::token_linear"
	tokenAttention = "streamtorch::token_attention"
	tokenLikeliest = "streamtorch::token_likeliest"
)

// edge is "early" for the kernel with the mistake, and `right` in the right form.
func (s *scene) edge(right string) string {
	if s.right {
		return right
	}
	return "early"
}

// between runs a kernel with a full edge, in the right form.
func (s *scene) between(x *cgotorch.Exec, t *cgotorch.Tensor) {
	if s.right {
		x.Neg(t)
	}
}

// product is one of a row, [1, 8]. The kernel reads the weight [8, 8] early.
func product(x *cgotorch.Exec, in, weight *cgotorch.Tensor, edge string) *cgotorch.Tensor {
	return x.Call1(tokenLinear, in, weight, nil, nil, 1e-6, false, "", nil, nil, nil, nil, edge)
}

// normed is a product behind two norms, whose weights the kernel reads early too.
type normed struct {
	in, late, sum          *cgotorch.Tensor
	weight, norm, lateNorm *cgotorch.Tensor
}

func (s *scene) normed() *normed {
	return &normed{in: s.shared(1, 8), late: s.shared(1, 8), sum: s.shared(1, 8), weight: s.sharedOf(cgotorch.BFloat16, 8, 8), norm: s.shared(8), lateNorm: s.shared(8)}
}

func (n *normed) run(x *cgotorch.Exec, edge string) {
	x.Call1(tokenLinear, n.in, n.weight, nil, n.norm, 1e-6, false, "", nil, n.late, n.lateNorm, n.sum, edge)
}

// attention is that of the token at a position, in two layers. The kernel reads all early but
// `qkv`, `turn` and `arrived`.
type attention struct {
	qkv, turn, arrived                    *cgotorch.Tensor
	position, before, table, memory, norm *cgotorch.Tensor
}

func (s *scene) attention() *attention {
	a := &attention{qkv: s.shared(1, 96), turn: s.shared(1, 1, 32), arrived: s.sharedOf(cgotorch.Int32, 8),
		position: s.sharedOf(cgotorch.Int64, 1), before: s.sharedOf(cgotorch.Int64, 1), table: s.sharedOf(cgotorch.Int64, 2, 2, 2),
		memory: s.sharedOf(cgotorch.BFloat16, 2, 4, 1, 16, 32), norm: s.shared(32)}
	s.do(s.a, func(x *cgotorch.Exec) {
		x.ZeroInPlace(a.arrived).Close()
		x.Call("aten::neg_", a.before) // so that position 0 is the first
		x.CopyInPlace(a.table, cgotorch.FromSlice(x, []int64{0, 1, 4, 5, 2, 3, 6, 7}, 2, 2, 2)).Close()
	})
	s.must(s.a.Synchronize())
	return a
}

func (a *attention) run(x *cgotorch.Exec, layer int, edge string) {
	x.Call1(tokenAttention, a.qkv, a.norm, a.norm, 1e-6, false, a.turn, a.turn, a.position, a.memory, x.Select(a.table, 0, layer), a.before,
		nil, 1, 0, 1.0, 0.0, a.arrived, edge)
}

// attentionBehind is attention behind a write of what it reads early.
func attentionBehind(write func(x *cgotorch.Exec, a *attention)) func(s *scene) {
	return func(s *scene) {
		a := s.attention()
		s.do(s.a, func(x *cgotorch.Exec) {
			write(x, a)
			a.run(x, 0, s.edge("wait"))
		})
	}
}

// earlyMistakes are kernels that read before their wait what a kernel has written since the last
// full edge. All work is on one stream.
var earlyMistakes = []mistake{
	{"weight read early behind its write", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
		s.do(s.a, func(x *cgotorch.Exec) {
			add(x, w)
			product(x, in, w, s.edge("wait"))
		})
	}},
	{"weight written two kernels before, without a full edge between", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, v, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
		s.do(s.a, func(x *cgotorch.Exec) {
			add(x, w)
			out := product(x, in, v, "early")
			s.between(x, out)
			product(x, out, w, "early")
		})
	}},
	{"weight made by a kernel of a token", [2]string{tokenLinear, tokenLinear}, false, func(s *scene) {
		n := s.normed()
		s.do(s.a, func(x *cgotorch.Exec) {
			norm := x.View(n.sum, -1)
			n.run(x, "wait") // writes the sum
			x.Call1(tokenLinear, n.in, n.weight, nil, norm, 1e-6, false, "", nil, nil, nil, nil, s.edge("full"))
		})
	}},
	{"weight written two kernels before, and the one between does not wait for it", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, v, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
		s.do(s.a, func(x *cgotorch.Exec) {
			add(x, w)
			out := product(x, in, v, s.edge("wait"))
			product(x, out, w, "early")
		})
	}},
	{"weight written before an operator that is refused", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, v, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, w) })
		if err := s.a.Do(func(x *cgotorch.Exec) error {
			product(x, x.Narrow(in, 1, 0, 4), v, "wait") // it has too few columns
			return nil
		}); err == nil {
			s.Error("a product of 4 columns with 8 is not refused")
		}
		s.do(s.a, func(x *cgotorch.Exec) { product(x, in, w, s.edge("wait")) })
	}},
	{"last row of a weight written", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 9, 8)
		s.do(s.a, func(x *cgotorch.Exec) {
			row := 7
			if s.right {
				row = 8 // behind those of the product
			}
			add(x, x.Narrow(w, 0, row, 1))
			product(x, in, x.Narrow(w, 0, 0, 8), "early")
		})
	}},
	{"norm read early behind its write", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		n := s.normed()
		s.do(s.a, func(x *cgotorch.Exec) {
			add(x, n.norm)
			s.between(x, n.in)
			n.run(x, "early")
		})
	}},
	{"norm of the late part read early behind its write", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		n := s.normed()
		s.do(s.a, func(x *cgotorch.Exec) {
			add(x, n.lateNorm)
			n.run(x, s.edge("wait"))
		})
	}},
	{"weight written inside a graph that reads it early", [2]string{"aten::add_", tokenLinear}, false, func(s *scene) {
		in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
		g := s.graph(func(x *cgotorch.Exec) {
			if !s.right {
				add(x, w)
			}
			product(x, in, w, "early")
		})
		s.do(s.a, func(x *cgotorch.Exec) { add(x, w) }) // all of a graph is behind it
		s.must(g.Launch(s.a))
	}},
	{"position moved by a kernel of a token", [2]string{tokenLikeliest, tokenAttention}, false, func(s *scene) {
		a, logits, token := s.attention(), s.shared(1, 9), s.sharedOf(cgotorch.Int64, 1)
		result := s.sharedOf(cgotorch.Float64, 2)
		s.do(s.a, func(x *cgotorch.Exec) {
			x.Call("aten::sub_.Scalar", a.position, 1)
			x.Call(tokenLikeliest, logits, token, a.position, result, "wait")
			s.between(x, logits)
			a.run(x, 0, "early")
		})
	}},
	{"page table written just before", [2]string{"aten::remainder_", tokenAttention}, false, attentionBehind(func(x *cgotorch.Exec, a *attention) {
		x.Call("aten::remainder_.Scalar", a.table, 8)
	})},
	{"window moved just before", [2]string{"aten::sub_", tokenAttention}, false, attentionBehind(func(x *cgotorch.Exec, a *attention) {
		x.Call("aten::sub_.Scalar", a.before, 0)
	})},
	{"pages filled just before", [2]string{"aten::add_", tokenAttention}, false, attentionBehind(func(x *cgotorch.Exec, a *attention) {
		add(x, x.Narrow(a.memory, 1, 1, 2))
	})},
	{"norm of keys written just before", [2]string{"aten::add_", tokenAttention}, false, attentionBehind(func(x *cgotorch.Exec, a *attention) {
		add(x, a.norm)
	})},
	{"two tokens through one table", [2]string{tokenAttention, tokenAttention}, false, func(s *scene) {
		a := s.attention()
		s.do(s.a, func(x *cgotorch.Exec) {
			for range 2 { // the kernels of a layer come again before a full edge
				a.run(x, 0, "wait")
				a.run(x, 1, "wait")
			}
			a.run(x, 1, s.edge("full"))
		})
	}},
	{"tables that share a block", [2]string{tokenAttention, tokenAttention}, false, func(s *scene) {
		a := s.attention()
		s.do(s.a, func(x *cgotorch.Exec) {
			layer := 0
			if s.right {
				layer = 1
			}
			a.run(x, 0, "wait")
			a.run(x, layer, "early")
		})
	}},
}

// The checker is silent where kernels read early what older work has written.
func TestCheckStreams_SilentWhereEarlyIsRight(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(s *scene)
	}{
		{"copies have full edges", func(s *scene) {
			n := s.normed()
			s.do(s.a, func(x *cgotorch.Exec) {
				add(x, n.norm)
				cgotorch.CopyFrom(x, n.norm, make([]float32, 8))
				n.run(x, "early")
			})
		}},
		{"graphs have full edges", func(s *scene) {
			in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
			g := s.graph(func(x *cgotorch.Exec) { add(x, w) })
			s.must(g.Launch(s.a))
			s.do(s.a, func(x *cgotorch.Exec) { product(x, in, w, "early") })
		}},
		{"the host has waited", func(s *scene) {
			in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
			s.do(s.a, func(x *cgotorch.Exec) { add(x, w) })
			s.must(s.a.Synchronize())
			s.do(s.a, func(x *cgotorch.Exec) { product(x, in, w, "early") })
		}},
		{"another stream's event", func(s *scene) {
			in, w := s.sharedOf(cgotorch.BFloat16, 1, 8), s.sharedOf(cgotorch.BFloat16, 8, 8)
			s.do(s.b, func(x *cgotorch.Exec) { add(x, w) })
			s.always(s.b, s.a)
			s.do(s.a, func(x *cgotorch.Exec) { product(x, in, w, "early") })
		}},
		{"all layers of two tokens", func(s *scene) {
			a, n := s.attention(), s.normed()
			s.do(s.a, func(x *cgotorch.Exec) {
				for range 2 {
					n.run(x, "full")
					a.run(x, 0, "early")
					a.run(x, 1, "early")
				}
			})
		}},
	} {
		for _, d := range torchtest.Devices() {
			t.Run(d.String()+"/"+c.name, func(t *testing.T) {
				s := &scene{T: t, device: d, right: true}
				for _, r := range s.run(c.run) {
					t.Errorf("reported: %v", r)
				}
			})
		}
	}
}
