package main

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// benchMemory compares the peak of allocated bytes on a GPU during a step of ResNet-50 on a
// resident batch, in float32 and with autocast. Gradients and momentum are already allocated.
func benchMemory(c *config, emit func(row)) error {
	if !c.device.IsCUDA() && !c.brief {
		return errors.New("PyTorch does not count the memory of a CPU; use -device cuda")
	}
	return errors.Join(memoryRows(c, emit, "memory/resnet50", 0), memoryRows(c, emit, "memory/resnet50/bf16", cgotorch.BFloat16))
}

func memoryRows(c *config, emit func(row), name string, autocast cgotorch.DType) error {
	// Deterministic algorithms are off, and cuDNN does not choose algorithms by measuring. Both sides
	// therefore use the same algorithms with the same workspaces.
	s := switches{}
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	r := resident("resnet50", c.or(2, 32))
	r.autocast, r.decay = autocast, 0
	err = p.do(nil, "prepare_counted", "device", c.device.String(), "batch", r.batch, "autocast", autocast != 0)
	if err != nil {
		return err
	}
	g, err := newGraphStep(c, r, stepForm{eager: true})
	if err != nil {
		return err
	}
	defer g.close()
	for _, mode := range []struct {
		name     string
		training bool
	}{{"/train", true}, {"/nograd", false}} {
		values, err := interleave(c.or(1, 2),
			func() (float64, error) { return g.peakOfOne(mode.training) },
			p.value("peak", "counted", "training", mode.training))
		if err != nil {
			return err
		}
		a, b := values[0].max(), values[1].max()
		emit(against(name+mode.name, a/(1<<20), "MiB", "PyTorch", b/(1<<20), lower,
			fmt.Sprintf("peak of allocated bytes of one step, batch %d, channels last, fused SGD with momentum, resident batch; the higher of %d steps, ours %.0f, peer %.0f bytes; %s; %v; %s",
				r.batch, len(values[0]), []float64(values[0]), []float64(values[1]), c.settings(), s, p.versions)))
	}
	return nil
}

// peakOfOne runs one step, or without training a forward pass and its loss. It returns the largest
// number of bytes that were allocated meanwhile.
func (g *graphStep) peakOfOne(training bool) (float64, error) {
	if err := g.c.device.ResetPeakMemory(); err != nil {
		return 0, err
	}
	err := g.stream.Do(func(x *cgotorch.Exec) error {
		if training {
			x.Item(g.step(x, g.images, g.labels))
			return nil
		}
		g.opt.ZeroGrad()
		x = x.NoGrad()
		if g.autocast != 0 {
			x = x.Autocast(g.autocast)
		}
		x.Item(nn.CrossEntropy(x, g.model.Forward(x, g.images), g.labels, nn.CrossEntropyOptions{}))
		return nil
	})
	if err != nil {
		return 0, err
	}
	memory, err := g.c.device.Memory()
	return float64(memory.PeakAllocated), err
}
