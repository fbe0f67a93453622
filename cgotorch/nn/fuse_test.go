package nn_test

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// onFusingDevices runs test on the CPU and on CUDA, without TF32 and with the same random
// numbers. Each run has a new stream.
func onFusingDevices(t *testing.T, test func(t *testing.T, x *cgotorch.Exec)) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		deterministicOnCUDA(t, d)
		torchtest.NoTF32(t)
		must.Do(t, cgotorch.Seed(4))
		torchtest.Do(t, d, func(x *cgotorch.Exec) { test(t, x) })
	})
}

// layers makes layers with random values. Its method close frees them.
type layers struct {
	x    *cgotorch.Exec
	made []nn.Module
}

func (l *layers) conv(in, out, kernel int, o nn.Conv2dOptions) *nn.Conv2d {
	c := nn.NewConv2d(l.x, in, out, nn.Square(kernel), o)
	l.made = append(l.made, c)
	return c
}

// norm returns a batch norm with random parameters and statistics, as after a training.
func (l *layers) norm(channels int, o nn.BatchNormOptions) *nn.BatchNorm2d {
	n := nn.NewBatchNorm2d(l.x, channels, o)
	l.made = append(l.made, n)
	for _, t := range []*cgotorch.Tensor{n.Bias, n.RunningMean} {
		if t != nil {
			nn.Normal(l.x, t, 0, 1)
		}
	}
	for _, t := range []*cgotorch.Tensor{n.Weight, n.RunningVar} {
		if t != nil {
			nn.Uniform(l.x, t, 0.5, 2)
		}
	}
	return n
}

func (l *layers) close() { nn.Close(l.made) }

// fuses makes the test fail unless the fused form of m gives the results of m in evaluation mode.
// It tries each dtype and memory format. It returns the names in the fused model's state, and the
// texts that Log was called with.
func fuses(t *testing.T, x *cgotorch.Exec, name string, m nn.Module, o nn.FuseOptions, in *cgotorch.Tensor) (names string, told []string) {
	t.Helper()
	nn.SetTraining(m, false)
	o.Log = func(text string) { told = append(told, text) }
	for _, to := range []nn.ToOptions{{DType: cgotorch.Float32}, {DType: cgotorch.Float64}, {DType: cgotorch.Float64, ChannelsLast: true}, {DType: cgotorch.Float32, ChannelsLast: true}} {
		told = nil
		nn.To(x, m, to)
		if to.DType == cgotorch.Float64 { // values that float32 cannot hold exactly
			for _, p := range nn.Parameters(m) {
				nn.Copy(x, p, x.DivScalar(p, 1.1))
			}
		}
		in := x.ToFormat(in, to.DType, map[bool]cgotorch.MemoryFormat{true: cgotorch.ChannelsLast}[to.ChannelsLast])
		want := m.Forward(x.NoGrad(), in)
		fused := nn.Fuse(x, m, o)
		pixels, shape := cgotorch.ToSlice[float32](x, x.To(in, cgotorch.Float32)), in.Shape()
		for range 2 {
			handles := cgotorch.LiveHandles()["tensor"]
			got := fused.Forward(x, in)
			if left := cgotorch.LiveHandles()["tensor"] - handles; left != 1 {
				t.Errorf("%s: %d handles after Forward, want 1", name, left)
			}
			tolerance := 1e-5
			if to.DType == cgotorch.Float64 {
				tolerance = 1e-13
			}
			if !slices.Equal(got.Shape(), want.Shape()) || got.DType() != want.DType() {
				t.Errorf("%s, %+v: got %v, want %v", name, to, got, want)
			} else if d, size := x.Item(x.Max(x.Abs(x.Sub(got, want)))), x.Item(x.Max(x.Abs(want))); !(d <= tolerance*size) {
				t.Errorf("%s, %+v: differs by %g of %g", name, to, d, size)
			}
			if got.RequiresGrad() {
				t.Errorf("%s: the result requires gradients", name)
			}
		}
		if !slices.Equal(cgotorch.ToSlice[float32](x, x.To(in, cgotorch.Float32)), pixels) || !slices.Equal(in.Shape(), shape) {
			t.Errorf("%s: Forward changed its input", name)
		}
		names = ""
		for _, n := range nn.State(fused) {
			names += " " + n.Name
			device := in.Device()
			if n.Host {
				device = cgotorch.CPU
			}
			if n.Tensor.DType() != to.DType && n.Tensor.DType() != cgotorch.Int64 || n.Tensor.Device() != device || n.Tensor.RequiresGrad() {
				t.Errorf("%s: %s is %v, requires gradients: %v", name, n.Name, n.Tensor, n.Tensor.RequiresGrad())
			}
		}
		must.Do(t, nn.Close(fused))
	}
	return strings.TrimSpace(names), told
}

