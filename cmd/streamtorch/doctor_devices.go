//go:build cgo

package main

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// try tries what is there.
func (d *doctor) try(core, decoder bool) {
	if decoder {
		d.works("a PNG, decoded", decoded())
	}
	if core {
		d.devices()
	}
}

// decoded decodes an image of one pixel.
func decoded() error {
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		return err
	}
	return decode.Check(file.Bytes())
}

// devices tries the CPU and each GPU.
func (d *doctor) devices() {
	count, err := cgotorch.CUDACount()
	if count == 0 {
		d.row("GPU", "none: %v", err)
	} else {
		d.row("driver", "%s", line("/proc/driver/nvidia/version", "NVRM version"))
	}
	d.works("a step on the CPU", step(cgotorch.CPU))
	for i := range count {
		d.gpu(cgotorch.CUDA(i))
	}
}

func (d *doctor) gpu(device cgotorch.Device) {
	name := device.String()
	if models, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information"); device.Index() < len(models) {
		d.row(name, "%s", line(models[device.Index()], "Model"))
	}
	d.works(name+", a step", step(device))
	d.works(name+", a second stream", beside(device))
	d.works(name+", a CUDA graph", captured(device))
	decoder, err := images.NewJPEGDecoder(device, 1)
	if err != nil {
		d.row(name+", JPEG engines", "none: %v", err)
		return
	}
	decoder.Close()
	d.row(name+", JPEG engines", "work")
}

// step trains one convolution for one step.
func step(device cgotorch.Device) error {
	return cgotorch.DefaultStream(device).Do(func(x *cgotorch.Exec) error {
		weight := x.Randn(cgotorch.Float32, 8, 3, 3, 3)
		if err := weight.SetRequiresGrad(true); err != nil {
			return err
		}
		x.Backward(x.Mean(x.Conv2d(x.Randn(cgotorch.Float32, 4, 3, 16, 16), weight, nil, cgotorch.Conv2dOptions{})))
		if sum := x.Item(x.Sum(x.Abs(weight.Grad()))); !(sum > 0) {
			return fmt.Errorf("the gradient of a convolution is %v", sum)
		}
		return nil
	})
}

// beside computes on a second stream behind an event.
func beside(device cgotorch.Device) error {
	side, err := cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "side"})
	if err != nil {
		return err
	}
	defer side.Close()
	return cgotorch.DefaultStream(device).Do(func(x *cgotorch.Exec) error {
		a := x.Ones(cgotorch.Float32, 1000)
		ready := x.Record()
		defer ready.Close()
		y := x.On(side)
		y.Wait(ready)
		if sum := y.Item(y.Sum(y.AddScalar(a, 1))); sum != 2000 {
			return fmt.Errorf("a sum on a second stream is %v, want 2000", sum)
		}
		return nil
	})
}

// captured launches a graph twice.
func captured(device cgotorch.Device) error {
	stream, err := cgotorch.NewStream(device, cgotorch.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	var a *cgotorch.Tensor
	if err := stream.Do(func(x *cgotorch.Exec) error { a = x.Keep(x.Zeros(cgotorch.Float32, 8)); return nil }); err != nil {
		return err
	}
	defer a.Close()
	g, err := stream.Capture(func(x *cgotorch.Exec) error { x.AddScalarInPlace(a, 1); return nil }, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	for range 2 {
		if err := g.Launch(stream); err != nil {
			return err
		}
	}
	return stream.Do(func(x *cgotorch.Exec) error {
		if sum := x.Item(x.Sum(a)); sum < 16 {
			return fmt.Errorf("two launches of a graph give the sum %v, want at least 16", sum)
		}
		return nil
	})
}
