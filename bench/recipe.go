package main

import (
	"context"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// recipe holds the settings of a training run. recipe.py has the recipes of archives for PyTorch.
type recipe struct {
	name      string // the name in rows
	archive   string
	train     string // name of the archive's folder for the training images
	model     string
	classes   int
	batch     int
	size      int // height and width of the model's input
	crop      decode.Transform
	lr, decay float64
	autocast  cgotorch.DType // on a GPU; 0 means that there is no autocast
	plain     bool           // a constant rate and plain momentum, not one-cycle and Nesterov's
}

const momentum = 0.9

// cifar has the settings of examples/train without flags.
var cifar = recipe{
	name:    "cifar",
	archive: "cifar10-10k.tgz", train: "train", model: "resnet20", classes: 10, batch: 128, size: 32,
	crop: decode.RandomCrop{Height: 32, Width: 32, Padding: 4}, lr: 0.2, decay: 5e-4,
}

const cifarText = "ResNet-20, batch 128, float32, channels last, fused SGD with Nesterov momentum, one-cycle schedule, flip and 32x32 crop of 4 pixels' padding"

// imagenet is a common recipe for photographs on a GPU.
var imagenet = recipe{
	name:    "imagenet",
	archive: "imagenet-sample-300.tgz", train: "sample", model: "resnet50", classes: 300, batch: 128, size: 224,
	crop: decode.RandomResizedCrop{Height: 224, Width: 224}, lr: 0.1, decay: 1e-4, autocast: cgotorch.BFloat16,
}

// resident is a recipe for a batch that stays on the device.
func resident(model string, batch int) recipe {
	return recipe{model: model, classes: 1000, batch: batch, size: 224, lr: 0.1, decay: 1e-4, autocast: cgotorch.BFloat16, plain: true}
}

// fromFiles returns the recipe of rows that train from an archive. A CPU has the smaller one.
func (c *config) fromFiles(batch int) recipe {
	r := imagenet
	if !c.device.IsCUDA() {
		r = cifar
	}
	r.batch = batch
	return r
}

// open opens the recipe's training images in the archive at `path`.
func (r recipe) open(c *config, path string, seed uint64, batch int) (*imageloader.Loader, error) {
	return imageloader.Open(path, imageloader.Options{
		Train: true, BatchSize: batch, Split: r.train, Crop: imageloader.Crop{Transform: r.crop}, Seed: seed, Workers: c.threads,
	})
}

// learner is a model with the objects that train it.
type learner struct {
	stream   *cgotorch.Stream
	autocast cgotorch.DType // 0 means that there is no autocast
	model    nn.Module
	opt      *optim.Optimizer
	schedule optim.Schedule
	done     int                    // number of steps so far
	overlap  *cgotorch.Overlap      // the Overlap that the backward pass uses; nil if it uses none
	reduced  *distributed.Gradients // reduces the gradients over ranks; nil without ranks
}

// learner makes the recipe's model in channels-last order, its optimizer, and a schedule of the
// given number of steps. `seed` decides the initial weights.
func (r recipe) learner(c *config, seed uint64, steps int) (*learner, error) {
	l := &learner{stream: cgotorch.DefaultStream(c.device), schedule: optim.Constant()}
	if !r.plain {
		l.schedule = optim.OneCycle(steps, optim.OneCycleOptions{})
	}
	if c.device.IsCUDA() { // few CPUs can compute in bfloat16
		l.autocast = r.autocast
	}
	if err := cgotorch.Seed(seed); err != nil {
		return nil, err
	}
	err := l.stream.Do(func(x *cgotorch.Exec) (err error) {
		if l.model, err = vision.New(x, r.model, vision.Options{Classes: r.classes}); err != nil {
			return err
		}
		nn.To(x, l.model, nn.ToOptions{ChannelsLast: true})
		o := optim.SGDOptions{LR: r.lr, Momentum: momentum, WeightDecay: r.decay, Nesterov: !r.plain}
		l.opt, err = optim.NewSGD(o, optim.Group{Params: nn.Parameters(l.model)})
		return err
	})
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// step trains on one batch and returns the loss, which belongs to x's Do. A step can be captured.
func (l *learner) step(x *cgotorch.Exec, images, labels *cgotorch.Tensor) *cgotorch.Tensor {
	x.EachLaunch(func(*cgotorch.Exec) {
		l.opt.SetScale(l.schedule(l.done))
		l.done++
	})
	l.opt.ZeroGrad()
	y := x
	if l.autocast != 0 {
		y = x.Autocast(l.autocast)
	}
	logits := l.model.Forward(y, images)
	loss := nn.CrossEntropy(y, logits, labels, nn.CrossEntropyOptions{})
	logits.Close()
	if l.reduced != nil {
		l.reduced.BackwardWith(x, cgotorch.BackwardOptions{Overlap: l.overlap}, loss)
	} else {
		x.BackwardWith(cgotorch.BackwardOptions{Overlap: l.overlap}, loss)
	}
	l.opt.Step(x)
	return loss
}

// randomBatch returns images in channels-last order, and labels, for the recipe. The caller closes
// the images and the labels.
func (r recipe) randomBatch(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	n, size := int64(r.batch), int64(r.size)
	random := x.Randn(cgotorch.Float32, n, 3, size, size)
	return x.Keep(x.Contiguous(random, cgotorch.ChannelsLast)), x.Keep(x.RandInt(cgotorch.Int64, 0, r.classes, n))
}

// epoch trains on the next epoch, or on at most the given number of steps if `steps` is not 0. It
// returns the number of images. It calls the function `seen` with each loss, unless `seen` is
// nil.
func (l *learner) epoch(ahead *prefetcher.Prefetcher, steps int, seen func(x *cgotorch.Exec, loss *cgotorch.Tensor)) (images int, err error) {
	last := l.done + steps
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			return images, err
		}
		err := l.stream.Do(func(x *cgotorch.Exec) error {
			pictures, labels := batch.Use(x)
			loss := l.step(x, pictures, labels)
			if seen != nil {
				seen(x, loss)
			}
			return nil
		})
		if err != nil {
			return images, err
		}
		if images += batch.N; l.done == last {
			break
		}
	}
	return images, nil
}

// save writes the model as a checkpoint, which is a file of safetensors.
func (l *learner) save(path string) error {
	return l.stream.Do(func(x *cgotorch.Exec) error { return checkpoint.Save(x, path, checkpoint.Checkpoint{Model: l.model}) })
}

func (l *learner) close() {
	if l == nil {
		return
	}
	l.reduced.Close()
	l.opt.Close()
	if l.model != nil {
		nn.Close(l.model)
	}
}
