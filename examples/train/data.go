package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// images holds one part of the data: its loader, and the prefetcher that reads from the loader. A
// nil images has no images.
type images struct {
	loader  *imageloader.Loader
	ahead   *prefetcher.Prefetcher
	engines *kernels.JPEGDecoder // nil without -jpeg-engines
}

// openImages opens a part of the data. If `classes` is nil, the classes are those of the data.
func (t *trainer) openImages(data, part string, training bool, classes []string) (*images, error) {
	o := imageloader.Options{
		Train: training, BatchSize: t.share(), Split: cmp.Or(part, "."), Limit: t.Limit, Seed: t.Seed, Workers: t.Workers,
		Labels:  imageloader.Labels{Classes: classes},
		Crop:    imageloader.Crop{Transform: t.transform(training)},
		Reading: imageloader.Reading{MaxSkipRate: t.SkipRate},
		Ranks:   imageloader.Ranks{World: t.group.World(), Rank: t.group.Rank(), EachOnce: !training},
	}
	if o.Workers == 0 && t.group.World() > 1 { // the ranks of a machine share its cores
		o.Workers = max(1, runtime.NumCPU()/t.group.LocalWorld())
	}
	engines, err := t.openEngines(training)
	if err != nil {
		return nil, err
	}
	if engines != nil {
		o.JPEGDevice = engines
	}
	loader, err := imageloader.Open(data, o)
	if err != nil {
		engines.Close()
	}
	if errors.Is(err, imageloader.ErrNoImages) {
		return nil, fmt.Errorf("%w (the parts are named by -train-part and -test-part)", err)
	}
	if err != nil {
		return nil, err
	}
	ahead, err := prefetcher.New(loader, t.device, prefetcher.Options{DType: t.autocastTo()}) // autocast would convert images to this dtype in the first layer
	if err != nil {
		loader.Close()
		engines.Close()
		return nil, err
	}
	return &images{loader, ahead, engines}, nil
}

// openEngines returns the JPEG engines of the GPU, or nil if the CPU is to decode all images.
func (t *trainer) openEngines(training bool) (*kernels.JPEGDecoder, error) {
	if !t.Engines || !training || !t.device.IsCUDA() || t.Crop == "pad" { // the engines' way always resizes
		return nil, nil
	}
	engines, err := kernels.NewJPEGDecoder(t.device, kernels.JPEGDecoderOptions{})
	if errors.Is(err, cgotorch.ErrUnsupported) {
		fmt.Fprintln(os.Stderr, "train: the CPU decodes all images:", err)
		return nil, nil
	}
	return engines, err
}

// share returns how many images of a step this rank takes. -batch is for all ranks together, so the
// run does not depend on their number.
func (t *trainer) share() int { return (t.BatchSize + t.group.World() - 1) / t.group.World() }

// skipped returns the number of images that were left out so far.
func (i *images) skipped() int {
	n := 0
	for _, count := range i.loader.Stats().Skipped {
		n += count
	}
	return n
}

func (i *images) close() {
	if i != nil {
		i.ahead.Close()
		i.loader.Close()
		i.engines.Close()
	}
}

// chooseCrop sets Size and Crop unless they are set. Small images of about Size, as CIFAR's are,
// get a shifted crop. Others get a random box.
func (c *Config) chooseCrop(ctx context.Context) error {
	if c.Size == 0 {
		c.Size = 224
		if c.Model == "resnet20" || c.Model == "mlp" {
			c.Size = 32
		}
	}
	if c.Crop != "" {
		return nil
	}
	first, err := imageloader.ScanFirst(ctx, c.Data, 100)
	if err != nil {
		return err
	}
	c.Crop = "resized"
	if max(first.Largest.Width, first.Largest.Height) <= c.Size && min(first.Smallest.Width, first.Smallest.Height)+2*padding(c.Size) >= c.Size {
		c.Crop = "pad"
	}
	return nil
}

// padding returns the largest shift of a crop, in pixels.
func padding(size int) int { return size / 8 }

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

// joinStates makes the loader's state that of all ranks. Ranks that pass over unreadable images may
// be at different places of the epoch.
func (t *trainer) joinStates() error {
	if t.group.World() == 1 || t.SkipRate == 0 {
		return nil
	}
	text, err := json.Marshal(t.progress.Loader)
	if err != nil {
		return err
	}
	texts, err := t.group.Exchange(string(text))
	if err != nil || t.progress.Loader.Batch == 0 { // the epoch has not begun
		return err
	}
	states := make([]imageloader.State, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &states[i]); err != nil {
			return err
		}
	}
	t.progress.Loader, err = imageloader.JoinStates(states)
	return err
}
