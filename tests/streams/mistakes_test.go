package streams

import (
	"context"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// scene has three streams of one device, for a test of the stream checker. The test runs a
// program with a mistake, or the right form of the program, which lacks the mistake.
type scene struct {
	*testing.T
	device  cgotorch.Device
	right   bool // true: the right form of the mistake runs. false: the mistake runs
	a, b, c *cgotorch.Stream
}

// do runs fn on stream. A race does not make the Do fail, because the checker reports it to the
// test.
func (s *scene) do(stream *cgotorch.Stream, fn func(x *cgotorch.Exec)) {
	s.Helper()
	s.must(stream.Do(func(x *cgotorch.Exec) error { fn(x); return nil }))
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// until calls the function `ask` again and again. It ends when the answer is true.
func (s *scene) until(ask func() (bool, error)) {
	s.Helper()
	for {
		done, err := ask()
		s.must(err)
		if done {
			return
		}
	}
}

// always makes the stream `to` wait for the work that is enqueued on `from` so far.
func (s *scene) always(from, to *cgotorch.Stream) {
	s.Helper()
	e := record(s, from)
	defer e.Close()
	s.wait(to, e)
}

// order makes `to` wait for `from`, but only in the right form of a mistake. Most mistakes leave
// out this wait.
func (s *scene) order(from, to *cgotorch.Stream) {
	s.Helper()
	if s.right {
		s.always(from, to)
	}
}

func (s *scene) wait(stream *cgotorch.Stream, e *cgotorch.Event) {
	s.Helper()
	s.must(stream.Wait(e))
}

// hostWaits makes the host wait for the work on `from`, but only in the right form of a mistake.
func (s *scene) hostWaits(from *cgotorch.Stream) {
	s.Helper()
	if !s.right {
		return
	}
	e := record(s, from)
	defer e.Close()
	s.must(e.Synchronize())
}

// shared returns a float32 tensor of ones that is made on stream a. Streams b and c wait until
// the tensor is made. The end of the test closes the tensor after the streams are done.
func (s *scene) shared(shape ...int64) *cgotorch.Tensor {
	s.Helper()
	return s.sharedOf(cgotorch.Float32, shape...)
}

func (s *scene) sharedOf(dtype cgotorch.DType, shape ...int64) *cgotorch.Tensor {
	s.Helper()
	var t *cgotorch.Tensor
	s.do(s.a, func(x *cgotorch.Exec) { t = x.Keep(x.Ones(dtype, shape...)) })
	s.Cleanup(func() { t.Close() })
	s.always(s.a, s.b)
	s.always(s.a, s.c)
	return t
}

func (s *scene) slab(bytes int) *cgotorch.HostSlab {
	s.Helper()
	slab := cgotorch.Must(cgotorch.NewHostSlab(s.device, bytes))
	s.Cleanup(func() { slab.Close() })
	return slab
}

// graph captures fn on stream a. The end of the test closes the graph.
func (s *scene) graph(fn func(x *cgotorch.Exec)) *cgotorch.Graph {
	s.Helper()
	g := cgotorch.Must(s.a.Capture(func(x *cgotorch.Exec) error { fn(x); return nil }, 0))
	s.Cleanup(func() { g.Close() })
	s.always(s.a, s.b)
	s.always(s.a, s.c)
	return g
}

func (s *scene) sgd(p *cgotorch.Tensor) *optim.Optimizer {
	s.Helper()
	sgd := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: []*cgotorch.Tensor{p}}))
	s.Cleanup(func() { sgd.Close() })
	return sgd
}

// prefetch runs the function `step` on stream a, for so many batches that each slot is filled
// twice.
func (s *scene) prefetch(step func(x *cgotorch.Exec, b *prefetcher.Batch)) {
	s.Helper()
	ahead := cgotorch.Must(prefetcher.New(newEndless(s, 2, 4), s.device, prefetcher.Options{}))
	defer ahead.Close()
	for b, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			s.Fatal(err)
		}
		s.do(s.a, func(x *cgotorch.Exec) { step(x, b) })
		if b.Index == 8 {
			s.must(s.b.Synchronize()) // by then the checker has reported a forgotten order
			break
		}
	}
}

