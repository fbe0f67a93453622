package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"iter"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const fromPyTorch = "from_pytorch_test.go"

const pytorchHead = `<!-- Written by go test ./tests/docs -update from tests/docs/from_pytorch_test.go. Edit that file. -->

# From PyTorch

Each row says the same in both languages. A test compiles and runs every Go cell, and most results are compared with fixed
values. With ` + "`CGOTORCH_PEER`" + `, the path of a Python with torch 2.11, the test also runs the Python cells that need no GPU and no
files. It then compares their values too.

Three things differ everywhere:

- **x.** Operators are methods of an Exec, here always ` + "`x`" + `. It lives inside ` + "`stream.Do(func(x *cgotorch.Exec) error {...})`" + `. The
  Exec holds the stream, the device, the gradient mode and autocast. Nothing of it is global.
- **Errors.** An operator that fails ends the Do, and Do returns the error. So lines of operators need no ` + "`if err != nil`" + `.
  The cells below leave out the handling of other errors: they write ` + "`, err :=`" + `.
- **Lifetimes.** The Do frees the tensors that it made. ` + "`x.Keep(t)`" + ` hands one out, and its new owner closes it.

[docs/operators.md](operators.md) lists all operators by PyTorch's names. [docs/guide.md](guide.md) explains streams and lifetimes.
`

func TestFromPyTorch_Page(t *testing.T) {
	samePage(t, "from-pytorch.md", pytorchHead+table(rows(t, fromPyTorch), "| PyTorch | Go |", false))
}

// do runs a group of rows.
func do(t *testing.T, file string, body func(c *checks, x *cgotorch.Exec)) {
	t.Helper()
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) { body(newChecks(t, file, x), x) })
}

func TestFromPyTorch_Tensors(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		// Group: Tensors

		// PyTorch: a = torch.tensor([[1., 2.], [3., 4.]])
		a := cgotorch.FromRows(x, [][]float32{{1, 2}, {3, 4}})
		c.values(a, 1, 2, 3, 4)

		// PyTorch: b = torch.tensor([1, 2, 3])
		b := cgotorch.FromSlice(x, []int64{1, 2, 3})
		c.values(b, 1, 2, 3)

		// PyTorch: torch.tensor(2.5)
		scalar := x.Full(cgotorch.Float32, 2.5)
		c.values(scalar, 2.5)

		// PyTorch: torch.zeros(2, 3)
		zeros := x.Zeros(cgotorch.Float32, 2, 3)
		c.shape(zeros, 2, 3)

		// PyTorch: torch.ones_like(a)
		ones := x.OnesLike(a)
		c.values(ones, 1, 1, 1, 1)

		// PyTorch: torch.full((2,), 7.)
		sevens := x.Full(cgotorch.Float32, 7, 2)
		c.values(sevens, 7, 7)

		// PyTorch: torch.arange(0, 10, 2)
		even := x.Arange(cgotorch.Int64, 0, 10, 2)
		c.values(even, 0, 2, 4, 6, 8)

		// PyTorch: torch.linspace(0, 1, 5)
		line := x.Linspace(cgotorch.Float32, 0, 1, 5)
		c.values(line, 0, 0.25, 0.5, 0.75, 1)

		// PyTorch: torch.logspace(0, 2, 3)
		powers := x.Logspace(cgotorch.Float32, 0, 2, 3, 10)
		c.values(powers, 1, 10, 100)

		// PyTorch: torch.eye(2)
		eye := x.Eye(cgotorch.Float32, 2)
		c.values(eye, 1, 0, 0, 1)

		// PyTorch: torch.manual_seed(0)
		//      torch.rand(3)
		err := cgotorch.Seed(0)
		random := x.Rand(cgotorch.Float32, 3)
		// Remark: The same numbers as in PyTorch, on the same device.
		c.noError(err)
		c.values(random, 0.4963, 0.7682, 0.0885)

		// PyTorch: torch.randn(2)
		normal := x.Randn(cgotorch.Float32, 2)
		c.values(normal, 0.36434, 0.1344)

		// PyTorch: torch.randint(0, 10, (2, 2))
		dice := x.RandInt(cgotorch.Int64, 0, 10, 2, 2)
		c.shape(dice, 2, 2)

		// PyTorch: a.shape, a.ndim, a.numel()
		shape, dims, elements := a.Shape(), a.Dim(), a.Numel()
		c.is(shape[1] == 2 && dims == 2 && elements == 4)

		// PyTorch: a.dtype, a.device, a.stride()
		dtype, device, strides := a.DType(), a.Device(), a.Strides()
		c.is(dtype == cgotorch.Float32 && device == cgotorch.CPU && strides[0] == 2)

		// PyTorch: a.is_leaf
		leaf := x.Call("aten::is_leaf", a)[0].(bool)
		c.is(leaf)

		// PyTorch: a.to(torch.int64)
		whole := x.To(a, cgotorch.Int64)
		c.values(whole, 1, 2, 3, 4)

		// PyTorch: a.sum().item()
		sum := x.Item(x.Sum(a))
		// Remark: `x.Item` waits for the device.
		c.number(sum, 10)

		// PyTorch: b.tolist()
		list := cgotorch.ToSlice[int64](x, b)
		// Remark: Waits too. `ToRows` gives rows, `x.ReadAsync` does not wait.
		c.is(fmt.Sprint(list) == "[1 2 3]", list)

		// PyTorch: a.numpy()
		memory, err := cgotorch.HostSlice[float32](a)
		// Remark: The tensor's own memory, on the CPU.
		c.noError(err)
		c.is(memory[3] == 4)

		// Python: array = torch.arange(6.).numpy()
		// PyTorch: torch.from_numpy(array).view(2, 3)
		image := cgotorch.FromSlice(x, []float32{0, 1, 2, 3, 4, 5}, 2, 3)
		// Remark: A copy.
		c.shape(image, 2, 3)

		// PyTorch: print(a)
		text := fmt.Sprintln(a)
		// Remark: On a GPU `x.Format(a)`, which waits.
		c.is(strings.Contains(text, "1") && strings.Contains(text, "float32[2 2]"), text)

		// PyTorch: a.clone()
		copied := x.Clone(a)
		c.values(copied, 1, 2, 3, 4)

		// PyTorch: a.detach()
		detached := x.Detach(a)
		c.is(detached.SharesMemory(a))

		// PyTorch: del a
		err = copied.Close()
		// Remark: Optional: the end of the Do frees all.
		c.noError(err)
	})
}

