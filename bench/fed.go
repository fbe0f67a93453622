package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// fed is a captured step that a loader and a prefetcher feed from an archive.
type fed struct {
	*graphStep                    // on the resident batch, in place
	copied     *cgotorch.Captured // the step, whose batch is copied to the graph's memory
	archive    string
	options    imageloader.Options
	decoder    *images.JPEGDecoder // nil without -jpeg-engines
	loader     *imageloader.Loader
	ahead      *prefetcher.Prefetcher
}

// newFed makes a step, and runs it on the resident batch by both graphs. It opens no archive.
func newFed(c *config, r recipe, form stepForm, archive string, classes []string) (*fed, error) {
	form.lowered = true
	step, err := newGraphStep(c, r, form)
	if err != nil {
		return nil, err
	}
	f := &fed{graphStep: step, copied: step.capture(form, false), archive: archive, options: imageloader.Options{
		Train: true, DropLast: true, BatchSize: r.batch, Split: r.train, Workers: c.threads,
		Labels: imageloader.Labels{Classes: classes}, Crop: imageloader.Crop{Transform: r.crop},
	}}
	if c.engines {
		if f.decoder, err = images.NewJPEGDecoder(c.device, 0); err != nil {
			f.close()
			return nil, err
		}
		f.options.JPEGDevice = f.decoder
	}
	for range c.or(1, 6) {
		if err := f.run(f.images, f.labels); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

func (f *fed) run(images, labels *cgotorch.Tensor) error {
	return f.stream.Do(func(x *cgotorch.Exec) error { f.copied.Run(x, images, labels); return nil })
}

// open opens the archive.
func (f *fed) open() (err error) {
	if f.loader, err = imageloader.Open(f.archive, f.options); err != nil {
		return err
	}
	o := prefetcher.Options{}
	if f.c.device.IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	f.ahead, err = prefetcher.New(f.loader, f.c.device, o)
	return err
}

// epochs trains for the given number of epochs and waits for the device. It returns images per
// second and the number of cores that were busy.
func (f *fed) epochs(count int) (rate, cores float64, err error) {
	if err := f.c.device.Synchronize(); err != nil {
		return 0, 0, err
	}
	began, busy, images := time.Now(), cpuTime(), 0
	for range count {
		for batch, err := range f.ahead.Epoch(context.Background()) {
			if err != nil {
				return 0, 0, err
			}
			err := f.stream.Do(func(x *cgotorch.Exec) error {
				pictures, labels := batch.Use(x)
				f.copied.Run(x, pictures, labels)
				return nil
			})
			if err != nil {
				return 0, 0, err
			}
			images += batch.N
		}
	}
	err = f.c.device.Synchronize()
	seconds := time.Since(began).Seconds()
	return float64(images) / seconds, (cpuTime() - busy).Seconds() / seconds, err
}

// closeArchive closes what open has opened.
func (f *fed) closeArchive() {
	f.ahead.Close()
	f.loader.Close()
	f.ahead, f.loader = nil, nil
}

func (f *fed) close() {
	f.closeArchive()
	f.decoder.Close()
	f.copied.Close()
	f.graphStep.close()
}

// benchLoaderTrain returns a benchmark of ResNet-50 that trains from one long .tgz. Three sides
// alternate: a captured step on a resident batch, the first and later epochs of a new loader with
// the captured step, and those of a new DataLoader with PyTorch's eager step.
func benchLoaderTrain(batch int) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		if !c.device.IsCUDA() && !c.brief {
			return errors.New("a CPU trains ResNet-50 so slowly that any loader keeps up; use -device cuda")
		}
		r := c.fromFiles(c.or(2, batch))
		return c.withPhotographs(r, func(all photographs, folder string) error {
			archive := filepath.Join(folder, "photographs.tgz")
			if err := all.writeTgz(archive, c.or(8, c.members)); err != nil {
				return err
			}
			b := &loaderTraining{c: c, recipe: r, switches: switches{benchmark: c.device.IsCUDA()}, epochs: c.or(1, 2), workers: c.or(1, 16)}
			defer b.close()
			if err := b.open(archive, all.classes()); err != nil {
				return err
			}
			return b.rows(emit)
		})
	}
}

// loaderTraining has the sides of benchLoaderTrain and their results.
type loaderTraining struct {
	c            *config
	recipe       recipe
	switches     switches
	peer         *peer
	fed          *fed
	epochs       int // number of epochs after the first
	workers      int // number of the peer's workers
	ours, theirs []rates
}

// rates are the results of a first epoch and of later epochs. First, Alone and Later are images
// per second. First includes the opening of the archive, and Alone does not. Cores is the number
// of busy cores in the later epochs. Peak is the most resident memory in MiB, or 0 if it was not
// watched.
type rates struct{ First, Alone, Later, Cores, Peak float64 }

func (b *loaderTraining) open(archive string, classes []string) (err error) {
	r := b.recipe
	if b.peer, err = b.c.startPeer("loader.py", b.switches); err != nil {
		return err
	}
	err = b.peer.do(nil, "prepare_training", "archive", archive, "part", r.train, "recipe", r.name, "batch", r.batch, "device", b.c.device.String(), "steps", 1_000_000)
	if err != nil {
		return err
	}
	r.classes = len(classes)
	b.fed, err = newFed(b.c, r, stepForm{}, archive, classes)
	return err
}

