// Quickstart is a whole training program that is as short as possible. It trains a small model
// for one epoch, on an archive of labelled images.
//
//	go run ./examples/quickstart [ARCHIVE]
package main

import (
	"context"
	"fmt"
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

// Must ends the program with the error, as in any short program. A server tests the errors.
func main() {
	archive := defaultArchive()
	if len(os.Args) > 1 {
		archive = os.Args[1]
	}
	device, err := cgotorch.ParseDevice("auto")
	if err != nil { // the first call tells what the machine lacks, and what to do
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	loader := cgotorch.Must(imageloader.Open(archive, imageloader.Options{
		Train: true, Split: "train", BatchSize: 128, Crop: imageloader.Crop{Transform: decode.RandomCrop{Height: 32, Width: 32, Padding: 4}},
	}))
	defer loader.Close()
	ahead := cgotorch.Must(prefetcher.New(loader, device, prefetcher.Options{})) // with its own copy stream and its own slots
	defer ahead.Close()

	stream := cgotorch.DefaultStream(device)
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (nn.Module, error) {
		return vision.NewMLP(x, vision.Options{Classes: len(loader.Classes())}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.02, Momentum: 0.9}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()

	step := func(x *cgotorch.Exec, batch *prefetcher.Batch) error {
		images, labels := batch.Use(x) // the stream waits for the copy, but the host does not wait
		loss := nn.CrossEntropy(x, model.Forward(x, images), labels, nn.CrossEntropyOptions{})
		opt.Minimize(x, loss) // ZeroGrad, x.Backward(loss), Step
		if batch.Index%20 == 0 {
			fmt.Printf("batch %d: loss %.3f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
		}
		return nil
	}
	// One Do for each batch. The batch's memory comes back once the step has run on the device.
	cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(context.Background()), step))
}

// defaultArchive returns the archive of examples/train.
func defaultArchive() string {
	_, source, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(source), "..", "train", "data", "cifar10-10k.tgz")
}
