package pt2_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Fused programs call operators of this library, and their results are those of LibTorch's.
func TestLoad_FusedKernels(t *testing.T) {
	torchtest.CheckLeaks(t)
	const none = "" // no change, so no report
	const norm, mean = "own kernels for layer norms: 1", "means of channels: 1"
	for name, c := range map[string]struct {
		nodes string // m is a tensor [4, 2], and i is [1, 2, 2, 2]; the result is named add
		done  string // the end of Report
	}{
		"sum and norm":                  {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", "own kernels for 0 pools, 1 layer norms of sums, 0 products with channels"},
		"sum that nobody else reads":    {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;add = relu n", "own kernels for 0 pools, 1 layer norms of sums, 0 products with channels"},
		"two norms of one sum":          {"s = add.Tensor m x;n = layer_norm s normalized_shape=2,;k = layer_norm s normalized_shape=2,;add = add.Tensor n k", "own kernels for 0 pools, 1 layer norms of sums, 0 products with channels; " + norm},
		"norm over two dimensions":      {"s = add.Tensor m x;n = layer_norm s normalized_shape=4,2;add = add.Tensor n s", none},
		"norm of no sum":                {"n = layer_norm m normalized_shape=2,;add = add.Tensor n m", norm},
		"sum with a factor":             {"s = add.Tensor m x alpha=2;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", norm},
		"sum written before the norm":   {"s = add.Tensor m x;w = add_.Tensor s x;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", norm},
		"weight made behind the sum":    {"s = add.Tensor m x;w = select.int m dim=0 index=1;n = layer_norm s normalized_shape=2, weight=@w;add = add.Tensor n s", norm},
		"weight made before the sum":    {"w = select.int m dim=0 index=1;s = add.Tensor m x;n = layer_norm s normalized_shape=2, weight=@w;add = add.Tensor n s", "own kernels for 0 pools, 1 layer norms of sums, 0 products with channels"},
		"pools":                         {"p = max_pool2d i kernel_size=2,2;q = avg_pool2d i kernel_size=2,2;add = add.Tensor p q", "own kernels for 2 pools, 0 layer norms of sums, 0 products with channels"},
		"factors of channels":           {"a = mean.dim i dim=2,3 keepdim=true;g = sigmoid a;add = mul.Tensor g i", "own kernels for 0 pools, 0 layer norms of sums, 1 products with channels; " + mean},
		"factors of channels, behind":   {"a = mean.dim i dim=2,3 keepdim=true;g = hardsigmoid a;add = mul.Tensor i g", "own kernels for 0 pools, 0 layer norms of sums, 1 products with channels; " + mean},
		"factors of elements":           {"g = sigmoid m;add = mul.Tensor g m", "own kernels for 0 pools, 0 layer norms of sums, 1 products with channels"},
		"sum of a product":              {"p = mul.Tensor m x;add = add.Tensor x p", "1 sums took a product in"},
		"product written by the sum":    {"p = mul.Tensor m x;add = add_.Tensor p x", "1 sums took a product in"},
		"sum written with a product":    {"p = mul.Tensor m x;r = clone x;w = add_.Tensor r p;add = add.Tensor r w", none},
		"product that others read":      {"p = mul.Tensor m x;s = add.Tensor x p;add = add.Tensor p s", none},
		"sum of a product and a sum":    {"p = mul.Tensor m x;s = add.Tensor x p alpha=2;add = relu s", none},
		"product of integers":           {"k = sum.dim_IntList m dim=1, dtype=5;p = mul.Tensor k k;add = add.Tensor k p", "1 sums took a product in"},
		"written as out between":        {"p = mul.Tensor m x;w = mul.out m m out=m;add = add.Tensor x p", none},
		"ReLU behind such a write":      {"h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;r = clone i;c = conv2d r weight=@k;w = mul.out r r out=r;add = relu c", none},
		"moments written between":       {"s = select.int x dim=0 index=0;a = clone s;v = exp s;p = mul.Tensor a s;n = batch_norm i weight=@s bias=@s running_mean=@a running_var=@v training=true momentum=0.5 eps=0.5 cudnn_enabled=true;add = add.Tensor s p", none},
		"evaluation between":            {"s = select.int x dim=0 index=0;a = clone s;v = exp s;p = mul.Tensor a s;n = batch_norm i weight=@s bias=@s running_mean=@a running_var=@v training=false momentum=0.5 eps=0.5 cudnn_enabled=true;add = add.Tensor s p", "1 sums took a product in"},
		"no write between":              {"p = mul.Tensor m x;b = gt.Scalar m other=1;w = __and__.Tensor b b;add = add.Tensor x p", "1 sums took a product in"},
		"norm of a sum with a size":     {"#k = sym_size.int m dim=0;s = add.Tensor m #k;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", norm},
		"sum with a product of sizes":   {"#k = sym_size.int m dim=0;p = mul.Tensor m #k;add = add.Tensor x p", none},
		"ReLU of a sum with a size":     {"h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;c = conv2d i weight=@k;#z = sym_size.int m dim=0;s = add.Tensor c #z;add = relu s", none},
		"norm of a scalar and rows":     {"z = mean m;s = add.Tensor z m;n = layer_norm s normalized_shape=2,;add = add.Tensor n s", "own kernels for 0 pools, 1 layer norms of sums, 0 products with channels"},
		"half product, float added":     {"h = _to_copy m dtype=5;p = mul.Tensor h h;s = add_.Tensor p m;add = relu s", "1 sums took a product in"},
		"half convolution, float added": {"h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;l = _to_copy k dtype=5;j = _to_copy i dtype=5;c = conv2d j weight=@l;s = add_.Tensor c i;add = relu s", none},
		"sizes given to a graph":        {"#k = sym_size.int m dim=0;b = any m;[add] = higher_order/cond b graph=sized graph=sized list=m,k", none},
		"other factors":                 {"a = mean.dim i dim=2,3 keepdim=true;g = relu a;add = mul.Tensor g i", mean},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pt2test.Entries()
			changed["models/model.json"] = withNodes(append([]string{"m = relu x", "i = reshape x shape=1,2,2,2"}, strings.Split(c.nodes, ";")...)...)
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.Do(t, d, func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					in := cgotorch.FromSlice(x, []float32{1, -2, 3, 4, -5, 6, 7, 8}, 4, 2)
					var results [2]*cgotorch.Tensor
					for k, fuse := range []bool{false, true} {
						p, err := load(x, pt2test.Archive(t, changed), pt2.Options{Fuse: fuse})
						if err != nil {
							return err
						}
						defer p.Close()
						results[k] = p.Forward(x, in)
						if _, done, _ := strings.Cut(p.Report(), "left out; "); done != map[bool]string{true: c.done}[fuse] {
							t.Errorf("fused %v: got %q, want %q", fuse, done, c.done)
						}
					}
					if far := x.Item(x.Max(x.Abs(x.Sub(results[1], results[0])))); !(far <= 1e-5) || results[0].String() != results[1].String() {
						t.Errorf("%v and %v differ by %g", results[1], results[0], far)
					}
					return nil
				})
			})
		})
	}
}

