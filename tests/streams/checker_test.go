package streams

import (
	"testing"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/torchtest"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// each runs cases in which the checker must find no race, on each device.
func each[F any](t *testing.T, cases map[string]F, run func(s *scene, c F)) {
	for _, d := range torchtest.Devices() {
		for name, c := range cases {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				s := &scene{T: t, device: d, right: true}
				for _, r := range s.run(func(s *scene) { run(s, c) }) {
					t.Error(r)
				}
			})
		}
	}
}

// After each kind of wait, the host may read the result of a copy. The checker finds no race.
func TestCheckStreams_HostWaits(t *testing.T) {
	each(t, map[string]func(s *scene, e *cgotorch.Event){
		"Event.Synchronize":  func(s *scene, e *cgotorch.Event) { s.must(e.Synchronize()) },
		"Event.Done":         func(s *scene, e *cgotorch.Event) { <-e.Done() },
		"Event.Query":        func(s *scene, e *cgotorch.Event) { s.until(e.Query) },
		"Stream.Synchronize": func(s *scene, e *cgotorch.Event) { s.must(s.a.Synchronize()) },
		"Stream.Query":       func(s *scene, e *cgotorch.Event) { s.until(s.a.Query) },
		"Device.Synchronize": func(s *scene, e *cgotorch.Event) { s.must(s.device.Synchronize()) },
		"Exec.Item": func(s *scene, e *cgotorch.Event) {
			s.do(s.a, func(x *cgotorch.Exec) { x.Item(x.Ones(cgotorch.Float32)) })
		},
		"ToSlice": func(s *scene, e *cgotorch.Event) {
			s.do(s.a, func(x *cgotorch.Exec) { cgotorch.ToSlice[float32](x, x.Ones(cgotorch.Float32, 1)) })
		},
		"CopyTo pageable memory": func(s *scene, e *cgotorch.Event) {
			s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyTo(x, x.Ones(cgotorch.Float32, 1), make([]float32, 1)) })
			if !s.device.IsCUDA() { // on the CPU CopyTo has not waited, so Synchronize waits instead
				s.must(s.a.Synchronize())
			}
		},
		"Wait on a CPU stream": func(s *scene, e *cgotorch.Event) {
			cpu, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			s.must(err)
			defer cpu.Close()
			s.must(cpu.Wait(e))
			s.must(cpu.Synchronize())
		},
	}, func(s *scene, wait func(s *scene, e *cgotorch.Event)) {
		slab := s.slab(32)
		// The first round loads the kernels. In the second round, on a GPU, the work is still running
		// when the wait begins.
		for _, length := range []time.Duration{0, 30 * time.Millisecond} {
			s.must(s.a.Synchronize())
			s.do(s.a, func(x *cgotorch.Exec) {
				torchtest.Sleep(x, length)
				cgotorch.CopyTo(x, x.Ones(cgotorch.Uint8, 32), slab.Bytes())
			})
		}
		e := record(s, s.a)
		defer e.Close()
		wait(s, e)
		slab.Touch(false)
	})
}

// The result of ReadAsync may be read, because Item and Elements wait for the copy.
func TestCheckStreams_HostReads(t *testing.T) {
	each(t, map[string]func(s *scene, r *cgotorch.HostRead){
		"Item":     func(s *scene, r *cgotorch.HostRead) { _, err := r.Item(); s.must(err) },
		"Elements": func(s *scene, r *cgotorch.HostRead) { _, err := cgotorch.Elements[float32](r); s.must(err) },
	}, func(s *scene, read func(s *scene, r *cgotorch.HostRead)) {
		var r *cgotorch.HostRead
		s.do(s.a, func(x *cgotorch.Exec) { r = x.ReadAsync(x.Ones(cgotorch.Float32, 1)) })
		defer r.Close()
		read(s, r)
	})
}

// Each call that uses a tensor on another stream tells the allocator of the use. The tensor may
// then be freed without an order between the streams.
func TestCheckStreams_FreedWhileAnotherStreamUsesIt(t *testing.T) {
	each(t, map[string]func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor){
		"operator of tensors": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) { x.Neg(t) },
		"operator of a list": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) {
			x.Call("aten::_foreach_neg", []*cgotorch.Tensor{t})
		},
		"ReadAsync": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) { x.ReadAsync(t).Close() },
		"CopyFrom":  func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) { cgotorch.CopyFrom(x, t, make([]float32, 256)) },
		"CopyTo": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) { // to a slab. A copy to any other memory makes the host wait, which orders the free
			to := s.slab(256 * 4).Bytes()
			cgotorch.CopyTo(x, t, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(to))), 256))
		},
		"images.Normalize": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) {
			images.Normalize(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), nil, t, x.Empty(cgotorch.Float32, 1, 1, 1, 1))
		},
		"images.Mix": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) {
			images.Mix(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), nil, t, x.Empty(cgotorch.Float32, 1, 1, 1, 1), images.MixOptions{})
		},
		"images.MixLabels": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) {
			images.MixLabels(x, x.Zeros(cgotorch.Int64, 1), t, 1)
		},
		"gradient of a backward": func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor) {
			p := x.Ones(cgotorch.Float32, 1, 256)
			s.must(p.SetRequiresGrad(true))
			x.BackwardWith(cgotorch.BackwardOptions{Grads: []*cgotorch.Tensor{t}}, x.Mul(p, p))
		},
	}, func(s *scene, use func(s *scene, x *cgotorch.Exec, t *cgotorch.Tensor)) {
		var t *cgotorch.Tensor
		s.do(s.a, func(x *cgotorch.Exec) { t = x.Keep(x.Ones(cgotorch.Float32, 1, 256)) })
		s.always(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { use(s, x, t) })
		t.Close()
	})
}

// images.Augment tells the allocator of its use of a tensor. It has its own test, because it
// takes no tensor of the shape that the test above uses. An operator that changes the shape would
// tell the allocator itself.
func TestCheckStreams_FreedWhileAnotherStreamAugments(t *testing.T) {
	each(t, map[string]func(x *cgotorch.Exec) *cgotorch.Tensor{
		"pixels": func(x *cgotorch.Exec) *cgotorch.Tensor { return x.Zeros(cgotorch.Uint8, 1, 2, 2, 3) },
		"steps":  func(x *cgotorch.Exec) *cgotorch.Tensor { return x.Zeros(cgotorch.Float32, 1, 1, 8) },
	}, func(s *scene, make func(x *cgotorch.Exec) *cgotorch.Tensor) {
		var t *cgotorch.Tensor
		s.do(s.a, func(x *cgotorch.Exec) { t = x.Keep(make(x)) })
		s.always(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) {
			pixels, steps := t, t
			if t.DType() == cgotorch.Uint8 {
				steps = x.Zeros(cgotorch.Float32, 1, 1, 8)
			} else {
				pixels = x.Zeros(cgotorch.Uint8, 1, 2, 2, 3)
			}
			images.Augment(x, pixels, nil, steps, x.Empty(cgotorch.Uint8, 1, 2, 2, 3))
		})
		t.Close()
	})
}
