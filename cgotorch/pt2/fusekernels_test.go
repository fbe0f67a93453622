package pt2_test

import (
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Fused programs call operators of this library, and their results are those of LibTorch's.
func TestLoad_FusedKernels(t *testing.T) {
	torchtest.CheckLeaks(t)
	head, tail, _ := strings.Cut(model, `"nodes": [`)
	_, tail, _ = strings.Cut(tail, "],\n   \"tensor_values\"")
	const none = "" // no change, so no report
	for name, c := range map[string]struct {
		nodes string // m is a tensor [4, 2], and i is [1, 2, 2, 2]; the result is named add
		done  string // what Report says of kernels
	}{
		"sum and norm":                {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", "0 pools, 1 layer norms of sums, 0 products with channels"},
		"sum that nobody else reads":  {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;add = relu n", "0 pools, 1 layer norms of sums, 0 products with channels"},
		"two norms of one sum":        {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;k = layer_norm s normalized_shape=2,;add = add.Tensor n k", "0 pools, 1 layer norms of sums, 0 products with channels"},
		"norm over two dimensions":    {"s = add.Tensor m x;n = layer_norm s normalized_shape=4,2;add = add.Tensor n s", none},
		"sum with a factor":           {"s = add.Tensor m x alpha=2;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", none},
		"sum written before the norm": {"s = add.Tensor m x;w = add_.Tensor s x;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", none},
		"weight made behind the sum":  {"s = add.Tensor m x;w = select.int m dim=0 index=1;n = layer_norm s normalized_shape=2, weight=@w;add = add.Tensor n s", none},
		"weight made before the sum":  {"w = select.int m dim=0 index=1;s = add.Tensor m x;n = layer_norm s normalized_shape=2, weight=@w;add = add.Tensor n s", "0 pools, 1 layer norms of sums, 0 products with channels"},
		"pools":                       {"p = max_pool2d i kernel_size=2,2;q = avg_pool2d i kernel_size=2,2;add = add.Tensor p q", "2 pools, 0 layer norms of sums, 0 products with channels"},
		"factors of channels":         {"a = mean.dim i dim=2,3 keepdim=true;g = sigmoid a;add = mul.Tensor g i", "0 pools, 0 layer norms of sums, 1 products with channels"},
		"factors of channels, behind": {"a = mean.dim i dim=2,3 keepdim=true;g = hardsigmoid a;add = mul.Tensor i g", "0 pools, 0 layer norms of sums, 1 products with channels"},
		"factors of elements":         {"g = sigmoid m;add = mul.Tensor g m", "0 pools, 0 layer norms of sums, 1 products with channels"},
		"other factors":               {"a = mean.dim i dim=2,3 keepdim=true;g = relu a;add = mul.Tensor g i", none},
	} {
		t.Run(name, func(t *testing.T) {
			changed := entries()
			changed["models/model.json"] = head + `"nodes": [` + lines(append([]string{"m = relu x", "i = reshape x shape=1,2,2,2"}, strings.Split(c.nodes, ";")...)...) + "],\n   \"tensor_values\"" + tail
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.Do(t, d, func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					in := cgotorch.FromSlice(x, []float32{1, -2, 3, 4, -5, 6, 7, 8}, 4, 2)
					var results [2]*cgotorch.Tensor
					for k, fuse := range []bool{false, true} {
						p, err := load(x, archive(t, changed), pt2.Options{Fuse: fuse})
						if err != nil {
							return err
						}
						defer p.Close()
						results[k] = p.Forward(x, in)
						if _, done, _ := strings.Cut(p.Report(), "own kernels for "); done != map[bool]string{true: c.done}[fuse] {
							t.Errorf("fused %v: got %q, want %q", fuse, done, c.done)
						}
					}
					want := cgotorch.ToSlice[float32](x, results[0])
					if d.IsCUDA() { // the kernels round otherwise
						if far := x.Item(x.Max(x.Abs(x.Sub(results[1], results[0])))); far > 1e-5 {
							t.Errorf("the results differ by %g", far)
						}
						return nil
					}
					torchtest.Equal(t, x, results[1], want, results[0].Shape()...)
					return nil
				})
			})
		})
	}
}
