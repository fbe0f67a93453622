package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// BenchmarkOp measures the cost that Go adds to small operators. In folder bench, the rows op/add
// compare Exec.Add with at::add in C++ and with a hand-written cgo wrapper.
func BenchmarkOp(b *testing.B) {
	for _, d := range torchtest.Devices() {
		b.Run("device="+d.String(), func(b *testing.B) {
			for _, c := range []struct {
				name string
				op   func(x *Exec, p, q *Tensor) *Tensor
			}{
				{"add", func(x *Exec, p, q *Tensor) *Tensor { return x.Add(p, q) }},
				{"relu", func(x *Exec, p, q *Tensor) *Tensor { return x.ReLU(p) }},
				{"mul-scalar", func(x *Exec, p, q *Tensor) *Tensor { return x.MulScalar(p, 2.0) }},
				{"view", func(x *Exec, p, q *Tensor) *Tensor { return x.View(p, 2, 2) }},
				{"sum-dim", func(x *Exec, p, q *Tensor) *Tensor { return x.SumDim(p, []int64{0}, SumOptions{}) }},
				{"cat", func(x *Exec, p, q *Tensor) *Tensor { return x.Cat([]*Tensor{p, q}, 0) }},
				{"zeros", func(x *Exec, p, q *Tensor) *Tensor { return x.Zeros(Float32, 4) }},
				{"add-by-name", func(x *Exec, p, q *Tensor) *Tensor { return x.Call1("aten::add.Tensor", p, q) }},
			} {
				b.Run(c.name, func(b *testing.B) {
					b.ReportAllocs()
					on(b, d, func(x *Exec) {
						p, q := x.Ones(Float32, 4), x.Ones(Float32, 4)
						x = x.NoGrad()
						b.ResetTimer()
						for range b.N {
							c.op(x, p, q).Close()
						}
					})
				})
			}
			b.Run("add/tidy=100", func(b *testing.B) {
				b.ReportAllocs()
				on(b, d, func(x *Exec) {
					p, q := x.Ones(Float32, 4), x.Ones(Float32, 4)
					x = x.NoGrad()
					b.ResetTimer()
					for done := 0; done < b.N; done += 100 {
						x.Tidy(func() *Tensor {
							for range min(100, b.N-done) {
								x.Add(p, q)
							}
							return nil
						})
					}
				})
			})
		})
	}
}

// on measures the time of fn on a new stream, until the device has done the work.
func on(b *testing.B, d Device, fn func(x *Exec)) {
	s := torchtest.NewStream(b, d)
	err := s.Do(func(x *Exec) error {
		fn(x)
		return nil
	})
	if err == nil {
		err = s.Synchronize()
	}
	b.StopTimer()
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkDo measures an empty Do: one hand-off to the stream's thread and back.
func BenchmarkDo(b *testing.B) {
	b.ReportAllocs()
	s := torchtest.NewStream(b, CPU)
	for range b.N {
		if err := s.Do(func(x *Exec) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
