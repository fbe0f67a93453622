package nn_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// SetFused puts a captured graph out of date, for each kind of layer that has kernels of its own.
// Graphs of the CPU call the layer at each launch.
func TestSetFused_CapturedGraph(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, d)
	var linear *nn.Linear
	var norm *nn.LayerNorm
	var attention *nn.MultiheadAttention
	var images *nn.BatchNorm2d
	var rows, batch *cgotorch.Tensor
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		linear, norm = nn.NewLinear(x, 8, 8, nn.LinearOptions{}), nn.NewLayerNorm(x, []int64{8}, nn.LayerNormOptions{})
		attention, images = nn.NewMultiheadAttention(x, 8, 2, nn.AttentionOptions{}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})
		rows, batch = x.Keep(x.Randn(cgotorch.Float32, 2, 4, 8)), x.Keep(x.Randn(cgotorch.Float32, 2, 8, 4, 4))
	})
	for name, c := range map[string]struct {
		module any
		run    func(x *cgotorch.Exec)
	}{
		"nn.Linear":             {linear, func(x *cgotorch.Exec) { linear.Forward(x, rows) }},
		"nn.LayerNorm":          {norm, func(x *cgotorch.Exec) { nn.AddLayerNorm(x, norm, rows, nil) }},
		"nn.MultiheadAttention": {attention, func(x *cgotorch.Exec) { attention.Forward(x, rows) }},
		"nn.BatchNorm2d":        {images, func(x *cgotorch.Exec) { images.Forward(x, batch) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := cgotorch.Must(s.Capture(func(x *cgotorch.Exec) error { c.run(x); return nil }, 0))
			defer g.Close()
			must.Do(t, g.Launch(s))
			nn.SetFused(c.module, false)
			torchtest.WantError(t, g.Launch(s), cgotorch.ErrStale, "SetFused has changed "+name)
		})
	}
	for _, m := range []any{linear, norm, attention, images} {
		nn.Close(m)
	}
	rows.Close()
	batch.Close()
}
