package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchGraphFed trains ResNet-50 by a captured step, once on a resident batch and once from one
// long .tgz. It reports the rate from the .tgz as a share of the rate on the resident batch. There
// are three ways to read the batches: the batch is copied to the graph's memory, there is one graph
// for each slot of the prefetcher, and JPEG engines decode beside the threads.
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
	f := &fed{c: c, batches: c.or(8, c.members) / r.batch}
	defer f.close()
	if err := f.open(r); err != nil {
		return err
	}
	for _, captured := range []*cgotorch.Captured{f.copied, f.inPlace} { // so that the first epoch has the loader's work alone
		if _, err := f.resident(captured); err != nil {
			return err
		}
	}
	type way struct {
		name, text string
		captured   *cgotorch.Captured
		*feeder
	}
	var ways []way
	for _, engines := range []bool{false, true} {
		fd, err := f.newFeeder(r, all.classes(), archive, engines)
		if engines && errors.Is(err, cgotorch.ErrUnsupported) {
			continue
		}
		if err != nil {
			return err
		}
		defer fd.close()
		if engines {
			ways = append(ways, way{"engines", "as copied, with JPEG engines beside the threads", f.copied, fd})
		} else {
			ways = append(ways, way{"copied", "the batch is copied, on the device, to the graph's memory", f.copied, fd},
				way{"slots", "the graphs read the prefetcher's slots", f.inPlace, fd})
		}
		if fd.first, err = fd.epoch(f.copied); err != nil {
			return err
		}
	}
	sides := []side{func() (float64, error) { return f.resident(f.inPlace) }}
	for _, w := range ways {
		sides = append(sides, func() (float64, error) { return w.epoch(w.captured) })
	}
	values, err := interleave(c.roundsOr(5), sides...)
	if err != nil {
		return err
	}
	resident := values[0]
	for i, w := range ways {
		of, stats := w.captured.Stats(), w.loader.Stats()
		share := ratios(values[1+i], resident)
		emit(alone(fmt.Sprintf("graph/fed/%s/%d/%s", r.model, r.batch, w.name), share.median(), "share of the resident rate",
			fmt.Sprintf("%s; %d graphs, %d launches, %d eager steps; captured step, from one .tgz of %d images, %.0f images/s, %v; its first epoch, without an index, %.0f images/s; %.1f cores busy; the step waited %v a batch; %d of %d images on JPEG engines (%s); resident batch %.0f images/s, %v; share %v; autocast to bfloat16, channels last, uint8 to the device and normalised on the copy stream, fused SGD with Nesterov momentum; loader %s; %s; %v",
				w.text, of.Graphs, of.Launches, of.Eager, w.loader.Len(), values[1+i].median(), values[1+i], w.first, w.cores.median(), w.stall(), stats.OnDevice, stats.Samples, w.engines(), resident.median(), resident, share, stats.Bottleneck(), c.settings(), s)))
		if w.name != "slots" {
			emit(alone(fmt.Sprintf("graph/fed/%s/%d/%s/first", r.model, r.batch, w.name), w.first/resident.median(), "share of the resident rate",
				fmt.Sprintf("the first epoch of an archive without an index, one measurement: %.0f images/s; resident batch %.0f images/s; %s; %v", w.first, resident.median(), c.settings(), s)))
		}
	}
	return nil
}

// fed is a model with its captured steps and a resident batch.
type fed struct {
	*learner
	c               *config
	batches         int                // of an epoch
	images, labels  *cgotorch.Tensor   // the resident batch
	copied, inPlace *cgotorch.Captured // the step
	group           *distributed.Group // nil without ranks
}

func (f *fed) open(r recipe) error {
	var err error
	if f.learner, err = r.learner(f.c, 1, 1_000_000); err != nil {
		return err
	}
	if err := f.spread(stepForm{group: f.group}); err != nil {
		return err
	}
	f.copied, f.inPlace = f.captured(false), f.captured(true)
	return f.stream.Do(func(x *cgotorch.Exec) error {
		f.images, f.labels = randomBatch(x, r.batch, r.size, r.classes)
		if f.c.device.IsCUDA() {
			defer f.images.Close() // that of float32
			f.images = x.Keep(x.To(f.images, cgotorch.BFloat16))
		}
		return nil
	})
}

