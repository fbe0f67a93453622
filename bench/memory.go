package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// benchMemory compares the peak of allocated bytes on the device during a step of ResNet-50 on a
// resident batch. Gradients and momentum are already allocated. On the CPU both sides count with
// the counter of libcgotorch.
func benchMemory(c *config, emit func(row)) error {
	dtypes := []cgotorch.DType{0}
	if c.device.IsCUDA() {
		dtypes = append(dtypes, cgotorch.BFloat16)
	}
	for _, autocast := range dtypes {
		if err := memoryRows(c, emit, autocast); err != nil {
			return err
		}
	}
	return nil
}

func memoryRows(c *config, emit func(row), autocast cgotorch.DType) error {
	// Deterministic algorithms are off, and cuDNN does not choose algorithms by measuring. Both sides
	// therefore use the same algorithms with the same workspaces.
	s := switches{}
	batch := c.or(2, 32)
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	library, err := mapped("libcgotorch.so")
	if err != nil {
		return err
	}
	err = p.do(nil, "prepare_counted", "library", library, "device", c.device.String(), "batch", batch, "autocast", autocast != 0)
	if err != nil {
		return err
	}
	ours, err := newMemoryStep(c, batch, autocast)
	if err != nil {
		return err
	}
	defer ours.close()
	name, dtype := "memory/resnet50", "float32"
	if autocast != 0 {
		name, dtype = name+"/bf16", "autocast to bfloat16"
	}
	for _, mode := range []struct {
		name     string
		training bool
	}{{"/train", true}, {"/nograd", false}} {
		values, err := interleave(c.or(1, 2),
			func() (float64, error) { return ours.peak(c, mode.training) },
			p.value("peak", "counted", "training", mode.training))
		if err != nil {
			return err
		}
		a, b := values[0].max(), values[1].max()
		emit(against(name+mode.name, a/(1<<20), "MiB", "PyTorch", b/(1<<20), lower,
			fmt.Sprintf("peak of allocated bytes of one step, batch %d, %s, channels last, fused SGD with momentum, resident batch; the higher of %d steps, ours %.0f, peer %.0f bytes; %s; %v; %s",
				batch, dtype, len(values[0]), []float64(values[0]), []float64(values[1]), c.settings(), s, p.versions)))
	}
	return nil
}

// memoryStep is a model with a batch that stays on the device.
type memoryStep struct {
	*learner
	images, labels *cgotorch.Tensor
}

func newMemoryStep(c *config, batch int, autocast cgotorch.DType) (*memoryStep, error) {
	if _, err := c.device.Memory(); err != nil { // on the CPU this call starts the counter
		return nil, err
	}
	l, err := newLearner(c, "resnet50", vision.Options{}, 1, optim.SGDOptions{LR: 0.1, Momentum: momentum}, optim.Constant())
	if err != nil {
		return nil, err
	}
	l.autocast = autocast
	m := &memoryStep{learner: l}
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		m.images, m.labels = randomBatch(x, batch, 224, 1000)
		return nil
	})
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// peak runs one step and returns the largest number of bytes that were allocated during the step.
func (m *memoryStep) peak(c *config, training bool) (float64, error) {
	if err := c.device.ResetPeakMemory(); err != nil {
		return 0, err
	}
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		if training {
			x.Item(m.step(x, m.images, m.labels))
			return nil
		}
		m.opt.ZeroGrad()
		x = x.NoGrad()
		if m.autocast != 0 {
			x = x.Autocast(m.autocast)
		}
		x.Item(nn.CrossEntropy(x, m.model.Forward(x, m.images), m.labels, nn.CrossEntropyOptions{}))
		return nil
	})
	if err != nil {
		return 0, err
	}
	memory, err := c.device.Memory()
	return float64(memory.PeakAllocated), err
}

func (m *memoryStep) close() {
	m.images.Close()
	m.labels.Close()
	m.learner.close()
}

// mapped returns the path of the library `name`, which this process has loaded.
func mapped(name string) (string, error) {
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return "", err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if at := strings.IndexByte(lines.Text(), '/'); at >= 0 && strings.HasSuffix(lines.Text(), "/"+name) {
			return lines.Text()[at:], nil
		}
	}
	return "", errors.New(name + " is not in this process")
}