func tensors(m nn.Module) map[*cgotorch.Tensor]bool {
	set := map[*cgotorch.Tensor]bool{}
	for _, n := range nn.State(m) {
		set[n.Tensor] = true
	}
	return set
}

func TestFuse_Convolutions(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		chain := nn.NewSequential
		in := x.Randn(cgotorch.Float32, 2, 4, 9, 9)
		plain, noBias := nn.Conv2dOptions{}, nn.Conv2dOptions{NoBias: true}
		norm := func() nn.Module { return l.norm(6, nn.BatchNormOptions{}) }
		for name, c := range map[string]struct {
			m    nn.Module
			want string
		}{
			"convolution":        {l.conv(4, 6, 3, plain), "weight bias"},
			"no bias":            {l.conv(4, 6, 3, noBias), "weight"},
			"ReLU":               {chain(l.conv(4, 6, 3, plain), &nn.ReLU{}), "weight bias"},
			"ReLU, no bias":      {chain(l.conv(4, 6, 3, noBias), &nn.ReLU{InPlace: true}), "weight bias"},
			"norm":               {chain(l.conv(4, 6, 3, plain), norm()), "weight bias"},
			"norm, ReLU":         {chain(l.conv(4, 6, 3, noBias), norm(), &nn.ReLU{}), "weight bias"},
			"norm, ReLU6":        {chain(l.conv(4, 6, 3, noBias), norm(), &nn.ReLU6{}), "weight bias"},
			"two norms":          {chain(l.conv(4, 6, 3, plain), norm(), norm(), &nn.ReLU{}), "weight bias"},
			"no affine, epsilon": {chain(l.conv(4, 6, 3, noBias), l.norm(6, nn.BatchNormOptions{NoAffine: true, Eps: cgotorch.Set(0.5)})), "weight bias"},
			"strides": {chain(l.conv(4, 6, 3, nn.Conv2dOptions{Stride: nn.Size{2, 1}, Padding: nn.Size{0, 2}, Dilation: nn.Size{1, 2}}),
				norm(), &nn.ReLU{}), "weight bias"},
			"mirrored":  {chain(l.conv(4, 6, 3, nn.Conv2dOptions{Padding: nn.Size{1, 2}, PaddingMode: "reflect"}), norm(), &nn.ReLU{}), "weight bias"},
			"groups":    {chain(l.conv(4, 6, 3, nn.Conv2dOptions{Groups: 2}), norm(), &nn.ReLU{}), "weight bias"},
			"depthwise": {chain(l.conv(4, 4, 3, nn.Conv2dOptions{Groups: 4, NoBias: true}), l.norm(4, nn.BatchNormOptions{}), &nn.ReLU6{}), "weight bias"},
			"left out": {chain(&nn.Identity{}, l.conv(4, 6, 3, noBias), &nn.Dropout{P: 0.5}, nil, chain(&nn.Identity{}, norm()), &nn.ReLU{}),
				"weight bias"},
			"two of them": {chain(chain(l.conv(4, 6, 3, plain), norm()), chain(chain(&nn.ReLU{}), l.conv(6, 6, 3, plain)), &nn.ReLU{}),
				"0.weight 0.bias 1.weight 1.bias"},
			"two activations":      {chain(l.conv(4, 6, 3, plain), &nn.ReLU6{}, &nn.ReLU{}), "0.weight 0.bias"},
			"norm behind the ReLU": {chain(l.conv(4, 6, 3, plain), &nn.ReLU{}, norm()), "0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked"},
			"norm first":           {chain(l.norm(4, nn.BatchNormOptions{}), l.conv(4, 6, 3, plain)), "0.weight 0.bias 0.running_mean 0.running_var 0.num_batches_tracked 1.weight 1.bias"},
			"no statistics":        {chain(l.conv(4, 6, 3, plain), l.norm(6, nn.BatchNormOptions{NoStatistics: true}), &nn.ReLU{}), "0.weight 0.bias 1.weight 1.bias"},
			"nothing":              {chain(&nn.Identity{}, &nn.Dropout{}), ""},
			"other activation":     {chain(l.conv(4, 6, 3, plain), norm(), &nn.HardSwish{}), "0.weight 0.bias"},
			"activation first":     {chain(&nn.ReLU{}, &nn.MaxPool2d{Kernel: nn.Square(2)}, l.conv(4, 6, 3, plain)), "2.weight 2.bias"},
		} {
			names, told := fuses(t, x, name, c.m, nn.FuseOptions{}, in)
			if names != c.want {
				t.Errorf("%s: the state is %s, want %s", name, names, c.want)
			}
			if len(told) > 0 {
				t.Errorf("%s: told %q", name, told)
			}
		}
	})
}