// readAside uses a batch on x's stream and reads it on stream b. In the right form of a mistake
// it also uses the batch on b. x's stream then waits for b.
func (s *scene) readAside(x *cgotorch.Exec, batch *prefetcher.Batch) {
	images, _ := batch.Use(x)
	side := x.On(s.b)
	if s.right {
		images, _ = batch.Use(side)
	}
	readOnly(side, images)
	back := side.Record()
	defer back.Close()
	x.Wait(back)
}

func add(x *cgotorch.Exec, t *cgotorch.Tensor)      { x.Call("aten::add_.Scalar", t, 1) }
func readOnly(x *cgotorch.Exec, t *cgotorch.Tensor) { x.Sum(t) }

type mistake struct {
	name   string
	race   [2]string // the earlier and the later operator of the report
	onCUDA bool      // whether the mistake is impossible on the CPU
	run    func(s *scene)
}

// mistakes are programs that are right on the CPU and wrong on a GPU. On the CPU, streams run
// their work at once. The checker must report a race between the two operators in the field
// `race`. In the right form, which has the missing call, the checker must report nothing.
var mistakes = []mistake{
	{"read after write", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"write after read", [2]string{"aten::sum", "aten::add_"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
		s.order(s.b, s.a)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
	}},
	{"write after write", [2]string{"aten::add_", "aten::add_"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.b, s.c)
		s.do(s.c, func(x *cgotorch.Exec) { add(x, t) })
	}},
	{"launch of a graph behind a write", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		g := s.graph(func(x *cgotorch.Exec) { readOnly(x, t) })
		s.do(s.b, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.b, s.c)
		s.must(g.Launch(s.c))
	}},
	{"read behind the launch of a graph", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		g := s.graph(func(x *cgotorch.Exec) { add(x, t) })
		s.always(s.a, s.b)
		s.must(g.Launch(s.b))
		s.order(s.b, s.c)
		s.do(s.c, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"fork without a wait", [2]string{"aten::ones", "aten::sum"}, false, func(s *scene) {
		s.do(s.a, func(x *cgotorch.Exec) {
			t := x.Ones(cgotorch.Float32, 8)
			e := x.Record()
			defer e.Close()
			side := x.On(s.b)
			if s.right {
				side.Wait(e)
			}
			readOnly(side, t)
			back := side.Record()
			defer back.Close()
			x.Wait(back)
		})
	}},
	{"join without a wait", [2]string{"aten::mul", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) {
			side := x.On(s.b)
			half := side.Mul(t, t)
			if s.right {
				e := side.Record()
				defer e.Close()
				x.Wait(e)
			}
			readOnly(x, half)
		})
	}},
	{"event recorded too early", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		e := record(s, s.a)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		if s.right {
			e.Close()
			e = record(s, s.a)
		}
		defer e.Close()
		s.wait(s.b, e)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"event recorded again elsewhere", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		e := record(s, s.a)
		if !s.right { // the variable e now holds an event of stream c
			e.Close()
			e = record(s, s.c)
		}
		defer e.Close()
		s.wait(s.b, e)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"wait enqueued too late", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
		s.always(s.a, s.b)
	}},
	{"wait on the wrong stream", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		to := s.c
		if s.right {
			to = s.b
		}
		s.always(s.a, to)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"record on the wrong stream", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		from := s.c
		if s.right {
			from = s.a
		}
		s.always(from, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"event of the wrong device", [2]string{"aten::add_", "aten::sum"}, true, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		from := cgotorch.DefaultStream(cgotorch.CPU)
		if s.right {
			from = s.a
		}
		s.always(from, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"chain with a link missing", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { x.Ones(cgotorch.Float32, 8) })
		s.always(s.b, s.c)
		s.do(s.c, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"chain with links in the wrong order", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		if s.right {
			s.always(s.a, s.b)
			s.always(s.b, s.c)
		} else {
			s.always(s.b, s.c)
			s.always(s.a, s.b)
		}
		s.do(s.c, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"branch with one wait missing", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.always(s.a, s.b)
		s.order(s.a, s.c)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, t) })
		s.do(s.c, func(x *cgotorch.Exec) { readOnly(x, t) })
	}},
	{"merge with one wait missing", [2]string{"aten::add_", "aten::cat"}, false, func(s *scene) {
		t, u := s.shared(8), s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.do(s.b, func(x *cgotorch.Exec) { add(x, u) })
		s.always(s.a, s.c)
		s.order(s.b, s.c)
		s.do(s.c, func(x *cgotorch.Exec) { x.Cat([]*cgotorch.Tensor{t, u}, 0) })
	}},
	{"pinned buffer read before its copy", [2]string{"CopyTo", "the host"}, false, func(s *scene) {
		t, slab := s.shared(8), s.slab(32)
		s.do(s.a, func(x *cgotorch.Exec) {
			cgotorch.CopyTo(x, x.View(x.Call1("aten::view.dtype", t, cgotorch.Uint8), 32), slab.Bytes())
		})
		s.hostWaits(s.a)
		slab.Touch(false)
	}},
	{"tensor changed while it is copied to the host", [2]string{"CopyTo", "aten::add_"}, false, func(s *scene) {
		t, slab := s.sharedOf(cgotorch.Uint8, 8), s.slab(8)
		s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyTo(x, t, slab.Bytes()) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, t) })
	}},
	{"pixels changed while they are normalised", [2]string{"streamtorch::normalize_images", "aten::add_"}, false, func(s *scene) {
		pixels := s.sharedOf(cgotorch.Uint8, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Normalize(x, pixels, nil, x.Zeros(cgotorch.Float32, 1, 256), x.Empty(cgotorch.Float32, 1, 1, 1, 1))
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, pixels) })
	}},
	{"pixels changed while they are augmented", [2]string{"streamtorch::augment_images", "aten::add_"}, false, func(s *scene) {
		pixels := s.sharedOf(cgotorch.Uint8, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Augment(x, pixels, nil, x.Zeros(cgotorch.Float32, 1, 1, 8), x.Empty(cgotorch.Uint8, 1, 1, 1, 1))
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, pixels) })
	}},
	{"augmented pixels read too early", [2]string{"streamtorch::augment_images", "aten::sum"}, false, func(s *scene) {
		out := s.sharedOf(cgotorch.Uint8, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Augment(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), nil, x.Zeros(cgotorch.Float32, 1, 1, 8), out)
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, out) })
	}},
	{"pixels changed while they are padded", [2]string{"streamtorch::pad_images", "aten::add_"}, false, func(s *scene) {
		pixels := s.sharedOf(cgotorch.Uint8, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Pad(x, pixels, nil, x.Empty(cgotorch.Uint8, 1, 1, 2, 1), images.PadOptions{Left: 1})
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, pixels) })
	}},
	{"blurred pixels read too early", [2]string{"streamtorch::blur_images", "aten::sum"}, false, func(s *scene) {
		out := s.sharedOf(cgotorch.Uint8, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.GaussianBlur(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), x.Ones(cgotorch.Float32, 1, 2), out, 1, 1)
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, out) })
	}},
	{"weights changed while images are blended", [2]string{"streamtorch::blend_images", "aten::add_"}, false, func(s *scene) {
		weights := s.sharedOf(cgotorch.Float32, 1, 2)
		s.do(s.a, func(x *cgotorch.Exec) {
			pixels := x.Zeros(cgotorch.Uint8, 1, 1, 1, 1)
			images.Blend(x, pixels, nil, pixels, weights, x.EmptyLike(pixels))
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, weights) })
	}},
	{"boxes changed while they are erased", [2]string{"streamtorch::mix_images", "aten::add_"}, false, func(s *scene) {
		boxes := s.sharedOf(cgotorch.Int32, 1, 4)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Mix(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), nil, x.Zeros(cgotorch.Float32, 1, 256), x.Empty(cgotorch.Float32, 1, 1, 1, 1),
				images.MixOptions{Erased: boxes})
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, boxes) })
	}},
	{"mixed images read too early", [2]string{"streamtorch::mix_images", "aten::sum"}, false, func(s *scene) {
		out := s.sharedOf(cgotorch.Float32, 1, 1, 1, 1)
		s.do(s.a, func(x *cgotorch.Exec) {
			images.Mix(x, x.Zeros(cgotorch.Uint8, 1, 1, 1, 1), nil, x.Zeros(cgotorch.Float32, 1, 256), out, images.MixOptions{Kind: images.MixUp})
		})
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, out) })
	}},
	{"labels changed while they are mixed", [2]string{"streamtorch::mix_labels", "aten::add_"}, false, func(s *scene) {
		labels := s.sharedOf(cgotorch.Int64, 1)
		s.do(s.a, func(x *cgotorch.Exec) { images.MixLabels(x, labels, x.Empty(cgotorch.Float32, 1, 2), 0.5) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, labels) })
	}},
	{"mixed labels read too early", [2]string{"streamtorch::mix_labels", "aten::sum"}, false, func(s *scene) {
		out := s.sharedOf(cgotorch.Float32, 1, 2)
		s.do(s.a, func(x *cgotorch.Exec) { images.MixLabels(x, x.Zeros(cgotorch.Int64, 1), out, 0.5) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, out) })
	}},
	{"pinned buffer refilled during its copy", [2]string{"CopyFrom", "the host"}, false, func(s *scene) {
		slab := s.slab(32)
		slab.Touch(true)
		s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, 32), slab.Bytes()) })
		s.hostWaits(s.a)
		slab.Touch(true)
	}},
	{"pinned buffer closed during its copy", [2]string{"CopyFrom", "the end of the slab"}, false, func(s *scene) {
		slab := s.slab(32)
		s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, 32), slab.Bytes()) })
		s.hostWaits(s.a)
		slab.Close()
		s.do(s.a, func(x *cgotorch.Exec) {}) // the checker reports the race at the end of a Do
	}},
	{"host waits for the wrong stream", [2]string{"CopyTo", "the host"}, false, func(s *scene) {
		slab := s.slab(32)
		from := s.b
		if s.right {
			from = s.a
		}
		s.do(s.a, func(x *cgotorch.Exec) { cgotorch.CopyTo(x, x.Zeros(cgotorch.Uint8, 32), slab.Bytes()) })
		s.must(from.Synchronize())
		slab.Touch(false)
	}},
	{"device buffer refilled under use", [2]string{"aten::sum", "CopyFrom"}, false, func(s *scene) {
		slot, slab := s.shared(8), s.slab(32)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, slot) })
		s.order(s.b, s.a)
		s.do(s.a, func(x *cgotorch.Exec) {
			cgotorch.CopyFrom(x, x.Call1("aten::view.dtype", slot, cgotorch.Uint8), slab.Bytes())
		})
	}},
	{"lent memory freed under use", [2]string{"aten::sum", ""}, false, func(s *scene) {
		slot := s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, x.Lend(slot, "a slot")) })
		s.order(s.b, s.a)
		slot.Close()
		s.do(s.a, func(x *cgotorch.Exec) {})
	}},
	{"memory written where another stream allocated it", [2]string{"aten::empty", "aten::fill_"}, false, func(s *scene) {
		var t *cgotorch.Tensor
		s.do(s.a, func(x *cgotorch.Exec) { t = x.Keep(x.Empty(cgotorch.Float32, 8)) })
		defer t.Close()
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { x.Call("aten::fill_.Scalar", t, 0) })
	}},
	{"views that share rows", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(10, 4)
		n := 6
		if s.right {
			n = 5
		}
		s.do(s.a, func(x *cgotorch.Exec) { add(x, x.Narrow(t, 0, 0, n)) })
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, x.Narrow(t, 0, 5, 5)) })
	}},
	{"views that share columns", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(10, 8)
		n := 4
		if s.right {
			n = 3
		}
		s.do(s.a, func(x *cgotorch.Exec) { add(x, x.Narrow(t, 1, 0, n)) })
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, x.Narrow(t, 1, 3, 2)) })
	}},
	{"expanded view of what is written", [2]string{"aten::add_", "aten::sum"}, false, func(s *scene) {
		t := s.shared(1, 8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, x.Expand(t, 4, 8)) })
	}},
	{"result of an out operator", [2]string{"aten::add", "aten::sum"}, false, func(s *scene) {
		t, out := s.shared(8), s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { x.Call("aten::add.out", t, t, 1, out) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, out) })
	}},
	{"value read from another stream", [2]string{"aten::add_", "aten::item"}, false, func(s *scene) {
		t := s.shared(1)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { x.Item(t) })
	}},
	{"elements read from another stream", [2]string{"aten::add_", "aten::copy_"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { add(x, t) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { cgotorch.ToSlice[float32](x, t) })
	}},
	{"tensor changed while it is read asynchronously", [2]string{"aten::copy_", "aten::add_"}, false, func(s *scene) {
		t := s.shared(8)
		s.do(s.a, func(x *cgotorch.Exec) { x.ReadAsync(t).Close() })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, t) })
	}},
	{"gradient used on another stream", [2]string{"", "aten::sum"}, false, func(s *scene) {
		p := s.shared(8)
		s.must(p.SetRequiresGrad(true))
		s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, p))) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, p.Grad()) })
		s.always(s.b, s.a)
	}},
	{"backward of what another stream changes", [2]string{"", "aten::add_"}, false, func(s *scene) {
		p, t := s.shared(8), s.shared(8)
		s.must(p.SetRequiresGrad(true))
		s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, t))) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { add(x, t) })
	}},
	{"optimizer on another stream than backward", [2]string{"", "streamtorch::fused_sgd_"}, false, func(s *scene) {
		p := s.shared(8)
		s.must(p.SetRequiresGrad(true))
		sgd := s.sgd(p)
		s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, p))) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { sgd.Step(x) })
		s.always(s.b, s.a)
	}},
	{"evaluation while another stream trains", [2]string{"", "streamtorch::fused_sgd_"}, false, func(s *scene) {
		p := s.shared(8)
		s.must(p.SetRequiresGrad(true))
		sgd := s.sgd(p)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x.NoGrad(), p) })
		s.order(s.b, s.a)
		s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, p))); sgd.Step(x) })
	}},
	{"running statistics, whose schema does not say that they are written", [2]string{"", "aten::sum"}, false, func(s *scene) {
		var norm *nn.BatchNorm2d
		s.do(s.a, func(x *cgotorch.Exec) { norm = nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{}) })
		defer nn.Close(norm)
		s.always(s.a, s.b)
		s.do(s.a, func(x *cgotorch.Exec) { norm.Forward(x, x.Ones(cgotorch.Float32, 2, 3, 4, 4)) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, norm.RunningMean) })
		s.always(s.b, s.a)
	}},
	{"list of tensors", [2]string{"aten::sum", "aten::_foreach_mul_"}, false, func(s *scene) {
		t, u := s.shared(8), s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, u) })
		s.order(s.b, s.a)
		s.do(s.a, func(x *cgotorch.Exec) { x.Call("aten::_foreach_mul_.Scalar", []*cgotorch.Tensor{t, u}, 0.5) })
	}},
	{"batch read on a stream that did not use it, behind a host that is slow", [2]string{"streamtorch::normalize_images", "aten::sum"}, false, func(s *scene) {
		s.prefetch(func(x *cgotorch.Exec, b *prefetcher.Batch) {
			time.Sleep(time.Millisecond) // the prefetcher's goroutine has then waited for the copy
			s.readAside(x, b)
		})
	}},
	{"optimizer whose CPU kernel reads its step", [2]string{"streamtorch::fused_adam_", "aten::sum"}, false, func(s *scene) {
		p := s.shared(8)
		s.must(p.SetRequiresGrad(true))
		adam := cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*cgotorch.Tensor{p}}))
		s.Cleanup(func() { adam.Close() })
		s.do(s.a, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(p, p))); adam.Step(x) })
		s.order(s.a, s.b)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x, p) })
	}},
	{"lent memory freed under a backward", [2]string{"aten::mul", ""}, false, func(s *scene) {
		w := s.shared(8)
		s.must(w.SetRequiresGrad(true))
		slot := s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Mul(x.Lend(slot, "a slot"), w))) })
		s.order(s.b, s.a)
		slot.Close()
		s.do(s.a, func(x *cgotorch.Exec) {})
	}},
	{"view of lent memory on a third stream", [2]string{"aten::sum", ""}, false, func(s *scene) {
		slot := s.shared(8)
		s.do(s.b, func(x *cgotorch.Exec) { readOnly(x.On(s.c), x.Narrow(x.Lend(slot, "a slot"), 0, 0, 2)) })
		s.order(s.c, s.a)
		slot.Close()
		s.do(s.a, func(x *cgotorch.Exec) {})
	}},
	{"batch read on a stream that did not use it", [2]string{"streamtorch::normalize_images", "aten::sum"}, false, func(s *scene) {
		s.prefetch(s.readAside)
	}},
	{"batch read on a side stream that is not joined", [2]string{"aten::sum", "CopyFrom"}, false, func(s *scene) {
		s.prefetch(func(x *cgotorch.Exec, b *prefetcher.Batch) {
			_, labels := b.Use(x)
			e := x.Record()
			defer e.Close()
			side := x.On(s.b)
			side.Wait(e)
			readOnly(side, labels)
			if s.right {
				back := side.Record()
				defer back.Close()
				x.Wait(back)
			}
		})
	}},
}

