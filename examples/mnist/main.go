// MNIST trains a multi-layer perceptron on images of digits, and reads digits with it.
//
//	go run ./examples/mnist train -data FOLDER   # the files of MNIST; without -data, drawn digits
//	go run ./examples/mnist predict a.png b.png  # white digits on black, as MNIST's
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/imageloader/idx"
)

const side = 28 // pixels of an image

func main() {
	flags := flag.NewFlagSet("mnist train, or mnist predict IMAGE...", flag.ExitOnError)
	folder := flags.String("data", "", "folder with the files of MNIST; empty: draw digits")
	file := flags.String("model", "mnist.safetensors", "file of the trained model")
	steps := flags.Int("steps", 1000, "steps of 64 images; the program tests and saves after each 250")
	flags.Parse(os.Args[min(2, len(os.Args)):])
	device, err := cgotorch.ParseDevice("auto")
	err = errors.Join(err, cgotorch.Seed(1)) // the same weights and batches in every run
	command := append(os.Args, "")[1]
	if err == nil && command == "train" {
		err = train(cgotorch.DefaultStream(device), *folder, *file, *steps)
	} else if err == nil && command == "predict" {
		err = cgotorch.DefaultStream(device).Do(func(x *cgotorch.Exec) error { return predict(x, *file, flags.Args()) })
	} else if err == nil {
		err = errors.New("usage: mnist train [flags], or mnist predict [flags] IMAGE...")
	}
	if err != nil {
		log.Fatal(err)
	}
}

func newModel(x *cgotorch.Exec) nn.Module {
	return vision.NewMLP(x, vision.Options{Channels: 1, ImageSize: nn.Square(side)})
}

// toDevice returns the images of a set, with MNIST's mean and deviation, and the labels.
func toDevice(x *cgotorch.Exec, set idx.Set) (images, labels *cgotorch.Tensor) {
	bytes := x.To(cgotorch.FromSlice(x, set.Images, int64(set.N), 1, side, side), cgotorch.Float32)
	images = x.DivScalar(x.SubScalar(bytes, 255*0.1307), 255*0.3081)
	return images, x.To(cgotorch.FromSlice(x, set.Labels), cgotorch.Int64)
}

func train(stream *cgotorch.Stream, folder, file string, steps int) (err error) {
	training, testing := draw(5000, 1), draw(1000, 2)
	if folder != "" {
		training, err = idx.ReadMNIST(folder, true)
		set, other := idx.ReadMNIST(folder, false)
		if testing, err = set, errors.Join(err, other); err != nil {
			return err
		}
	}
	var model nn.Module
	var opt *optim.Optimizer
	var images, labels, testImages, testLabels *cgotorch.Tensor // a set as small as MNIST fits on the device
	for step := 0; err == nil && step <= steps; step++ {
		err = stream.Do(func(x *cgotorch.Exec) error {
			if step == 0 {
				images, labels = toDevice(x, training)
				testImages, testLabels = toDevice(x, testing)
				for _, t := range []*cgotorch.Tensor{images, labels, testImages, testLabels} {
					x.Keep(t) // beyond this Do
				}
				model = newModel(x)
				opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.02, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)})
				return err
			}
			batch := x.RandInt(cgotorch.Int64, 0, training.N, 64) // any 64 images
			opt.ZeroGrad()
			logits := model.Forward(x, x.IndexSelect(images, 0, batch))
			x.Backward(nn.CrossEntropy(x, logits, x.IndexSelect(labels, 0, batch), nn.CrossEntropyOptions{}))
			opt.Step(x)
			if step%250 == 0 || step == steps {
				right := metric.Accuracy(x, model.Forward(x.NoGrad(), testImages), testLabels, 1)
				fmt.Printf("step %d: %.2f %% of %d test images\n", step, 100*x.Item(right), testing.N) // x.Item waits for the device
				return checkpoint.Save(x, file, checkpoint.Checkpoint{Model: model})
			}
			return nil
		})
	}
	return errors.Join(err, nn.Close(model), opt.Close(), images.Close(), labels.Close(), testImages.Close(), testLabels.Close())
}

func predict(x *cgotorch.Exec, file string, pictures []string) error {
	model := newModel(x)
	defer nn.Close(model)
	err := checkpoint.LoadModel(x, file, model, nn.LoadOptions{})
	pool, other := decode.NewPool(decode.Options{Channels: 1, Transform: decode.Resize{Height: side, Width: side}})
	if err = errors.Join(err, other); err != nil {
		return err
	}
	defer pool.Close()
	for _, picture := range pictures {
		one, result := idx.Set{Images: make([]byte, side*side), Labels: []byte{0}, N: 1}, make([]decode.Result, 1)
		text, err := os.ReadFile(picture)
		if err == nil {
			err = pool.Decode([]decode.Image{{Data: text}}, one.Images, result)
		}
		if err = errors.Join(err, result[0].Err); err != nil {
			return fmt.Errorf("%s: %w", picture, err)
		}
		image, _ := toDevice(x, one)
		digit := x.ArgMax(model.Forward(x.NoGrad(), image), 1, cgotorch.ReduceOptions{})
		fmt.Printf("%s: %v\n", picture, x.Item(digit))
	}
	return nil
}