func TestFromPyTorch_Indexing(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		a := cgotorch.FromSlice(x, []float32{0, 1, 2, 3, 4, 5}, 2, 3)

		// Group: Shapes and indexing

		// Python: a = torch.arange(6.).reshape(2, 3)
		// PyTorch: a.view(3, 2); a.reshape(3, -1)
		view, tall := x.View(a, 3, 2), x.Reshape(a, 3, -1)
		c.shape(tall, 3, 2)
		c.shape(view, 3, 2)

		// PyTorch: a.permute(1, 0)
		permuted := x.Permute(a, 1, 0)
		c.values(permuted, 0, 3, 1, 4, 2, 5)

		// PyTorch: a.T; a.transpose(0, 1)
		transposed := x.Transpose(a, 0, 1)
		c.values(transposed, 0, 3, 1, 4, 2, 5)

		// PyTorch: torch.flatten(a)
		flat := x.Flatten(a, 0, -1)
		c.shape(flat, 6)

		// PyTorch: a.unsqueeze(1)
		wider := x.Unsqueeze(a, 1)
		c.shape(wider, 2, 1, 3)

		// PyTorch: a.unsqueeze(1).squeeze(1)
		narrower := x.Squeeze(wider, 1)
		c.shape(narrower, 2, 3)

		// PyTorch: torch.zeros(1, 3).expand_as(a)
		expanded := x.Expand(x.Zeros(cgotorch.Float32, 1, 3), a.Shape()...)
		c.shape(expanded, 2, 3)

		// PyTorch: a.repeat(2, 1)
		repeated := x.Repeat(a, 2, 1)
		c.shape(repeated, 4, 3)

		// PyTorch: torch.cat([a, a], dim=0)
		joined := x.Cat([]*cgotorch.Tensor{a, a}, 0)
		c.shape(joined, 4, 3)

		// PyTorch: torch.stack([a, a])
		stacked := x.Stack([]*cgotorch.Tensor{a, a}, 0)
		c.shape(stacked, 2, 2, 3)

		// PyTorch: a.split(1, dim=0)[1]
		second := x.Split(a, 1, 0)[1]
		c.values(second, 3, 4, 5)

		// PyTorch: a[0]
		first := x.Select(a, 0, 0)
		c.values(first, 0, 1, 2)

		// PyTorch: a[:, -1]
		last := x.Select(a, 1, -1)
		c.values(last, 2, 5)

		// PyTorch: a[:, 1:3]
		middle := x.Slice(a, 1, cgotorch.SliceOptions{Start: 1, End: cgotorch.Set(3)})
		c.values(middle, 1, 2, 4, 5)

		// PyTorch: a[:, ::2]
		everySecond := x.Slice(a, 1, cgotorch.SliceOptions{Step: 2})
		c.values(everySecond, 0, 2, 3, 5)

		// PyTorch: a[a > 2]
		large := x.MaskedSelect(a, x.GtScalar(a, 2))
		// Remark: Waits on a GPU, because the result's shape depends on values.
		c.values(large, 3, 4, 5)

		// PyTorch: a[:, torch.tensor([2, 0])]
		columns := x.IndexSelect(a, 1, cgotorch.FromSlice(x, []int64{2, 0}))
		c.values(columns, 2, 0, 5, 3)

		// PyTorch: a[torch.tensor([1, 0]), torch.tensor([2, 2])]
		pairs := x.Index(a, []*cgotorch.Tensor{cgotorch.FromSlice(x, []int64{1, 0}), cgotorch.FromSlice(x, []int64{2, 2})})
		c.values(pairs, 5, 2)

		// PyTorch: a.gather(1, torch.tensor([[2], [0]]))
		picked := x.Gather(a, 1, cgotorch.FromRows(x, [][]int64{{2}, {0}}))
		c.values(picked, 2, 3)

		// PyTorch: torch.where(a > 2, a, -a)
		chosen := x.Where(x.GtScalar(a, 2), a, x.Neg(a))
		c.values(chosen, 0, -1, -2, 3, 4, 5)

		// PyTorch: a.masked_fill(a > 2, 0)
		masked := x.MaskedFill(a, x.GtScalar(a, 2), 0)
		c.values(masked, 0, 1, 2, 0, 0, 0)

		w := x.Clone(a)
		// Python: w = a.clone()
		// PyTorch: w[0] = 9
		// Value: w
		x.FillInPlace(x.Select(w, 0, 0), 9)
		// Remark: A view, written in place.
		c.values(w, 9, 9, 9, 3, 4, 5)

		// PyTorch: w[:, 0] = torch.tensor([7., 8.])
		// Value: w
		x.CopyInPlace(x.Select(w, 1, 0), cgotorch.FromSlice(x, []float32{7, 8}))
		c.values(w, 7, 9, 9, 8, 4, 5)

		// PyTorch: w[w > 8] = 0
		// Value: w
		x.MaskedFillInPlace(w, x.GtScalar(w, 8), 0)
		c.values(w, 7, 0, 0, 8, 4, 5)

		// PyTorch: F.pad(a, (1, 0))
		padded := x.Pad(a, []int64{1, 0}, cgotorch.PadOptions{})
		c.shape(padded, 2, 4)

		// PyTorch: a.flip(1)
		flipped := x.Flip(a, 1)
		c.values(flipped, 2, 1, 0, 5, 4, 3)

		// PyTorch: (a > 3).nonzero()
		places := x.NonZero(x.GtScalar(a, 3))
		c.values(places, 1, 1, 1, 2)

		// PyTorch: values, indices = a.topk(2, dim=1)
		// Value: indices
		values, indices := x.TopK(a, 2, 1, cgotorch.TopKOptions{})
		c.is(values != nil)
		c.values(indices, 2, 1, 2, 1)

		// PyTorch: a.sort(descending=True).values
		sorted, order := x.Sort(a, -1, cgotorch.SortOptions{Descending: true})
		c.is(order != nil)
		c.values(sorted, 2, 1, 0, 5, 4, 3)

		// PyTorch: a.argmax(dim=1)
		best := x.ArgMax(a, 1, cgotorch.ReduceOptions{})
		c.values(best, 2, 2)

		// PyTorch: F.one_hot(torch.tensor([1, 0]), 3)
		hot := x.OneHot(cgotorch.FromSlice(x, []int64{1, 0}), 3)
		c.values(hot, 0, 1, 0, 1, 0, 0)
	})
}

