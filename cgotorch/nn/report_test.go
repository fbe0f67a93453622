package nn_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// KernelReport has a line for each norm, in the order of the Forward, and changes nothing in the
// module.
func TestKernelReport(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		d := x.Device()
		norm := func(channels int) *nn.BatchNorm2d { return nn.NewBatchNorm2d(x, channels, nn.BatchNormOptions{}) }
		conv := func(in, out int) *nn.Conv2d { return nn.NewConv2d(x, in, out, nn.Square(1), nn.Conv2dOptions{}) }
		off := norm(8)
		off.Unfused = true
		shortcut := norm(16)
		m := nn.NewSequential(norm(8), &nn.ReLU{}, off,
			&nn.Residual{Body: nn.NewSequential(conv(8, 16), norm(16)), Shortcut: nn.NewSequential(conv(8, 16), shortcut), Activation: &nn.ReLU{}},
			conv(16, 12), norm(12))
		defer nn.Close(m)
		nn.To(x, m, nn.ToOptions{ChannelsLast: true})
		in := x.Contiguous(x.Randn(cgotorch.Float32, 2, 8, 4, 4), cgotorch.ChannelsLast)
		before := values(x, shortcut.RunningMean)
		cuda, layout := "LibTorch, because the images are not on a CUDA device", "LibTorch, because the images are not on a CUDA device"
		want := []string{"0: " + cuda, "2: LibTorch, because Unfused is set", "3.body.1: " + cuda, "3.shortcut.1: " + cuda, "5: " + cuda}
		if d.IsCUDA() {
			layout = "LibTorch, because the images are not channels last"
			want = []string{"0: one kernel", "2: LibTorch, because Unfused is set", "3.body.1: one kernel", "3.shortcut.1: two kernels",
				"5: LibTorch, because the number of channels is not a multiple of 8, or too large"}
		}
		lines := func(m nn.Module, in *cgotorch.Tensor) []string {
			return strings.Split(strings.TrimSpace(nn.KernelReport(x, m, in)), "\n")
		}
		if got := lines(m, in); !slices.Equal(got, want) {
			t.Errorf("the report is %q, want %q", got, want)
		}
		if got := lines(m.Modules[0].Module, x.Contiguous(in, cgotorch.Contiguous)); !slices.Equal(got, []string{"norm: " + layout}) {
			t.Errorf("the report of a norm is %q, want that %s", got, layout)
		}
		counted, err := cgotorch.HostSlice[int64](shortcut.NumBatchesTracked)
		if err != nil || counted[0] != 0 || !slices.Equal(values(x, shortcut.RunningMean), before) {
			t.Error("the report has changed the running statistics")
		}
	})
}