func TestFuse_Residual(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		in := x.Randn(cgotorch.Float32, 2, 4, 6, 6)
		same := nn.Conv2dOptions{Padding: nn.Square(1)}
		norm := func() nn.Module { return l.norm(4, nn.BatchNormOptions{}) }
		body := func(last ...nn.Module) nn.Module {
			return nn.NewSequential(append([]nn.Module{l.conv(4, 4, 3, same), norm(), &nn.ReLU{}}, last...)...)
		}
		mean := nn.NewSequential(&nn.AdaptiveAvgPool2d{}) // has shape [2, 4, 1, 1] and is broadcast
		for name, c := range map[string]struct {
			m    nn.Module
			want string
		}{
			"basic block": {&nn.Residual{Body: body(l.conv(4, 4, 3, same), norm()), Activation: &nn.ReLU{}},
				"body.weight body.bias last.weight last.bias"},
			"shortcut": {&nn.Residual{Body: body(l.conv(4, 8, 3, nn.Conv2dOptions{Stride: nn.Square(2), Padding: nn.Square(1)})), Activation: &nn.ReLU{InPlace: true}, InPlace: true,
				Shortcut: nn.NewSequential(l.conv(4, 8, 1, nn.Conv2dOptions{Stride: nn.Square(2), NoBias: true}), l.norm(8, nn.BatchNormOptions{}))},
				"body.weight body.bias last.weight last.bias shortcut.weight shortcut.bias"},
			"linear":              {&nn.Residual{Body: body(l.conv(4, 4, 3, same), norm()), Shortcut: &nn.Identity{}}, "body.weight body.bias last.weight last.bias"},
			"ReLU6":               {&nn.Residual{Body: l.conv(4, 4, 3, same), Activation: &nn.ReLU6{}}, "last.weight last.bias"},
			"other activation":    {&nn.Residual{Body: l.conv(4, 4, 3, same), Activation: &nn.GELU{}}, "0.last.weight 0.last.bias"},
			"activated body":      {&nn.Residual{Body: body(), Activation: &nn.ReLU{}}, "body.weight body.bias"},
			"activated, in place": {&nn.Residual{Body: body(), InPlace: true}, "body.weight body.bias"},
			"pool":                {&nn.Residual{Body: &nn.AvgPool2d{Kernel: nn.Square(3), Stride: nn.Square(1), Padding: nn.Square(1)}, Shortcut: l.conv(4, 4, 1, nn.Conv2dOptions{})}, "shortcut.weight shortcut.bias"},
			"broadcast shortcut":  {&nn.Residual{Body: l.conv(4, 4, 3, same), Shortcut: mean, Activation: &nn.ReLU{}}, "last.weight last.bias"},
			"broadcast body":      {&nn.Residual{Body: nn.NewSequential(mean, l.conv(4, 4, 1, nn.Conv2dOptions{})), Activation: &nn.ReLU{}}, "last.weight last.bias"},
			"no body":             {&nn.Residual{Body: &nn.Identity{}, Shortcut: &nn.Tanh{}}, ""},
			"two in a row": {nn.NewSequential(&nn.Residual{Body: l.conv(4, 4, 3, same)}, norm(), &nn.ReLU{}),
				"0.last.weight 0.last.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked"},
		} {
			if names, _ := fuses(t, x, name, c.m, nn.FuseOptions{}, in); names != c.want {
				t.Errorf("%s: the state is %s, want %s", name, names, c.want)
			}
		}
	})
}

// branches returns a Parallel with many kinds of branches. If the name of a branch begins with
// "one", its first module is a 1x1 convolution that can be merged.
func branches(l *layers) *nn.Parallel {
	conv := func(in, out, kernel int, o nn.Conv2dOptions) nn.Module {
		o.NoBias = true
		return nn.NewSequential(l.conv(in, out, kernel, o), l.norm(out, nn.BatchNormOptions{}), &nn.ReLU{})
	}
	one, same := nn.Conv2dOptions{}, nn.Conv2dOptions{Padding: nn.Square(1)}
	return &nn.Parallel{Branches: []nn.Child{
		{Name: "one", Module: conv(4, 3, 1, one)},
		{Name: "pool", Module: nn.NewSequential(&nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(1), Padding: nn.Square(1)}, conv(4, 2, 1, one))},
		{Name: "one_three", Module: nn.NewSequential(conv(4, 5, 1, one), conv(5, 6, 3, same))},
		{Name: "three", Module: conv(4, 2, 3, same)},
		{Name: "linear", Module: l.conv(4, 2, 1, one)},
		{Name: "groups", Module: conv(4, 4, 1, nn.Conv2dOptions{Groups: 2})},
		{Name: "groups_too", Module: conv(4, 2, 1, nn.Conv2dOptions{Groups: 2})},
		{Name: "one_pool", Module: nn.NewSequential(conv(4, 3, 1, one), &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(1), Padding: nn.Square(1)})},
		{Name: "input", Module: &nn.Identity{}},
		{Name: "one_linear", Module: nn.NewSequential(l.conv(4, 2, 1, nn.Conv2dOptions{NoBias: true}), &nn.LeakyReLU{})},
		{Name: "six", Module: nn.NewSequential(l.conv(4, 2, 1, one), &nn.ReLU6{})},
		{Name: "cropped", Module: nn.NewSequential(conv(4, 2, 3, one), &nn.AdaptiveAvgPool2d{Output: nn.Square(6)})},
		{Name: "padded", Module: nn.NewSequential(conv(4, 2, 1, same), &nn.AdaptiveAvgPool2d{Output: nn.Square(6)})},
	}}
}

