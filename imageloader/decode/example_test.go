package decode_test

import (
	"fmt"
	"log"
	"os"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

func ExamplePool_Decode() {
	pool, err := decode.NewPool(decode.Options{Transform: decode.ResizeCenterCrop{Resize: 16, Height: 12, Width: 12}})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	names := []string{"good/exif6.jpg", "bad/half.jpg", "good/rgb.png"}
	images := make([]decode.Image, len(names))
	for i, name := range names {
		images[i].Data, err = os.ReadFile("testdata/" + name)
		if err != nil {
			log.Fatal(err)
		}
	}
	height, width, channels := pool.Size()
	pixels := make([]byte, len(images)*height*width*channels)
	results := make([]decode.Result, len(images))
	if err := pool.Decode(images, pixels, results); err != nil {
		log.Fatal(err)
	}
	for i, result := range results {
		if result.Err != nil {
			fmt.Printf("%s: %v\n", names[i], result.Err)
			continue
		}
		fmt.Printf("%s: %dx%d\n", names[i], result.Width, result.Height)
	}
	// Output:
	// good/exif6.jpg: 18x25
	// bad/half.jpg: truncated JPEG
	// good/rgb.png: 25x18
}

func ExampleProbe() {
	data, err := os.ReadFile("testdata/good/progressive.jpg")
	if err != nil {
		log.Fatal(err)
	}
	info, err := decode.Probe(data)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Format, info.Width, info.Height, info.ColorSpace, info.Progressive)
	// Output:
	// JPEG 25 18 YCbCr true
}
