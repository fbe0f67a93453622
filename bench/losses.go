package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Distance of two trainings]: training multiplies small differences. After some tens of
// steps two runs have gone different ways, however small their rounding is. A single late loss
// then says nothing about rounding. So the rows have two kinds of distance to float32.
//
// `first-50` has the relative distances of the single losses of the first 50 steps. They come from
// three initial weights, each with a float32 run of its own. The text also has those of the first
// 10 steps, in which training has multiplied the rounding least.
//
// `median` and `p95` have the distances between means of 50 losses in a row, over the whole
// training. They tell whether it goes as well as in float32. They come from several runs, all but
// the first from weights that are moved by 1e-5 of their size, 2e-5, and so on. The distance of
// PyTorch's first run to its others is the noise of these rows, and the text has it. Two values of
// a row whose difference is within the noise are not better or worse than each other.
const (
	earlySteps    = 50
	firstSteps    = 10
	earlyWeights  = 3
	meanOf        = 50
	movedWeights  = 1e-5
	trainingSteps = 1000
)

func benchPhotographsLosses(c *config, emit func(row)) error {
	return benchAutocastLosses(c, byHeart, 2, "parity/photographs/losses/", emit)
}

func benchCIFARLosses(c *config, emit func(row)) error {
	r := cifar
	r.autocast = cgotorch.BFloat16
	return benchAutocastLosses(c, r, 5, "parity/cifar/losses-bfloat16/", emit)
}

// benchAutocastLosses compares losses with autocast, ours and PyTorch's, by their distance to
// PyTorch's losses in float32. All runs have equal weights and batches. It fails if three runs of
// ours, two of them captured and one eager, differ in a bit of a loss or of the last weights.
// `runs` is the number of long runs of each side.
func benchAutocastLosses(c *config, r recipe, runs int, name string, emit func(row)) error {
	steps := trainingSteps
	if !c.device.IsCUDA() {
		steps = 60
	}
	steps = c.or(6, steps)
	t, err := newTwin(c, r.onCPU(c), steps)
	if err != nil {
		return err
	}
	defer t.close()
	l, err := newLosses(t, c.or(2, runs))
	if err != nil {
		return err
	}
	l.rows(name, kind(c.device), emit)
	return l.unequal
}

// losses are the losses of all runs of a twin.
type losses struct {
	*twin
	float32      []sample // PyTorch in float32, for each of the initial weights; the first run is the longest
	ours, theirs []sample // with autocast, likewise
	// With autocast, long runs: the first run of `ours` or `theirs`, and runs from moved weights.
	oursLong, theirsLong []sample
	kernels              string // of our norms
	last                 string // digest of our weights after the first run, to compare with other processes
	differing            int    // losses of ours that are not the same in each run
	unequal              error  // what is not the same in each run; nil if nothing is
}

func newLosses(t *twin, runs int) (*losses, error) {
	l := &losses{twin: t}
	for i := range earlyWeights {
		steps := t.steps
		if i > 0 {
			steps = min(earlySteps, steps)
		}
		from := start{seed: uint64(i + 1)}
		exact, err := l.runPeer("float32", from, steps, false)
		if err != nil {
			return nil, err
		}
		theirs, err := l.runPeer("autocast", from, steps, true)
		if err != nil {
			return nil, err
		}
		ours, err := l.run(from, steps, false)
		if err != nil {
			return nil, err
		}
		l.float32, l.theirs, l.ours = append(l.float32, exact), append(l.theirs, theirs), append(l.ours, ours.losses)
		if i > 0 {
			continue
		}
		l.last = fmt.Sprintf("%.8x", ours.state)
		for _, again := range []struct {
			name  string
			eager bool
		}{{"captured again", false}, {"eager", true}} {
			other, err := l.run(from, steps, again.eager)
			if err != nil {
				return nil, err
			}
			differing, err := ours.unequal(other)
			l.differing += differing
			if err != nil {
				l.unequal = errors.Join(l.unequal, fmt.Errorf("captured and %s: %w", again.name, err))
			}
		}
	}
	l.oursLong, l.theirsLong = l.ours[:1:1], l.theirs[:1:1]
	for i := 1; i < runs; i++ {
		moved := start{seed: 1, moved: float64(i) * movedWeights}
		ours, err := l.run(moved, t.steps, false)
		if err != nil {
			return nil, err
		}
		theirs, err := l.runPeer("autocast", moved, t.steps, true)
		if err != nil {
			return nil, err
		}
		l.oursLong, l.theirsLong = append(l.oursLong, ours.losses), append(l.theirsLong, theirs)
	}
	one, err := t.learner(start{seed: 1})
	if err != nil {
		return nil, err
	}
	defer one.close()
	l.kernels, err = t.kernels(one)
	return l, err
}

// run is twin.train, and tells of the run on standard error.
func (l *losses) run(from start, steps int, eager bool) (trained, error) {
	began := time.Now()
	run, err := l.train(from, steps, eager)
	if err != nil {
		return run, fmt.Errorf("ours, %v: %w", from, err)
	}
	l.tell(fmt.Sprintf("ours, eager %t", eager), from, run.losses, began)
	return run, nil
}

// runPeer is twin.trainPeer, and tells of the run on standard error.
func (l *losses) runPeer(precision string, from start, steps int, autocast bool) (sample, error) {
	began := time.Now()
	run, err := l.trainPeer(from, steps, autocast)
	if err != nil {
		return nil, fmt.Errorf("PyTorch %s, %v: %w", precision, from, err)
	}
	l.tell("PyTorch "+precision, from, run, began)
	return run, nil
}