func TestFuse_Parallel(t *testing.T) {
	torchtest.CheckStreams(t)
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		in := x.Randn(cgotorch.Float32, 2, 4, 6, 6)
		m := branches(l)
		for _, m.Parallelism = range []nn.Parallelism{nn.AlwaysParallel, nn.AlwaysSerial, ""} {
			names, _ := fuses(t, x, "merged", m, nn.FuseOptions{Merge: true}, in)
			want := "heads.0.weight heads.0.bias heads.1.weight heads.1.bias pool.1.weight pool.1.bias one_three.weight one_three.bias" +
				" three.weight three.bias groups.weight groups.bias groups_too.weight groups_too.bias six.weight six.bias cropped.0.weight cropped.0.bias padded.0.weight padded.0.bias"
			if names != want {
				t.Errorf("merged: the state is %s, want %s", names, want)
			}
			names, _ = fuses(t, x, "apart", m, nn.FuseOptions{}, in)
			want = "one.weight one.bias pool.1.weight pool.1.bias one_three.0.weight one_three.0.bias one_three.1.weight one_three.1.bias three.weight three.bias" +
				" linear.weight linear.bias groups.weight groups.bias groups_too.weight groups_too.bias one_pool.0.weight one_pool.0.bias" +
				" one_linear.0.weight six.weight six.bias cropped.0.weight cropped.0.bias padded.0.weight padded.0.bias"
			if names != want {
				t.Errorf("apart: the state is %s, want %s", names, want)
			}
		}
		equal := func(o nn.Conv2dOptions) nn.Module { return l.conv(4, 4, 1, o) }
		for name, join := range map[string]func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor{"concat": nil, "sum": sum, "in place": func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
			return x.AddInPlace(branches[0], branches[1])
		}} {
			m := nn.NewParallel(equal(nn.Conv2dOptions{}), equal(nn.Conv2dOptions{NoBias: true}))
			m.Join = join
			if names, _ := fuses(t, x, name, m, nn.FuseOptions{Merge: true}, in); names != "heads.0.weight heads.0.bias" {
				t.Errorf("%s: the state is %s", name, names)
			}
		}
		strided := nn.Conv2dOptions{Stride: nn.Square(2)}
		if names, _ := fuses(t, x, "strides", nn.NewParallel(equal(strided), equal(strided)), nn.FuseOptions{Merge: true}, in); strings.Contains(names, "heads") {
			t.Errorf("strides: the state is %s", names)
		}
		if names, _ := fuses(t, x, "no bias", nn.NewParallel(equal(nn.Conv2dOptions{NoBias: true}), equal(nn.Conv2dOptions{NoBias: true})), nn.FuseOptions{Merge: true}, in); names != "heads.0.weight" {
			t.Errorf("no bias: the state is %s", names)
		}
	})
}

// The fused model keeps the Parallelism of the original, and SetParallelism changes it.
func TestFuse_Parallel_Parallelism(t *testing.T) {
	for _, o := range []nn.FuseOptions{{}, {Merge: true}} {
		for _, reset := range []bool{false, true} {
			err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				l := &layers{x: x}
				defer l.close()
				m := nn.NewSequential(branches(l))
				nn.SetTraining(m, false)
				nn.SetParallelism(m, "sideways")
				fused := nn.Fuse(x, m, o)
				defer nn.Close(fused)
				if reset {
					nn.SetParallelism(fused, nn.AlwaysSerial)
				}
				fused.Forward(x, x.Zeros(cgotorch.Float32, 1, 4, 6, 6))
			})
			if reset {
				if err != nil {
					t.Error(err)
				}
				continue
			}
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, `"sideways"`)
		}
	}
}

