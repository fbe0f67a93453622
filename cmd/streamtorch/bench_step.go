//go:build cgo

package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// stepping are the flags of training steps.
type stepping struct{ name, device, dtype string }

func (s *stepping) flags(flags *flag.FlagSet) {
	flags.StringVar(&s.name, "model", "resnet50", "model of the training steps, one of "+strings.Join(vision.Names(), ", ")+"; empty: no steps")
	flags.StringVar(&s.device, "device", "auto", "auto, cpu, cuda or cuda:N")
	flags.StringVar(&s.dtype, "dtype", "", "float32 or bfloat16, for autocast; empty: bfloat16 on a GPU, float32 on the CPU")
}

// steps measures training steps on a batch that lies on the device: eager and, on a GPU, captured.
func (b *benching) steps(ctx context.Context) error {
	if b.name == "" {
		return nil
	}
	device, err := cgotorch.ParseDevice(b.device)
	if err != nil {
		return err
	}
	if err := device.Check(); err != nil {
		return err
	}
	if b.batch == 0 {
		b.batch = 8
		if device.IsCUDA() {
			b.batch = 128
		}
	}
	if b.dtype == "" {
		b.dtype = "float32"
		if device.IsCUDA() {
			b.dtype = "bfloat16"
		}
	}
	if b.dtype != "float32" && b.dtype != "bfloat16" {
		return fmt.Errorf("-dtype %s: float32 or bfloat16", b.dtype)
	}
	if device.IsCUDA() {
		if err := cgotorch.SetCuDNNBenchmark(true); err != nil {
			return err
		}
	}
	for _, eager := range []bool{true, false} {
		if eager || device.IsCUDA() {
			if err := b.step(ctx, device, eager); err != nil {
				return err
			}
		}
	}
	return nil
}

// step measures steps of one kind. Each clock stops after the device has done its work.
func (b *benching) step(ctx context.Context, device cgotorch.Device, eager bool) error {
	stream, err := cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "bench"})
	if err != nil {
		return err
	}
	defer stream.Close()
	var model nn.Module
	var opt *optim.Optimizer
	var images, labels *cgotorch.Tensor
	defer func() {
		if model != nil {
			nn.Close(model)
		}
		opt.Close()
		images.Close()
		labels.Close()
	}()
	err = stream.Do(func(x *cgotorch.Exec) (err error) {
		if model, err = vision.New(x, b.name, vision.Options{ImageSize: nn.Square(b.size)}); err != nil {
			return fmt.Errorf("-model: %w", err)
		}
		nn.To(x, model, nn.ToOptions{ChannelsLast: true})
		size, batch := int64(b.size), int64(b.batch)
		images = x.Keep(x.ToFormat(x.Randn(cgotorch.Float32, batch, 3, size, size), cgotorch.Float32, cgotorch.ChannelsLast))
		labels = x.Keep(x.RandInt(cgotorch.Int64, 0, 10, batch))
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 1e-4, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		return err
	}
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		y := x
		if b.dtype == "bfloat16" {
			y = x.Autocast(cgotorch.BFloat16)
		}
		opt.ZeroGrad()
		loss := nn.CrossEntropy(y, model.Forward(y, in[0]), in[1], nn.CrossEntropyOptions{})
		x.Backward(loss)
		opt.Step(x)
		return []*cgotorch.Tensor{loss}
	}, cgotorch.CapturedOptions{Eager: eager})
	defer step.Close()
	// run makes n steps. It returns when the device has done them.
	run := func(n int) (time.Duration, error) {
		began := time.Now()
		for range n {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			if err := stream.Do(func(x *cgotorch.Exec) error { step.Run(x, images, labels); return nil }); err != nil {
				return 0, err
			}
		}
		err := stream.Synchronize()
		return time.Since(began), err
	}
	// A CPU needs one step to warm up. A GPU chooses its algorithms and graphs in the first steps.
	warmUp, began := 1, time.Now()
	if device.IsCUDA() {
		warmUp = 10
	}
	var last time.Duration
	undecided := func() bool { s := step.Stats(); return !eager && s.Launches == 0 && s.Why == "" }
	for i := 0; i == 0 || time.Since(began) < b.bound() && (i < warmUp || undecided()); i++ {
		if last, err = run(1); err != nil {
			return err
		}
	}
	kind := "eager"
	switch s := step.Stats(); {
	case s.Launches > 0:
		kind = "captured"
	case !eager && s.Why != "":
		kind = "not captured: " + s.Why
	case !eager:
		kind = "not captured within -seconds"
	}
	if err := device.ResetPeakMemory(); err != nil {
		return err
	}
	// The host may enqueue much faster than the device works. So it waits every quarter of a second.
	block := max(1, int(250*time.Millisecond/max(last, time.Microsecond)))
	var elapsed time.Duration
	n := 0
	for ; elapsed < b.bound(); n += block {
		d, err := run(block)
		if err != nil {
			return err
		}
		elapsed += d
	}
	memory := ""
	if used, err := device.Memory(); err == nil && device.IsCUDA() {
		memory = fmt.Sprintf(", peak %.1f GB", float64(used.PeakAllocated)/1e9)
	}
	return b.row(fmt.Sprintf("step of %s, %dx%d, batch %d, %s, %v", b.name, b.size, b.size, b.batch, b.dtype, device),
		float64(n*b.batch)/elapsed.Seconds(), "%s; %.1f ms a step, %d steps%s", kind, 1000*elapsed.Seconds()/float64(n), n, memory)
}
