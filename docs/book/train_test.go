package book

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const archive = "../../examples/train/data/cifar10-10k.tgz"

func Example_lent() {
	loader, err := imageloader.Open(archive, imageloader.Options{
		Split: "test", BatchSize: 4, Transform: decode.Resize{Height: 32, Width: 32},
	})
	must(err)
	defer loader.Close()
	ahead, err := prefetcher.New(loader, cgotorch.CPU, prefetcher.Options{})
	must(err)
	defer ahead.Close()

	// cut: lent
	var sample *cgotorch.Tensor
	for batch, err := range ahead.Epoch(context.Background()) {
		must(err)
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, _ := batch.Use(x)
			x.Keep(images) // an error: the memory is refilled
			return nil
		})
		fmt.Println("refused:", errors.Is(err, cgotorch.ErrInvalidArgument))
		must(stream.Do(func(x *cgotorch.Exec) error {
			images, _ := batch.Use(x)
			sample = x.Keep(x.Clone(images)) // right: a copy of your own
			return nil
		}))
		break // leaves the epoch, and gives all buffers back
	}
	defer sample.Close()
	fmt.Println(sample.Shape())
	// end: lent

	// Output:
	// refused: true
	// [4 3 32 32]
}

func Example_classes() {
	loader, err := imageloader.Open(archive, imageloader.Options{Split: "train"})
	must(err)
	defer loader.Close()
	fmt.Println(loader.Len(), "images of", loader.Classes()[:3], "and others")
	_, err = imageloader.Open(archive, imageloader.Options{Split: "val"})
	fmt.Println(errors.Is(err, imageloader.ErrNoImages))
	// Output:
	// 10000 images of [airplane automobile bird] and others
	// true
}