// A branch that only reads a range of channels from the merged convolution needs no stream.
func TestFuse_Parallel_Cuts(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		m := nn.NewParallel(l.conv(4, 4, 1, nn.Conv2dOptions{}), l.conv(4, 4, 1, nn.Conv2dOptions{}), &nn.Identity{})
		m.Parallelism = nn.AlwaysParallel
		fused := nn.Fuse(x, m, nn.FuseOptions{Merge: true})
		defer nn.Close(fused)
		in := x.Ones(cgotorch.Float32, 1, 4, 6, 6)
		streams := func(m nn.Module) int {
			before := cgotorch.LiveHandles()["stream"]
			m.Forward(x, in)
			return cgotorch.LiveHandles()["stream"] - before
		}
		if got, apart := streams(fused), streams(m); got != 0 || apart == 0 {
			t.Errorf("%d streams were made, and %d with the branches apart, want none and some", got, apart)
		}
	})
}

// Scaled implements Fusible. It holds a tensor beside its modules.
type Scaled struct {
	Conv  *nn.Conv2d
	Norm  *nn.BatchNorm2d
	Scale *cgotorch.Tensor
	Head  nn.Module
	as    func(x *cgotorch.Exec, f *nn.Fusion) nn.Module // if not nil, Fuse returns the result of `as`
}

func (m *Scaled) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return m.Head.Forward(x, x.Mul(m.Norm.Forward(x, m.Conv.Forward(x, in)), m.Scale))
	})
}

func (m *Scaled) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	if m.as != nil {
		return m.as(x, f)
	}
	if x.AutocastDType() != 0 || x.GradEnabled() {
		x.Fail("Scaled", fmt.Errorf("asked under autocast to %v, with gradients: %v", x.AutocastDType(), x.GradEnabled()))
	}
	return &fusedScaled{Body: f.Fuse(x, m.Conv, nil, m.Norm, (*nn.MaxPool2d)(nil)), Scale: f.Copy(x, m.Scale), Head: f.Fuse(x, m.Head), None: f.Copy(x, nil)}
}

type fusedScaled struct {
	Body  nn.Module
	Scale *cgotorch.Tensor
	None  *cgotorch.Tensor
	Head  nn.Module
}

func (m *fusedScaled) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { return m.Head.Forward(x, x.Mul(m.Body.Forward(x, in), m.Scale)) })
}

func newScaled(l *layers, head nn.Module) *Scaled {
	m := &Scaled{Conv: l.conv(4, 4, 3, nn.Conv2dOptions{NoBias: true}), Norm: l.norm(4, nn.BatchNormOptions{}), Scale: l.x.Keep(l.x.Rand(cgotorch.Float32, 4, 1, 1)), Head: head}
	l.made = append(l.made, m)
	return m
}

func TestFuse_Fusible(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		in := x.Randn(cgotorch.Float32, 2, 4, 6, 6)
		names, told := fuses(t, x, "net", newScaled(l, nn.NewSequential(l.conv(4, 2, 1, nn.Conv2dOptions{}), &nn.ReLU{})), nn.FuseOptions{}, in)
		m := newScaled(l, &nn.Tanh{})
		nn.SetTraining(m, false)
		nn.Close(nn.Fuse(x.Autocast(cgotorch.BFloat16), m, nn.FuseOptions{}))
		if want := "scale body.weight body.bias head.weight head.bias"; names != want || len(told) > 0 {
			t.Errorf("the state is %s, want %s; told %q", names, want, told)
		}
	})
}

// deeper inherits Fuse from the embedded Scaled. That Fuse does not know deeper's Forward.
type deeper struct {
	*Scaled
	Count int
}

func (m *deeper) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { return x.MulScalar(m.Scaled.Forward(x, in), 3) })
}

// block does not implement Fusible. It holds tensors and modules in many kinds of fields.
type block struct {
	Conv     *nn.Conv2d
	Again    *nn.Conv2d // the same convolution as Conv
	Scale    *cgotorch.Tensor
	List     []*nn.BatchNorm2d
	Pair     [2]nn.Module
	Fork     nn.Parallel
	Value    nn.Residual
	Dropout  *nn.Dropout
	Borrowed *cgotorch.Tensor `state:"-"`
	Settings map[string]int
	Eps      cgotorch.Opt[float64]
	Parent   *block
	cache    map[string]int
}

func (m *block) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		out := m.Again.Forward(x, m.Conv.Forward(x, in))
		out = m.Fork.Forward(x, x.Mul(m.List[0].Forward(x, out), m.Scale))
		out = m.Pair[1].Forward(x, m.Pair[0].Forward(x, m.Value.Forward(x, out)))
		return m.Dropout.Forward(x, x.MulScalar(x.Add(out, m.Borrowed), m.Settings["factor"]))
	})
}

