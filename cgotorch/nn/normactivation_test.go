package nn_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// NormReLU, NormAddReLU and NormAddNormReLU have the results and the running statistics of their
// layers, in training, in evaluation, and with one norm in training and the other in evaluation.
// They count the batches.
func TestNormReLU(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		newNorm := func() *nn.BatchNorm2d {
			m := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{Momentum: cgotorch.Set(0.3), Eps: cgotorch.Set(1e-3)})
			t.Cleanup(func() { nn.Close(m) })
			return m
		}
		images := func() *cgotorch.Tensor {
			return x.Contiguous(x.Randn(cgotorch.Float32, 3, 8, 4, 5), cgotorch.ChannelsLast)
		}
		in, other := images(), images()
		for _, evaluate := range [][2]bool{{false, false}, {true, true}, {false, true}} {
			norms, apart := [2]*nn.BatchNorm2d{newNorm(), newNorm()}, [2]*nn.BatchNorm2d{newNorm(), newNorm()}
			for i := range norms {
				norms[i].Eval, apart[i].Eval = evaluate[i], evaluate[i]
			}
			got := []*cgotorch.Tensor{
				nn.NormReLU(x, norms[0], in), nn.NormAddReLU(x, norms[0], in, other), nn.NormAddNormReLU(x, norms[0], in, norms[1], other),
			}
			want := []*cgotorch.Tensor{
				x.ReLU(apart[0].Forward(x, in)), x.ReLU(x.Add(apart[0].Forward(x, in), other)),
				x.ReLU(x.Add(apart[0].Forward(x, in), apart[1].Forward(x, other))),
			}
			for i := range norms {
				got = append(got, norms[i].RunningMean, norms[i].RunningVar)
				want = append(want, apart[i].RunningMean, apart[i].RunningVar)
				got, err := cgotorch.HostSlice[int64](norms[i].NumBatchesTracked)
				if want := map[bool]int64{false: 3 - 2*int64(i), true: 0}[evaluate[i]]; err != nil || got[0] != want {
					t.Errorf("evaluate %v: norm %d has counted %v batches, want %v (%v)", evaluate, i, got, want, err)
				}
			}
			for i := range got {
				if off := x.Item(x.Max(x.Abs(x.Sub(got[i], want[i])))); !(off < 1e-5) {
					t.Errorf("evaluate %v: tensor %d is %v off", evaluate, i, off)
				}
			}
		}
	})
}

// A norm and a GELU in a Sequential have the results of the two layers, for both kinds of GELU.
func TestSequential_NormGELU(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		in := x.Contiguous(x.MulScalar(x.Randn(cgotorch.Float32, 3, 8, 4, 5), 2), cgotorch.ChannelsLast)
		for _, tanh := range []bool{false, true} {
			norm, gelu := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.GELU{Tanh: tanh}
			t.Cleanup(func() { nn.Close(norm) })
			got, want := nn.NewSequential(norm, gelu).Forward(x, in), gelu.Forward(x, norm.Forward(x, in))
			if off := x.Item(x.Max(x.Abs(x.Sub(got, want)))); !(off < 1e-5) {
				t.Errorf("tanh %v: the result is %v off", tanh, off)
			}
		}
	})
}

// A norm, a ReLU and a pooling in a Sequential have the results of the layers. The stem of a
// ResNet is one operator.
func TestSequential_NormReLUMaxPool(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		stem := nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), Padding: nn.Square(1)}
		for _, pool := range []nn.MaxPool2d{stem, {Kernel: nn.Square(3), Stride: nn.Square(2)}, {Kernel: nn.Square(2)}} {
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				in := x.Contiguous(x.Randn(cgotorch.Float32, 3, 8, 9, 7), cgotorch.ChannelsLast)
				norm, relu := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{}
				t.Cleanup(func() { nn.Close(norm) })
				got := nn.NewSequential(norm, relu, &pool).Forward(x, in)
				want := pool.Forward(x, relu.Forward(x, norm.Forward(x, in)))
				if off := x.Item(x.Max(x.Abs(x.Sub(got, want)))); !(off < 1e-5) {
					t.Errorf("%v: the result is %v off", pool, off)
				}
			})
			err := torchtest.TryDo(t, d, func(x *cgotorch.Exec) {
				norm := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})
				defer nn.Close(norm)
				nn.NewSequential(norm, &nn.ReLU{}, &pool).Forward(x, x.Zeros(cgotorch.Int64, 3, 8, 9, 7))
			})
			operator := "streamtorch::batch_norm_act("
			if pool == stem {
				operator = "streamtorch::batch_norm_relu_max_pool("
			}
			torchtest.WantError(t, err, nil, operator)
		}
	})
}

// NormReLU refuses an input with one value in each channel, because one value has no variance.
// The layer BatchNorm2d refuses this input too.
func TestNormReLU_Refuses(t *testing.T) {
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})
		t.Cleanup(func() { nn.Close(m) })
		nn.NormReLU(x, m, x.Ones(cgotorch.Float32, 1, 8, 1, 1))
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "one value per channel")
}