func (f *fed) captured(inPlace bool) *cgotorch.Captured {
	o := cgotorch.CapturedOptions{InPlace: inPlace, Log: f.c.tell}
	if f.group != nil {
		o.Agree = f.group.Agree
	}
	return cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{f.step(x, in[0], in[1])}
	}, o)
}

// resident runs the steps of one epoch on the resident batch. It returns images per second.
func (f *fed) resident(captured *cgotorch.Captured) (float64, error) {
	seconds, err := f.c.secondsEach(f.batches, func() error {
		return f.stream.Do(func(x *cgotorch.Exec) error { captured.Run(x, f.images, f.labels); return nil })
	})
	return float64(f.images.Shape()[0]) / seconds, err
}

func (f *fed) close() {
	for _, captured := range []*cgotorch.Captured{f.copied, f.inPlace} {
		captured.Close()
	}
	f.images.Close()
	f.labels.Close()
	if f.learner != nil {
		f.learner.close()
	}
}

// feeder reads an archive for a fed.
type feeder struct {
	*fed
	decoder *images.JPEGDecoder // nil without JPEG engines
	loader  *imageloader.Loader
	ahead   *prefetcher.Prefetcher
	first   float64 // images per second of the first epoch
	cores   sample  // cores that were busy in each epoch
}

// newFeeder opens the archive without an index.
func (f *fed) newFeeder(r recipe, classes []string, archive string, engines bool) (*feeder, error) {
	fd := &feeder{fed: f}
	if err := fd.open(r, classes, archive, engines); err != nil {
		fd.close()
		return nil, err
	}
	return fd, nil
}

func (fd *feeder) open(r recipe, classes []string, archive string, engines bool) (err error) {
	options := imageloader.Options{
		Train: true, DropLast: true, BatchSize: r.batch, Split: r.train, Workers: fd.c.threads,
		Labels: imageloader.Labels{Classes: classes}, Crop: imageloader.Crop{Transform: r.crop}, Index: imageloader.Index{NoFile: true},
	}
	if g := fd.group; g != nil {
		options.Ranks.World, options.Ranks.Rank, options.Index.NoFile = g.World(), g.Rank(), false // one rank makes the index
	}
	if engines {
		if fd.decoder, err = images.NewJPEGDecoder(fd.c.device, images.JPEGDecoderOptions{}); err != nil {
			return err
		}
		options.JPEGDevice = fd.decoder
	}
	if fd.loader, err = imageloader.Open(archive, options); err != nil {
		return err
	}
	o := prefetcher.Options{}
	if fd.c.device.IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	fd.ahead, err = prefetcher.New(fd.loader, fd.c.device, o)
	return err
}

// engines tells how the engines fared.
func (fd *feeder) engines() string {
	if fd.decoder == nil {
		return "without them"
	}
	s := fd.decoder.Stats()
	return fmt.Sprintf("%d decoded, %d failed, gave up: %v, last failure: %v", s.Decoded, s.Failed, s.GaveUp, s.Failure)
}

// stall returns for how long the device waited for a batch, on average.
func (fd *feeder) stall() time.Duration {
	s := fd.ahead.Stats()
	return (s.Stall / time.Duration(max(s.Batches, 1))).Round(time.Microsecond)
}

// epoch trains for one epoch of the archive. It returns images per second.
func (fd *feeder) epoch(captured *cgotorch.Captured) (float64, error) {
	if err := fd.c.device.Synchronize(); err != nil {
		return 0, err
	}
	began, images, busy := time.Now(), 0, processorTime()
	for batch, err := range fd.ahead.Epoch(context.Background()) {
		if err == nil {
			err = fd.stream.Do(func(x *cgotorch.Exec) error {
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
	err := fd.c.device.Synchronize()
	seconds := time.Since(began).Seconds()
	fd.cores = append(fd.cores, (processorTime()-busy).Seconds()/seconds)
	return float64(images) / seconds, err
}

func (fd *feeder) close() {
	if fd.ahead != nil {
		fd.ahead.Close()
	}
	if fd.loader != nil {
		fd.loader.Close()
	}
	fd.decoder.Close()
}

// processorTime returns the time for which this process has used cores.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