// Programs that are fused for CUDA give the results of the plain ones. Here the operators run on
// the CPU.
func TestLoad_FusedForCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	const heads = "q = reshape x shape=2,1,2,2;s = mul.Tensor q other=0.5;k = transpose.int q dim0=-2 dim1=-1;p = matmul s k;"
	const bias = "z = full size=1,1,2,2, fill_value=0.25;"
	for name, c := range map[string]struct {
		nodes string // m is a tensor [4, 2], and i is [1, 2, 2, 2]; the result is named add
		done  string // a part of Report
	}{
		"windows":                     {heads + bias + "b = add.Tensor p z;f = softmax.int b dim=-1;add = matmul f q", "attentions in windows: 1"},
		"windows with masks":          {heads + bias + "b = add.Tensor p z;v = reshape b shape=1,2,1,2,2;h = ones size=1,2,1,2,2;w = add.Tensor v h;u = reshape w shape=2,1,2,2;f = softmax.int u dim=-1;add = matmul f q", "attentions in windows: 1"},
		"a mask of other windows":     {heads + bias + "b = add.Tensor p z;v = reshape b shape=1,1,2,2,2;h = ones size=1,1,2,2,2;w = add.Tensor v h;u = reshape w shape=2,1,2,2;f = softmax.int u dim=-1;add = matmul f q", "attentions in windows: 1"},
		"a bias of other windows":     {heads + "z = full size=2,1,2,2, fill_value=0.25;b = add.Tensor p z;f = softmax.int b dim=-1;add = matmul f q", "attentions in windows: 1"},
		"a softmax of other columns":  {heads + bias + "b = add.Tensor p z;f = softmax.int b dim=-2;add = matmul f q", "steps computed once: 1"},
		"scores that others read":     {heads + bias + "b = add.Tensor p z;f = softmax.int b dim=-1;o = matmul f q;add = add.Tensor o p", "steps computed once: 1"},
		"a bias of the input":         {heads + "z = sigmoid q;b = add.Tensor p z;f = softmax.int b dim=-1;add = matmul f q", ""},
		"a mask with gaps":            {"q = reshape x shape=1,1,4,2;n = full size=4,1, fill_value=1;g = gt.Scalar n other=0;e = expand g size=4,4;add = scaled_dot_product_attention q q q attn_mask=@e", "attentions with a mask made dense: 1"},
		"two attentions, one mask":    {"q = reshape x shape=1,1,4,2;n = reshape m shape=8,;r = narrow n dim=0 start=0 length=4;t = reshape r shape=4,1;g = gt.Scalar t other=-100;e = expand g size=4,4;o = scaled_dot_product_attention q q q attn_mask=@e;add = scaled_dot_product_attention o q q attn_mask=@e", "attentions with a mask made dense: 2"},
		"a linear layer with gaps":    {"q = reshape x shape=2,2,2;k = transpose.int q dim0=0 dim1=1;w = reshape m shape=4,2;add = linear k w", ""},
		"a layer and its GELU":        {"w = reshape m shape=4,2;b = select.int m dim=1 index=0;l = linear x w bias=@b;g = gelu l;add = gelu g", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"a layer that others read":    {"w = reshape m shape=4,2;b = select.int m dim=1 index=0;l = linear x w bias=@b;g = gelu l;add = add.Tensor g l", ""},
		"a layer of one row":          {"w = reshape m shape=4,2;b = select.int m dim=1 index=0;r = select.int x dim=0 index=0;l = linear r w bias=@b;add = silu_ l", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"a layer and its scale":       {"w = narrow m dim=0 start=0 length=2;b = select.int m dim=0 index=1;p = permute i dims=0,2,3,1;l = linear p w bias=@b;q = permute l dims=0,3,1,2;g = full size=2,1,1, fill_value=3;s = mul.Tensor g q;add = add.Tensor s i", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"a layer and another scale":   {"w = narrow m dim=0 start=0 length=2;b = select.int m dim=0 index=1;p = permute i dims=0,2,3,1;l = linear p w bias=@b;q = permute l dims=0,3,1,2;s = mul.Tensor q i;add = add.Tensor i s", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"a layer of halves, a float":  {"w = narrow m dim=0 start=0 length=2;b = select.int m dim=0 index=1;k = _to_copy w dtype=5;c = _to_copy b dtype=5;h = _to_copy i dtype=5;p = permute h dims=0,2,3,1;l = linear p k bias=@c;q = permute l dims=0,3,1,2;g = full size=2,1,1, fill_value=3;e = _to_copy g dtype=5;s = mul.Tensor e q;add = add.Tensor i s", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"one number for all channels": {"w = reshape m shape=4,2;s = select.int m dim=1 index=0;b = narrow s dim=0 start=2 length=1;l = linear x w bias=@b;add = gelu l", "biases of linear layers in the kernel behind them, if there are many rows: 1"},
		"a scale of rows":             {"w = narrow m dim=0 start=0 length=2;b = select.int m dim=0 index=1;l = linear i w bias=@b;g = full size=2,1,1, fill_value=3;s = mul.Tensor l g;add = add.Tensor i s", "1 sums took a product in"},
		"a sigmoid times a number":    {"s = sigmoid m;p = mul.Tensor s other=16;add = add.Tensor p x", ""},
		"squeeze and excitation":      {"a = mean.dim i dim=2,3 keepdim=true;h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;c = conv2d a weight=@k;r = silu c;d = conv2d r weight=@k;s = sigmoid d;add = mul.Tensor s i", "squeezes and excitations: 1"},
		"squeeze with a ReLU":         {"a = mean.dim i dim=-1,-2 keepdim=true;h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;c = conv2d a weight=@k;r = relu_ c;d = conv2d r weight=@k;s = sigmoid d;add = mul.Tensor i s", "squeezes and excitations: 1"},
		"squeeze of other images":     {"o = relu i;a = mean.dim o dim=2,3 keepdim=true;h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;c = conv2d a weight=@k;r = silu c;d = conv2d r weight=@k;s = sigmoid d;add = mul.Tensor s i", "convolutions of one pixel as linear layers: 2"},
		"images written in between":   {"o = clone i;a = mean.dim o dim=2,3 keepdim=true;h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;c = conv2d a weight=@k;r = silu c;w = add_.Tensor o o;d = conv2d r weight=@k;s = sigmoid d;add = mul.Tensor s o", "convolutions of one pixel as linear layers: 2"},
		"a bias behind channels":      {"h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;b = select.int m dim=0 index=1;c = conv2d i weight=@k bias=@b;p = permute c dims=0,2,3,1;add = layer_norm p normalized_shape=2,", "biases of convolutions in the layer norms behind them: 1"},
		"a bias that others read":     {"h = narrow m dim=0 start=0 length=2;k = reshape h shape=2,2,1,1;b = select.int m dim=0 index=1;c = conv2d i weight=@k bias=@b;p = permute c dims=0,2,3,1;n = layer_norm p normalized_shape=2,;add = add.Tensor n p", "own kernels for layer norms: 1"},
		"a layer scale":               {"g = full size=2,1,1, fill_value=3;p = mul.Tensor g i;add = add.Tensor i p", "1 sums took a product in"},
		"constants":                   {"a = full size=4,2, fill_value=2.5;b = mul.Tensor a a;add = add.Tensor x b", "steps computed once: 2"},
		"constants like the input":    {"a = new_zeros x size=4,2;s = select.int a dim=0 index=1;w = fill_.Scalar s value=3;add = add.Tensor x a", "steps computed once: 3"},
		"a constant that is written":  {"a = full size=4,2, fill_value=2.5;w = add_.Tensor a x;add = add.Tensor x a", ""},
		"written after a reader":      {"a = full size=4,2, fill_value=2.5;b = add.Tensor x a;w = fill_.Scalar a value=3;add = add.Tensor b a", ""},
		"a constant that is a result": {"add = full size=4,2, fill_value=2.5", ""},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pt2test.Entries()
			changed["models/model.json"] = withNodes(append([]string{"m = relu x", "i = reshape x shape=1,2,2,2"}, strings.Split(c.nodes, ";")...)...)
			changed["models/model.json"] = strings.Replace(changed["models/model.json"], `"tensor_values": {`, `"tensor_values": {"a": {"dtype": 7, "layout": 7}, `, 1)
			data := pt2test.Archive(t, changed)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				in := cgotorch.FromSlice(x, []float32{1, -2, 3, 4, -5, 6, 7, 8}, 4, 2)
				plain, err := load(x, data, pt2.Options{})
				if err != nil {
					return err
				}
				defer plain.Close()
				want := plain.Forward(x, in)
				for _, rows := range []int64{1 << 40, 1} { // 1: each bias is postponed
					fused, err := pt2.LoadFusedForCUDA(x, bytes.NewReader(data), int64(len(data)), rows, pt2.Options{})
					if err != nil {
						return err
					}
					defer fused.Close()
					if !strings.Contains(fused.Report(), c.done) {
						t.Errorf("got %q, want %q in it", fused.Report(), c.done)
					}
					fused.Forward(x, in)
					got := fused.Forward(x, in)
					if far := x.Item(x.Max(x.Abs(x.Sub(got, want)))); !(far <= 1e-5) || fmt.Sprint(got.Shape()) != fmt.Sprint(want.Shape()) {
						t.Errorf("%v is %g off %v", got, far, want)
					}
				}
				return nil
			})
		})
	}
}

