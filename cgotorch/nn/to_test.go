package nn_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestTo_DTypeAndFormat(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		conv := nn.NewConv2d(x, 2, 3, nn.Square(2), nn.Conv2dOptions{})
		norm := nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{})
		m := nn.NewSequential(conv, norm, conv)
		defer nn.Close(m)
		weight, bias := conv.Weight, conv.Bias

		nn.To(x, m, nn.ToOptions{})
		if conv.Weight != weight || weight.Closed() {
			t.Error("nothing was asked for, yet the weight is another tensor")
		}

		nn.To(x, m, nn.ToOptions{ChannelsLast: true})
		if got := conv.Weight.Strides(); got[1] != 1 {
			t.Errorf("the strides of the weight are %v, want channels last", got)
		}
		if !weight.Closed() || bias.Closed() || conv.Bias != bias {
			t.Error("the weight alone should have been replaced, and its old tensor closed")
		}

		nn.To(x, m, nn.ToOptions{DType: cgotorch.BFloat16})
		for _, n := range nn.State(m) {
			want := cgotorch.BFloat16
			if n.Name == "1.num_batches_tracked" {
				want = cgotorch.Int64
			}
			if got := n.Tensor.DType(); got != want {
				t.Errorf("%s is %v, want %v", n.Name, got, want)
			}
			if n.Tensor.RequiresGrad() == n.Buffer {
				t.Errorf("%s requires a gradient: %v", n.Name, n.Tensor.RequiresGrad())
			}
		}
		if got := conv.Weight.Strides(); got[1] != 1 {
			t.Errorf("the cast lost the memory format: strides %v", got)
		}
		m.Modules = m.Modules[:2]
		if got := m.Forward(x, x.Zeros(cgotorch.BFloat16, 1, 2, 4, 4)).DType(); got != cgotorch.BFloat16 {
			t.Errorf("the result is %v, want bfloat16", got)
		}
	})
}

func TestTo_Frozen(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(m)
		must.Do(t, m.Weight.SetRequiresGrad(false))
		nn.To(x, m, nn.ToOptions{DType: cgotorch.Float64})
		if m.Weight.RequiresGrad() || !m.Bias.RequiresGrad() {
			t.Errorf("the weight, which was frozen, and the bias require a gradient: %v, %v", m.Weight.RequiresGrad(), m.Bias.RequiresGrad())
		}
	})
}

func TestTo_FieldThatCannotBeSet(t *testing.T) {
	type holder struct{ Weight *cgotorch.Tensor }
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		h := holder{x.Keep(x.Zeros(cgotorch.Float32, 1))}
		defer h.Weight.Close()
		nn.To(x, h, nn.ToOptions{DType: cgotorch.Float64}) // h is not held by pointer
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "nn.To", "weight", "pointer")
}
