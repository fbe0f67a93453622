package main

import (
	"cmp"
	"context"
	"fmt"

	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
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
func (t *trainer) openImages(data, part string, training bool, classes []string) (i *images, err error) {
	world := t.group.World()
	o := imageloader.Options{
		Train: training, BatchSize: (t.BatchSize + world - 1) / world, Split: cmp.Or(part, "."), Limit: t.Limit, Seed: t.Seed,
		Labels:  imageloader.Labels{Classes: classes},
		Crop:    imageloader.Crop{Size: t.Size},
		Reading: imageloader.Reading{MaxSkipRate: t.SkipRate},
		Ranks:   imageloader.Ranks{World: world, Rank: t.group.Rank(), Local: t.group.LocalWorld(), EachOnce: !training},
	}
	if t.Crop == "pad" {
		o.Crop.Pad = t.Size / 8
	}
	i = &images{}
	if t.Engines && training {
		if i.engines, err = kernels.NewJPEGDecoder(t.group.Device(), 0); err != nil {
			return i, fmt.Errorf("-jpeg-engines: %w", err)
		}
		o.JPEGDevice = i.engines
	}
	if i.loader, err = imageloader.Open(data, o); err != nil {
		return i, fmt.Errorf("part %q, as -train-part and -test-part name it: %w", part, err)
	}
	i.ahead, err = prefetcher.New(i.loader, t.group.Device(), prefetcher.Options{DType: t.dtype}) // the first layer would convert the images to this dtype
	return i, err
}

func (i *images) close() {
	if i != nil {
		i.ahead.Close()
		i.loader.Close()
		i.engines.Close()
	}
}

// chooseCrop sets Size and Crop unless they are set. Images of about Size, as CIFAR's are, are
// shifted for training. Of others a random box is taken.
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
	first, err := imageloader.Scan(ctx, c.Data, 100)
	if err != nil {
		return err
	}
	c.Crop = "resized"
	if max(first.Largest.Width, first.Largest.Height) <= c.Size && min(first.Smallest.Width, first.Smallest.Height)+2*(c.Size/8) >= c.Size {
		c.Crop = "pad"
	}
	return nil
}