// A fused program holds no weight and no constant that only folded steps have read.
func TestLoad_FusedConstants_Freed(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	changed["models/model.json"] = withNodes("d = mul.Tensor c_c c_c", "s = add.Tensor x d", "k = add.Tensor p_b d", "add = add.Tensor s k")
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var p *pt2.Program
		before := cgotorch.LiveHandles()["tensor"]
		torchtest.Do(t, d, func(x *cgotorch.Exec) (err error) {
			p, err = load(x, pt2test.Archive(t, changed), pt2.Options{Fuse: true})
			return err
		})
		t.Cleanup(func() { p.Close() })
		if got := cgotorch.LiveHandles()["tensor"] - before; got != 2 { // d and k
			t.Errorf("the program holds %d tensors, want 2", got)
		}
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			torchtest.Equal(t, x, p.Forward(x, x.Zeros(cgotorch.Float32, 2, 2)), []float32{1.5, 0, 1.5, 0}, 2, 2)
		})
	})
}

// What depends on a buffer that each run replaces is computed in each run.
func TestLoad_FusedBuffers(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	text := withNodes("d = mul.Tensor p_b p_b", "k = add.Tensor p_b d", "s = sum d", "add = add.Tensor x s")
	for old, by := range map[string]string{
		`{"parameter": {"arg": {"name": "p_b"}, "parameter_name": "fc.bias"}}`: `{"buffer": {"arg": {"name": "p_b"}, "buffer_name": "fc.bias", "persistent": true}}`,
		`"output_specs": [`: `"output_specs": [{"buffer_mutation": {"arg": {"name": "k"}, "buffer_name": "fc.bias"}}, `,
		`"outputs": [{"as_tensor": {"name": "add"}}],
   "nodes"`: `"outputs": [{"as_tensor": {"name": "k"}}, {"as_tensor": {"name": "add"}}],
   "nodes"`,
	} {
		if !strings.Contains(text, old) {
			t.Fatalf("the model lacks %s", old)
		}
		text = strings.Replace(text, old, by, 1)
	}
	changed["models/model.json"] = text
	data := pt2test.Archive(t, changed)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		var sums [2][]float64
		for k, fuse := range []bool{false, true} {
			p, err := load(x, data, pt2.Options{Fuse: fuse})
			if err != nil {
				return err
			}
			defer p.Close()
			for range 3 {
				sums[k] = append(sums[k], x.Item(x.Sum(p.Forward(x, x.Zeros(cgotorch.Float32, 4, 2)))))
			}
		}
		if fmt.Sprint(sums[0]) != fmt.Sprint(sums[1]) || sums[0][0] == sums[0][1] {
			t.Errorf("got %v, want %v", sums[1], sums[0])
		}
		return nil
	})
}