func TestFromPyTorch_Arithmetic(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		a, b := cgotorch.FromRows(x, [][]float32{{1, 2}, {3, 4}}), cgotorch.FromRows(x, [][]float32{{2, 0}, {0, 2}})

		// Group: Arithmetic

		// Python: a = torch.tensor([[1., 2.], [3., 4.]])
		// Python: b = torch.tensor([[2., 0.], [0., 2.]])
		// PyTorch: a + b; a - b; a * b
		sum, difference, product := x.Add(a, b), x.Sub(a, b), x.Mul(a, b)
		c.values(product, 2, 0, 0, 8)
		c.is(sum != nil && difference != nil)

		// PyTorch: 2 * a + 1
		line := x.AddScalar(x.MulScalar(a, 2), 1)
		c.values(line, 3, 5, 7, 9)

		// PyTorch: b.clone().add_(a, alpha=0.5)
		moved := x.AddScaledInPlace(x.Clone(b), a, 0.5)
		c.values(moved, 2.5, 1, 1.5, 4)

		// PyTorch: a @ b
		matrix := x.MatMul(a, b)
		c.values(matrix, 2, 4, 6, 8)

		// PyTorch: a ** 2
		squares := x.PowScalar(a, 2)
		c.values(squares, 1, 4, 9, 16)

		// PyTorch: torch.einsum("ij,jk->ik", a, b)
		einsum := x.Einsum("ij,jk->ik", a, b)
		c.values(einsum, 2, 4, 6, 8)

		// PyTorch: a == b; a > 2
		larger := x.GtScalar(a, 2)
		c.values(larger, 0, 0, 1, 1)

		// PyTorch: a.mean(dim=1, keepdim=True)
		means := x.MeanDim(a, []int64{1}, cgotorch.SumOptions{KeepDim: true})
		c.values(means, 1.5, 3.5)

		// PyTorch: values, indices = a.max(dim=1)
		// Value: values
		values, indices := x.MaxDim(a, 1, cgotorch.ReduceOptions{})
		c.values(values, 2, 4)
		c.is(indices != nil)

		// PyTorch: a.std()
		deviation := x.Std(a, nil, cgotorch.VarianceOptions{})
		c.values(deviation, 1.29099)

		// PyTorch: a.norm()
		norm := x.VectorNorm(a, 2, nil, cgotorch.SumOptions{})
		c.values(norm, 5.47723)

		// PyTorch: a.clamp(2, 3); a.clamp(min=2)
		bounded := x.Clamp(a, 2, nil)
		c.values(bounded, 2, 2, 3, 4)

		// PyTorch: a.softmax(dim=1)
		shares := x.Softmax(a, 1)
		c.values(shares, 0.26894, 0.73106, 0.26894, 0.73106)

		// PyTorch: torch.allclose(a, a + 1e-9)
		close := x.AllClose(a, x.AddScalar(a, 1e-9), cgotorch.ToleranceOptions{})
		// Remark: Waits for the device.
		c.is(close)

		// PyTorch: torch.linalg.inv(a)
		inverse := linalg.Inv(x, a)
		c.values(inverse, -2, 1, 1.5, -0.5)

		// PyTorch: torch.ops.aten.hypot(a, b)
		hypot := x.Call1("aten::hypot", a, b)
		// Remark: Any operator of LibTorch, by name.
		c.values(hypot, 2.23607, 2, 3, 4.47214)
	})
}

func TestFromPyTorch_Autograd(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		// Group: Autograd

		// PyTorch: w = torch.tensor([3.], requires_grad=True)
		w := cgotorch.FromSlice(x, []float32{3})
		err := w.SetRequiresGrad(true)
		c.noError(err)

		// PyTorch: (w * w).sum().backward()
		x.Backward(x.Sum(x.Mul(w, w)))
		c.is(w.RequiresGrad())

		// PyTorch: w.grad
		gradient := w.Grad()
		c.values(gradient, 6)

		// PyTorch: w.grad = None
		err = w.SetGrad(nil)
		c.noError(err)
		c.is(w.Grad() == nil)

		// PyTorch: with torch.no_grad():
		//          y = w * 2
		// Value: y.requires_grad
		y := x.NoGrad().MulScalar(w, 2)
		c.is(!y.RequiresGrad())

		// PyTorch: with torch.no_grad():
		//          w -= 0.1
		// Value: w
		x.NoGrad().AddScalarInPlace(w, -0.1)
		c.values(w, 2.9)

		// PyTorch: y = w * 2
		//      y.backward(torch.ones(1), retain_graph=True)
		// Value: w.grad
		y = x.MulScalar(w, 2)
		x.BackwardWith(cgotorch.BackwardOptions{Grads: []*cgotorch.Tensor{x.Ones(cgotorch.Float32, 1)}, RetainGraph: true}, y)
		c.values(w.Grad(), 2)

		// PyTorch: g, = torch.autograd.grad((w ** 3).sum(), w, create_graph=True)
		// Value: g
		g := x.Gradients([]*cgotorch.Tensor{x.Sum(x.PowScalar(w, 3))}, []*cgotorch.Tensor{w}, cgotorch.GradientOptions{CreateGraph: true})[0]
		c.values(g, 25.23)

		// PyTorch: torch.utils.checkpoint.checkpoint(torch.exp, w, use_reentrant=False)
		recomputed := x.Recompute(w, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Exp(in) })
		// Remark: A whole model: `Sequential.Recompute`.
		c.values(recomputed, 18.17415)

		// PyTorch, not run: class Mine(torch.autograd.Function): ...
		// Remark: Not offered, and neither are hooks. Write the function with operators, or with
		//      `x.Detach` and `BackwardOptions.Grads`.
	})
}

func TestFromPyTorch_Devices(t *testing.T) {
	c := newChecks(t, fromPyTorch, nil)
	torchtest.CheckLeaks(t)
	// Group: Devices and streams

	// PyTorch, not run: device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
	device, err := cgotorch.ParseDevice("auto")
	c.noError(err)
	c.is(device == torchtest.Devices()[len(torchtest.Devices())-1], device)

	// PyTorch, not run: torch.cuda.device_count()
	count, err := cgotorch.CUDACount()
	// Remark: With 0 devices, the error says why.
	c.is((count == 0) == (err != nil), count, err)

	device = cgotorch.CPU
	// PyTorch, not run: torch.cuda.current_stream()
	stream := cgotorch.DefaultStream(device)
	// Remark: There is no current stream: each call names one.
	c.is(stream.Device() == device)

	// PyTorch, not run: side = torch.cuda.Stream()
	side, err := cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "side"})
	c.noError(err)
	defer side.Close()

	// PyTorch, not run: with torch.cuda.stream(side):
	//          b = a + 1
	err = side.Do(func(x *cgotorch.Exec) error {
		b := x.AddScalar(x.Zeros(cgotorch.Float32, 3), 1)
		fmt.Println(b)
		return nil
	})
	c.noError(err)

	err = stream.Do(func(x *cgotorch.Exec) error {
		a := x.Zeros(cgotorch.Float32, 3)
		c := newChecks(t, fromPyTorch, x)
		// PyTorch, not run: side.wait_stream(stream)
		//      with torch.cuda.stream(side):
		//          b = a + 1
		ready := x.Record()
		y := x.On(side)
		y.Wait(ready)
		b := y.AddScalar(a, 1)
		c.noError(ready.Close())
		c.is(b != nil)

		// PyTorch, not run: event = side.record_event()
		//      stream.wait_event(event)
		event := y.Record()
		x.Wait(event)
		c.values(b, 1, 1, 1)
		c.noError(event.Close())

		// PyTorch, not run: b.record_stream(stream)
		// Remark: Nothing: every use on another stream is recorded.

		// PyTorch, not run: t.to("cuda")
		onDevice := x.FromDevice(a)
		// Remark: `FromSlice(x, data)` also puts its tensor on the device of `x`.
		c.values(onDevice, 0, 0, 0)

		// PyTorch, not run: loss.item()  # one step later, without a wait
		read := x.ReadAsync(x.Sum(b))
		c.is(read != nil)
		defer func() {
			value, err := read.Item()
			c.noError(err)
			c.is(value == 3)
			c.noError(read.Close())
		}()
		return nil
	})
	c.noError(err)

	// PyTorch, not run: side.synchronize()
	err = side.Synchronize()
	c.noError(err)

	// PyTorch, not run: torch.cuda.synchronize()
	err = device.Synchronize()
	c.noError(err)

	// PyTorch, not run: torch.empty(n, pin_memory=True)
	slab, err := cgotorch.NewHostSlab(device, 4096)
	// Remark: Memory for the CPU is not pinned. Loaders and prefetchers pin by themselves.
	c.noError(err)
	c.noError(slab.Close())

	// PyTorch, not run: torch.cuda.max_memory_allocated()
	used, err := device.Memory()
	peak := used.PeakAllocated
	c.noError(err)
	c.is(peak >= used.Allocated, used)

	// PyTorch, not run: torch.cuda.empty_cache()
	err = device.ReleaseCachedMemory()
	c.noError(err)

	// PyTorch: torch.set_num_threads(1)
	err = cgotorch.SetThreads(1)
	c.noError(err)

	// PyTorch: torch.backends.cudnn.benchmark = True
	err = cgotorch.SetCuDNNBenchmark(true)
	c.noError(err)
	c.noError(cgotorch.SetCuDNNBenchmark(false))

	// PyTorch: torch.backends.cuda.matmul.allow_tf32 = True
	//      torch.backends.cudnn.allow_tf32 = True
	err = cgotorch.SetTF32(true)
	// Remark: Sets both.
	c.noError(err)
	c.noError(cgotorch.SetTF32(false))

	// PyTorch: torch.use_deterministic_algorithms(False)
	err = cgotorch.SetDeterministic(false)
	c.noError(err)
}

