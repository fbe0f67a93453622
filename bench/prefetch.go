package main

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// benchPrefetch measures the parts of the prefetcher's work, on a device that does nothing else.
// It measures a whole batch, the copy alone and the normalization alone.
func benchPrefetch(c *config, emit func(row)) error {
	batches := c.or(2, 100)
	f, err := newFeed(c, imagenet, c.or(2, imagenet.batch))
	if err != nil {
		return err
	}
	defer f.close()
	var flips *cgotorch.Tensor
	err = f.stream.Do(func(x *cgotorch.Exec) error {
		flips = x.Keep(cgotorch.FromSlice(x, f.replay.batches[0].Flip))
		return nil
	})
	if err != nil {
		return err
	}
	defer flips.Close()
	// block makes one side of the comparison. The side calls the function `work` on the training
	// stream, as often as `batches` says. It measures the milliseconds of one call.
	block := func(work func(x *cgotorch.Exec)) side {
		return func() (float64, error) {
			if err := c.device.Synchronize(); err != nil {
				return 0, err
			}
			began := time.Now()
			err := f.stream.Do(func(x *cgotorch.Exec) error {
				for range batches {
					x.Tidy(func() *cgotorch.Tensor { work(x.NoGrad()); return nil })
				}
				return nil
			})
			if err != nil {
				return 0, err
			}
			err = c.device.Synchronize()
			return time.Since(began).Seconds() * 1e3 / float64(batches), err
		}
	}
	parts := []struct {
		name, text string
		run        side
	}{
		{"prefetcher", "batches out of the prefetcher, each used in a Do that does nothing", func() (float64, error) {
			began := time.Now()
			for range batches {
				if err := f.advance(); err != nil {
					return 0, err
				}
				if err := f.stream.Do(func(x *cgotorch.Exec) error { f.batch.Use(x); return nil }); err != nil {
					return 0, err
				}
			}
			err := c.device.Synchronize()
			return time.Since(began).Seconds() * 1e3 / float64(batches), err
		}},
		{"copy", "uint8 from page-locked memory", block(func(x *cgotorch.Exec) { cgotorch.CopyFrom(x, f.pixels, f.replay.batches[0].Images) })},
		{"normalise", "half of the images flipped, uint8 to float32, one kernel", block(func(x *cgotorch.Exec) { images.Normalize(x, f.pixels, flips, f.table, f.into) })},
	}
	var runs []side
	for _, p := range parts {
		runs = append(runs, p.run)
	}
	values, err := interleave(c.roundsOr(15), runs...)
	if err != nil {
		return err
	}
	n, height, width, channels := f.replay.Shape()
	for i, p := range parts {
		emit(alone(fmt.Sprintf("prefetch/%dx%dx%dx%d/%s", n, height, width, channels, p.name), values[i].median(), "ms",
			fmt.Sprintf("%s; blocks of %d, %v; %s", p.text, batches, values[i], c.settings())))
	}
	return nil
}
