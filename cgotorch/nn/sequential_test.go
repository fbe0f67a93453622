package nn_test

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// onEachDevice is torchtest.ForEachDevice with deterministic operators.
func onEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	torchtest.ForEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		deterministicOnCUDA(t, d)
		test(t, d)
	})
}

func deterministicOnCUDA(t *testing.T, d cgotorch.Device) {
	t.Helper()
	if d.IsCUDA() {
		torchtest.Deterministic(t)
	}
}

// recomputing returns a network that does things which must happen only once in a training step. It
// changes buffers, draws random numbers, works in place and holds a second Sequential.
func recomputing(x *cgotorch.Exec, segments, inner int) *nn.Sequential {
	const channels = 16
	conv := func(in int) nn.Module {
		return nn.NewConv2d(x, in, channels, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1)})
	}
	norm := func(o nn.BatchNormOptions) nn.Module { return nn.NewBatchNorm2d(x, channels, o) }
	body := nn.NewSequential(conv(channels), norm(nn.BatchNormOptions{CumulativeAverage: true}), &nn.ReLU{}, &nn.Dropout{P: 0.3})
	body.Recompute = inner
	net := nn.NewSequential(
		conv(3), norm(nn.BatchNormOptions{}), &nn.ReLU{},
		&nn.Dropout{P: 0.5}, &nn.Residual{Body: body}, norm(nn.BatchNormOptions{NoStatistics: true}),
		conv(channels), &nn.Dropout{P: 0.2}, nn.NewSequential(norm(nn.BatchNormOptions{}), &nn.ReLU{InPlace: true}),
		&nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, nn.NewLinear(x, channels, 10, nn.LinearOptions{}))
	net.Recompute = segments
	return net
}

// train does three training steps. It returns the bits of the losses. For each step it also returns
// the bits of all gradients and state tensors.
func train(t *testing.T, d cgotorch.Device, autocast bool, segments, inner int) map[string][]byte {
	t.Helper()
	must.Do(t, cgotorch.Seed(3))
	seen := map[string][]byte{}
	torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
		see := func(name string, v *cgotorch.Tensor) {
			for _, f := range cgotorch.ToSlice[float32](x, x.To(v, cgotorch.Float32)) {
				seen[name] = fmt.Appendf(seen[name], "%08x", math.Float32bits(f))
			}
		}
		net := recomputing(x, segments, inner)
		defer nn.Close(net)
		sgd := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: nn.Parameters(net)}))
		defer sgd.Close()
		forward := x
		if autocast {
			forward = x.Autocast(cgotorch.BFloat16)
		}
		for step := range 3 {
			images := x.Randn(cgotorch.Float32, 4, 3, 12, 12)
			labels := cgotorch.FromSlice(x, []int64{1, 2, 3, 4})
			logits := net.Forward(forward, images)
			loss := nn.CrossEntropy(forward, logits, labels, nn.CrossEntropyOptions{})
			nn.ZeroGrad(net)
			x.Backward(loss)
			see(fmt.Sprint("loss ", step), loss)
			for _, n := range nn.State(net) {
				if g := n.Tensor.Grad(); g != nil {
					see(fmt.Sprintf("gradient of %s, step %d", n.Name, step), g)
				}
			}
			sgd.Step(x)
			for _, n := range nn.State(net) {
				see(fmt.Sprintf("%s, step %d", n.Name, step), n.Tensor)
			}
		}
		see("next random number", x.Randn(cgotorch.Float32, 1))
	})
	return seen
}

// Recomputed steps equal plain steps to the bit. Losses, gradients, weights, buffers and random
// numbers are compared.
func TestSequential_Recompute(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, autocast := range []bool{false, true} {
			want := train(t, d, autocast, 0, 0)
			for name := range want {
				if len(want[name]) == 0 {
					t.Errorf("%s is empty", name)
				}
			}
			train(t, d, autocast, 1, 0) // the first Recompute may start LibTorch's thread: see torchtest.ForEachDevice
			torchtest.CheckLeaks(t)
			for _, c := range [][2]int{{1, 0}, {2, 0}, {4, 0}, {100, 0}, {0, 1}, {4, 4}} {
				got := train(t, d, autocast, c[0], c[1])
				for name := range want {
					if string(got[name]) != string(want[name]) {
						t.Errorf("autocast %v, %v segments: %s differs", autocast, c, name)
					}
				}
				if len(got) != len(want) {
					t.Errorf("got %d values, want %d", len(got), len(want))
				}
			}
		}
	})
}