func TestFromPyTorch_Modules(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		// Group: Modules

		// PyTorch: class Net(nn.Module):
		//          def __init__(self):
		//              super().__init__()
		//              self.fc = nn.Linear(4, 2)
		//          def forward(self, x):
		//              return self.fc(x).relu()
		type Net struct{ FC *nn.Linear }
		forward := func(n *Net, x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
			return x.ReLU(n.FC.Forward(x, in))
		}
		// Remark: In a program `forward` is a method: `func (n *Net) Forward(x *cgotorch.Exec, in
		//      *cgotorch.Tensor) *cgotorch.Tensor`.
		c.noError(cgotorch.Seed(0))

		// Python: torch.manual_seed(0)
		// PyTorch: model = Net()
		model := &Net{FC: nn.NewLinear(x, 4, 2, nn.LinearOptions{})}
		c.is(model.FC != nil)

		// PyTorch: model(torch.ones(1, 4))
		out := forward(model, x, x.Ones(cgotorch.Float32, 1, 4))
		c.values(out, 0, 0.46035)

		// PyTorch: layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
		layers := nn.NewSequential(nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1)}), &nn.ReLU{}, &nn.MaxPool2d{Kernel: nn.Square(2)})
		c.is(len(layers.Children()) == 3)

		// PyTorch: layers(torch.ones(1, 3, 8, 8))
		pooled := layers.Forward(x, x.Ones(cgotorch.Float32, 1, 3, 8, 8))
		c.shape(pooled, 1, 8, 4, 4)

		// PyTorch, not run: self.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
		type Blocks struct{ Blocks []*nn.Linear }
		stack := &Blocks{}
		for range 3 {
			stack.Blocks = append(stack.Blocks, nn.NewLinear(x, 2, 2, nn.LinearOptions{}))
		}
		// Remark: Names as in PyTorch: `blocks.0.weight`.
		c.is(nn.State(stack)[0].Name == "blocks.0.weight")

		// PyTorch, not run: self.register_buffer("count", torch.zeros(1))
		type Counter struct {
			Count *cgotorch.Tensor `state:",buffer"`
		}
		counter := &Counter{Count: x.Keep(x.Zeros(cgotorch.Float32, 1))}
		c.is(nn.State(counter)[0].Buffer)

		// PyTorch: model.eval()
		nn.SetTraining(model, false)
		// Remark: `true` is `model.train()`.
		c.is(model != nil)

		// PyTorch: list(model.parameters())[0]
		parameters := nn.Parameters(model)
		c.shape(parameters[0], 2, 4)

		// PyTorch: for name, p in model.named_parameters():
		//          print(name, p.shape)
		for _, p := range nn.NamedParameters(model) {
			fmt.Println(p.Name, p.Tensor.Shape())
		}
		c.is(nn.NamedParameters(model)[1].Name == "fc.bias")

		// PyTorch: model.state_dict()
		state := nn.State(model)
		c.is(len(state) == 2)

		// PyTorch: model.apply(lambda m: nn.init.normal_(m.weight) if isinstance(m, nn.Linear) else None)
		nn.Apply(model, func(m any) {
			if m, ok := m.(*nn.Linear); ok {
				nn.Normal(x, m.Weight, 0, 1)
			}
		})
		c.is(model.FC.Weight != nil)

		// PyTorch: nn.init.kaiming_normal_(model.fc.weight, nonlinearity="relu")
		nn.KaimingNormal(x, model.FC.Weight, nn.KaimingOptions{})
		c.is(model.FC.Weight.RequiresGrad())

		// PyTorch: nn.init.zeros_(model.fc.bias)
		nn.Constant(x, model.FC.Bias, 0)
		c.values(model.FC.Bias, 0, 0)

		// PyTorch: model.fc.requires_grad_(False)
		nn.Freeze(model.FC)
		c.is(!model.FC.Weight.RequiresGrad())

		// PyTorch: model.fc.requires_grad_(True)
		for _, p := range nn.Parameters(model.FC) {
			cgotorch.Check(p.SetRequiresGrad(true))
		}
		// Remark: The optimizer must have been given these parameters too. It passes over frozen ones.
		c.is(model.FC.Weight.RequiresGrad() && model.FC.Bias.RequiresGrad())

		// PyTorch: model.to(torch.bfloat16)
		nn.To(x, model, nn.ToOptions{DType: cgotorch.BFloat16})
		c.is(model.FC.Weight.DType() == cgotorch.BFloat16)

		// PyTorch: layers.to(memory_format=torch.channels_last)
		nn.To(x, layers, nn.ToOptions{ChannelsLast: true})
		c.is(nn.Parameters(layers)[0].Strides()[1] == 1)

		// PyTorch, not run: model.to("cuda")
		// Remark: A model is made on the device of the Exec that makes it.

		// PyTorch: attention = nn.MultiheadAttention(8, 2, batch_first=True)
		// Value: attention(torch.ones(1, 3, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8))[0]
		attention := nn.NewMultiheadAttention(x, 8, 2, nn.AttentionOptions{})
		c.shape(attention.Attend(x, x.Ones(cgotorch.Float32, 1, 3, 8), x.Ones(cgotorch.Float32, 1, 3, 8), x.Ones(cgotorch.Float32, 1, 3, 8), nn.AttentionMask{}), 1, 3, 8)

		// Python: t = torch.arange(16.).view(1, 1, 4, 4)
		t := x.View(x.Arange(cgotorch.Float32, 0, 16, 1), 1, 1, 4, 4)
		// PyTorch: F.max_pool2d(t, 2)
		largest := x.MaxPool2d(t, []int64{2, 2}, cgotorch.MaxPool2dOptions{})
		// Remark: Modules take sizes as an nn.Size, such as `nn.Square(2)`, and operators as an []int64.
		c.values(largest, 5, 7, 13, 15)

		// PyTorch: F.dropout(torch.ones(4), 0.5, training=False)
		kept := x.Dropout(x.Ones(cgotorch.Float32, 4), 0.5, false)
		c.values(kept, 1, 1, 1, 1)

		// PyTorch: torchvision.models.resnet18(num_classes=10)
		resnet, err := vision.New(x, "resnet18", vision.Options{Classes: 10})
		// Remark: `vision.Names` lists the models.
		c.noError(err)
		c.is(nn.State(resnet)[0].Name == "conv1.weight")

		// PyTorch: del model
		err = nn.Close(model)
		// Remark: A module outlives its Do, so close it.
		c.noError(err)
		for _, m := range []any{layers, stack, counter, attention, resnet} { // check
			c.noError(nn.Close(m))
		}
	})
}

