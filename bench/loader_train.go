package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchLoaderTrain trains ResNet-50 from one long .tgz. It reports the rate as a share of the
// rate on a resident batch. Three sides alternate. The first makes steps on the resident batch.
// The second trains on the first and later epochs of a new loader. The third trains on the first
// and later epochs of a new DataLoader.
func benchLoaderTrain(c *config, emit func(row)) error {
	if !c.device.IsCUDA() && !c.brief {
		return errors.New("a CPU trains ResNet-50 so slowly that any loader keeps up; use -device cuda")
	}
	r := imagenet
	if !c.device.IsCUDA() {
		r = cifar
	}
	r.batch = c.or(2, 256)
	return c.withPhotographs(r, func(all photographs, folder string) error {
		b, err := newLoaderTraining(c, r, all, folder)
		if err != nil {
			return err
		}
		defer b.close()
		return b.run(emit)
	})
}

// loaderTraining is a model with its training data and its results.
type loaderTraining struct {
	*learner
	c              *config
	recipe         recipe
	switches       switches
	peer           *peer
	options        imageloader.Options
	archive        string
	count          int              // number of images in the archive
	epochs         int              // number of epochs after the first
	steps          int              // number of steps of a block on the resident batch
	workers        int              // number of the peer's workers
	images, labels *cgotorch.Tensor // the resident batch
	rounds         []rates          // our results; the field `theirs` has the results of the peer
	theirs         []rates
}

// rates are the results of a first epoch and of later epochs. First, Alone and Later are images
// per second. First includes the opening of the archive, and Alone does not. Cores is the number
// of busy cores in the later epochs. Peak and Before are resident memory in MiB. Before is
// measured before the loader is opened. Peak is 0 if memory was not watched.
type rates struct{ First, Alone, Later, Cores, Peak, Before float64 }