// On CUDA a batch norm goes into the activation or the sum behind it, unless cuDNN puts both into
// the convolution. Here the operators run on the CPU.
func TestLoad_FusedNormActivations(t *testing.T) {
	torchtest.CheckLeaks(t)
	changed := pt2test.Entries()
	inputs, specs, table := "", "", strings.TrimSuffix(strings.TrimSpace(pt2test.WeightTable), "}}")
	for _, w := range []struct{ name, sizes, strides, data string }{
		{"k", `{"as_int": 2}, {"as_int": 2}, {"as_int": 1}, {"as_int": 1}`, `{"as_int": 2}, {"as_int": 1}, {"as_int": 1}, {"as_int": 1}`, "data/weights/weight_0"},
		{"d", `{"as_int": 2}, {"as_int": 1}, {"as_int": 1}, {"as_int": 1}`, `{"as_int": 1}, {"as_int": 1}, {"as_int": 1}, {"as_int": 1}`, "data/constants/tensor_0"},
		{"g", `{"as_int": 2}`, `{"as_int": 1}`, "data/weights/weight_1"},
		{"h", `{"as_int": 2}`, `{"as_int": 1}`, "data/constants/tensor_0"},
		{"m", `{"as_int": 2}`, `{"as_int": 1}`, "data/weights/weight_1"},
		{"v", `{"as_int": 2}`, `{"as_int": 1}`, "data/constants/tensor_0"},
	} {
		inputs += fmt.Sprintf(`{"as_tensor": {"name": %q}}, `, "p_"+w.name)
		specs += fmt.Sprintf(`{"parameter": {"arg": {"name": %q}, "parameter_name": %q}}, `, "p_"+w.name, w.name)
		table += fmt.Sprintf(`, %q: {"path_name": %q, "is_param": true, "use_pickle": false, "tensor_meta": {"dtype": 7, "sizes": [%s],
			"requires_grad": true, "strides": [%s], "storage_offset": {"as_int": 0}, "layout": 7}}`, w.name, w.name, w.sizes, w.strides)
		changed["data/weights/"+w.name] = changed[w.data]
	}
	changed["data/weights/model_weights_config.json"] = table + "}}"
	wider := strings.Replace(strings.Replace(pt2test.Model, `"inputs": [{"as_tensor": {"name": "p_w"}}`, `"inputs": [`+inputs+`{"as_tensor": {"name": "p_w"}}`, 1),
		`"input_specs": [`, `"input_specs": [`+specs, 1)
	head, tail, _ := strings.Cut(wider, `"nodes": [`)
	_, tail, _ = strings.Cut(tail, "],\n   \"tensor_values\"")
	const folded, taken = "1 of 1 convolutions took a batch norm in", "0 of 1 convolutions took a batch norm in, 0 a ReLU, 0 a sum; 0 dropouts left out; 1 batch norms took an activation or a sum in"
	const norm = " running_mean=@p_m running_var=@p_v training=false momentum=0.1 eps=0.5 cudnn_enabled=true;"
	for name, c := range map[string]struct{ nodes, report string }{
		"silu":                       {"add = silu n", taken},
		"relu6":                      {"add = hardtanh n min_val=0 max_val=6", taken},
		"hardswish":                  {"add = hardswish n", taken},
		"hardtanh":                   {"add = hardtanh n min_val=0 max_val=1", folded},
		"gelu":                       {"add = gelu n", taken},
		"relu":                       {"add = relu n", folded},
		"sum":                        {"add = add.Tensor n i", taken},
		"sum, behind":                {"add = add.Tensor i n", taken},
		"sum in place":               {"add = add_.Tensor n i", taken},
		"sum into another tensor":    {"r = clone i;add = add_.Tensor r n", folded},
		"sum and relu":               {"s = add.Tensor n i;add = relu s", folded},
		"sum with a factor":          {"add = add.Tensor n i alpha=2", folded},
		"two readers":                {"s = silu n;add = add.Tensor s n", folded},
		"a write before":             {"r = clone i;w = relu_ r;s = silu n;add = add.Tensor s w", folded},
		"relu of groups":             {"add = relu n", taken},
		"silu of groups":             {"add = silu n", taken},
		"sum and relu of two groups": {"s = add.Tensor n i;add = relu s", folded},
	} {
		t.Run(name, func(t *testing.T) {
			convolution := "c = conv2d i weight=@p_k;"
			if strings.Contains(name, "groups") {
				convolution = "c = conv2d i weight=@p_d groups=2;"
			}
			text := "i = reshape x shape=1,2,2,2;" + convolution + "n = batch_norm c weight=@p_g bias=@p_h" + norm + c.nodes
			changed["models/model.json"] = head + `"nodes": [` + lines(strings.Split(text, ";")...) + "],\n   \"tensor_values\"" + tail
			data := pt2test.Archive(t, changed)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				in := cgotorch.FromSlice(x, []float32{1, -2, 3, 4, -5, 6, 7, 8}, 4, 2)
				for o, most := range map[pt2.Options]float64{{}: 1e-5, {DType: cgotorch.BFloat16}: 0.15} {
					plain, err := load(x, data, o)
					if err != nil {
						return err
					}
					defer plain.Close()
					fused, err := pt2.LoadFusedForCUDA(x, bytes.NewReader(data), int64(len(data)), 0, o)
					if err != nil {
						return err
					}
					defer fused.Close()
					if !strings.HasPrefix(fused.Report(), c.report) {
						t.Errorf("got %q, want %q", fused.Report(), c.report)
					}
					want := plain.Forward(x, in)
					if far := x.Item(x.Max(x.Abs(x.Sub(fused.Forward(x, in), want)))); !(far <= most) {
						t.Errorf("%v: the results differ by %g of %v", o, far, x.Format(want))
					}
				}
				return nil
			})
		})
	}
}
