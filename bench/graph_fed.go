package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchGraphFed trains ResNet-50 by a captured step, once on a resident batch and once from one
// long .tgz. It reports the rate from the .tgz as a share of the rate on the resident batch.
// There are two ways to read the batches. The first way copies each batch to the graph's memory.
// The second way has one graph for each slot of the prefetcher.
func benchGraphFed(c *config, emit func(row)) error {
	if !c.device.IsCUDA() && !c.brief {
		return errors.New("a CPU has no graphs; use -device cuda")
	}
	r := imagenet
	if !c.device.IsCUDA() {
		r = cifar
	}
	return c.withPhotographs(r, func(all photographs, folder string) error {
		archive := filepath.Join(folder, "photographs.tgz")
		if err := all.writeTgz(archive, c.or(8, c.members)); err != nil {
			return err
		}
		r.classes = len(all.classes())
		batches := []int{32, 256}
		if c.brief {
			batches = []int{2}
		}
		for _, batch := range batches {
			r.batch = batch
			if err := fedRows(c, r, all, archive, emit); err != nil {
				return err
			}
		}
		return nil
	})
}

func fedRows(c *config, r recipe, all photographs, archive string, emit func(row)) error {
	s := switches{benchmark: c.device.IsCUDA()}
	if err := s.set(); err != nil {
		return err
	}
	f, err := newFed(c, r, all, archive)
	if err != nil {
		return err
	}
	defer f.close()
	copied, inPlace := f.captured(false), f.captured(true)
	defer copied.Close()
	defer inPlace.Close()
	values, err := interleave(c.roundsOr(5),
		func() (float64, error) { return f.resident(inPlace) },
		func() (float64, error) { return f.epoch(copied) },
		func() (float64, error) { return f.epoch(inPlace) })
	if err != nil {
		return err
	}
	for i, way := range []struct{ name, text string }{
		{"copied", "the batch is copied, on the device, to the graph's memory"},
		{"slots", "the graphs read the prefetcher's slots"},
	} {
		of := []*cgotorch.Captured{copied, inPlace}[i].Stats()
		share := ratios(values[1+i], values[0])
		emit(alone(fmt.Sprintf("graph/fed/%s/%d/%s", r.model, r.batch, way.name), share.median(), "share of the resident rate",
			fmt.Sprintf("%s; %d graphs, %d launches, %d eager steps; captured step, from one .tgz of %d images, %.0f images/s, %v, the very first epoch %.0f; %.1f cores busy; %d of %d images on JPEG engines (%s); resident batch %.0f images/s, %v; share %v; autocast to bfloat16, channels last, uint8 to the device and normalised on the copy stream, fused SGD with Nesterov momentum; loader %s; %s; %v",
				way.text, of.Graphs, of.Launches, of.Eager, f.loader.Len(), values[1+i].median(), values[1+i], f.first, f.cores.median(), f.loader.Stats().OnDevice, f.loader.Stats().Samples, f.engines(), values[0].median(), values[0], share, f.loader.Stats().Bottleneck(), c.settings(), s)))
	}
	return nil
}

// The type `fed` is a model, and a prefetcher that reads an archive.
type fed struct {
	*learner
	c              *config
	decoder        *images.JPEGDecoder // nil if the device has no engines
	loader         *imageloader.Loader
	ahead          *prefetcher.Prefetcher
	images, labels *cgotorch.Tensor // the resident batch
	first          float64          // images per second of the first epoch
	cores          sample           // cores that were busy in each epoch
}

func newFed(c *config, r recipe, all photographs, archive string) (*fed, error) {
	f := &fed{c: c}
	if err := f.open(r, all, archive); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *fed) open(r recipe, all photographs, archive string) error {
	var err error
	options := imageloader.Options{
		Train: true, DropLast: true, BatchSize: r.batch, Split: r.train, Classes: all.classes(), Transform: r.crop, Workers: f.c.threads,
	}
	if f.decoder, err = images.NewJPEGDecoder(f.c.device, images.JPEGDecoderOptions{}); err == nil {
		options.JPEGDevice = f.decoder
	} else if !errors.Is(err, cgotorch.ErrUnsupported) {
		return err
	}
	if f.loader, err = imageloader.Open(archive, options); err != nil {
		return err
	}
	o := prefetcher.Options{}
	if f.c.device.IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	if f.ahead, err = prefetcher.New(f.loader, f.c.device, o); err != nil {
		return err
	}
	if f.learner, err = r.learner(f.c, 1, 1_000_000); err != nil {
		return err
	}
	for batch, err := range f.ahead.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		return f.stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x)
			f.images, f.labels = x.Keep(x.Clone(images)), x.Keep(x.Clone(labels))
			return nil
		})
	}
	return errors.New("the archive has no batch")
}

func (f *fed) captured(inPlace bool) *cgotorch.Captured {
	return cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{f.step(x, in[0], in[1])}
	}, cgotorch.CapturedOptions{InPlace: inPlace, Log: f.c.tell})
}

// engines tells how the engines fared.
func (f *fed) engines() string {
	if f.decoder == nil {
		return "there are none"
	}
	s := f.decoder.Stats()
	return fmt.Sprintf("%d decoded, %d failed, gave up: %v, last failure: %v", s.Decoded, s.Failed, s.GaveUp, s.Failure)
}

// resident runs the steps of one epoch on the resident batch. It returns images per second.
func (f *fed) resident(captured *cgotorch.Captured) (float64, error) {
	seconds, err := f.c.secondsEach(f.loader.Batches(), func() error {
		return f.stream.Do(func(x *cgotorch.Exec) error { captured.Run(x, f.images, f.labels); return nil })
	})
	return float64(f.images.Shape()[0]) / seconds, err
}

// epoch trains for one epoch of the archive. It returns images per second.
func (f *fed) epoch(captured *cgotorch.Captured) (float64, error) {
	if err := f.c.device.Synchronize(); err != nil {
		return 0, err
	}
	began, images, busy := time.Now(), 0, processorTime()
	for batch, err := range f.ahead.Epoch(context.Background()) {
		if err == nil {
			err = f.stream.Do(func(x *cgotorch.Exec) error {
				pictures, labels := batch.Use(x)
				captured.Run(x, pictures, labels)
				return nil
			})
		}
		if err != nil {
			return 0, err
		}
		images += batch.N
	}
	err := f.c.device.Synchronize()
	seconds := time.Since(began).Seconds()
	rate := float64(images) / seconds
	f.cores = append(f.cores, (processorTime()-busy).Seconds()/seconds)
	if f.first == 0 {
		f.first = rate
	}
	return rate, err
}

// processorTime returns the time for which this process has used cores.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (f *fed) close() {
	f.images.Close()
	f.labels.Close()
	if f.learner != nil {
		f.learner.close()
	}
	if f.ahead != nil {
		f.ahead.Close()
	}
	if f.loader != nil {
		f.loader.Close()
	}
	f.decoder.Close()
}
