package main

import "github.com/streamtorch/streamtorch/imageloader/decode"

// transform returns how an image is brought to Size x Size. For training it is a random crop, and
// for testing it is the middle of the image.
func (t *trainer) transform(training bool) decode.Transform {
	switch {
	case t.Crop == "pad" && training:
		return decode.RandomCrop{Height: t.Size, Width: t.Size, Padding: padding(t.Size)}
	case t.Crop == "pad":
		return decode.Resize{Height: t.Size, Width: t.Size}
	case training:
		return decode.RandomResizedCrop{Height: t.Size, Width: t.Size}
	default:
		return decode.ResizeCenterCrop{Resize: t.Size * 8 / 7, Height: t.Size, Width: t.Size}
	}
}

// padding returns the largest shift of a random crop with -crop pad, in pixels.
func padding(size int) int { return size / 8 }
