package optim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// BenchmarkForeach measures the kernels of streamtorch::fused_sgd_, fused_adam_ and cast_weights
// on the parameters of models, beside LibTorch's operators. The numbers of a shape are threads,
// vectors, steps, blocks and streaming. csrc/kernels/foreach_cuda.h explains them. The row `copy`
// copies one tensor of as many bytes as a cast reads and writes.
//
// Each iteration launches a graph that does the same work ten times.
func BenchmarkForeach(b *testing.B) {
	device := torchtest.CUDA(b)
	var shapes [][]int
	for _, k := range [][2]int{{128, 2}, {256, 1}, {256, 2}, {256, 4}, {512, 1}, {512, 2}} {
		for _, steps := range []int{1, 2, 4} {
			shapes = append(shapes, []int{k[0], k[1], steps, 0, 0})
		}
	}
	for _, blocks := range []int{2, 4, 8} {
		shapes = append(shapes, []int{256, 2, 1, blocks, 0}, []int{256, 2, 4, blocks, 0}, []int{256, 4, 1, blocks, 0})
	}
	for _, streaming := range []int{0b10, 0b110, 0b1110, 0b11111} {
		shapes = append(shapes, []int{256, 2, 2, 0, streaming}, []int{256, 4, 1, 0, streaming})
	}
	shapes = append(shapes, []int{256, 8, 1, 0, 0b10}, []int{512, 4, 1, 0, 0b10})

	for _, model := range []string{"resnet50", "vit_b_16"} {
		stream := torchtest.NewStream(b, device)
		var tensors [4][]*cgotorch.Tensor // float32: parameters, gradients, two states
		var halves, steps []*cgotorch.Tensor
		var rate, from, to *cgotorch.Tensor
		var elements int64
		torchtest.DoOn(b, stream, func(x *cgotorch.Exec) error {
			m, err := vision.New(x, model, vision.Options{})
			if err != nil {
				return err
			}
			defer nn.Close(m)
			for _, p := range nn.Parameters(m) {
				elements += p.Numel()
				for i := range tensors {
					tensors[i] = append(tensors[i], x.Keep(x.MulScalar(x.Ones(cgotorch.Float32, p.Shape()...), 1e-3)))
				}
				halves = append(halves, x.Keep(x.Ones(cgotorch.BFloat16, p.Shape()...)))
				steps = append(steps, x.Keep(x.Ones(cgotorch.Float32)))
			}
			rate = x.Keep(x.Full(cgotorch.Float32, 1e-6))
			from, to = x.Keep(x.Ones(cgotorch.BFloat16, elements*3/2)), x.Keep(x.Ones(cgotorch.BFloat16, elements*3/2))
			return nil
		})
		params, grads, momenta, squares := tensors[0], tensors[1], tensors[2], tensors[3]

		// run measures one way. `bytes` is how much it reads and writes for an element.
		run := func(name string, bytes int64, work func(x *cgotorch.Exec)) {
			b.Run("model="+model+"/"+name, func(b *testing.B) {
				torchtest.DoOn(b, stream, func(x *cgotorch.Exec) { work(x.NoGrad()) }) // compiles and loads the kernel
				graph, err := stream.Capture(func(x *cgotorch.Exec) error {
					for range 10 {
						work(x.NoGrad())
					}
					return nil
				}, cgotorch.CaptureOptions{})
				if err != nil {
					b.Fatal(err)
				}
				defer graph.Close()
				mark := func() *cgotorch.Event {
					e, err := stream.RecordTiming()
					if err != nil {
						b.Fatal(err)
					}
					return e
				}
				launch := func(n int) {
					for range n {
						if err := graph.Launch(stream); err != nil {
							b.Fatal(err)
						}
					}
				}
				launch(2)
				start := mark()
				launch(b.N)
				end := mark()
				if err := stream.Synchronize(); err != nil {
					b.Fatal(err)
				}
				ms, err := end.Elapsed(start)
				if err != nil {
					b.Fatal(err)
				}
				ms /= float64(b.N) * 10
				b.ReportMetric(1000*ms, "us")
				b.ReportMetric(float64(elements*bytes)/ms/1e9, "TB/s")
				b.ReportMetric(0, "ns/op")
			})
		}
		run("copy", 6, func(x *cgotorch.Exec) { x.CopyInPlace(to, from) })
		run("sgd/libtorch", 20, func(x *cgotorch.Exec) {
			x.FusedSGDTensorLRInPlace(params, grads, momenta, rate, cgotorch.FusedSGDOptions{WeightDecay: 5e-5, Momentum: 0.9})
		})
		run("adamw/libtorch", 28, func(x *cgotorch.Exec) {
			x.FusedAdamWTensorLRInPlace(params, grads, momenta, squares, nil, steps, rate, cgotorch.FusedAdamOptions{WeightDecay: 0.1})
		})
		run("to-half/libtorch", 6, func(x *cgotorch.Exec) { x.ForeachCopyInPlace(halves, params) })
		run("to-float/libtorch", 6, func(x *cgotorch.Exec) { x.ForeachCopyInPlace(grads, halves) })
		for _, shape := range append([][]int{nil}, shapes...) {
			of := "shape=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ","), "[]")
			run("sgd/"+of, 20, func(x *cgotorch.Exec) {
				x.Call("streamtorch::fused_sgd_kernel_", params, grads, momenta, rate, 0.0, 5e-5, 0.9, 0.0, false, nil, shape)
			})
			if shape == nil || shape[1] <= 2 { // more takes long to compile
				run("adamw/"+of, 28, func(x *cgotorch.Exec) {
					x.Call("streamtorch::fused_adam_kernel_", params, grads, momenta, squares, steps, rate, 0.0, 0.9, 0.999, 0.1, 1e-8, nil, shape)
				})
			}
			run("to-half/"+of, 6, func(x *cgotorch.Exec) { x.Call("streamtorch::foreach_cast_kernel_", halves, params, shape) })
			run("to-float/"+of, 6, func(x *cgotorch.Exec) { x.Call("streamtorch::foreach_cast_kernel_", grads, halves, shape) })
		}
		for _, list := range append(tensors[:], halves, steps, []*cgotorch.Tensor{rate, from, to}) {
			for _, t := range list {
				t.Close()
			}
		}
	}
}
