package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchTrainCIFAR compares the images per second of the recipe, from files to updated weights.
// This library uses its loader and prefetcher. PyTorch uses ImageFolder and DataLoader. Epochs of
// this library and of PyTorch alternate. While one of them runs, the other does nothing.
func benchTrainCIFAR(c *config, emit func(row)) error {
	r, rounds := cifar, c.roundsOr(3)
	archive, err := c.find(r.archive)
	if err != nil {
		return err
	}
	s := switches{benchmark: c.device.IsCUDA()}
	p, err := c.startPeer("loader.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	loader, err := r.open(c, archive, 1, c.or(8, r.batch))
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, c.device, prefetcher.Options{})
	if err != nil {
		return err
	}
	defer ahead.Close()
	// The schedule must be long enough for all rounds, the first round that does not count, and the
	// search for the best number of workers.
	steps := (rounds + 20) * loader.Batches()
	l, err := r.learner(c, 1, steps)
	if err != nil {
		return err
	}
	defer l.close()
	err = p.do(nil, "prepare_training", "archive", archive, "part", r.train, "recipe", r.name, "batch", c.or(8, r.batch), "device", c.device.String(), "steps", steps)
	if err != nil {
		return err
	}
	workers, err := p.bestWorkers(c, c.device.IsCUDA())
	if err != nil {
		return err
	}
	values, err := interleave(rounds, func() (float64, error) {
		began := time.Now()
		images, err := l.epoch(ahead, c.or(2, 0), nil)
		err = errors.Join(err, c.device.Synchronize())
		return float64(images) / time.Since(began).Seconds(), err
	}, p.value("images_per_second", "epoch", "steps", c.or(2, 0)))
	if err != nil {
		return err
	}
	ours, theirs := values[0], values[1]
	emit(inTurns("train/"+r.name+"/"+c.kind(), ours, "images/s", "PyTorch, DataLoader", theirs, higher,
		fmt.Sprintf("epochs of %d images, files to updated weights; %s; %s; %v; ours %d decode threads, %v; peer %d workers, the best of those tried, %v; %s",
			loader.Len(), cifarText, c.settings(), s, c.threads, ours, workers, theirs, p.versions)))
	return nil
}

// bestWorkers tries several numbers of worker processes. It leaves the peer with the number that
// gives the most images per second, and returns this number.
func (p *peer) bestWorkers(c *config, pinned bool) (int, error) {
	counts := []int{0, 1, 2}
	if cores := runtime.NumCPU(); cores > 2 {
		counts = []int{cores / 2, cores * 3 / 4, cores}
	}
	best, rate := 0, 0.0
	for _, count := range slices.Compact(counts) {
		if err := p.do(nil, "workers", "count", count, "pinned", pinned); err != nil {
			return 0, err
		}
		run := p.value("images_per_second", "epoch", "steps", c.or(1, 40))
		if _, err := run(); err != nil { // the first run starts the processes
			return 0, err
		}
		v, err := run()
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(os.Stderr, "bench: peer with %d workers: %.0f images/s\n", count, v)
		if v > rate {
			best, rate = count, v
		}
	}
	return best, p.do(nil, "workers", "count", best, "pinned", pinned)
}
