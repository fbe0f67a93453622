package main

import (
	"context"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// recipe holds the settings of a training run. recipe.py has the same recipes for PyTorch.
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
	autocast  cgotorch.DType // 0 means that there is no autocast
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

// byHeart learns each photograph by heart. It cuts the middle out of each, so all epochs have the
// same pixels.
var byHeart = recipe{
	name:    "photographs",
	archive: imagenet.archive, train: "sample", model: "resnet50", classes: 300, batch: 32, size: 224,
	crop: decode.ResizeCenterCrop{Resize: 256, Height: 224, Width: 224}, lr: 0.01, decay: 1e-4, autocast: cgotorch.BFloat16,
}

// onCPU returns the recipe with a smaller model and smaller images, if the device is the CPU.
func (r recipe) onCPU(c *config) recipe {
	if !c.device.IsCUDA() && r.size == 224 {
		r.model, r.size, r.crop = "resnet18", 64, decode.ResizeCenterCrop{Height: 64, Width: 64}
	}
	r.batch = c.or(8, r.batch)
	return r
}

// open opens the recipe's training images in the archive at `path`.
func (r recipe) open(c *config, path string, seed uint64, batch int) (*imageloader.Loader, error) {
	return imageloader.Open(path, imageloader.Options{
		Train: true, BatchSize: batch, Split: r.train, Crop: imageloader.Crop{Transform: r.crop}, Seed: seed, Workers: c.threads,
	})
}

// openTest opens the test images of CIFAR-10.
func openTest(c *config, path string) (*imageloader.Loader, error) {
	return imageloader.Open(path, imageloader.Options{
		BatchSize: cifar.batch, Split: "test", Crop: imageloader.Crop{Transform: decode.Resize{Height: cifar.size, Width: cifar.size}}, Workers: c.threads,
	})
}

// learner makes the recipe's model, optimizer, and a schedule of the given number of steps.
func (r recipe) learner(c *config, seed uint64, steps int) (*learner, error) {
	l, err := newLearner(c, r.model, vision.Options{Classes: r.classes}, seed,
		optim.SGDOptions{LR: r.lr, Momentum: momentum, WeightDecay: r.decay, Nesterov: true},
		optim.OneCycle(steps, optim.OneCycleOptions{}))
	if err == nil && c.device.IsCUDA() { // few CPUs can compute in bfloat16
		l.autocast = r.autocast
	}
	return l, err
}

// stepper is an optimizer, sharded over ranks or not.
type stepper interface {
	ZeroGrad()
	Step(x *cgotorch.Exec)
	SetScale(factor float64)
	Close() error
}

// learner is a model with the objects that train it.
type learner struct {
	stream   *cgotorch.Stream
	autocast cgotorch.DType // 0 means that there is no autocast
	model    nn.Module
	opt      stepper
	schedule optim.Schedule
	done     int                    // number of steps so far
	overlap  *cgotorch.Overlap      // the Overlap that the backward pass uses; nil if it uses none
	reduced  *distributed.Gradients // reduces the gradients over ranks; nil without ranks
}

// newLearner makes the named model in channels-last order, and an optimizer for it. `seed`
// decides the initial weights.
func newLearner(c *config, model string, options vision.Options, seed uint64, o optim.SGDOptions, schedule optim.Schedule) (*learner, error) {
	l := &learner{stream: cgotorch.DefaultStream(c.device), schedule: schedule}
	if err := cgotorch.Seed(seed); err != nil {
		return nil, err
	}
	err := l.stream.Do(func(x *cgotorch.Exec) error {
		var err error
		if l.model, err = newModel(x, model, options); err != nil {
			return err
		}
		nn.To(x, l.model, nn.ToOptions{ChannelsLast: true})
		opt, err := optim.NewSGD(o, optim.Group{Params: nn.Parameters(l.model)})
		if err == nil {
			l.opt = opt
		}
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
	loss := l.backward(x, images, labels)
	l.opt.Step(x)
	return loss
}

// backward computes the gradients of one batch and returns the loss, which belongs to x's Do.
func (l *learner) backward(x *cgotorch.Exec, images, labels *cgotorch.Tensor) *cgotorch.Tensor {
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
	return loss
}

// randomBatch returns images of size x size in channels-last order, and labels. The caller closes
// the images and the labels.
func randomBatch(x *cgotorch.Exec, n, size, classes int) (images, labels *cgotorch.Tensor) {
	random := x.Randn(cgotorch.Float32, int64(n), 3, int64(size), int64(size))
	return x.Keep(x.Contiguous(random, cgotorch.ChannelsLast)), x.Keep(x.RandInt(cgotorch.Int64, 0, classes, int64(n)))
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

// top1 runs the next epoch of `ahead`. It returns the share of the images whose own label has the
// largest logit.
func (l *learner) top1(ahead *prefetcher.Prefetcher) (float64, error) {
	nn.SetTraining(l.model, false)
	defer nn.SetTraining(l.model, true)
	var right, all float64
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			return 0, err
		}
		err := l.stream.Do(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			pictures, labels := batch.Use(x)
			best := x.ArgMax(l.model.Forward(x, pictures), 1, cgotorch.ReduceOptions{})
			right += x.Item(x.Sum(x.Eq(best, labels)))
			return nil
		})
		if err != nil {
			return 0, err
		}
		all += float64(batch.N)
	}
	return right / all, nil
}

// save writes the model's state as safetensors, which Python can read.
func (l *learner) save(path string) error {
	var tensors []safetensors.Tensor
	err := l.stream.Do(func(x *cgotorch.Exec) error {
		for _, n := range nn.State(l.model) {
			dtype, ok := map[cgotorch.DType]string{cgotorch.Float32: "F32", cgotorch.Int64: "I64"}[n.Tensor.DType()]
			if !ok {
				return fmt.Errorf("%s is %s", n.Name, n.Tensor)
			}
			tensors = append(tensors, safetensors.Tensor{Name: n.Name, DType: dtype, Shape: n.Tensor.Shape(), Data: cgotorch.ToBytes(x, n.Tensor)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return safetensors.WriteFile(path, tensors, nil)
}

func (l *learner) close() {
	l.reduced.Close()
	if l.opt != nil {
		l.opt.Close()
	}
	if l.model != nil {
		nn.Close(l.model)
	}
}
