package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// branching are the models with branches that can run side by side.
var branching = []string{"googlenet", "inception_v3"}

// benchInference returns a benchmark of calls of a model in evaluation mode: eager, captured, and
// fused and captured, with its branches in turn and side by side. PyTorch runs eager, in a graph
// and compiled. A second measurement has calls from many goroutines.
func benchInference(model string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		s := switches{benchmark: c.device.IsCUDA()}
		peers, err := c.startGraphPeers(s, peerModes[:3])
		if err != nil {
			return err
		}
		defer peers.close()
		for _, batch := range []int{1, 8} {
			if err := inferenceRows(c, s, peers, model, batch, emit); err != nil {
				return fmt.Errorf("batch %d: %w", batch, err)
			}
		}
		return goroutinesRow(c, s, model, emit)
	}
}

func inferenceRows(c *config, s switches, peers graphPeers, model string, batch int, emit func(row)) error {
	if err := peers.prepare(c, "prepare_inference", "model", model, "batch", batch); err != nil {
		return err
	}
	m, err := newEvaluated(c, model, batch)
	if err != nil {
		return err
	}
	defer m.close()
	calls, all := c.or(1, 300), &named{}
	all.add("ours eager", func() (float64, error) {
		return c.microseconds(calls, func() error {
			return m.stream.Do(func(x *cgotorch.Exec) error { m.model.Forward(x.NoGrad(), m.input); return nil })
		})
	})
	for _, f := range []struct {
		name        string
		model       nn.Module
		parallelism nn.Parallelism
	}{{"ours captured", m.model, nn.AlwaysSerial}, {"ours fused", m.fused, nn.AlwaysSerial}, {"ours side by side", m.fused, nn.AlwaysParallel}} {
		if f.parallelism == nn.AlwaysParallel && !slices.Contains(branching, model) {
			continue
		}
		nn.SetParallelism(f.model, f.parallelism)
		w, err := c.capture(f.model, m.input)
		defer w.close()
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		all.add(f.name, w.side(calls))
	}
	peers.add(all, "microseconds", "inference_block", "calls", calls)
	if err := all.measure(c.roundsOr(7)); err != nil {
		return err
	}
	report := func(name, our, peer, text string) {
		ours, theirs := all.values[our], all.values[peer]
		if ours == nil || theirs == nil {
			return
		}
		emit(inTurns(fmt.Sprintf("graph/inference/%s/%d/%s", model, batch, name), ours, "us", text, theirs, lower,
			fmt.Sprintf("%s; blocks of %d calls back to back, in turns; %v, evaluation, channels last, input on the device; ours %v; peer %v; %s; %v; %s",
				our, calls, c.dtype(), ours, theirs, c.settings(), s, peers.versions())))
	}
	report("eager", "ours eager", "eager", "PyTorch eager")
	report("captured", "ours captured", "graph", "PyTorch graph")
	report("captured-against-compile", "ours captured", "compile", "PyTorch compile")
	report("fused-against-compile", "ours fused", "compile", "PyTorch compile")
	report("side-by-side", "ours side by side", "ours fused", "ours, fused, in turn")
	report("side-by-side-against-compile", "ours side by side", "compile", "PyTorch compile")
	return nil
}

// evaluated is a model in evaluation mode, as it is and fused, with an input for it. On a GPU all
// are bfloat16.
type evaluated struct {
	stream       *cgotorch.Stream
	model, fused nn.Module
	input        *cgotorch.Tensor
}

func newEvaluated(c *config, model string, batch int) (*evaluated, error) {
	m := &evaluated{stream: cgotorch.DefaultStream(c.device)}
	if err := cgotorch.Seed(1); err != nil {
		return nil, err
	}
	err := m.stream.Do(func(x *cgotorch.Exec) (err error) {
		if m.model, err = vision.New(x, model, vision.Options{}); err != nil {
			return err
		}
		nn.SetTraining(m.model, false)
		nn.To(x, m.model, nn.ToOptions{DType: c.dtype(), ChannelsLast: true})
		m.fused = nn.Fuse(x, m.model, nn.FuseOptions{})
		size := int64(224)
		if model == "inception_v3" {
			size = 299
		}
		m.input = x.Keep(x.Contiguous(x.To(x.Randn(cgotorch.Float32, int64(batch), 3, size, size), c.dtype()), cgotorch.ChannelsLast))
		return nil
	})
	if err != nil {
		m.close()
		return nil, err
	}
	return m, c.device.Synchronize()
}

func (m *evaluated) close() {
	m.input.Close()
	for _, model := range []nn.Module{m.fused, m.model} {
		if model != nil {
			nn.Close(model)
		}
	}
}

// goroutinesRow compares 16 goroutines, which share 8 streams, with one goroutine. Each call copies
// its input from the host and reads the answer back. The answer must equal that of an eager call
// up to rounding.
func goroutinesRow(c *config, s switches, model string, emit func(row)) error {
	const goroutines, streams = 16, 8
	m, err := newEvaluated(c, model, 1)
	if err != nil {
		return err
	}
	defer m.close()
	var pixels []byte
	var want []float32
	err = m.stream.Do(func(x *cgotorch.Exec) error {
		pixels = cgotorch.ToBytes(x, x.Contiguous(m.input, cgotorch.Contiguous))
		want = cgotorch.ToSlice[float32](x, x.To(m.model.Forward(x.NoGrad(), m.input), cgotorch.Float32))
		return nil
	})
	if err != nil {
		return err
	}
	infer, err := cgotorch.NewInference(c.device, m.model.Forward, cgotorch.InferenceOptions{Streams: streams, BatchSizes: []int{1}})
	if err != nil {
		return err
	}
	defer infer.Close()
	image := func(x *cgotorch.Exec) *cgotorch.Tensor {
		return x.Contiguous(cgotorch.FromBytes(x, pixels, m.input.DType(), m.input.Shape()), cgotorch.ChannelsLast)
	}
	if err := infer.Prepare(context.Background(), image); err != nil {
		return err
	}
	call := func() error {
		return infer.Do(context.Background(), func(x *cgotorch.Exec, forward func(*cgotorch.Tensor) *cgotorch.Tensor) error {
			_, err := deviation(cgotorch.ToSlice[float32](x, x.To(forward(image(x)), cgotorch.Float32)), want)
			return err
		})
	}
	var sides []side
	for _, n := range []int{goroutines, 1} {
		sides = append(sides, func() (float64, error) {
			rate, _, err := closedLoop(n, time.Duration(c.or(100, 1000))*time.Millisecond, func() (request func() error, end func()) { return call, func() {} })
			return rate, err
		})
	}
	values, err := interleave(c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	emit(inTurns("graph/inference/"+model+"/goroutines", values[0], "calls/s", "ours, one goroutine", values[1], higher,
		fmt.Sprintf("%d goroutines over %d streams, batch 1, %v, input from the host and answer read back and compared; ours %v; peer %v; %s; %v",
			goroutines, streams, c.dtype(), values[0], values[1], c.settings(), s)))
	return nil
}