func TestFromPyTorch_Losses(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		logits, labels := cgotorch.FromRows(x, [][]float32{{1, 2, 0}, {0, 1, 3}}), cgotorch.FromSlice(x, []int64{1, 2})
		p, q := cgotorch.FromSlice(x, []float32{0.2, 0.9}), cgotorch.FromSlice(x, []float32{0, 1})

		// Group: Losses

		// Python: logits, labels = torch.tensor([[1., 2., 0.], [0., 1., 3.]]), torch.tensor([1, 2])
		// Python: p, q = torch.tensor([0.2, 0.9]), torch.tensor([0., 1.])
		// PyTorch: F.cross_entropy(logits, labels)
		loss := nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{})
		c.values(loss, 0.28873)

		// PyTorch: F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
		smooth := nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{LabelSmoothing: 0.1, Reduction: cgotorch.ReductionSum})
		c.values(smooth, 0.84412)

		// PyTorch: F.nll_loss(F.log_softmax(logits, dim=1), labels)
		nll := nn.NLL(x, x.LogSoftmax(logits, 1), labels, nn.NLLOptions{})
		c.values(nll, 0.28873)

		// PyTorch: F.mse_loss(p, q)
		mse := nn.MSE(x, p, q, nn.MSEOptions{})
		c.values(mse, 0.025)

		// PyTorch: F.l1_loss(p, q)
		l1 := nn.L1(x, p, q, nn.L1Options{})
		c.values(l1, 0.15)

		// PyTorch: F.binary_cross_entropy_with_logits(p, q)
		withLogits := nn.BCEWithLogits(x, p, q, nn.BCEOptions{})
		c.values(withLogits, 0.56965)

		// PyTorch: F.binary_cross_entropy(p, q)
		bce := nn.BCE(x, p, q, nn.BCEProbabilitiesOptions{})
		c.values(bce, 0.16425)

		// PyTorch: (logits.argmax(dim=1) == labels).float().mean()
		accuracy := metric.Accuracy(x, logits, labels, 1)
		// Remark: With 5 in place of 1: top-5.
		c.values(accuracy, 1)
	})
}

func TestFromPyTorch_Optimizers(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		c.noError(cgotorch.Seed(0))
		model := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(model)
		in := x.Ones(cgotorch.Float32, 4, 2)

		// Group: Optimizers

		// Python: torch.manual_seed(0)
		// Python: model, x = nn.Linear(2, 1), torch.ones(4, 2)
		// Python: nn.init.ones_(model.weight); nn.init.zeros_(model.bias)
		nn.Constant(x, model.Weight, 1)
		nn.Constant(x, model.Bias, 0)
		// PyTorch: opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)})
		c.noError(err)
		defer opt.Close()

		// PyTorch: opt.zero_grad()
		//      loss = model(x).mean()
		//      loss.backward()
		//      opt.step()
		// Value: model.weight
		opt.ZeroGrad()
		loss := x.Mean(model.Forward(x, in))
		x.Backward(loss)
		opt.Step(x)
		c.values(model.Weight, 0.9, 0.9)

		// PyTorch: torch.optim.AdamW([
		//          {"params": [model.weight]},
		//          {"params": [model.bias], "weight_decay": 0},
		//      ], lr=1e-3)
		adam, err := optim.NewAdamW(optim.AdamOptions{LR: 1e-3},
			optim.Group{Params: []*cgotorch.Tensor{model.Weight}},
			optim.Group{Params: []*cgotorch.Tensor{model.Bias}, NoWeightDecay: true})
		c.noError(err)
		c.noError(adam.Close())

		// PyTorch: opt.param_groups[0]["lr"] = 0.01
		err = opt.SetGroupLR(0, 0.01)
		// Remark: `opt.SetLR(0.01)` sets all groups without a rate of their own.
		c.noError(err)
		c.is(opt.LR(0) == 0.01)

		// PyTorch: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
		norm := optim.ClipGradNorm(x, nn.Parameters(model), 1)
		c.values(norm, 1.73205)

		// PyTorch: for part in x.split(2):  # gradients of a larger batch
		//          (model(part).mean() / 2).backward()
		// Value: model.weight.grad
		opt.ZeroGrad()
		for _, part := range x.Split(in, 2, 0) {
			x.Backward(x.DivScalar(x.Mean(model.Forward(x, part)), 2))
		}
		c.is(x.Item(x.Sum(model.Weight.Grad())) == 2)

		// PyTorch: ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=
		//          torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
		//      ema.update_parameters(model)
		ema, err := optim.NewEMA(x, nn.Parameters(model), 0.999)
		ema.Update(x)
		// Remark: `ema.Swap(x)` puts the averages into the model, for a test. PyTorch's averages begin at
		//      its first update: call `NewEMA` there.
		c.noError(err)
		c.noError(ema.Close())

		// PyTorch, not run: torch.optim.LBFGS, Adagrad, RMSprop, NAdam, RAdam, Muon, ...
		// Remark: `optim.NewLBFGS`, `NewAdagrad`, `NewRMSprop`, `NewNAdam`, `NewRAdam`, `NewMuon`, and
		//      `NewLion`, `NewLAMB`.
	})
}

func TestFromPyTorch_Schedules(t *testing.T) {
	c := newChecks(t, fromPyTorch, nil)
	// Group: Schedules

	// Python: opt = torch.optim.SGD([torch.zeros(1)], lr=1.)
	// PyTorch: s = torch.optim.lr_scheduler.StepLR(opt, step_size=30, gamma=0.1)
	// Value: s.get_last_lr()[0]
	schedule := optim.StepDecay(30, 0.1)
	// Remark: A schedule is a function of the step: `opt.SetScale(schedule(step))` before the step.
	c.number(schedule(0), 1)
	c.number(schedule(30), 0.1)

	// PyTorch, not run: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
	cosine := optim.Cosine(100, 0)
	c.number(cosine(50), 0.5)

	// PyTorch, not run: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=1000,
	//          cycle_momentum=False)
	oneCycle := optim.OneCycle(1000, optim.OneCycleOptions{})
	// Remark: The learning rate of the optimizer is the `max_lr`. To change the momentum too, use
	//      `opt.SetMomentum` or `opt.SetBetas`.
	c.number(oneCycle(0), 0.04)

	// PyTorch, not run: SequentialLR(opt, [LinearLR(opt, 0.01, total_iters=500),
	//          CosineAnnealingLR(opt, 9500)], [500])
	warm := optim.Warmup(500, 0.01, optim.Cosine(9500, 0))
	c.number(warm(500), 1)

	// PyTorch, not run: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=5).step(loss)
	plateau, err := optim.NewPlateau(optim.PlateauOptions{Patience: cgotorch.Set(5)})
	scale := plateau.Update(0.7)
	c.noError(err)
	c.number(scale, 1)
}

