// Quickstart is a whole training program that is as short as possible. It trains a small model
// for one epoch, on an archive of labelled images.
//
//	go run ./examples/quickstart [ARCHIVE]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

func main() {
	archive := defaultArchive()
	if len(os.Args) > 1 {
		archive = os.Args[1]
	}
	if err := train(context.Background(), archive); err != nil {
		log.Fatal(err)
	}
}

func train(ctx context.Context, archive string) error {
	device, err := cgotorch.ParseDevice("auto")
	if err != nil {
		return err
	}
	loader, err := imageloader.Open(archive, imageloader.Options{
		Train: true, Split: "train", BatchSize: 128, Transform: decode.RandomCrop{Height: 32, Width: 32, Padding: 4},
	})
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, device, prefetcher.Options{}) // with its own copy stream and its own slots
	if err != nil {
		return err
	}
	defer ahead.Close()

	stream := cgotorch.DefaultStream(device)
	var model nn.Module
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		model = vision.NewMLP(x, vision.Options{Classes: len(loader.Classes())})
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.02, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(model)
	defer opt.Close()

	for batch, err := range ahead.Epoch(ctx) {
		if err != nil {
			return err
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x) // the stream waits for the copy, but the host does not wait
			opt.ZeroGrad()
			loss := nn.CrossEntropy(x, model.Forward(x, images), labels, nn.CrossEntropyOptions{})
			x.Backward(loss)
			opt.Step(x)
			if batch.Index%20 == 0 {
				fmt.Printf("batch %d: loss %.3f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
			}
			return nil
		})
		if err != nil {
			return err
		}
	} // the end of the loop body gives the batch's memory back, once the step has run on the device
	return nil
}

// defaultArchive returns the archive of examples/train.
func defaultArchive() string {
	_, source, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(source), "..", "train", "data", "cifar10-10k.tgz")
}
