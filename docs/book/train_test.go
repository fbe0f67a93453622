package book

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const photosTGZ = "../../examples/train/data/cifar10-10k.tgz"

func Example_lent() {
	loader, err := imageloader.Open(photosTGZ, imageloader.Options{
		Split: "test", BatchSize: 4, Crop: imageloader.Crop{Transform: decode.Resize{Height: 32, Width: 32}},
	})
	cgotorch.Check(err)
	defer loader.Close()
	ahead, err := prefetcher.New(loader, cgotorch.CPU, prefetcher.Options{})
	cgotorch.Check(err)
	defer ahead.Close()

	// cut: lent
	var sample *cgotorch.Tensor
	for batch, err := range ahead.Epoch(context.Background()) {
		cgotorch.Check(err)
		err = stream.Do(func(x *cgotorch.Exec) error {
			images, _ := batch.Use(x)
			x.Keep(images) // an error: the memory is refilled
			return nil
		})
		fmt.Println("refused:", errors.Is(err, cgotorch.ErrInvalidArgument))
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
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
	loader, err := imageloader.Open(photosTGZ, imageloader.Options{Split: "train"})
	cgotorch.Check(err)
	defer loader.Close()
	fmt.Println(loader.Len(), "images of", loader.Classes()[:3], "and others")
	// Output: 10000 images of [airplane automobile bird] and others
}

func Example_training() {
	photos := paint()
	defer os.RemoveAll(photos)
	ctx := context.Background()
	cgotorch.Check(cgotorch.Seed(1))

	// cut: open
	device := cgotorch.Must(cgotorch.ParseDevice("cpu"))                  // "auto": a GPU if there is one
	loader := cgotorch.Must(imageloader.Open(photos, imageloader.Options{ // the .tgz, or a folder of the same form
		Train: true, Split: "train", BatchSize: 16, Crop: imageloader.Crop{Transform: decode.RandomCrop{Height: 32, Width: 32, Padding: 4}},
	}))
	defer loader.Close()
	ahead := cgotorch.Must(prefetcher.New(loader, device, prefetcher.Options{})) // its own copy stream, its own memory
	defer ahead.Close()
	// end: open

	// cut: loop
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (nn.Module, error) {
		return vision.NewMLP(x, vision.Options{Classes: len(loader.Classes()), Hidden: []int{8}}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.01}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()

	var losses [4]float64
	for epoch := range losses {
		step := func(x *cgotorch.Exec, batch *prefetcher.Batch) error {
			images, labels := batch.Use(x) // the stream waits for the copy, but the host does not wait
			loss := nn.CrossEntropy(x, model.Forward(x, images), labels, nn.CrossEntropyOptions{})
			opt.Minimize(x, loss)         // ZeroGrad, x.Backward(loss), Step
			losses[epoch] += x.Item(loss) // waits for the device: see below
			return nil
		}
		cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(ctx), step)) // one Do for each batch
	}
	fmt.Println("the loss falls:", losses[3] < losses[0]/2)
	// end: loop

	// Output: the loss falls: true
}

// paint writes a folder of 32 dark and 32 bright pictures, and returns its path.
func paint() string {
	folder, err := os.MkdirTemp("", "photos")
	cgotorch.Check(err)
	for i := range 64 {
		class, level := "dark", uint8(20+i)
		if i%2 == 1 {
			class, level = "bright", 255-level
		}
		picture := image.NewGray(image.Rect(0, 0, 32, 32))
		for k := range picture.Pix {
			picture.Pix[k] = level
		}
		path := filepath.Join(folder, "train", class, fmt.Sprint(i, ".png"))
		cgotorch.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		file, err := os.Create(path)
		cgotorch.Check(err)
		cgotorch.Check(png.Encode(file, picture))
		cgotorch.Check(file.Close())
	}
	return folder
}
