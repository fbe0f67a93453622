package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchTrain compares images per second of the recipe, files to updated weights: our loader and prefetcher against PyTorch with
// ImageFolder and DataLoader. An epoch of ours and one of the peer's take turns; in between, neither does anything.
func benchTrain(c *config, emit func(row)) error {
	archive, err := c.find(cifarArchive)
	if err != nil {
		return err
	}
	rounds := c.roundsOr(3)
	s := switches{benchmark: c.device.IsCUDA()}
	p, err := c.startPeer("train.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	loader, err := openCIFAR(c, true, 1, cifarBatch)
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, c.device, prefetcher.Options{})
	if err != nil {
		return err
	}
	defer ahead.Close()
	// Long enough for the rounds, the one before them, and what finding the workers takes.
	steps := (rounds + 5) * loader.Batches()
	l, err := newCIFARLearner(c, 1, steps)
	if err != nil {
		return err
	}
	defer l.close()
	if err := p.do(nil, "prepare", "archive", archive, "device", c.device.String(), "steps", steps, "seed", 1); err != nil {
		return err
	}
	workers, err := p.bestWorkers(c)
	if err != nil {
		return err
	}
	values, err := interleave(rounds,
		func() (float64, error) {
			began := time.Now()
			images, err := l.epoch(ahead, c.or(2, 0), nil)
			if err != nil {
				return 0, err
			}
			if err := c.device.Synchronize(); err != nil {
				return 0, err
			}
			return float64(images) / time.Since(began).Seconds(), nil
		},
		p.value("images_per_second", "epoch", "steps", c.or(2, 0)),
	)
	if err != nil {
		return err
	}
	ours, theirs := values[0], values[1]
	r := against("train/cifar/"+kind(c.device), ours.median(), "images/s", "PyTorch, DataLoader", theirs.median(), higher,
		fmt.Sprintf("%s; %s; %v; ours %d decode threads, %v; peer %d workers, the best of those tried, %v; %s",
			recipeText, c.settings(), s, c.threads, ours, workers, theirs, p.versions))
	r.Ratio = ratioOf(ratios(ours, theirs).median(), 1)
	emit(r)
	return nil
}

// bestWorkers leaves the peer with the number of worker processes that gives it the most images per second.
func (p *peer) bestWorkers(c *config) (int, error) {
	counts := []int{0, 1, 2}
	if cores := runtime.NumCPU(); cores > 2 {
		counts = append(counts, cores/2, cores)
	}
	best, rate := 0, 0.0
	for _, count := range slices.Compact(counts) {
		if err := p.do(nil, "workers", "count", count, "pinned", c.device.IsCUDA()); err != nil {
			return 0, err
		}
		run := p.value("images_per_second", "epoch", "steps", c.or(1, 40))
		if _, err := run(); err != nil { // starts the processes
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
	return best, p.do(nil, "workers", "count", best, "pinned", c.device.IsCUDA())
}
