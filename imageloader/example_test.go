package imageloader_test

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// This example reads a directory of two classes in batches of two.
func Example() {
	directory := paint(map[string]color.Color{
		"blue/1.png": color.RGBA{B: 255, A: 255}, "blue/2.png": color.RGBA{B: 200, A: 255}, "red/1.png": color.RGBA{R: 255, A: 255},
	})
	defer os.RemoveAll(directory)

	loader, err := imageloader.Open(directory, imageloader.Options{
		BatchSize: 2, Crop: imageloader.Crop{Transform: decode.ResizeCenterCrop{Resize: 8, Height: 8, Width: 8}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	fmt.Println(loader.Len(), "images of", loader.Classes())
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v: labels %v, first pixel %v\n", batch.Names, batch.Labels, batch.Images[:3])
		batch.Release()
	}
	// Output:
	// 3 images of [blue red]
	// [blue/1.png blue/2.png]: labels [0 0], first pixel [0 0 255]
	// [red/1.png]: labels [1], first pixel [255 0 0]
}

// This example shows a program that does not use LibTorch. The program may use the bytes of a
// batch as it likes. Here it counts images, colours and time.
func Example_otherEngine() {
	directory := paint(map[string]color.Color{
		"blue/1.png": color.RGBA{B: 255, A: 255}, "blue/2.png": color.RGBA{B: 255, A: 255}, "red/1.png": color.RGBA{R: 255, A: 255},
	})
	defer os.RemoveAll(directory)
	loader, err := imageloader.Open(directory, imageloader.Options{
		BatchSize: 2, Train: true, Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: 8, Width: 8}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()

	const epochs = 4
	images, reds := 0, 0
	began := time.Now()
	for range epochs {
		for batch, err := range loader.Epoch(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			for i := range batch.N { // uint8 [N, 8, 8, 3]
				if batch.Images[i*8*8*3] == 255 {
					reds++
				}
			}
			images += batch.N
			batch.Release()
		}
	}
	rate := float64(images) / time.Since(began).Seconds()
	fmt.Println(images, "images,", reds, "of them red, measured:", rate > 0)
	// Output: 12 images, 4 of them red, measured: true
}

func ExampleLoader_Restore() {
	directory := paint(map[string]color.Color{
		"grey/1.png": color.Gray{10}, "grey/2.png": color.Gray{20}, "grey/3.png": color.Gray{30}, "grey/4.png": color.Gray{40},
	})
	defer os.RemoveAll(directory)
	options := imageloader.Options{
		BatchSize: 1, Train: true, Seed: 3, Crop: imageloader.Crop{Channels: 1, Transform: decode.RandomCrop{Height: 4, Width: 4, Padding: 1}},
	}
	loader, err := imageloader.Open(directory, options)
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()

	var saved imageloader.State
	var whole []string
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		if whole = append(whole, batch.Names...); len(whole) == 2 {
			saved = batch.State
		}
		batch.Release()
	}

	if err := loader.Restore(saved); err != nil {
		log.Fatal(err)
	}
	var rest []string
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		rest = append(rest, batch.Names...)
		batch.Release()
	}
	fmt.Println(fmt.Sprint(rest) == fmt.Sprint(whole[2:]))
	// Output: true
}

// This example makes batches without a loader, as a source for package prefetcher does. It uses
// two pieces of memory. A piece is filled again after its former batch was released.
func ExampleHostBatch_ownSource() {
	const images, bytes = 2, 2 * 2 * 2 * 3
	free := make(chan []byte, 2)
	free <- make([]byte, bytes)
	free <- make([]byte, bytes)

	next := func(index int) *imageloader.HostBatch {
		memory := <-free // waits for a Release
		for i := range memory {
			memory[i] = byte(index)
		}
		return &imageloader.HostBatch{
			N: images, Height: 2, Width: 2, Channels: 3, Images: memory, Labels: make([]int64, images), Index: index,
			State:     imageloader.State{Batch: index + 1},
			OnRelease: func() { free <- memory },
		}
	}
	for index := range 4 {
		batch := next(index)
		fmt.Println(batch.Images[0], batch.State.Batch)
		batch.Release()
	}
	// Output:
	// 0 1
	// 1 2
	// 2 3
	// 3 4
}

// paint writes a directory of pictures and returns its path. Each picture has one colour.
func paint(colours map[string]color.Color) string {
	directory, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	for name, c := range colours {
		picture := image.NewRGBA(image.Rect(0, 0, 12, 12))
		for i := range 144 {
			picture.Set(i%12, i/12, c)
		}
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			log.Fatal(err)
		}
		f, err := os.Create(path)
		if err != nil {
			log.Fatal(err)
		}
		if err := png.Encode(f, picture); err != nil {
			log.Fatal(err)
		}
		f.Close()
	}
	return directory
}