// folder writes four small images of two classes.
func folder(t *testing.T) string {
	root := t.TempDir()
	for i, name := range []string{"train/cat/0.png", "train/cat/1.png", "train/dog/0.png", "train/dog/1.png"} {
		path := filepath.Join(root, name)
		img := image.NewNRGBA(image.Rect(0, 0, 40, 40))
		for p := range 40 * 40 {
			img.Set(p%40, p/40, color.NRGBA{uint8(60 * i), uint8(p), 9, 255})
		}
		var file bytes.Buffer
		if err := errors.Join(png.Encode(&file, img), os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, file.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFromPyTorch_Data(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromPyTorch, nil)
	ctx, device, stream := context.Background(), cgotorch.CPU, cgotorch.DefaultStream(cgotorch.CPU)
	path := folder(t)
	steps := 0
	train := func(x *cgotorch.Exec, images, labels *cgotorch.Tensor) { steps++ }

	// Group: Data

	// PyTorch, not run: dataset = torchvision.datasets.ImageFolder("photos/train", transform)
	//      loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=8, drop_last=True)
	loader, err := imageloader.Open(path, imageloader.Options{Split: "train", Train: true, BatchSize: 2, DropLast: true})
	// Remark: A folder, a .tgz or .tar, or a WebDataset. Decoding threads need no processes.
	c.noError(err)
	defer loader.Close()

	// PyTorch, not run: transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
	options := imageloader.Options{Train: true, Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: 224, Width: 224}}}
	// Remark: Both are what `Train` does by default.
	c.is(c.reads(path, options) == [2]int{224, 3})

	// PyTorch, not run: transforms.Resize(256), transforms.CenterCrop(224)
	options = imageloader.Options{Crop: imageloader.Crop{Transform: decode.ResizeCenterCrop{Resize: 256, Height: 224, Width: 224}}}
	c.is(c.reads(path, options) == [2]int{224, 3})

	// PyTorch, not run: transforms.ToTensor(), transforms.Normalize(mean, std)
	ahead, err := prefetcher.New(loader, device, prefetcher.Options{})
	// Remark: On the device, with ImageNet's numbers unless `Mean` and `Std` say others.
	c.noError(err)
	defer ahead.Close()

	// PyTorch, not run: transforms.TrivialAugmentWide(), transforms.RandomErasing(0.1)
	//      v2.MixUp(alpha=0.2)
	augment := prefetcher.Options{Augmentations: prefetcher.Augmentations{TrivialAugmentWide: true, RandomErasing: prefetcher.RandomErasing{Probability: 0.1}, MixUp: prefetcher.MixUp{Alpha: 0.2}}, Classes: 2}
	c.is(c.copies(path, augment, 3) == cgotorch.Float32)

	// PyTorch, not run: for images, labels in loader:
	//          images = images.to(device, non_blocking=True)
	//          train(images, labels)
	for batch, err := range ahead.Epoch(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x)
			train(x, images, labels)
			return nil
		})
	}
	c.noError(err)
	c.is(steps == 2, steps)

	// PyTorch, not run: dataset.classes, len(dataset)
	classes, length := loader.Classes(), loader.Len()
	// Remark: `Len` counts the images of this rank alone. `len(dataset)` is that of all ranks together.
	c.is(fmt.Sprint(classes, length) == "[cat dog] 4", classes, length)

	// PyTorch, not run: TensorDataset(torch.tensor(features), torch.tensor(prices))
	features, prices := []float32{1, 2, 3, 4, 5, 6}, []float32{10, 20, 30}
	table, err := data.NewTable(data.Of("features", features, 2), data.Of("price", prices))
	c.noError(err)

	// PyTorch, not run: loader = DataLoader(table, batch_size=2, shuffle=True, generator=seeded)
	rows, err := data.NewLoader(table, data.Options{BatchSize: 2, Shuffle: true, Seed: 1})
	// Remark: To a device with `prefetcher.NewTensors`.
	c.noError(err)
	defer rows.Close()

	// PyTorch, not run: for features, prices in loader: ...
	n := 0
	for batch, err := range rows.Epoch(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		n += len(data.Values[float32](batch.Column("price")))
		batch.Release()
	}
	c.is(n == 3, n)

	// PyTorch, not run: class Mine(Dataset):
	//          def __getitem__(self, i): ...
	var mine data.Dataset = table
	// Remark: A Dataset is an interface of three methods: `Fields`, `Len`, `Sample(i)`.
	c.is(mine.Len() == 3)

	// PyTorch, not run: class Rows(Dataset):
	//          def __getitems__(self, rows): ...  # one query
	query, err := data.NewQuery("prices", 3, table.Fields(), func(ctx context.Context, rows []int) ([]data.Sample, error) {
		samples := make([]data.Sample, len(rows)) // by one query for all rows
		for k, i := range rows {
			samples[k] = data.Sample{"features": []float32{float32(i), 0}, "price": float32(10 * i)}
		}
		return samples, nil
	})
	c.is(err == nil && query.Len() == 3, err)

	// PyTorch, not run: DataLoader(dataset, collate_fn=pad)  # pad calls pad_sequence
	padded := data.Options{Pad: map[string]data.Pad{"tokens": {Length: 128, Truncate: true}}}

	tokens, err := data.NewSequence("tokens", []data.Field{{Name: "tokens", DType: cgotorch.Int64, Shape: []int64{data.Variable}}}, func(context.Context) iter.Seq2[data.Sample, error] {
		return func(yield func(data.Sample, error) bool) {
			_ = yield(data.Sample{"tokens": []int64{1, 2, 3}}, nil) && yield(data.Sample{"tokens": []int64{4}}, nil)
		}
	})
	c.noError(err)
	texts, err := data.NewStreamLoader(tokens, padded)
	c.noError(err)
	defer texts.Close()
	for batch, err := range texts.Epoch(ctx) {
		c.noError(err)
		got := fmt.Sprint(data.Values[int64](batch.Column("tokens")))
		c.is(got == "[1 2 3 4 0 0]", got)
		batch.Release()
	}

	// PyTorch, not run: torchvision.datasets.MNIST(root, train=True)
	// Remark: `idx.ReadMNIST(folder, true)`, of imageloader/idx. CIFAR: imageloader/cifar. See
	//      [examples/mnist](../examples/mnist/main.go).

	// PyTorch, not run: DistributedSampler(dataset, num_replicas=2, rank=1)
	share := imageloader.Options{Ranks: imageloader.Ranks{World: 2, Rank: 1}}
	// Remark: `EachOnce` gives each image to one rank, for an evaluation.
	c.is(c.reads(path, share) == [2]int{224, 3})

	// PyTorch, not run: loader.load_state_dict(state)  # torchdata's StatefulDataLoader
	err = loader.Restore(imageloader.State{})
	// Remark: `batch.State` is the position right after a batch. It continues with another number of
	//      ranks too. A checkpoint's `Loader: ahead` saves and restores it.
	c.noError(err)
}

