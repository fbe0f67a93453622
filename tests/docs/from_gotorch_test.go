package docs

import (
	"context"
	"errors"
	"fmt"
	"image"
	"log"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const fromGotorch = "from_gotorch_test.go"

const gotorchHead = `<!-- Written by go test ./tests/docs -update from tests/docs/from_gotorch_test.go. Edit that file. -->

# From gotorch

For programs of [gotorch](https://github.com/wangkuiyi/gotorch): each of its calls, examples and tools, and ours. A test
compiles and runs every cell of the middle column. The first column is gotorch's, with ` + "`torch`" + ` for its root package.

What changes in every program:

- **x.** Operators are methods of an Exec, ` + "`x`" + `, inside ` + "`stream.Do(func(x *cgotorch.Exec) error {...})`" + `. The Exec names the stream.
- **Memory.** There is no ` + "`torch.GC`" + ` and no ` + "`torch.FinishGC`" + `. The Do frees its tensors. ` + "`x.Keep`" + ` and modules outlive it; close them.
- **Errors.** gotorch panicked. Here an operator that fails ends the Do, and Do returns the error.
- **dtypes** are arguments: ` + "`x.Ones(cgotorch.Float32, 2, 3)`" + `. A gradient is asked for with ` + "`t.SetRequiresGrad(true)`" + `.

PyTorch's own names are in [From PyTorch](from-pytorch.md).
`

func TestFromGotorch_Page(t *testing.T) {
	samePage(t, "from-gotorch.md", gotorchHead+table(rows(t, fromGotorch), "| gotorch | streamtorch | remark |", true))
}

func TestFromGotorch_Tensors(t *testing.T) {
	do(t, fromGotorch, func(c *checks, x *cgotorch.Exec) {
		// Group: Making tensors

		// gotorch: torch.NewTensor([][]float32{{1, 2}, {3, 4}})
		a := cgotorch.FromRows(x, [][]float32{{1, 2}, {3, 4}})
		// Remark: `FromSlice(x, data, shape...)` for any shape
		c.values(a, 1, 2, 3, 4)

		// gotorch: torch.FromBlob(pointer, torch.Float, []int64{2, 2})
		blob := cgotorch.FromBytes(x, []byte{0, 0, 128, 63}, cgotorch.Float32, []int64{1})
		// Remark: from bytes; no unsafe.Pointer
		c.values(blob, 1)

		// gotorch: torch.RandN([]int64{2, 3}, false); torch.Rand([]int64{2, 3}, false)
		normal, uniform := x.Randn(cgotorch.Float32, 2, 3), x.Rand(cgotorch.Float32, 2, 3)
		c.shape(normal, 2, 3)
		c.shape(uniform, 2, 3)

		// gotorch: torch.RandN([]int64{2}, true)
		weight := x.Randn(cgotorch.Float32, 2)
		err := weight.SetRequiresGrad(true)
		c.noError(err)

		// gotorch: torch.Empty([]int64{2}, false); torch.Ones([]int64{2}, false)
		empty, ones := x.Empty(cgotorch.Float32, 2), x.Ones(cgotorch.Float32, 2)
		c.values(ones, 1, 1)
		c.shape(empty, 2)

		// gotorch: torch.Eye(2, 2, false); torch.Eye(2, 3, false)
		eye, wide := x.Eye(cgotorch.Float32, 2), x.Call1("aten::eye.m", 2, 3)
		c.shape(wide, 2, 3)
		c.values(eye, 1, 0, 0, 1)

		// gotorch: torch.Full([]int64{2}, 7, false)
		full := x.Full(cgotorch.Float32, 7, 2)
		c.values(full, 7, 7)

		// gotorch: torch.Arange(0, 3, 1, false)
		count := x.Arange(cgotorch.Float32, 0, 3, 1)
		c.values(count, 0, 1, 2)

		// gotorch: torch.Linspace(0, 1, 3, false)
		line := x.Linspace(cgotorch.Float32, 0, 1, 3)
		c.values(line, 0, 0.5, 1)

		// gotorch: torch.Logspace(0, 2, 3, 10, false)
		powers := x.Logspace(cgotorch.Float32, 0, 2, 3, 10)
		c.values(powers, 1, 10, 100)

		// Group: Operators

		b := x.Clone(a)
		// gotorch: torch.Add(a, b, 1); a.Add(b, 2)
		sum, scaled := x.Add(a, b), x.AddScaled(a, b, 2)
		c.values(scaled, 3, 6, 9, 12)
		c.values(sum, 2, 4, 6, 8)

		// gotorch: a.AddI(b, 1)
		x.AddInPlace(a, b)
		// Remark: `SubInPlace`, `MulInPlace`, `DivInPlace` likewise
		c.values(a, 2, 4, 6, 8)

		// gotorch: torch.Sub(a, b, 1); torch.Mul(a, b); torch.Div(a, b)
		difference, product, quotient := x.Sub(a, b), x.Mul(a, b), x.Div(a, b)
		c.values(difference, 1, 2, 3, 4)
		c.values(product, 2, 8, 18, 32)
		c.values(quotient, 2, 2, 2, 2)

		// gotorch: torch.MM(a, b)
		matrix := x.MM(a, b)
		// Remark: `x.MatMul` takes batches too
		c.values(matrix, 14, 20, 30, 44)

		// gotorch: torch.Eq(a, b); torch.Equal(a, b); torch.AllClose(a, b)
		each, same, close := x.Eq(a, b), x.Equal(a, b), x.AllClose(a, b, cgotorch.ToleranceOptions{})
		// Remark: the last two wait for the device
		c.values(each, 0, 0, 0, 0)
		c.is(!same && !close)

		// gotorch: torch.ExpandAs(ones, a)
		expanded := x.Expand(ones, a.Shape()...)
		c.shape(expanded, 2, 2)

		// gotorch: torch.Flatten(a, 0, 1); a.View([]int64{4}); a.Permute([]int64{1, 0}); a.Transpose(0, 1)
		flat, view, permuted, transposed := x.Flatten(a, 0, 1), x.View(a, 4), x.Permute(a, 1, 0), x.Transpose(a, 0, 1)
		c.shape(flat, 4)
		c.shape(view, 4)
		c.values(permuted, 2, 6, 4, 8)
		c.values(transposed, 2, 6, 4, 8)

		// gotorch: a.Squeeze(); a.Squeeze(0); torch.Stack([]torch.Tensor{a, b}, 0)
		squeezed, stacked := x.Squeeze(a, 0), x.Stack([]*cgotorch.Tensor{a, b}, 0)
		// Remark: `x.Squeeze(a)` squeezes every dimension of size 1
		c.shape(squeezed, 2, 2)
		c.shape(stacked, 2, 2, 2)

		// gotorch: torch.IndexSelect(a, 0, index)
		picked := x.IndexSelect(a, 0, cgotorch.FromSlice(x, []int64{1}))
		c.values(picked, 6, 8)

		// gotorch: a.Index(1, 0)
		element := x.Select(x.Select(a, 0, 1), 0, 0)
		c.values(element, 6)

		// gotorch: torch.Relu(a); torch.LeakyRelu(a, 0.2); torch.Sigmoid(a); torch.Tanh(a)
		activated := []*cgotorch.Tensor{x.ReLU(a), x.LeakyReLU(a, 0.2), x.Sigmoid(a), x.Tanh(a)}
		c.is(len(activated) == 4)

		// gotorch: torch.LogSoftmax(a, 1)
		logs := x.LogSoftmax(a, 1)
		c.values(logs, -2.12693, -0.12693, -2.12693, -0.12693)

		// gotorch: torch.Mean(a); torch.Sum(a)
		mean, total := x.Mean(a), x.Sum(a)
		c.values(mean, 5)
		c.values(total, 20)

		// gotorch: torch.SumByDim(a, 0, false)
		columns := x.SumDim(a, []int64{0}, cgotorch.SumOptions{})
		c.values(columns, 8, 12)

		// gotorch: a.Argmax(1); a.Argmin(1)
		best, worst := x.ArgMax(a, 1, cgotorch.ReduceOptions{}), x.ArgMin(a, 1, cgotorch.ReduceOptions{})
		c.values(best, 1, 1)
		c.values(worst, 0, 0)

		// gotorch: torch.TopK(a, 1, 1, true, true)
		values, indices := x.TopK(a, 1, 1, cgotorch.TopKOptions{})
		c.values(values, 4, 8)
		c.values(indices, 1, 1)

		// gotorch: an operator that gotorch has not
		hypot := x.Call1("aten::hypot", a, b)
		// Remark: all by name; [most are typed](operators.md)
		c.shape(hypot, 2, 2)

		// Group: Methods of Tensor

		// gotorch: a.Shape(); a.Dim(); a.Dtype()
		shape, dims, dtype := a.Shape(), a.Dim(), a.DType()
		c.is(len(shape) == 2 && dims == 2 && dtype == cgotorch.Float32)

		// gotorch: a.String(); a.Print()
		text := fmt.Sprint(a)
		// Remark: values as NumPy prints them; `x.Format(a)` for a GPU's tensor
		c.is(strings.Contains(text, "8"), text)

		// gotorch: a.Item().(float32)
		item, count64 := x.Item(total), cgotorch.ToSlice[int64](x, best)[0]
		// Remark: both wait
		c.is(item == 20 && count64 == 1)

		// gotorch: loss.Backward(); w.Grad()
		x.Backward(x.Sum(x.Mul(weight, weight)))
		gradient := weight.Grad()
		c.is(gradient != nil)

		// gotorch: a.Detach()
		detached := x.Detach(a)
		c.shape(detached, 2, 2)

		// gotorch: a.CastTo(torch.Long)
		whole := x.To(a, cgotorch.Int64)
		c.values(whole, 2, 4, 6, 8)

		// gotorch: a.To(device); a.CUDA(device, true); a.CopyTo(device)
		there := x.FromDevice(a)
		// Remark: to the device of `x`; batches come through a Prefetcher, without a wait
		c.shape(there, 2, 2)

		// gotorch: a.PinMemory()
		slab, err := cgotorch.NewHostSlab(x.Device(), 16)
		// Remark: pinned if it is for a CUDA device; the Prefetcher pins for you
		c.noError(err)
		c.noError(slab.Close())

		// gotorch: a.SetData(b)
		x.CopyInPlace(a, b)
		// Remark: copies; for a module's parameters `nn.Replace`
		c.values(a, 1, 2, 3, 4)

		file := filepath.Join(t.TempDir(), "a.safetensors")
		// gotorch: gob.NewEncoder(file).Encode(a); a.Save("a.pt"); torch.Load("a.pt")
		err = safetensors.WriteFile(file, []safetensors.Tensor{{Name: "a", DType: "F32", Shape: a.Shape(), Data: cgotorch.ToBytes(x, a)}}, nil)
		// Remark: Python reads it too; for models see below
		c.is(err == nil, err)
	})
}

func TestFromGotorch_Process(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromGotorch, nil)

	// Group: Devices, streams, process

	// gotorch: if torch.IsCUDAAvailable() { device = torch.NewDevice("cuda") }
	device, err := cgotorch.ParseDevice("auto")
	c.noError(err)
	c.is(device.Check() == nil)

	// gotorch: torch.IsCUDAAvailable()
	count, err := cgotorch.CUDACount()
	// Remark: the error says why there is none
	c.is(count > 0 || err != nil)

	// gotorch: torch.IsCUDNNAvailable()
	// Remark: no call; `streamtorch doctor` shows the cuDNN that is loaded

	// gotorch: torch.SetNumThreads(1)
	err = cgotorch.SetThreads(1)
	c.noError(err)

	// gotorch: torch.NewCUDAStream(device)
	stream, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
	c.noError(err)
	defer stream.Close()

	// gotorch: torch.GetCurrentCUDAStream(device); torch.SetCurrentCUDAStream(stream)
	err = stream.Do(func(x *cgotorch.Exec) error {
		x.Ones(cgotorch.Float32, 2)
		return nil
	})
	// Remark: no current stream; a setter cannot work in Go, see [the guide](guide.md#the-problem)
	c.noError(err)

	// gotorch: stream.Query(); stream.Synchronize()
	idle, err := stream.Query()
	err = errors.Join(err, stream.Synchronize())
	c.noError(err)
	c.is(idle)

	// gotorch: torch.GC(); torch.FinishGC()
	// Remark: nothing: a Do frees what it made

	// gotorch: initializer.ManualSeed(1)
	err = cgotorch.Seed(1)
	c.noError(err)
}

