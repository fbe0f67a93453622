package prefetcher_test

import (
	"context"
	"fmt"
	"log"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// The first batch of CIFAR-10 images, on the device and normalised.
func ExampleNew() {
	loader, err := imageloader.Open("../examples/train/data/cifar10-10k.tgz", imageloader.Options{
		Split: "test", BatchSize: 4, Crop: imageloader.Crop{Transform: decode.Resize{Height: 32, Width: 32}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, cgotorch.CPU, prefetcher.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer ahead.Close()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x) // the stream waits for the copy, but the host does not wait
			fmt.Println(images.DType(), images.Shape(), labels.Shape())
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		break // ends the epoch and gives every buffer back
	}
	// Output: float32 [4 3 32 32] [4]
}

func ExampleNewTensors() {
	table, err := data.NewTable(data.Of("x", []float32{1, 2, 3, 4, 5, 6}, 2), data.Of("y", []int64{0, 1, 0}))
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewLoader(table, data.Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	ahead, err := prefetcher.NewTensors(loader, cgotorch.CPU, prefetcher.TensorOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer ahead.Close()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			in := batch.Use(x)
			fmt.Println(cgotorch.ToRows[float32](x, in["x"]), cgotorch.ToSlice[int64](x, in["y"]))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// [[1 2] [3 4]] [0 1]
	// [[5 6]] [0]
}
