package images_test

import (
	"fmt"
	"image"
	"image/color"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// An image of Go becomes a tensor, is augmented, and becomes an image again.
func ExampleAugment() {
	picture := image.NewGray(image.Rect(0, 0, 2, 1))
	picture.SetGray(0, 0, color.Gray{10})
	picture.SetGray(1, 0, color.Gray{20})

	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		pixels := x.Unsqueeze(images.FromImage(x, picture), 0) // uint8 [1, 1, 2, 3]
		flips := cgotorch.FromSlice(x, []bool{true})
		out := x.EmptyLike(pixels)
		images.Augment(x, pixels, flips, images.Steps(x, []images.Step{images.Brightness(2)}), out)
		img := images.ToImage(x, x.Squeeze(out, 0))
		fmt.Println(pixels.Shape(), img.At(0, 0), img.At(1, 0))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: [1 1 2 3] {40 40 40 255} {20 20 20 255}
}