func TestFromPyTorch_Files(t *testing.T) {
	dir := t.TempDir()
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		model := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(model)
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		c.noError(err)
		defer opt.Close()
		file := filepath.Join(dir, "model.safetensors")
		pickled := filepath.Join(dir, "model.pth")

		// Group: Saving and loading

		// Python: model = nn.Linear(2, 1)
		// Python: opt = torch.optim.SGD(model.parameters(), lr=0.1)
		// PyTorch: run = {"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}
		//      torch.save(run, "run.pth")
		err = checkpoint.Save(x, file, checkpoint.Checkpoint{Model: model, Optimizer: opt, Epoch: 3})
		// Remark: A safetensors file, with the random generators too.
		c.noError(err)

		// PyTorch: run = torch.load("run.pth")
		//      model.load_state_dict(run["model"]); opt.load_state_dict(run["optimizer"])
		again := checkpoint.Checkpoint{Model: model, Optimizer: opt}
		err = checkpoint.Resume(x, file, &again)
		// Remark: It has fields for an EMA, a scaler, a loader and your settings too. `again.Epoch` is 3.
		//      With a loader, save in the loop over batches with its epoch, and after it with the next.
		c.noError(err)
		c.is(again.Epoch == 3)

		// PyTorch: torch.save(model.state_dict(), "model.pth")
		var weights []safetensors.Tensor
		for _, p := range nn.State(model) {
			dtype, _ := checkpoint.DTypeName(p.Tensor.DType())
			weights = append(weights, safetensors.Tensor{Name: p.Name, DType: dtype, Shape: p.Tensor.Shape(), Data: cgotorch.ToBytes(x, p.Tensor)})
		}
		var buffer bytes.Buffer
		err = pth.Write(&buffer, weights)
		// Remark: `streamtorch convert` does it for files. Better: `safetensors.WriteFile`.
		c.noError(err)
		c.noError(os.WriteFile(pickled, buffer.Bytes(), 0o644))

		// PyTorch: model.load_state_dict(torch.load("model.pth"))
		err = checkpoint.LoadModel(x, pickled, model, nn.LoadOptions{})
		// Remark: Reads .safetensors and .pth. No program of the file is run.
		c.noError(err)

		// PyTorch: model.load_state_dict(torch.load("model.pth"), strict=False)
		err = checkpoint.LoadModel(x, file, model, nn.LoadOptions{AllowMissing: true, AllowUnexpected: true})
		c.noError(err)

		// PyTorch, not run: {k.removeprefix("module."): v for k, v in state.items()}
		rename := nn.LoadOptions{Rename: func(name string) string { return strings.TrimPrefix(name, "module.") }}
		c.noError(checkpoint.LoadModel(x, file, model, rename))

		// PyTorch, not run: safetensors.torch.load_file("model.safetensors")["weight"]
		opened, err := safetensors.Open(file)
		bytes, err := opened.Read("weight")
		c.noError(err)
		c.is(len(bytes) == 8)
		c.noError(opened.Close())

		exported := filepath.Join(t.TempDir(), "model.pt2")
		// PyTorch, not run: torch.export.load("model.pt2").module()
		program, err := pt2.Load(x, exported, pt2.Options{})
		// Remark: A module, without Python: see [chapter 9](book/09-weights.md) and [ten
		//      models](book/models.md).
		c.is(program == nil && errors.Is(err, os.ErrNotExist), err)

		// PyTorch, not run: torch.jit.load("model.pt")
		// Remark: The program of a TorchScript file is not read, but its weights are. Export the model
		//      with torch.export.
	})
}

func TestFromPyTorch_Precision(t *testing.T) {
	do(t, fromPyTorch, func(c *checks, x *cgotorch.Exec) {
		model := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(model)
		in := x.Ones(cgotorch.Float32, 4, 2)
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		c.noError(err)
		defer opt.Close()

		// Group: Mixed precision

		// Python: model, x = nn.Linear(2, 1), torch.ones(4, 2)
		// PyTorch: with torch.autocast("cpu", torch.bfloat16):
		//          out = model(x)
		// Value: out
		out := model.Forward(x.Autocast(cgotorch.BFloat16), in)
		// Remark: The mode is in the Exec that the model gets. Backward stays outside.
		c.is(out.DType() == cgotorch.BFloat16)

		// PyTorch, not run: scaler = torch.amp.GradScaler("cuda")
		scaler, err := optim.NewScaler(x, optim.ScalerOptions{})
		c.noError(err)
		defer scaler.Close()

		// PyTorch, not run: scaler.scale(loss).backward()
		//      scaler.unscale_(opt)
		//      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
		//      scaler.step(opt)
		//      scaler.update()
		x.Backward(scaler.Scale(x, x.Mean(model.Forward(x, in))))
		scaler.Unscale(x, opt)
		optim.ClipGradNorm(x, opt.Params(), 1)
		scaler.Step(x, opt)
		scaler.Update(x)
		// Remark: Nothing here waits for the device.
		c.is(scaler.State(x).Skipped == 0)

		// PyTorch, not run: # bfloat16 weights, and a float32 copy in the optimizer
		master := optim.SGDOptions{LR: 0.1, MasterWeights: true}

		half := x.Keep(x.Zeros(cgotorch.BFloat16, 2))
		defer half.Close()
		withMaster, err := optim.NewSGD(master, optim.Group{Params: []*cgotorch.Tensor{half}})
		c.noError(err)
		c.noError(half.SetRequiresGrad(true))
		x.Backward(x.Sum(half))
		withMaster.Step(x)
		c.is(len(withMaster.Remembers()) == 1 && withMaster.Remembers()[0].Name == "master", withMaster.Remembers())
		c.noError(withMaster.Close())
	})
}

func TestFromPyTorch_Graphs(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromPyTorch, nil)
	stream := torchtest.NewStream(t, cgotorch.CPU)
	var model *nn.Linear
	var opt *optim.Optimizer
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
		var err error
		model = nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	defer nn.Close(model)
	defer opt.Close()

	// Group: Graphs and compiling

	// PyTorch, not run: step = torch.compile(train_step, mode="reduce-overhead")
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		opt.ZeroGrad()
		loss := x.Mean(model.Forward(x, in[0]))
		x.Backward(loss)
		opt.Step(x)
		return []*cgotorch.Tensor{loss}
	}, cgotorch.CapturedOptions{})
	// Remark: A CUDA graph for each shape, after a few eager runs. No kernels are compiled from the
	//      model.
	defer step.Close()

	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
		c := newChecks(t, fromPyTorch, x)
		in := x.Ones(cgotorch.Float32, 4, 2)
		// PyTorch, not run: loss = step(images)
		loss := step.Run(x, in)[0]
		c.is(loss.Numel() == 1)
	})

	// PyTorch, not run: torch._dynamo.explain(step)
	why := step.Stats().Why
	// Remark: Says why a step is not captured. On the CPU nothing is.
	c.is(why != "")

	var total *cgotorch.Tensor
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) { total = x.Keep(x.Zeros(cgotorch.Float32, 1)) })
	defer total.Close()
	// PyTorch, not run: graph = torch.cuda.CUDAGraph()
	//      with torch.cuda.graph(graph):
	//          total += 1
	graph, err := stream.Capture(func(x *cgotorch.Exec) error {
		x.AddScalarInPlace(total, 1)
		return nil
	}, 0)
	c.noError(err)
	defer graph.Close()

	// PyTorch, not run: graph.replay()
	err = graph.Launch(stream)
	c.noError(err)
}