func newBlock(l *layers) *block {
	conv := l.conv(4, 4, 1, nn.Conv2dOptions{})
	m := &block{Conv: conv, Again: conv, Scale: l.x.Keep(l.x.Rand(cgotorch.Float32, 4, 1, 1)), List: []*nn.BatchNorm2d{l.norm(4, nn.BatchNormOptions{})},
		Pair: [2]nn.Module{&nn.Tanh{}, l.norm(8, nn.BatchNormOptions{})}, Dropout: &nn.Dropout{P: 0.5}, Borrowed: l.x.Ones(cgotorch.Float32, 1),
		Value: nn.Residual{Body: l.conv(8, 8, 1, nn.Conv2dOptions{})}, Settings: map[string]int{"factor": 2}}
	m.Parent = m
	m.Fork.Branches = []nn.Child{{Module: l.conv(4, 4, 1, nn.Conv2dOptions{})}, {Name: "other", Module: &nn.Identity{}}}
	l.made = append(l.made, m)
	return m
}

func TestFuse_CopiesUnknown(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		in := x.Randn(cgotorch.Float32, 2, 4, 6, 6)
		m := newBlock(l)
		var before []string
		for _, n := range nn.State(m) {
			before = append(before, n.Name)
		}
		names, told := fuses(t, x, "block", m, nn.FuseOptions{}, in)
		if want := strings.Join(before, " "); names != want {
			t.Errorf("the state is %s, want %s", names, want)
		}
		if want := "*nn_test.block is no nn.Fusible"; len(told) != 1 || !strings.Contains(told[0], want) {
			t.Errorf("told %q, want %s", told, want)
		}

		fused := nn.Fuse(x, nn.NewSequential(m, m), nn.FuseOptions{})
		defer nn.Close(fused)
		if got, want := len(tensors(fused)), len(tensors(m)); got != want {
			t.Errorf("%d tensors, want %d", got, want)
		}

		_, told = fuses(t, x, "function", nn.NewSequential(multiply(2), l.conv(4, 2, 1, nn.Conv2dOptions{})), nn.FuseOptions{}, in)
		if len(told) != 1 || !strings.Contains(told[0], "nn.Func") {
			t.Errorf("told %q, want that of nn.Func", told)
		}
		outer := &deeper{Scaled: newScaled(l, &nn.Tanh{}), Count: 2}
		names, told = fuses(t, x, "embedding", outer, nn.FuseOptions{}, in)
		if !strings.Contains(names, "running_mean") || len(told) != 1 || !strings.Contains(told[0], "*nn_test.deeper embeds a nn.Fusible") {
			t.Errorf("the state is %s, told %q", names, told)
		}
	})
}

// A fused model does not change when the original changes, and it outlives the Do.
func TestFuse_Independent(t *testing.T) {
	var fused nn.Module
	var borrowed *cgotorch.Tensor
	var want []float32
	torchtest.CheckLeaks(t)
	then := func(fn func(x *cgotorch.Exec)) {
		torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) { fn(x) })
	}
	then(func(x *cgotorch.Exec) {
		l := &layers{x: x}
		inner := newBlock(l)
		m := nn.NewSequential(newScaled(l, inner), &nn.Dropout{P: 0.9})
		nn.SetTraining(m, false)
		borrowed = x.Keep(inner.Borrowed)
		fused = nn.Fuse(x, m, nn.FuseOptions{})
		for n := range tensors(m) {
			if tensors(fused)[n] {
				t.Errorf("%v is in both", n)
			}
		}
		want = values(x, fused.Forward(x, x.Ones(cgotorch.Float32, 2, 4, 6, 6)))
		nn.SetTraining(m, true)
		inner.Fork.Branches[0].Name = "renamed"
		l.close()
	})
	then(func(x *cgotorch.Exec) {
		defer borrowed.Close()
		in := x.Ones(cgotorch.Float32, 2, 4, 6, 6)
		if got := values(x, fused.Forward(x, in)); !slices.Equal(got, want) {
			t.Errorf("got %v, before %v", got[:3], want[:3])
		}
		for _, n := range nn.State(fused) {
			if strings.Contains(n.Name, "renamed") {
				t.Errorf("%s is named as in the original", n.Name)
			}
		}
		nn.To(x, fused, nn.ToOptions{DType: cgotorch.Float64, ChannelsLast: true})
		again := nn.Fuse(x, fused, nn.FuseOptions{})
		nn.Close(fused)
		if got := again.Forward(x, x.To(in, cgotorch.Float64)).String(); got != "float64[2 8 4 4]" {
			t.Errorf("fused again it gives %s", got)
		}
		nn.Close(again)
	})
}

