package streams

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The checker reports nothing for programs that look like mistakes but are right.
func TestCheckStreams_SilentWhereRight(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(s *scene)
	}{
		{"gradient read beside a fused step", func(s *scene) {
			p := s.shared(8)
			must.Do(s, p.SetRequiresGrad(true))
			sgd := s.sgd(p)
			s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, p))) })
			s.always(s.a, s.b)
			s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, p.Grad()) })
			s.do(s.a, func(x *cgotorch.Exec) { sgd.Step(x) })
		}},
		{"copy to memory of Go's, which waits", func(s *scene) {
			p := s.shared(8)
			s.do(s.a, func(x *cgotorch.Exec) { add(x, p); cgotorch.CopyTo(x, p, make([]float32, 8)) })
			s.do(s.b, func(x *cgotorch.Exec) { add(x, p) })
		}},
		{"operator that waits for the shape of its result", func(s *scene) {
			p := s.shared(8)
			s.do(s.a, func(x *cgotorch.Exec) { add(x, p); x.Call("aten::_unique2", p) })
			s.do(s.b, func(x *cgotorch.Exec) { add(x, p) })
		}},
		{"views of what is not done yet", func(s *scene) {
			p := s.shared(2, 8)
			s.do(s.a, func(x *cgotorch.Exec) { add(x, p) })
			s.do(s.b, func(x *cgotorch.Exec) {
				x.Call("aten::meshgrid", []*cgotorch.Tensor{x.Select(p, 0, 0), x.Select(p, 0, 1)})
				x.Call("aten::dropout", p, 0.5, false)
				x.Call("aten::atleast_3d", p)
				x.Reshape(p, 16)
			})
		}},
		{"read by two at once", func(s *scene) {
			p := s.shared(8)
			s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, p) })
			s.do(s.c, func(x *cgotorch.Exec) { readOnly(x, p) })
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

// After a report, the checker still finds a second mistake between the same streams. Each mistake
// is reported once.
func TestCheckStreams_AfterAReport(t *testing.T) {
	for _, d := range torchtest.Devices() {
		t.Run(d.String(), func(t *testing.T) {
			s := &scene{T: t, device: d}
			races := s.run(func(s *scene) {
				p, q := s.shared(8), s.shared(8)
				s.do(s.a, func(x *cgotorch.Exec) { add(x, q); add(x, p) })
				s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, p) })
				s.do(s.b, func(x *cgotorch.Exec) { x.Neg(p) })
				s.do(s.b, func(x *cgotorch.Exec) { x.Neg(q) })
				s.do(s.a, func(x *cgotorch.Exec) { x.Call("aten::mul_.Scalar", p, 2) })
				s.do(s.b, func(x *cgotorch.Exec) { x.Abs(p) })
			})
			var got []string
			for _, r := range races {
				got = append(got, r.Earlier.Op+" "+r.Later.Op)
			}
			want := []string{"aten::add_ aten::sum", "aten::add_ aten::neg", "aten::neg aten::mul_", "aten::mul_ aten::abs"}
			if len(got) != len(want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("race %d: got %s, want %s", i, got[i], want[i])
				}
			}
		})
	}
}

// The checker knows a slab that was made before the checker was turned on.
func TestCheckStreams_SlabMadeBefore(t *testing.T) {
	slab := must.Get(cgotorch.NewHostSlab(cgotorch.CPU, 32))(t)
	defer slab.Close()
	s := &scene{T: t, device: cgotorch.CPU}
	races := s.run(func(s *scene) {
		s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, 32), slab.Bytes()) })
		slab.Touch(true)
	})
	if len(races) != 1 {
		t.Errorf("got %v", races)
	}
}