func TestFromPyTorch_Inference(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromPyTorch, nil)
	ctx, stream := context.Background(), torchtest.NewStream(t, cgotorch.CPU)
	var model nn.Module
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
		model = nn.NewSequential(nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 4, nn.BatchNormOptions{}), &nn.ReLU{}, &nn.Flatten{}, nn.NewLinear(x, 4*36, 6, nn.LinearOptions{}))
		nn.SetTraining(model, false)
	})
	defer nn.Close(model)
	var fused nn.Module

	// Group: Inference
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
		c := newChecks(t, fromPyTorch, x)
		in := x.Ones(cgotorch.Float32, 1, 3, 8, 8)

		// PyTorch, not run: with torch.inference_mode():
		//          scores = model(images).softmax(dim=1)
		scores := x.Softmax(model.Forward(x.NoGrad(), in), 1)
		c.shape(scores, 1, 6)

		// PyTorch, not run: best = scores.topk(5)
		values, classes := x.TopK(scores, 5, 1, cgotorch.TopKOptions{})
		c.is(values.Numel() == 5 && classes.Numel() == 5)

		// PyTorch, not run: torch.ao.quantization.fuse_modules(model, [["conv", "bn", "relu"]])
		fused = nn.Fuse(x, model, nn.FuseOptions{})
		c.is(x.AllClose(fused.Forward(x, in), model.Forward(x, in), cgotorch.ToleranceOptions{Relative: cgotorch.Set(1e-3)}))

		// PyTorch, not run: image = Image.open("cat.jpg"); to_tensor(image)
		photo := image.NewRGBA(image.Rect(0, 0, 8, 8))
		pixels := images.FromImage(x, photo)
		c.shape(pixels, 8, 8, 3)
	})
	defer nn.Close(fused)

	// PyTorch, not run: # one model, many threads
	infer, err := cgotorch.NewInference(cgotorch.CPU, model.Forward, cgotorch.InferenceOptions{BatchSizes: []int{1, 8}})
	c.noError(err)
	defer infer.Close()

	var best int64
	// PyTorch, not run: model(torch.tensor(pixels).view(1, 3, 8, 8)).argmax().item()
	pixels := make([]float32, 3*8*8)
	err = infer.Do(ctx, func(x *cgotorch.Exec, forward func(in *cgotorch.Tensor) *cgotorch.Tensor) error {
		scores := forward(cgotorch.FromSlice(x, pixels, 1, 3, 8, 8))
		best = cgotorch.ToSlice[int64](x, x.ArgMax(scores, 1, cgotorch.ReduceOptions{}))[0]
		return nil
	})
	// Remark: From any goroutine. [examples/serve](../examples/serve/main.go) is an HTTP server.
	c.noError(err)
	c.is(best < 6)
}

func TestFromPyTorch_Debugging(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromPyTorch, nil)
	stream := torchtest.NewStream(t, cgotorch.CPU)

	// Group: Debugging

	// PyTorch, not run: try:
	//          a @ b
	//      except RuntimeError as e:
	//          print(e)
	err := stream.Do(func(x *cgotorch.Exec) error {
		x.MatMul(x.Ones(cgotorch.Float32, 2, 3), x.Ones(cgotorch.Float32, 2, 3))
		return nil
	})
	var failure *cgotorch.Error
	isError := errors.As(err, &failure)
	// Remark: It has the operator, the shapes and the line of the program.
	c.is(isError && failure.Op == "aten::matmul" && strings.Contains(err.Error(), "from_pytorch_test.go"), err)

	// PyTorch, not run: except torch.cuda.OutOfMemoryError:
	outOfMemory := errors.Is(err, cgotorch.ErrOutOfMemory)
	c.is(!outOfMemory)

	err = stream.Do(func(x *cgotorch.Exec) error {
		c := newChecks(t, fromPyTorch, x)
		a := x.Ones(cgotorch.Float32, 2)
		// PyTorch, not run: torch.isfinite(a).all().item()
		finite := x.Item(x.All(x.IsFinite(a))) == 1
		c.is(finite)

		// PyTorch, not run: torch.set_printoptions; print(a)
		text := x.Format(a)
		// Remark: Values as NumPy prints them; waits.
		c.is(strings.Contains(text, "1"), text)
		return nil
	})
	c.noError(err)

	// PyTorch, not run: torch.cuda.set_sync_debug_mode("error")
	err = stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoWaits()
		x.Ones(cgotorch.Float32, 2)
		return nil
	})
	// Remark: The Do fails if an operator waits for a GPU.
	c.noError(err)

	// PyTorch, not run: # TORCH_CUDA_SANITIZER=1
	stop, err := cgotorch.CheckStreams(nil)
	c.noError(err)
	stop()

	// PyTorch, not run: with torch.profiler.profile() as p: ...
	//      p.export_chrome_trace("trace.json")
	started, err := trace.Start()
	c.is(started != nil || err != nil)
	if err == nil {
		records, err := started.Stop()
		c.noError(err)
		c.noError(records.WriteChrome(&bytes.Buffer{}))
	}

	// PyTorch, not run: torch.autograd.set_detect_anomaly(True)
	// Remark: `CGOTORCH_CHECK=finite` in the environment, for NaN and Inf, forward and backward.
}

// Group: Several GPUs

func TestFromPyTorch_SeveralGPUs(t *testing.T) {
	c := newChecks(t, fromPyTorch, nil)
	ctx := t.Context()

	// PyTorch, not run: distributed.init_process_group("nccl")
	group, err := distributed.Join(ctx, distributed.Options{Device: "cpu"})
	// Remark: Without `Device` it is the GPU of LOCAL_RANK. torchrun, srun or mpirun starts the ranks.
	c.noError(err)
	defer group.Close()

	stream := cgotorch.DefaultStream(group.Device())
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		c := newChecks(t, fromPyTorch, x)
		model := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(model)
		loss := x.Sum(model.Forward(x, x.Ones(cgotorch.Float32, 1, 2)))
		a := x.Ones(cgotorch.Float32, 2)

		// PyTorch, not run: DistributedDataParallel(model); loss.backward()
		gradients, err := distributed.NewGradients(x, group, model, distributed.GradientsOptions{})
		gradients.Backward(x, loss)
		c.noError(err)
		defer gradients.Close()

		// PyTorch, not run: nn.SyncBatchNorm.convert_sync_batchnorm(model)
		distributed.SyncBatchNorm(group, model)
		c.is(true)

		// PyTorch, not run: torch.distributed.all_reduce(a)
		group.AllReduce(x, a, distributed.Sum)
		c.is(x.Item(x.Sum(a)) == 2)

		// PyTorch, not run: torch.distributed.broadcast(a, 0)
		group.Broadcast(x, a, 0)
		c.is(x.Item(x.Sum(a)) == 2)

		// PyTorch, not run: torch.distributed.barrier()
		group.Barrier(x)
		c.is(true)
		return nil
	})
	c.noError(err)
}

// PyTorch, not run: torchrun --nproc-per-node 4 train.py
// Remark: `torchrun --no-python --nproc-per-node 4 ./train`

// PyTorch, not run: DistributedSampler(dataset)
// Remark: `imageloader.Ranks{World: group.World(), Rank: group.Rank()}`

// PyTorch, not run: FullyShardedDataParallel(model)
// Remark: Not offered.

// TestFromPyTorch_Peer comes last, because it needs the values of the other tests.
func TestFromPyTorch_Peer(t *testing.T) { python(t, fromPyTorch) }