func TestFuse_Refuses(t *testing.T) {
	conv := func(l *layers) *nn.Conv2d { return l.conv(4, 4, 1, nn.Conv2dOptions{}) }
	evaluated := func(m nn.Module) nn.Module { nn.SetTraining(m, false); return m }
	as := func(l *layers, fn func(m *Scaled) func(x *cgotorch.Exec, f *nn.Fusion) nn.Module) nn.Module {
		m := newScaled(l, &nn.Tanh{})
		m.as = fn(m)
		return evaluated(m)
	}
	for name, c := range map[string]struct {
		m    func(l *layers) nn.Module
		want []string
	}{
		"nil":         {func(l *layers) nn.Module { return nil }, []string{"there is no module"}},
		"nil pointer": {func(l *layers) nn.Module { return (*nn.Sequential)(nil) }, []string{"there is no module"}},
		"training": {func(l *layers) nn.Module { return nn.NewSequential(conv(l), l.norm(4, nn.BatchNormOptions{})) },
			[]string{"nn.BatchNorm2d is in training mode", "nn.SetTraining(m, false)"}},
		"dropout in training":        {func(l *layers) nn.Module { return nn.NewSequential(conv(l), &nn.Dropout{}) }, []string{"nn.Dropout is in training mode"}},
		"embedded dropout":           {func(l *layers) nn.Module { return nn.NewSequential(conv(l), &struct{ *nn.Dropout }{&nn.Dropout{}}) }, []string{"Dropout", "is in training mode"}},
		"hidden tensor":              {func(l *layers) nn.Module { return &hidden{conv(l)} }, []string{"hidden", "nn.State does not see"}},
		"hidden from what is shared": {func(l *layers) nn.Module { return &sharing{hidden{conv(l)}} }, []string{"hidden", "nn.State does not see"}},
		"unexported field": {func(l *layers) nn.Module {
			m := newBlock(l)
			m.cache = map[string]int{"x": 1}
			return evaluated(nn.NewSequential(conv(l), m))
		}, []string{"*nn_test.block cannot be copied", "cache", "nn.Fusible"}},
		"nothing": {func(l *layers) nn.Module {
			return as(l, func(m *Scaled) func(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
				return func(x *cgotorch.Exec, f *nn.Fusion) nn.Module { return nil }
			})
		}, []string{"the Fuse of *nn_test.Scaled returned nothing"}},
		"itself": {func(l *layers) nn.Module {
			return as(l, func(m *Scaled) func(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
				return func(x *cgotorch.Exec, f *nn.Fusion) nn.Module { return f.Fuse(x, m) }
			})
		}, []string{"the Fuse of *nn_test.Scaled asks for its own result"}},
		"original": {func(l *layers) nn.Module {
			return as(l, func(m *Scaled) func(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
				return func(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
					return &fusedScaled{Body: f.Fuse(x, m.Conv), Scale: m.Scale, Head: &nn.Tanh{}}
				}
			})
		}, []string{"scale", "a tensor of the original's"}},
		"lost": {func(l *layers) nn.Module {
			return as(l, func(m *Scaled) func(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
				return func(x *cgotorch.Exec, f *nn.Fusion) nn.Module { return &hidden{conv(l)} }
			})
		}, []string{"*nn_test.hidden: conv", "unexported"}},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				l := &layers{x: x}
				defer l.close()
				nn.Fuse(x, c.m(l), nn.FuseOptions{})
			}), cgotorch.ErrInvalidArgument, c.want...)
		})
	}
}

// hidden holds a convolution that State does not see.
type hidden struct{ conv *nn.Conv2d }

func (m *hidden) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.conv.Forward(x, in)
}

// sharing is a Fusible whose fused form holds a convolution of the original.
type sharing struct{ hidden hidden }

func (m *sharing) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.hidden.Forward(x, in)
}

func (m *sharing) Fuse(*cgotorch.Exec, *nn.Fusion) nn.Module {
	return &fusedScaled{Body: m.hidden.conv}
}

// With gradients enabled a fused model records nothing for backward. A convolution of the fused
// model, called alone, records nothing either.
func TestFuse_NoGradients(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		m := branches(l)
		nn.SetTraining(m, false)
		fused := nn.Fuse(x, m, nn.FuseOptions{})
		defer nn.Close(fused)
		in := x.Randn(cgotorch.Float32, 1, 4, 6, 6)
		must.Do(t, in.SetRequiresGrad(true))
		if fused.Forward(x, in).RequiresGrad() {
			t.Error("the result requires gradients")
		}
		conv := &nn.FusedConv2d{Conv2d: *l.conv(4, 4, 1, nn.Conv2dOptions{})}
		if conv.Forward(x, in).RequiresGrad() || conv.ForwardAdd(x, in, in).RequiresGrad() {
			t.Error("the result of a FusedConv2d requires gradients")
		}
	})
}

