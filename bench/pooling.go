package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchPool compares pooling without a gradient with LibTorch's operators, captured, for the shapes of GoogLeNet, Inception-v3 and ResNet, and for
// some that suit the kernel less.
func benchPool(c *config, emit func(row)) error {
	const calls = 20 // in a graph
	for _, p := range []struct {
		op             string
		channels, size int64
		kernel, stride int64
		padding        int64
		batches        []int64
	}{
		{"max_pool2d", 64, 112, 3, 2, 1, []int64{1, 8, 128}},
		{"max_pool2d", 480, 14, 3, 1, 1, []int64{1, 8, 128}},
		{"max_pool2d", 832, 7, 3, 1, 1, []int64{1, 8}},
		{"max_pool2d", 512, 32, 2, 2, 0, []int64{1, 8, 128}},
		{"max_pool2d", 30, 32, 3, 2, 1, []int64{1, 8, 128}},
		{"max_pool2d", 64, 32, 7, 3, 3, []int64{8}},
		{"avg_pool2d", 288, 35, 3, 1, 1, []int64{1, 8, 128}},
		{"avg_pool2d", 2048, 8, 3, 1, 1, []int64{1, 8, 128}},
	} {
		if c.brief {
			p.batches = []int64{1}
		}
		for _, batch := range p.batches {
			dtype := c.dtype()
			var in *cgotorch.Tensor
			if err := cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
				in = x.Keep(x.Contiguous(x.To(x.Randn(cgotorch.Float32, batch, p.channels, p.size, p.size), dtype), cgotorch.ChannelsLast))
				return nil
			}); err != nil {
				return err
			}
			defer in.Close()
			square := func(n int64) []int64 { return []int64{n, n} }
			var sides []side
			for _, library := range []string{"streamtorch", "aten"} {
				w, err := newCapturedWork(c, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
					var out *cgotorch.Tensor
					for range calls {
						arguments := []any{in[0], square(p.kernel), square(p.stride), square(p.padding)}
						if p.op == "max_pool2d" {
							arguments = append(arguments, square(1))
						}
						out = x.NoGrad().Call(library+"::"+p.op, append(arguments, false)...)[0].(*cgotorch.Tensor)
					}
					return []*cgotorch.Tensor{out}
				}, cgotorch.CapturedOptions{InPlace: true}, 6, in)
				defer w.close()
				if err != nil {
					return err
				}
				sides = append(sides, func() (float64, error) {
					us, err := w.side(c.or(1, 20))()
					return us / calls, err
				})
			}
			values, err := interleave(c.roundsOr(5), sides...)
			if err != nil {
				return err
			}
			emit(against(fmt.Sprintf("pool/%s/%dx%dx%d/kernel=%d/stride=%d/batch=%d", p.op, p.channels, p.size, p.size, p.kernel, p.stride, batch),
				values[0].median(), "us", "LibTorch", values[1].median(), lower,
				fmt.Sprintf("a call, of %d in a graph; %v, channels last, no gradient; ours %v; peer %v; %s", calls, dtype, values[0], values[1], c.settings())))
		}
	}
	return nil
}