// With Recompute, a stack of layers keeps the results of one segment and the inputs of the other
// segments.
func TestSequential_Recompute_Memory(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if _, err := d.Memory(); err != nil {
			t.Fatal(err)
		}
		const layers, bytes = 16, 4 * 8 * 64 * 64 * 4
		peak := func(segments int) (most int64) {
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				var modules []nn.Module
				for range layers {
					modules = append(modules, nn.NewSequential(
						nn.NewConv2d(x, 8, 8, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1)}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{}))
				}
				net := nn.NewSequential(modules...)
				net.Recompute = segments
				defer nn.Close(net)
				for range 2 { // the first step also allocates memory of libraries
					in := x.Ones(cgotorch.Float32, 4, 8, 64, 64)
					cgotorch.Check(d.ResetPeakMemory())
					before := cgotorch.Must(d.Memory())
					x.Tidy(func() *cgotorch.Tensor {
						out := net.Forward(x, in)
						loss := x.Sum(out)
						out.Close()
						x.Backward(loss)
						return nil
					})
					after := cgotorch.Must(d.Memory())
					most = after.PeakAllocated - before.Allocated
					in.Close()
					nn.ZeroGrad(net)
				}
			})
			return most
		}
		plain, four := peak(0), peak(4)
		t.Logf("%d KiB, in 4 segments %d KiB", plain>>10, four>>10)
		// The plain step keeps two results of each layer, those of the convolution and of the ReLU. With
		// four segments, the step keeps the input of each segment and the results of one segment. Other
		// memory is equal in both cases.
		if plain-four < (2*layers-4-2*layers/4-4)*bytes {
			t.Errorf("a peak of %d bytes, in 4 segments %d; a layer's image has %d", plain, four, bytes)
		}
	})
}

func TestSequential_Recompute_Refused(t *testing.T) {
	in := func(x *cgotorch.Exec) *cgotorch.Tensor { return x.Ones(cgotorch.Float32, 2) }
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		(&nn.Sequential{Recompute: -1}).Forward(x, in(x))
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "nn.Sequential", "-1")
	err = torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		net := nn.NewSequential(nn.Func(addOne), &nn.ReLU{InPlace: true})
		net.Recompute = 2
		net.Forward(x, in(x))
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Exec.Recompute", "in place", "sequential_test.go")
}

func TestSequential_Recompute_NothingToDo(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := x.Ones(cgotorch.Float32, 2)
		before := cgotorch.LiveHandles()
		for _, s := range []*nn.Sequential{{Recompute: 2}, {Recompute: 2, Modules: []nn.Child{{Name: "0"}}}} {
			out := s.Forward(x, in)
			if out == in {
				t.Error("the result is the input's handle")
			}
			out.Close()
		}
		net := nn.NewSequential(nn.Func(addOne))
		net.Recompute = 1
		net.Forward(x.NoGrad(), in).Close()
		if got := cgotorch.LiveHandles(); !maps.Equal(got, before) {
			t.Errorf("handles %v, want %v", got, before)
		}
	})
}

// If the second run of a module fails, the error has the line where the program called the
// module.
func TestSequential_Recompute_Failure(t *testing.T) {
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		weight := x.Ones(cgotorch.Float32, 2, 2)
		must.Do(t, weight.SetRequiresGrad(true))
		linear := &nn.Linear{Weight: weight}
		net := nn.NewSequential(linear)
		net.Recompute = 1
		loss := x.Sum(net.Forward(x, x.Ones(cgotorch.Float32, 1, 2)))
		linear.Weight = x.Ones(cgotorch.Float32, 3, 3)
		x.Backward(loss)
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Exec.Backward(float32[])", "aten::linear(float32[1 2], float32[3 3]")
	var outer, inner *cgotorch.Error
	if !errors.As(err, &outer) || !errors.As(outer.Err, &inner) || !strings.Contains(inner.Caller, "sequential_test.go") || inner.Caller == outer.Caller {
		t.Errorf("got %v, want the line of Forward and that of Backward", err)
	}
}

// A nil pointer of a module's type is no module.
func TestSequential_NilPointers(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := x.Ones(cgotorch.Float32, 2, 3)
		var dropout *nn.Dropout
		torchtest.Equal(t, x, nn.NewSequential(dropout, &nn.ReLU{}).Forward(x, in), []float32{1, 1, 1, 1, 1, 1}, 2, 3)
		block := &nn.Residual{Body: &nn.ReLU{}, Shortcut: (*nn.Sequential)(nil), Activation: (*nn.ReLU)(nil)}
		torchtest.Equal(t, x, block.Forward(x, in), []float32{2, 2, 2, 2, 2, 2}, 2, 3)

		// A norm at the end runs as one operator with the sum and the activation.
		norm := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})
		defer nn.Close(norm)
		images := x.Randn(cgotorch.Float32, 2, 8, 3, 3)
		absent := &nn.Residual{Body: nn.NewSequential(norm), Shortcut: (*nn.Sequential)(nil), Activation: (*nn.ReLU)(nil)}
		none := &nn.Residual{Body: nn.NewSequential(norm)}
		if !x.Equal(absent.Forward(x, images), none.Forward(x, images)) {
			t.Error("a nil pointer changes the result")
		}
	})
}

func TestEmbeddingBag_EmptyBags(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewEmbeddingBag(x, 5, 2, nn.EmbeddingBagOptions{})
		defer nn.Close(m)
		torchtest.Equal(t, x, m.Forward(x, x.Zeros(cgotorch.Int64, 3, 0)), []float32{0, 0, 0, 0, 0, 0}, 3, 2)
	})
}

func TestFractionalMaxPool2d_NoSize(t *testing.T) {
	for _, m := range []*nn.FractionalMaxPool2d{{Kernel: nn.Square(2)}, {Kernel: nn.Square(2), Output: nn.Size{0, 3}}, {Kernel: nn.Square(2), Ratio: [2]float64{0.5, 1}}} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m.Forward(x, x.Randn(cgotorch.Float32, 1, 2, 8, 8))
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "nn.FractionalMaxPool2d")
	}
}