// Under autocast a fused model computes in the autocast dtype, as the original does.
func TestFuse_Autocast(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		m := nn.NewSequential(l.conv(4, 8, 3, nn.Conv2dOptions{}), &nn.ReLU{}, &nn.Residual{Body: l.conv(8, 8, 1, nn.Conv2dOptions{}), Activation: &nn.ReLU{}})
		fused := nn.Fuse(x, m, nn.FuseOptions{})
		defer nn.Close(fused)
		in := x.Randn(cgotorch.Float32, 2, 4, 6, 6)
		want, got := m.Forward(x.NoGrad(), in), fused.Forward(x.Autocast(cgotorch.BFloat16), in)
		if got.DType() != cgotorch.BFloat16 {
			t.Errorf("the result is %v", got)
		}
		if d := x.Item(x.Max(x.Abs(x.Sub(want, got)))); d == 0 || d > 0.1 {
			t.Errorf("differs by %v from float32", d)
		}
		for _, s := range nn.State(nn.Fuse(x.Autocast(cgotorch.BFloat16), m, nn.FuseOptions{})) {
			if s.Tensor.DType() != cgotorch.Float32 {
				t.Errorf("fused under autocast, %s is %v", s.Name, s.Tensor)
			}
			s.Tensor.Close()
		}
	})
}

// On CUDA, a fused model launches no separate kernels for bias, sum and ReLU.
func TestFuse_KernelsOnCUDA(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		if !x.Device().IsCUDA() {
			t.Skip("a trace holds no work of the CPU")
		}
		l := &layers{x: x}
		defer l.close()
		same := nn.Conv2dOptions{Padding: nn.Square(1)}
		m := nn.NewSequential(l.conv(64, 64, 3, same), l.norm(64, nn.BatchNormOptions{}), &nn.ReLU{},
			&nn.Residual{Body: nn.NewSequential(l.conv(64, 64, 3, same), l.norm(64, nn.BatchNormOptions{})), Activation: &nn.ReLU{}})
		nn.SetTraining(m, false)
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float16, cgotorch.BFloat16} {
			nn.To(x, m, nn.ToOptions{DType: dtype, ChannelsLast: true})
			fused := nn.Fuse(x, m, nn.FuseOptions{})
			defer nn.Close(fused)
			in := x.ToFormat(x.Rand(cgotorch.Float32, 8, 64, 16, 16), dtype, cgotorch.ChannelsLast)
			elementwise := func(m nn.Module) (n int) {
				m.Forward(x.NoGrad(), in)
				must.Do(t, x.Device().Synchronize())
				trace, err := trace.Start()
				if err != nil {
					t.Fatal(err)
				}
				m.Forward(x.NoGrad(), in)
				r, err := trace.Stop()
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range r.Work {
					if strings.Contains(w.Name, "elementwise_kernel") {
						n++
					}
				}
				return n
			}
			if got, unfused := elementwise(fused), elementwise(m); got != 0 || unfused < 3 {
				t.Errorf("%v: %d elementwise kernels, and %d unfused, want none and at least 3", dtype, got, unfused)
			}
		}
	})
}

func TestFusedConv2d_ForwardAdd(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, x *cgotorch.Exec) {
		l := &layers{x: x}
		defer l.close()
		in := x.Randn(cgotorch.Float32, 2, 4, 5, 5)
		for _, z := range []*cgotorch.Tensor{x.Randn(cgotorch.Float32, 2, 6, 3, 3), x.Randn(cgotorch.Float32, 6, 1, 1), x.Randn(cgotorch.Float64, 2, 6, 3, 3),
			x.Narrow(x.Randn(cgotorch.Float32, 2, 9, 3, 3), 1, 2, 6)} {
			for _, a := range []nn.Activation{nn.NoActivation, nn.ActivateReLU, nn.ActivateReLU6} {
				m := &nn.FusedConv2d{Conv2d: *l.conv(4, 6, 3, nn.Conv2dOptions{}), Activation: a}
				want := x.NoGrad().Add(m.Conv2d.Forward(x.NoGrad(), in), z)
				switch a {
				case nn.ActivateReLU:
					want = x.ReLU(want)
				case nn.ActivateReLU6:
					want = x.ReLU6(want)
				}
				before := values(x, x.To(z, cgotorch.Float32))
				got := m.ForwardAdd(x, in, z)
				if d := x.Item(x.Max(x.Abs(x.Sub(got, want)))); got.DType() != want.DType() || d > 1e-5 {
					t.Errorf("%v, %q: %v differs by %v from %v", z, a, got, d, want)
				}
				if !slices.Equal(values(x, x.To(z, cgotorch.Float32)), before) {
					t.Errorf("%v, %q: z was changed", z, a)
				}
			}
		}
	})
	torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := &nn.FusedConv2d{Conv2d: nn.Conv2d{Weight: x.Ones(cgotorch.Float32, 1, 1, 1, 1)}, Activation: "gelu"}
		m.Forward(x, x.Ones(cgotorch.Float32, 1, 1, 2, 2))
	}), cgotorch.ErrInvalidArgument, "nn.fusedConv2d", `"gelu"`)
}