func newLoaderTraining(c *config, r recipe, all photographs, folder string) (*loaderTraining, error) {
	const batches = 64 // number of batches in an epoch
	b := &loaderTraining{
		c: c, recipe: r, switches: switches{benchmark: c.device.IsCUDA()}, archive: filepath.Join(folder, "photographs.tgz"), count: r.batch * c.or(2, batches),
		epochs: c.or(1, 3), steps: c.or(1, 50), workers: c.or(1, 16),
	}
	b.options = imageloader.Options{
		Train: true, DropLast: true, BatchSize: r.batch, Split: r.train, Labels: imageloader.Labels{Classes: all.classes()}, Crop: imageloader.Crop{Transform: r.crop}, Workers: c.threads,
	}
	var err error
	if err = all.writeTgz(b.archive, b.count); err == nil {
		err = b.open()
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *loaderTraining) open() error {
	r := b.recipe
	const steps = 1_000_000 // length of the schedule, which is more than a run takes
	var err error
	if b.peer, err = b.c.startPeer("loader.py", b.switches); err != nil {
		return err
	}
	err = b.peer.do(nil, "prepare_training", "archive", b.archive, "part", r.train, "recipe", r.name, "batch", r.batch, "device", b.c.device.String(), "steps", steps)
	if err != nil {
		return err
	}
	if b.learner, err = r.learner(b.c, 1, steps); err != nil {
		return err
	}
	return b.stream.Do(func(x *cgotorch.Exec) error {
		b.images, b.labels = randomBatch(x, r.batch, r.size, r.classes)
		return nil
	})
}

func (b *loaderTraining) run(emit func(row)) error {
	values, err := interleave(b.c.roundsOr(3), b.resident, b.ours, b.pytorch)
	if err != nil {
		return err
	}
	resident := values[0]
	common := fmt.Sprintf("%s, batch %d, autocast to bfloat16, channels last, fused SGD with Nesterov momentum; one .tgz of %d images in the page cache, %d batches an epoch, then %d epochs, each with its boundary; resident batch %.0f images/s, %v, and by it both sides are divided; %s; %v; ours %d decode threads; peer %d workers, page-locked, ImageFolder and Pillow; %s",
		b.recipe.model, b.options.BatchSize, b.count, b.count/b.options.BatchSize, b.epochs, resident.median(), resident, b.c.settings(), b.switches, b.c.threads, b.workers, b.peer.versions)
	share := func(name, text string, of func(rates) float64) {
		ours, theirs := column(b.rounds[1:], of), column(b.theirs[1:], of)
		a, p := ratios(ours, resident), ratios(theirs, resident)
		r := against("loader/train/"+name, a.median(), "share of the resident rate", "PyTorch, DataLoader", p.median(), higher,
			fmt.Sprintf("%s; %.0f images/s, peer %.0f; ours %v; peer %v; %s", text, ours.median(), theirs.median(), a, p, common))
		r.Ratio = ratioOf(ratios(ours, theirs).median(), 1)
		emit(r)
	}
	share("second-epoch", "the epochs from the second on", func(r rates) float64 { return r.Later })
	share("first-epoch", "the first epoch, its loop alone, without an index; the peer's after the archive was unpacked", func(r rates) float64 { return r.Alone })
	share("first-epoch-and-open", "the same with the opening of the archive and the page-locking of its buffers", func(r rates) float64 { return r.First })
	cores := func(r rates) float64 { return r.Cores }
	emit(against("loader/train/cores-busy", column(b.rounds[1:], cores).median(), "cores", "PyTorch, DataLoader", column(b.theirs[1:], cores).median(), lower,
		fmt.Sprintf("processor time of the process, the peer's with its workers, by the time on the clock, in the epochs from the second on, of %d cores; %s", runtime.NumCPU(), common)))
	emit(against("loader/train/peak-resident", column(b.rounds[1:], func(r rates) float64 { return r.Peak }).max(), "MiB", "PyTorch, DataLoader", b.theirs[0].Peak, lower,
		"the most that was resident during the epochs; the peer's after every eighth step, as proportional set size with its workers, in a round whose times do not count; "+common))
	return nil
}

func column(all []rates, of func(rates) float64) sample {
	var s sample
	for _, r := range all {
		s = append(s, of(r))
	}
	return s
}

// resident runs a block of steps on the resident batch. It returns images per second.
func (b *loaderTraining) resident() (float64, error) {
	seconds, err := b.c.secondsEach(b.steps, func() error {
		return b.stream.Do(func(x *cgotorch.Exec) error {
			b.step(x, b.images, b.labels)
			return nil
		})
	})
	return float64(b.options.BatchSize) / seconds, err
}

// ours opens the archive and trains for a first epoch. It then trains for b.epochs more epochs.
func (b *loaderTraining) ours() (float64, error) {
	if err := errors.Join(resetPeak(), b.c.device.Synchronize()); err != nil {
		return 0, err
	}
	if err := os.Remove(b.archive + ".index"); err != nil && !errors.Is(err, fs.ErrNotExist) { // removes the index file that the previous round has written
		return 0, err
	}
	r := rates{Before: resident("VmRSS")}
	began := time.Now()
	loader, err := imageloader.Open(b.archive, b.options)
	if err != nil {
		return 0, err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, b.c.device, prefetcher.Options{})
	if err != nil {
		return 0, err
	}
	defer ahead.Close()
	opened := time.Since(began)
	if r.First, err = b.epochsSince(began, ahead, 1); err != nil {
		return 0, err
	}
	whole := time.Since(began)
	r.Alone = r.First * whole.Seconds() / (whole - opened).Seconds()
	began, cpu := time.Now(), cpuTime()
	if r.Later, err = b.epochsSince(began, ahead, b.epochs); err != nil {
		return 0, err
	}
	r.Cores = (cpuTime() - cpu).Seconds() / time.Since(began).Seconds()
	r.Peak = resident("VmHWM")
	b.rounds = append(b.rounds, r)
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	fmt.Fprintf(os.Stderr, "bench: MiB: resident %.0f, of it anonymous %.0f, files %.0f, shared %.0f; Go from the system %d, in use %d, idle %d, released %d, live at the last collection's goal %d\n",
		resident("VmRSS"), resident("RssAnon"), resident("RssFile"), resident("RssShmem"), heap.Sys>>20, heap.HeapInuse>>20, heap.HeapIdle>>20, heap.HeapReleased>>20, heap.NextGC>>20)
	fmt.Fprintf(os.Stderr, "bench: opened in %.2f s, then %+v; loader %+v; prefetcher %+v\n", opened.Seconds(), r, loader.Stats(), ahead.Stats())
	return r.Later, nil
}

// epochsSince trains for the given number of epochs and waits for the device. It returns the
// images per second since the time `began`.
func (b *loaderTraining) epochsSince(began time.Time, ahead *prefetcher.Prefetcher, epochs int) (float64, error) {
	images := 0
	for range epochs {
		n, err := b.epoch(ahead, 0, nil)
		if err != nil {
			return 0, err
		}
		images += n
	}
	if want := epochs * b.count; images != want {
		return 0, fmt.Errorf("%d epochs had %d images, want %d", epochs, images, want)
	}
	err := b.c.device.Synchronize()
	return float64(images) / time.Since(began).Seconds(), err
}

// pytorch makes the peer train from a new DataLoader: for a first epoch, and then for b.epochs more
// epochs.
func (b *loaderTraining) pytorch() (float64, error) {
	var r rates
	err := b.peer.do(&r, "first_and_later", "processes", b.workers, "count", b.epochs, "pinned", b.c.device.IsCUDA(), "watched", len(b.theirs) == 0)
	r.Alone = r.First
	b.theirs = append(b.theirs, r)
	fmt.Fprintf(os.Stderr, "bench: peer %+v\n", r)
	return r.Later, err
}

func (b *loaderTraining) close() {
	b.images.Close()
	b.labels.Close()
	if b.learner != nil {
		b.learner.close()
	}
	if b.peer != nil {
		b.peer.close()
	}
}

// resident returns the field `name` of /proc/self/status, in MiB.
func resident(name string) float64 { return float64(processStatus()[name]) / 1024 }

// resetPeak resets VmHWM of /proc/self/status, which is the peak of resident memory.
func resetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }
