package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// The models that are written here, as a user would write them.
const (
	ofContainers = "resnet50 of containers"
	ofLayers     = "resnet50 of layers"
)

// newModel makes a model that is written here, or the model of that name in package vision.
func newModel(x *cgotorch.Exec, name string, o vision.Options) (nn.Module, error) {
	switch name {
	case ofContainers:
		return newContainers(x, cmp.Or(o.Classes, 1000)), nil
	case ofLayers:
		return newLayers(x, cmp.Or(o.Classes, 1000)), nil
	}
	return vision.New(x, name, o)
}

// benchWritten trains ResNet-50 of package vision, and the same network written in two ways. The
// three take turns.
func benchWritten(c *config, emit func(row)) error {
	if !c.device.IsCUDA() && !c.brief {
		return errors.New("a CPU has no graphs; use -device cuda")
	}
	s := switches{benchmark: c.device.IsCUDA()}
	if err := s.set(); err != nil {
		return err
	}
	batch := c.or(2, 256)
	var steps []*graphStep
	defer func() {
		for _, g := range steps {
			g.close()
		}
	}()
	names := []string{"resnet50", ofContainers, ofLayers}
	for _, name := range names {
		g, err := newGraphStep(c, trainCase{name, batch, "bf16"}, stepForm{})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		steps = append(steps, g)
		if err := c.checkKernels(g); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	var sides []side
	for _, g := range steps {
		sides = append(sides, func() (float64, error) { return g.block(c.or(1, 10)) })
	}
	values, err := interleave(c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	rate := func(v sample) float64 { return float64(batch) * 1e3 / v.median() }
	for i, name := range names[1:] {
		r := against("graph/written/"+strings.ReplaceAll(name, " ", "-"), rate(values[1+i]), "images/s", "resnet50 of package vision", rate(values[0]), higher,
			fmt.Sprintf("captured step, batch %d, bfloat16 by autocast; every norm runs in kernels of the library; this %v; vision %v; %s; %v", batch, values[1+i], values[0], c.settings(), s))
		r.Ratio = ratioOf(ratios(values[0], values[1+i]).median(), 1)
		emit(r)
	}
	return nil
}

// checkKernels returns an error if a norm of the step's model does not run in kernels of the
// library.
func (c *config) checkKernels(g *graphStep) error {
	if !c.device.IsCUDA() {
		return nil
	}
	return g.stream.Do(func(x *cgotorch.Exec) error {
		if report := nn.KernelReport(x.Autocast(cgotorch.BFloat16), g.model, g.images); strings.Contains(report, "LibTorch") {
			return errors.New("a norm falls back:\n" + report)
		}
		return nil
	})
}

// conv makes a convolution without a bias that keeps the size, or divides it by the stride.
func conv(x *cgotorch.Exec, in, out, kernel, stride int) *nn.Conv2d {
	return nn.NewConv2d(x, in, out, nn.Square(kernel), nn.Conv2dOptions{Stride: nn.Square(stride), Padding: nn.Square(kernel / 2), NoBias: true})
}

func norm(x *cgotorch.Exec, channels int) *nn.BatchNorm2d {
	return nn.NewBatchNorm2d(x, channels, nn.BatchNormOptions{})
}

// eachBlock calls fn for the blocks of ResNet-50.
func eachBlock(fn func(in, width, stride int)) {
	in := 64
	for layer, blocks := range []int{3, 4, 6, 3} {
		width := 64 << layer
		for i := range blocks {
			stride := 1
			if i == 0 && layer > 0 {
				stride = 2
			}
			fn(in, width, stride)
			in = 4 * width
		}
	}
}

// newContainers makes ResNet-50 of Sequential and Residual.
func newContainers(x *cgotorch.Exec, classes int) nn.Module {
	modules := []nn.Module{
		conv(x, 3, 64, 7, 2), norm(x, 64), &nn.ReLU{}, &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), Padding: nn.Square(1)},
	}
	eachBlock(func(in, width, stride int) {
		block := &nn.Residual{
			Body: nn.NewSequential(
				conv(x, in, width, 1, 1), norm(x, width), &nn.ReLU{},
				conv(x, width, width, 3, stride), norm(x, width), &nn.ReLU{},
				conv(x, width, 4*width, 1, 1), norm(x, 4*width)),
			Activation: &nn.ReLU{},
		}
		if in != 4*width {
			block.Shortcut = nn.NewSequential(conv(x, in, 4*width, 1, stride), norm(x, 4*width))
		}
		modules = append(modules, block)
	})
	return nn.NewSequential(append(modules, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, nn.NewLinear(x, 2048, classes, nn.LinearOptions{}))...)
}

// layers is ResNet-50 with a Forward of its own.
type layers struct {
	Conv   *nn.Conv2d
	Norm   *nn.BatchNorm2d
	Blocks []*block
	FC     *nn.Linear
}

type block struct {
	Conv1, Conv2, Conv3, Down     *nn.Conv2d // Down may be nil
	Norm1, Norm2, Norm3, NormDown *nn.BatchNorm2d
}

func newLayers(x *cgotorch.Exec, classes int) *layers {
	m := &layers{Conv: conv(x, 3, 64, 7, 2), Norm: norm(x, 64)}
	eachBlock(func(in, width, stride int) {
		b := &block{
			Conv1: conv(x, in, width, 1, 1), Norm1: norm(x, width),
			Conv2: conv(x, width, width, 3, stride), Norm2: norm(x, width),
			Conv3: conv(x, width, 4*width, 1, 1), Norm3: norm(x, 4*width),
		}
		if in != 4*width {
			b.Down, b.NormDown = conv(x, in, 4*width, 1, stride), norm(x, 4*width)
		}
		m.Blocks = append(m.Blocks, b)
	})
	m.FC = nn.NewLinear(x, 2048, classes, nn.LinearOptions{})
	return m
}

func (m *layers) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := nn.CastWeights(x, m)
	defer release()
	out := nn.NormReLUMaxPool(x, m.Norm, m.Conv.Forward(x, in))
	for _, b := range m.Blocks {
		out = b.Forward(x, out)
	}
	mean := (&nn.AdaptiveAvgPool2d{}).Forward(x, out)
	return m.FC.Forward(x, x.Flatten(mean, 1, -1))
}

func (b *block) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := nn.NormReLU(x, b.Norm1, b.Conv1.Forward(x, in))
	out = nn.NormReLU(x, b.Norm2, b.Conv2.Forward(x, out))
	out = b.Conv3.Forward(x, out)
	if b.Down != nil {
		return nn.NormAddNormReLU(x, b.Norm3, out, b.NormDown, b.Down.Forward(x, in))
	}
	return nn.NormAddReLU(x, b.Norm3, out, in)
}