func TestFromGotorch_Modules(t *testing.T) {
	dir := t.TempDir()
	do(t, fromGotorch, func(c *checks, x *cgotorch.Exec) {
		// Group: Modules

		// gotorch: type Net struct { nn.Module; FC *nn.LinearModule }
		//      net := &Net{FC: nn.Linear(4, 2, true)}
		//      net.Init(net)
		type Net struct{ FC *nn.Linear }
		net := &Net{FC: nn.NewLinear(x, 4, 2, nn.LinearOptions{})}
		// Remark: a plain struct; nothing to embed, no Init
		defer nn.Close(net)

		// gotorch: nn.Linear(4, 2, false)
		linear := nn.NewLinear(x, 4, 2, nn.LinearOptions{NoBias: true})
		defer nn.Close(linear)

		// gotorch: nn.Conv2d(3, 8, 3, 2, 1, 1, 1, false, "zeros")
		conv := nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{Stride: nn.Square(2), Padding: nn.Square(1), NoBias: true})
		defer nn.Close(conv)

		// gotorch: nn.ConvTranspose2d(8, 3, 4, 2, 1, 0, 1, false, 1, "zeros")
		up := nn.NewConvTranspose2d(x, 8, 3, nn.Square(4), nn.ConvTranspose2dOptions{Stride: nn.Square(2), Padding: nn.Square(1), NoBias: true})
		defer nn.Close(up)

		// gotorch: nn.BatchNorm2d(8, 1e-5, 0.1, true, true)
		norm := nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})
		defer nn.Close(norm)

		// gotorch: nn.Sequential(conv, norm, nn.Functional(torch.Relu))
		sequence := nn.NewSequential(conv, norm, &nn.ReLU{}, nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Tanh(in) }))
		c.is(len(sequence.Children()) == 4)

		// gotorch: sequence.Forward(images).(torch.Tensor)
		out := sequence.Forward(x, x.Ones(cgotorch.Float32, 2, 3, 8, 8))
		// Remark: no interface{}
		c.shape(out, 2, 8, 4, 4)

		// gotorch: net.Train(false)
		nn.SetTraining(sequence, false)
		c.is(norm.Eval)

		// gotorch: net.To(device)
		nn.To(x, sequence, nn.ToOptions{ChannelsLast: true})
		// Remark: dtype and memory format; a module is made on its device
		c.is(conv.Weight.Strides()[1] == 1)

		// gotorch: net.Parameters(); net.NamedParameters()
		parameters, named := nn.Parameters(net), nn.NamedParameters(net)
		// Remark: in order; names are PyTorch's, `fc.weight` and not `Net.FC.Weight`
		c.is(len(parameters) == 2 && named[0].Name == "fc.weight")

		// gotorch: net.Buffers(); net.StateDict()
		state := nn.State(sequence)
		// Remark: parameters and buffers; field `Buffer` says which
		c.is(len(state) == 6, len(state))

		// gotorch: net.Apply(weightInit)
		nn.Apply(sequence, func(m any) {
			if m, ok := m.(*nn.Conv2d); ok {
				nn.Normal(x, m.Weight, 0, 0.02)
			}
		})
		c.is(conv.Weight != nil)

		// gotorch: net.SetStateDict(states)
		err := nn.Load(x, net, map[string]*cgotorch.Tensor{"fc.weight": x.Ones(cgotorch.Float32, 2, 4), "fc.bias": x.Zeros(cgotorch.Float32, 2)}, nn.LoadOptions{})
		c.noError(err)
		c.values(net.FC.Bias, 0, 0)

		file := filepath.Join(dir, "model.safetensors")
		// gotorch: gob.NewEncoder(f).Encode(net.StateDict())
		err = checkpoint.Save(x, file, checkpoint.Checkpoint{Model: net})
		// Remark: safetensors, which Python reads too
		c.noError(err)

		// gotorch: gob.NewDecoder(f).Decode(&states); net.SetStateDict(states)
		err = checkpoint.LoadModel(x, file, net, nn.LoadOptions{})
		// Remark: .pth files of PyTorch too. a gob file of gotorch is not read
		c.noError(err)

		// gotorch: initializer.Zeros(&w); initializer.Ones(&w)
		nn.Constant(x, net.FC.Bias, 1)
		c.values(net.FC.Bias, 1, 1)

		// gotorch: initializer.Uniform(&w, -1, 1); initializer.Normal(&w, 0, 0.02)
		nn.Uniform(x, net.FC.Weight, -1, 1)
		nn.Normal(x, net.FC.Weight, 0, 0.02)
		c.is(net.FC.Weight.RequiresGrad())

		// gotorch: initializer.KaimingUniform(&w, math.Sqrt(5), "fan_in", "leaky_relu")
		nn.KaimingUniform(x, net.FC.Weight, nn.KaimingOptions{Gain: nn.Gain("leaky_relu", 2.23607)})
		// Remark: `XavierUniform`, `Orthogonal` and others besides
		c.is(net.FC.Weight.RequiresGrad())

		// gotorch: initializer.CalculateFanInAndFanOut(w)
		// Remark: no function; the initialisers count by themselves

		// Group: Functionals and losses

		logits, labels := cgotorch.FromRows(x, [][]float32{{1, 2, 0}, {0, 1, 3}}), cgotorch.FromSlice(x, []int64{1, 2})
		// gotorch: F.CrossEntropy(logits, labels, torch.Tensor{}, -100, "mean")
		loss := nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{})
		c.values(loss, 0.28873)

		// gotorch: F.NllLoss(logProbabilities, labels, torch.Tensor{}, -100, "mean")
		nll := nn.NLL(x, x.LogSoftmax(logits, 1), labels, nn.NLLOptions{})
		c.values(nll, 0.28873)

		p, q := cgotorch.FromSlice(x, []float32{0.2, 0.9}), cgotorch.FromSlice(x, []float32{0, 1})
		// gotorch: F.BinaryCrossEntropy(p, q, torch.Tensor{}, "mean")
		bce := nn.BCE(x, p, q, nn.BCEProbabilitiesOptions{})
		// Remark: `BCEWithLogits` needs no sigmoid and is safe
		c.values(bce, 0.16425)

		// gotorch: F.Relu(a, true); F.LeakyRelu(a, 0.2, false); F.Linear(a, w, b)
		x.ReLUInPlace(p)
		leaky, projected := x.LeakyReLU(p, 0.2), x.Linear(x.Ones(cgotorch.Float32, 1, 4), net.FC.Weight, net.FC.Bias)
		c.shape(leaky, 2)
		c.shape(projected, 1, 2)

		in := x.Ones(cgotorch.Float32, 1, 3, 8, 8)
		// gotorch: F.Conv2d(in, w, torch.Tensor{}, []int64{1, 1}, []int64{0, 0}, []int64{1, 1}, 1)
		convolved := x.Conv2d(in, conv.Weight, nil, cgotorch.Conv2dOptions{})
		// Remark: `ConvTranspose2d`, `BatchNorm` likewise
		c.shape(convolved, 1, 8, 6, 6)

		// gotorch: F.MaxPool2d(in, []int64{2, 2}, []int64{2, 2}, []int64{0, 0}, []int64{1, 1}, false)
		pooled := x.MaxPool2d(in, []int64{2, 2}, cgotorch.MaxPool2dOptions{})
		c.shape(pooled, 1, 3, 4, 4)

		// gotorch: F.AdaptiveAvgPool2d(in, []int64{1, 1})
		averaged := x.AdaptiveAvgPool2d(in, []int64{1, 1})
		c.values(averaged, 1, 1, 1)

		// Group: Optimizers

		// gotorch: opt := torch.SGD(0.1, 0.9, 0, 5e-4, false)
		//      opt.AddParameters(net.Parameters())
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9, WeightDecay: 5e-4}, optim.Group{Params: nn.Parameters(net)})
		c.noError(err)
		defer opt.Close()

		// gotorch: torch.Adam(2e-4, 0.5, 0.999, 0)
		adam, err := optim.NewAdam(optim.AdamOptions{LR: 2e-4, Betas: cgotorch.Set([2]float64{0.5, 0.999})}, optim.Group{Params: nn.Parameters(net)})
		// Remark: ten more rules
		c.noError(err)
		c.noError(adam.Close())

		// gotorch: opt.ZeroGrad(); loss.Backward(); opt.Step()
		opt.ZeroGrad()
		x.Backward(x.Sum(net.FC.Forward(x, x.Ones(cgotorch.Float32, 1, 4))))
		opt.Step(x)
		c.is(net.FC.Weight.Grad() != nil)

		// gotorch: opt.SetLR(0.01)
		opt.SetLR(0.01)
		// Remark: schedules: `opt.SetScale(optim.StepDecay(30, 0.1)(epoch))`
		c.is(opt.LR(0) == 0.01)

		// Group: Models

		// gotorch: models.MLP()
		classifier := vision.NewMLP(x, vision.Options{Channels: 1, ImageSize: nn.Size{28, 28}, Hidden: []int{512, 512}})
		defer nn.Close(classifier)

		// gotorch: models.Resnet18(); models.Resnet50()
		resnet := cgotorch.Must(vision.New(x, "resnet18", vision.Options{}))
		// Remark: trained weights: `checkpoint.LoadModel` with torchvision's file
		defer nn.Close(resnet)

		// gotorch: models.Resnet(bottleneck, []int64{1, 1, 1, 1}, 1000, false, 32, 4)
		resnext := vision.NewBottleneckResNet(x, vision.BottleneckForm{Depths: [4]int{1, 1, 1, 1}, Groups: 32, WidthPerGroup: 4}, vision.Options{})
		// Remark: `vision.Names()` lists models, and `vision.New` makes one by name
		defer nn.Close(resnext)
	})
}

func TestFromGotorch_Data(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newChecks(t, fromGotorch, nil)
	ctx, stream := context.Background(), torchtest.NewStream(t, cgotorch.CPU)
	path := folder(t)

	// Group: Data

	// gotorch: vocab, e := imageloader.BuildLabelVocabularyFromTgz("train.tgz")
	//      loader, e := imageloader.New("train.tgz", vocab, trans, 64, 64,
	//          time.Now().UnixNano(), torch.IsCUDAAvailable(), "rgb")
	loader, err := imageloader.Open(path, imageloader.Options{Split: "train", Train: true, BatchSize: 2})
	// Remark: the classes come from the archive: `loader.Classes()`
	c.noError(err)
	defer loader.Close()

	// gotorch: device copies by hand: images.CUDA(device, true)
	ahead, err := prefetcher.New(loader, cgotorch.CPU, prefetcher.Options{})
	// Remark: its own copy stream and slots; the host does not wait
	c.noError(err)
	defer ahead.Close()

	n := 0
	// gotorch: for loader.Scan() {
	//          images, labels := loader.Minibatch()
	//      }
	//      if e := loader.Err(); e != nil { log.Fatal(e) }
	for batch, err := range ahead.Epoch(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x)
			n += int(images.Shape()[0] * labels.Shape()[0])
			return nil
		})
	}
	c.is(n == 8, n)

	// gotorch: imageloader.New(..., "gray")
	gray := imageloader.Options{Crop: imageloader.Crop{Channels: 1}}
	c.is(c.reads(path, gray) == [2]int{224, 1})

	// gotorch: transforms.Compose(transforms.RandomResizedCrop(224, 224),
	//          transforms.RandomHorizontalFlip(0.5), transforms.ToTensor())
	crop := imageloader.Options{Train: true, Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: 224, Width: 224}, HorizontalFlip: 0.5}}
	// Remark: one decode in C++, no composition
	c.is(c.reads(path, crop) == [2]int{224, 3})

	// gotorch: transforms.RandomCrop(32, 32)
	random := imageloader.Options{Crop: imageloader.Crop{Transform: decode.RandomCrop{Height: 32, Width: 32, Padding: 4}}}
	c.is(c.reads(path, random) == [2]int{32, 3})

	// gotorch: transforms.Resize(256), transforms.CenterCrop(224)
	center := imageloader.Options{Crop: imageloader.Crop{Transform: decode.ResizeCenterCrop{Resize: 256, Height: 224, Width: 224}}}
	c.is(c.reads(path, center) == [2]int{224, 3})

	// gotorch: transforms.Normalize([]float32{0.1307}, []float32{0.3081})
	//      transforms.RandomVerticalFlip(0.5)
	onDevice := prefetcher.Options{Mean: []float64{0.1307}, Std: []float64{0.3081}, Augmentations: prefetcher.Augmentations{VerticalFlip: 0.5}}
	// Remark: on the device, with TrivialAugmentWide, MixUp and others
	c.is(c.copies(path, onDevice, 1) == cgotorch.Int64)

	// gotorch: transforms.ToTensor().Run(img)
	err = stream.Do(func(x *cgotorch.Exec) error {
		pixels := images.FromImage(x, image.NewGray(image.Rect(0, 0, 4, 4)))
		normal := vision.Normalize(x, x.Unsqueeze(pixels, 0), vision.ImageNetMean, vision.ImageNetStd)
		c.is(len(normal.Shape()) == 4)
		return nil
	})
	c.noError(err)

	// gotorch: tgz.OpenFile("train.tgz"); tgz.ListFile("train.tgz")
	// Remark: `streamtorch ls train.tgz`; in Go archive/tar over a gzip reader

	// gotorch: vision.Synthesizer, tgz.Synthesize
	// Remark: `streamtorch pack` packs a folder; examples/mnist makes its own images
}

// The rows of these groups are programs, which other tests run.
//
// Group: Examples and tools

// gotorch: go run ./example/mnist train; predict
// Remark: [examples/mnist](../examples/mnist/main.go): `go run ./examples/mnist train -data
//      FOLDER`, then `predict a.png`

// gotorch: go run ./example/resnet train; validate
// Remark: [examples/train](../examples/train/main.go): `go run ./examples/train -data my.tgz
//      -model resnet50`; `-evaluate CHECKPOINT` tests only

// gotorch: go run ./example/dcgan
// Remark: [examples/dcgan](../examples/dcgan/main.go): `go run ./examples/dcgan`

// gotorch: example/pickle, gob files
// Remark: `streamtorch convert in.pth out.safetensors`

// gotorch: benchmark/
// Remark: [bench](../bench/README.md); on your machine `streamtorch bench`

// gotorch: cmd/labelbuilder
// Remark: `streamtorch labels train.tgz`

// gotorch: tool/tarball_divide, tool/tarball_merge
// Remark: `streamtorch pack -shards N`; merging to shuffle is not needed: a seed shuffles every
//      epoch evenly

// gotorch: XLA, Go+, macOS, Raspberry Pi, ARM builds
// Remark: none; Linux on x86-64 or arm64