// run runs a mistake or its right form. It returns the races that the checker found.
func (s *scene) run(mistake func(s *scene)) []*cgotorch.StreamRace {
	var found []*cgotorch.StreamRace
	stop, err := cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { found = append(found, r) })
	if err != nil {
		s.Fatal(err)
	}
	s.Run("", func(t *testing.T) {
		inner := *s
		inner.T = t
		for _, stream := range []**cgotorch.Stream{&inner.a, &inner.b, &inner.c} {
			if *stream, err = cgotorch.NewStream(s.device, cgotorch.StreamOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { (*stream).Close() })
		}
		mistake(&inner)
		// The memory is not in use any more when the cleanups close it.
		for _, stream := range []*cgotorch.Stream{inner.a, inner.b, inner.c} {
			must.Do(t, stream.Synchronize())
		}
	})
	stop()
	return found
}

func TestCheckStreams_FindsMistakes(t *testing.T) {
	for _, d := range torchtest.Devices() {
		made, found, reports := 0, 0, 0
		for _, m := range slices.Concat(mistakes, earlyMistakes, tableMistakes) {
			if m.onCUDA && !d.IsCUDA() {
				continue
			}
			t.Run(d.String()+"/"+m.name, func(t *testing.T) {
				made++
				s := &scene{T: t, device: d}
				races := s.run(m.run)
				matches := 0
				for _, r := range races {
					if (m.race[0] == "" || r.Earlier.Op == m.race[0]) && (m.race[1] == "" || r.Later.Op == m.race[1]) {
						matches++
					} else {
						t.Errorf("also reported: %v", r)
					}
				}
				if matches == 0 {
					t.Errorf("not found: %v and %v", m.race[0], m.race[1])
				} else {
					found++
				}
				s.right = true
				for _, r := range s.run(m.run) {
					reports++
					t.Errorf("reported where nothing is missing: %v", r)
				}
			})
		}
		t.Logf("%v: %d of %d mistakes found, %d false reports", d, found, made, reports)
	}
}
