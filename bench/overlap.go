package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// A convolution of a model, with the input that it gets there.
type convolution struct {
	*nn.Conv2d
	in, grad *cgotorch.Tensor // channels last; grad is that of its result
}

// convolutionsOf are ResNet-50's, for images of 224x224, each with random inputs and gradients of its own.
func convolutionsOf(x *cgotorch.Exec, batch int64, dtype cgotorch.DType) []convolution {
	model := vision.NewResNet50(x, vision.Options{})
	nn.To(x, model, nn.ToOptions{DType: dtype, ChannelsLast: true})
	var all []convolution
	add := func(m nn.Module, size int64) int64 {
		c := m.(*nn.Conv2d)
		random := func(shape ...int64) *cgotorch.Tensor {
			return x.Keep(x.Contiguous(x.To(x.Randn(cgotorch.Float32, shape...), dtype), cgotorch.ChannelsLast))
		}
		weight := c.Weight.Shape()
		in := random(batch, weight[1], size, size)
		if err := in.SetRequiresGrad(len(all) > 0); err != nil { // images have no gradient
			x.Fail("bench", err)
		}
		stride := int64(max(1, c.Stride[0]))
		all = append(all, convolution{c, in, random(batch, weight[0], size/stride, size/stride)})
		return size / stride
	}
	size := add(model.Conv1, 224) / 2
	for _, layer := range []*nn.Sequential{model.Layer1, model.Layer2, model.Layer3, model.Layer4} {
		for _, child := range layer.Modules {
			block := child.Module.(*vision.Bottleneck)
			before := size
			add(block.Conv1, size)
			size = add(block.Conv2, size)
			add(block.Conv3, size)
			if block.Downsample != nil {
				add(block.Downsample.(*nn.Sequential).Modules[0].Module, before)
			}
		}
	}
	for _, norm := range nn.State(model) { // the convolutions alone go on
		if norm.Tensor.Dim() < 2 {
			norm.Tensor.Close()
		}
	}
	return all
}

// benchOverlapConvolutions compares the backward of ResNet-50's convolutions on two streams with that on one, captured: forward and backward
// of each, less the forward alone.
func benchOverlapConvolutions(c *config, emit func(row)) error {
	s := switches{benchmark: c.device.IsCUDA()}
	if err := s.set(); err != nil {
		return err
	}
	batches := []int64{4, 16, 32, 64, 256}
	if c.brief {
		batches = batches[:1]
	}
	for _, batch := range batches {
		if err := overlapRow(c, s, batch, emit); err != nil {
			return err
		}
	}
	return nil
}

func overlapRow(c *config, s switches, batch int64, emit func(row)) error {
	dtype := c.dtype()
	stream := cgotorch.DefaultStream(c.device)
	var convs []convolution
	if err := stream.Do(func(x *cgotorch.Exec) error {
		convs = convolutionsOf(x, batch, dtype)
		return nil
	}); err != nil {
		return err
	}
	defer func() {
		for _, v := range convs {
			nn.Close(v.Conv2d)
			v.in.Close()
			v.grad.Close()
		}
	}()
	overlap, err := cgotorch.NewOverlap(cgotorch.OverlapOptions{Log: c.tell})
	if err != nil {
		return err
	}
	gradients := func(backward bool, overlap *cgotorch.Overlap) work {
		return func(x *cgotorch.Exec, _ ...*cgotorch.Tensor) []*cgotorch.Tensor {
			var roots, grads []*cgotorch.Tensor
			for _, v := range convs {
				_ = v.in.SetGrad(nil)
				_ = v.Weight.SetGrad(nil)
				roots, grads = append(roots, v.Forward(x, v.in)), append(grads, v.grad)
			}
			if backward {
				x.BackwardWith(cgotorch.BackwardOptions{Grads: grads, Overlap: overlap}, roots...)
			}
			return nil
		}
	}
	var sides []side
	for _, fn := range []work{gradients(false, nil), gradients(true, nil), gradients(true, overlap)} {
		w, err := newCapturedWork(c, fn, cgotorch.CapturedOptions{InPlace: true, Log: c.tell}, 30)
		defer w.close()
		if err != nil {
			return err
		}
		sides = append(sides, w.side(c.or(1, 20)))
	}
	values, err := interleave(c.roundsOr(5), sides...)
	if err != nil {
		return err
	}
	serial, beside := make(sample, len(values[0])), make(sample, len(values[0]))
	for i := range values[0] {
		serial[i], beside[i] = values[1][i]-values[0][i], values[2][i]-values[0][i]
	}
	r := against(fmt.Sprintf("overlap/convolutions/resnet50/batch=%d", batch), beside.median(), "us", "on one stream", serial.median(), lower,
		fmt.Sprintf("backward of %d convolutions, captured, %v, channels last: two streams %v, one %v; %v; %s; %v",
			len(convs), dtype, beside, serial, overlap.Stats(), c.settings(), s))
	r.Ratio = ratioOf(ratios(serial, beside).median(), 1)
	emit(r)
	var alone, chosen float64
	kinds := 0
	for _, d := range overlap.Decisions() {
		if !d.Graph {
			continue
		}
		kinds++
		alone += d.Serial.Seconds() * 1e6
		if d.Parallel {
			chosen += d.Beside.Seconds() * 1e6
		} else {
			chosen += d.Serial.Seconds() * 1e6
		}
	}
	if kinds > 0 {
		emit(against(fmt.Sprintf("overlap/layers/resnet50/batch=%d", batch), chosen, "us", "on one stream", alone, lower,
			fmt.Sprintf("sum over %d kinds of layers, each by itself, four times in a graph, as the Overlap has measured them; %s; %v", kinds, c.settings(), s)))
	}
	return nil
}

// benchOverlapStep compares captured training steps of ResNet-50 with an Overlap and without one, and their memory.
func benchOverlapStep(c *config, emit func(row)) error {
	s := switches{benchmark: c.device.IsCUDA()}
	if err := s.set(); err != nil {
		return err
	}
	batch := c.or(2, 32)
	overlap, err := cgotorch.NewOverlap(cgotorch.OverlapOptions{Log: c.tell})
	if err != nil {
		return err
	}
	var steps []*graphStep
	var sides []side
	for _, o := range []*cgotorch.Overlap{nil, overlap} {
		g, err := newGraphStep(c, "resnet50", batch, false, o)
		if err != nil {
			return err
		}
		defer g.close()
		steps = append(steps, g)
		sides = append(sides, func() (float64, error) { return g.block(c.or(1, 40)) })
	}
	values, err := interleave(c.roundsOr(5), sides...)
	if err != nil {
		return err
	}
	note := fmt.Sprintf("batch %d, captured, autocast to bfloat16, channels last, fused SGD; %v; %s; %v", batch, overlap.Stats(), c.settings(), s)
	r := against(fmt.Sprintf("overlap/step/resnet50/batch=%d", batch), values[1].median(), "ms", "on one stream", values[0].median(), lower,
		fmt.Sprintf("two streams %v, one %v; %s", values[1], values[0], note))
	r.Ratio = ratioOf(ratios(values[0], values[1]).median(), 1)
	emit(r)
	emit(against(fmt.Sprintf("overlap/step/resnet50/batch=%d/memory", batch), steps[1].peak/(1<<20), "MiB", "on one stream", steps[0].peak/(1<<20), lower,
		fmt.Sprintf("peak of allocated bytes; reserved %.0f MiB, on one stream %.0f; %s", steps[1].reserved/(1<<20), steps[0].reserved/(1<<20), note)))
	return nil
}