func (b *loaderTraining) rows(emit func(row)) error {
	steps := b.c.or(1, max(20, 12800/b.recipe.batch))
	values, err := interleave(b.c.roundsOr(3), func() (float64, error) {
		ms, err := b.fed.block(steps)
		return float64(b.recipe.batch) * 1e3 / ms, err
	}, b.runOurs, b.runTheirs)
	if err != nil {
		return err
	}
	resident := values[0]
	common := fmt.Sprintf("%s, batch %d, autocast to bfloat16, channels last, fused SGD with Nesterov momentum; one .tgz of %d images in the page cache, each epoch with its boundary; ours captured, %d decode threads, JPEG engines %t; peer eager, %d workers, page-locked, ImageFolder and Pillow; %s; %v; %s",
		b.recipe.model, b.recipe.batch, b.c.or(8, b.c.members), b.c.threads, b.c.engines, b.workers, b.c.settings(), b.switches, b.peer.versions)
	report := func(name, unit, text string, is better, of func(rates) float64) {
		ours, theirs := column(b.ours[1:], of), column(b.theirs[1:], of)
		emit(inTurns(fmt.Sprintf("loader/train/%d/%s", b.recipe.batch, name), ours, unit, "PyTorch, DataLoader", theirs, is,
			fmt.Sprintf("%s; ours %v; peer %v; %s", text, ours, theirs, common)))
	}
	share := func(name, text string, of func(rates) float64) {
		ours := column(b.ours[1:], of)
		emit(inTurns(fmt.Sprintf("loader/train/%d/%s-of-resident", b.recipe.batch, name), ours, "images/s", "ours, resident batch", resident, higher,
			fmt.Sprintf("%s; ours %v; resident %v; %s", text, ours, resident, common)))
	}
	later := func(r rates) float64 { return r.Later }
	alone := func(r rates) float64 { return r.Alone }
	report("later-epochs", "images/s", "the epochs from the second on", higher, later)
	report("first-epoch", "images/s", "the first epoch, without an index; the peer's after the archive was unpacked", higher, alone)
	report("cores-busy", "cores", fmt.Sprintf("in the epochs from the second on, the peer's with its workers, of %d cores", runtime.NumCPU()), lower, func(r rates) float64 { return r.Cores })
	share("later-epochs", "the epochs from the second on", later)
	share("first-epoch", "the first epoch, its loop alone, without an index", alone)
	share("first-epoch-and-open", "the same with the opening of the archive and the page-locking of its buffers", func(r rates) float64 { return r.First })
	emit(against(fmt.Sprintf("loader/train/%d/peak-resident", b.recipe.batch), column(b.ours, func(r rates) float64 { return r.Peak }).max(), "MiB", "PyTorch, DataLoader", b.theirs[0].Peak, lower,
		"the most host memory that was resident; the peer's after every eighth step, as proportional set size with its workers, in a round whose times do not count; "+common))
	return nil
}

func column(all []rates, of func(rates) float64) (s sample) {
	for _, r := range all {
		s = append(s, of(r))
	}
	return s
}

// runOurs opens the archive and trains for a first epoch, which makes the index, and for later
// ones.
func (b *loaderTraining) runOurs() (_ float64, err error) {
	if err := errors.Join(resetPeak(), b.c.device.Synchronize()); err != nil {
		return 0, err
	}
	// The round before has written an index file.
	if err := os.Remove(b.fed.archive + ".index"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var r rates
	began := time.Now()
	defer b.fed.closeArchive()
	if err := b.fed.open(); err != nil {
		return 0, err
	}
	opened := time.Since(began).Seconds()
	if r.Alone, _, err = b.fed.epochs(1); err != nil {
		return 0, err
	}
	whole := time.Since(began).Seconds()
	r.First = r.Alone * (whole - opened) / whole
	r.Later, r.Cores, err = b.fed.epochs(b.epochs)
	r.Peak = peakMiB()
	b.ours = append(b.ours, r)
	b.c.tell(fmt.Sprintf("ours opened in %.2f s, then %+v; loader %s; prefetcher %+v", opened, r, b.fed.loader.Stats().Bottleneck(), b.fed.ahead.Stats()))
	return r.Later, err
}

// runTheirs makes the peer train from a new DataLoader: for a first epoch, and for later ones.
func (b *loaderTraining) runTheirs() (float64, error) {
	var r rates
	err := b.peer.do(&r, "first_and_later", "processes", b.workers, "count", b.epochs, "pinned", b.c.device.IsCUDA(), "watched", len(b.theirs) == 0)
	r.Alone = r.First
	b.theirs = append(b.theirs, r)
	b.c.tell(fmt.Sprintf("peer %+v", r))
	return r.Later, err
}

func (b *loaderTraining) close() {
	if b.fed != nil {
		b.fed.close()
	}
	if b.peer != nil {
		b.peer.close()
	}
}
