package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
)

// jpegDecoder decodes some of the photographs on the GPU's engines, and has the streams for that.
// The pixels are those of the CPU.
type jpegDecoder struct {
	*kernels.JPEGDecoder
	streams []*cgotorch.Stream
}

// newJPEGDecoder returns nil if the device has no such engines, or no library for them.
func newJPEGDecoder(device cgotorch.Device) (*jpegDecoder, error) {
	if !device.IsCUDA() {
		return nil, nil
	}
	const lanes = 4 // while one waits for the engines, another one prepares its next files
	d := &jpegDecoder{}
	for i := range lanes {
		s, err := cgotorch.NewStream(device, cgotorch.StreamOptions{Name: fmt.Sprintf("jpeg %d", i)})
		if err != nil {
			d.close()
			return nil, err
		}
		d.streams = append(d.streams, s)
	}
	var err error
	if d.JPEGDecoder, err = kernels.NewJPEGDecoder(d.streams...); err != nil {
		d.close()
		if errors.Is(err, cgotorch.ErrUnsupported) {
			fmt.Fprintln(os.Stderr, "train: the CPU decodes all images:", err)
			return nil, nil
		}
		return nil, err
	}
	return d, nil
}

func (d *jpegDecoder) close() {
	if d == nil {
		return
	}
	d.JPEGDecoder.Close()
	for _, s := range d.streams {
		s.Close()
	}
}
