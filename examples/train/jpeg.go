package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
)

// newJPEGDecoder returns a decoder that decodes some of the photographs on the GPU's engines, to
// the pixels of the CPU. It returns nil if the device has no such engines, or no library for them.
func newJPEGDecoder(device cgotorch.Device) (*kernels.JPEGDecoder, error) {
	if !device.IsCUDA() {
		return nil, nil
	}
	d, err := kernels.NewJPEGDecoder(device, kernels.JPEGDecoderOptions{})
	if errors.Is(err, cgotorch.ErrUnsupported) {
		fmt.Fprintln(os.Stderr, "train: the CPU decodes all images:", err)
		return nil, nil
	}
	return d, err
}