func (l *losses) tell(who string, from start, run sample, began time.Time) {
	fmt.Fprintf(os.Stderr, "bench: %s, %v: %d steps, losses %.4f to %.4f, %.1f s\n", who, from, len(run), run[0], run.last(), time.Since(began).Seconds())
}

func (f start) String() string { return fmt.Sprintf("weights %d moved by %g", f.seed, f.moved) }

func (l *losses) rows(name, device string, emit func(row)) {
	exact, common := l.float32[0], l.text()
	bits := "equal bits"
	if l.unequal != nil {
		bits = "NOT EQUAL: " + l.unequal.Error()
	}
	forms := "captured, captured again and eager"
	if !l.c.device.IsCUDA() {
		forms = "three runs, all eager because a CPU has no graphs"
	}
	emit(alone(name+"bits/"+device, float64(l.differing), "losses that differ between runs",
		fmt.Sprintf("%s; ours %s, %d steps each, losses and last weights, whose digest is %s; %s; %s", bits, forms, len(exact), l.last, l.kernels, common)))

	ours, theirs := l.early(l.ours, earlySteps), l.early(l.theirs, earlySteps)
	first, firstTheirs := l.early(l.ours, firstSteps), l.early(l.theirs, firstSteps)
	all, allTheirs := slices.Concat(ours...), slices.Concat(theirs...)
	emit(against(name+"first-50/"+device, all.median(), "relative distance to float32", "PyTorch autocast", allTheirs.median(), lower,
		fmt.Sprintf("median of single losses of the first steps, %d distances from %d initial weights; of each initial weights ours %.3g, peer %.3g; p95 ours %.3g, peer %.3g; of the first %d steps ours %.3g, peer %.3g; %s",
			len(all), len(ours), quantiles(ours, 0.5), quantiles(theirs, 0.5), all.quantile(0.95), allTheirs.quantile(0.95),
			firstSteps, slices.Concat(first...).median(), slices.Concat(firstTheirs...).median(), common)))

	ours, theirs = distances(l.oursLong, exact), distances(l.theirsLong, exact)
	noise := slices.Concat(distances(l.theirsLong[1:], l.theirsLong[0])...)
	all, allTheirs = slices.Concat(ours...), slices.Concat(theirs...)
	for _, of := range []struct {
		name string
		at   float64
	}{{"median", 0.5}, {"p95", 0.95}} {
		emit(against(name+of.name+"/"+device, all.quantile(of.at), "distance to float32", "PyTorch autocast", allTheirs.quantile(of.at), lower,
			fmt.Sprintf("of means of %d losses in a row, over %d runs each; the runs ours %.3g, peer %.3g; noise %.3g, of the peer's first run to its others, which begin with weights moved by a multiple of %g of their size; runs go different ways after some tens of steps, so a difference within the noise says nothing; %s",
				meanOf, len(ours), quantiles(ours, of.at), quantiles(theirs, of.at), noise.quantile(of.at), movedWeights, common)))
	}
	last, lastTheirs := lasts(l.oursLong), lasts(l.theirsLong)
	emit(against(name+"last/"+device, last.mean(), "training loss", "PyTorch autocast", lastTheirs.mean(), lower,
		fmt.Sprintf("mean of the last %d losses, over %d runs each; the runs ours %.4g, peer %.4g, PyTorch float32 %.4g; first loss in float32 %.4g; %s",
			meanOf, len(last), []float64(last), []float64(lastTheirs), exact.last(), exact[0], common)))
}

// early returns, for each of the initial weights, the relative distances of the first `steps`
// losses.
func (l *losses) early(runs []sample, steps int) []sample {
	all := make([]sample, len(runs))
	for i, exact := range l.float32 {
		all[i] = runs[i].relative(exact[:min(steps, len(exact))])
	}
	return all
}

// quantiles returns one quantile of each sample.
func quantiles(of []sample, q float64) []float64 {
	all := make([]float64, len(of))
	for i, s := range of {
		all[i] = s.quantile(q)
	}
	return all
}

// distances returns the distances of each run.
func distances(runs []sample, exact sample) []sample {
	all := make([]sample, len(runs))
	for i, s := range runs {
		all[i] = s.distances(exact)
	}
	return all
}

// lasts returns the last mean of each run.
func lasts(runs []sample) sample {
	all := make(sample, len(runs))
	for i, s := range runs {
		all[i] = s.last()
	}
	return all
}

// relative returns |s[i] - exact[i]| / |exact[i]|, for each i of `exact`.
func (s sample) relative(exact sample) sample {
	all := make(sample, len(exact))
	for i, v := range exact {
		all[i] = math.Abs(s[i]-v) / math.Abs(v)
	}
	return all
}

// distances returns the distance of the means of each meanOf losses in a row.
func (s sample) distances(exact sample) sample {
	a, b := s.means(meanOf), exact.means(meanOf)
	for i := range a {
		a[i] = math.Abs(a[i] - b[i])
	}
	return a
}

// means returns the mean of each n values in a row. If there are fewer than n values, it returns
// the mean of all.
func (s sample) means(n int) sample {
	n = min(n, len(s))
	var all sample
	for i := range len(s) - n + 1 {
		all = append(all, s[i:i+n].mean())
	}
	return all
}

// last returns the mean of the last meanOf values.
func (s sample) last() float64 { return s[max(0, len(s)-meanOf):].mean() }
