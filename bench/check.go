package main

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// benchCheck measures what a ResNet-18 training step takes under the stream checker, on small images, where its share is largest.
func benchCheck(c *config, emit func(row)) error {
	for _, size := range []int64{32, 64} {
		if err := benchCheckAt(c, size, emit); err != nil {
			return err
		}
	}
	return nil
}

func benchCheckAt(c *config, size int64, emit func(row)) error {
	const batch, classes = 16, 10
	steps := c.or(1, 5)
	stream := cgotorch.DefaultStream(c.device)
	var model nn.Module
	var opt *optim.Optimizer
	var images, labels *cgotorch.Tensor
	err := stream.Do(func(x *cgotorch.Exec) (err error) {
		model = vision.NewResNet18(x, vision.Options{Classes: classes})
		nn.To(x, model, nn.ToOptions{ChannelsLast: true})
		images = x.Keep(x.Randn(cgotorch.Float32, batch, 3, size, size))
		labels = x.Keep(cgotorch.FromSlice(x, make([]int64, batch)))
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.01, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(model)
	defer opt.Close()
	defer images.Close()
	defer labels.Close()
	block := func() (float64, error) {
		began := time.Now()
		for range steps {
			err := stream.Do(func(x *cgotorch.Exec) error {
				opt.ZeroGrad()
				x.Backward(x.CrossEntropy(model.Forward(x, images), labels))
				opt.Step(x)
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
		if err := stream.Synchronize(); err != nil {
			return 0, err
		}
		return time.Since(began).Seconds() * 1e3 / float64(steps), nil
	}
	checked := func() (float64, error) {
		var races []*cgotorch.StreamRace
		stop, err := cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { races = append(races, r) })
		if err != nil {
			return 0, err
		}
		defer stop()
		ms, err := block()
		if err == nil && len(races) > 0 {
			err = races[0]
		}
		return ms, err
	}
	values, err := interleave(c.roundsOr(9), checked, block)
	if err != nil {
		return err
	}
	on, off := values[0], values[1]
	r := against(fmt.Sprintf("check/resnet18/%dx%d", size, size), on.median(), "ms", "ours, unchecked", off.median(), lower, fmt.Sprintf(
		"a training step under the stream checker; batch %d of 3x%dx%d, float32, channels last, SGD with momentum; blocks of %d steps in turns; ours %v; peer %v; %s",
		batch, size, size, steps, on, off, c.settings()))
	r.Ratio = ratioOf(ratios(off, on).median(), 1)
	emit(r)
	return nil
}
