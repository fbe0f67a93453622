package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// epochs is the number of epochs of examples/train without flags.
const epochs = 8

// benchLosses compares the losses of the recipe's first steps. PyTorch gets our initial weights,
// and the pixels, labels and flips of our loader. It does all other work itself. The row's value
// is the largest relative difference. The row's peer_value is the allowed difference.
//
// The peer computes the normalization of torchvision's ToTensor and Normalize. On the CPU the
// prefetcher gives the same bits as the peer. On CUDA the last one or two bits differ, because of
// rounding. Within ten steps this training multiplies the difference by about a thousand.
// Training in PyTorch alone multiplies a difference in the same way.
func benchLosses(c *config, emit func(row)) error {
	const allowed = 1e-4
	steps := c.or(4, 100)
	s := deterministicSwitches()
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	r, err := newParityRun(c, 1, epochs)
	if err != nil {
		return err
	}
	defer r.close()
	ours, sizes, err := r.train(c, steps)
	if err != nil {
		return err
	}
	var reply struct{ Losses []float64 }
	err = p.do(&reply, "train", "weights", r.weights, "path", r.trainPath, "sizes", sizes, "steps", r.steps, "device", c.device.String())
	if err != nil {
		return err
	}
	if len(reply.Losses) != steps || len(ours) != steps {
		return fmt.Errorf("%d losses, the peer has %d, want %d", len(ours), len(reply.Losses), steps)
	}
	common := fmt.Sprintf("same weights, pixels, labels and flips; %s; %s; %v; %s", cifarText, c.settings(), s, p.versions)
	name := "parity/cifar/first-100-losses/" + kind(c.device)
	worst, text := difference(ours, reply.Losses)
	first := against(name, worst, "relative difference", "allowed", allowed, lower,
		fmt.Sprintf("ours against PyTorch, %s; first loss %.6f, last %.6f; %s", text, ours[0], ours[steps-1], common))
	first.Ratio = ratioOf(allowed, max(worst, 0x1p-24)) // 0x1p-24, the smallest difference in float32, stands for no difference
	emit(first)
	return nil
}

// difference returns the largest relative difference between two lists of losses. `text`
// describes where the lists differ.
func difference(a, b []float64) (worst float64, text string) {
	at, equal, first := 0, 0, -1
	for i := range a {
		d := math.Abs(a[i]-b[i]) / math.Abs(b[i])
		if !(d <= worst) {
			worst, at = d, i
		}
		if d == 0 {
			equal++
		} else if first < 0 {
			first = i
		}
	}
	if first < 0 {
		return 0, fmt.Sprintf("all %d losses equal to the bit", len(a))
	}
	return worst, fmt.Sprintf("largest of %d at loss %d (%.9g and %.9g), %d equal to the bit, the first that is not is %d", len(a), at+1, a[at], b[at], equal, first+1)
}

// benchTop1 trains the whole recipe with five seeds. Both sides have the same initial weights
// and the same order of images.
func benchTop1(c *config, emit func(row)) error {
	s := switches{benchmark: c.device.IsCUDA()}
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	var ours, theirs sample
	for seed := range uint64(c.or(1, 5)) {
		a, b, err := top1Pair(c, p, seed+1)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "bench: seed %d: top-1 %.2f %%, peer %.2f %%\n", seed+1, 100*a, 100*b)
		ours, theirs = append(ours, 100*a), append(theirs, 100*b)
	}
	emit(against("parity/cifar/top1/"+kind(c.device), ours.mean(), "% of test images", "PyTorch", theirs.mean(), higher,
		fmt.Sprintf("means over seeds; ours %.2f, peer %.2f; %d epochs; same weights and order; %s; %s; %v; %s",
			[]float64(ours), []float64(theirs), c.or(1, epochs), cifarText, c.settings(), s, p.versions)))
	return nil
}

func top1Pair(c *config, p *peer, seed uint64) (ours, theirs float64, err error) {
	r, err := newParityRun(c, seed, c.or(1, epochs))
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	_, sizes, err := r.train(c, c.or(2, r.steps))
	if err != nil {
		return 0, 0, err
	}
	test, err := openTest(c, r.archive)
	if err != nil {
		return 0, 0, err
	}
	defer test.Close()
	testPath := filepath.Join(r.folder, "test")
	testSizes, err := dump(test, testPath, 1, test.Batches())
	if err != nil {
		return 0, 0, err
	}
	ahead, err := prefetcher.New(test, c.device, prefetcher.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer ahead.Close()
	if ours, err = r.learner.top1(ahead); err != nil {
		return 0, 0, err
	}
	device := c.device.String()
	if err := p.do(nil, "train", "weights", r.weights, "path", r.trainPath, "sizes", sizes, "steps", r.steps, "device", device); err != nil {
		return 0, 0, err
	}
	theirs, err = p.value("top1", "test", "path", testPath, "sizes", testSizes, "device", device)()
	return ours, theirs, err
}

// parityRun is a training run of ours. Its weights and batches are also in files for the peer.
type parityRun struct {
	archive                    string
	folder, weights, trainPath string // files for the peer
	seed                       uint64
	steps                      int // length of the schedule
	learner                    *learner
}

func newParityRun(c *config, seed uint64, epochs int) (*parityRun, error) {
	folder, err := os.MkdirTemp("", "bench-parity-")
	if err != nil {
		return nil, err
	}
	r := &parityRun{folder: folder, weights: filepath.Join(folder, "weights.safetensors"), trainPath: filepath.Join(folder, "train"), seed: seed}
	if r.archive, err = c.find(cifar.archive); err != nil {
		r.close()
		return nil, err
	}
	loader, err := cifar.open(c, r.archive, seed, cifar.batch)
	if err != nil {
		r.close()
		return nil, err
	}
	defer loader.Close()
	r.steps = epochs * loader.Batches()
	if r.learner, err = cifar.learner(c, seed, r.steps); err == nil {
		err = r.learner.save(r.weights)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// train writes the batches of the given number of steps for the peer. It then trains on the same
// batches. It returns the losses and the sizes of the batches.
func (r *parityRun) train(c *config, steps int) (losses []float64, sizes []int, err error) {
	writing, err := cifar.open(c, r.archive, r.seed, cifar.batch)
	if err != nil {
		return nil, nil, err
	}
	defer writing.Close()
	epochs := (steps + writing.Batches() - 1) / writing.Batches()
	if sizes, err = dump(writing, r.trainPath, epochs, steps); err != nil {
		return nil, nil, err
	}
	loader, err := cifar.open(c, r.archive, r.seed, cifar.batch)
	if err != nil {
		return nil, nil, err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, c.device, prefetcher.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer ahead.Close()
	for len(losses) < steps {
		_, err := r.learner.epoch(ahead, steps-len(losses), func(x *cgotorch.Exec, loss *cgotorch.Tensor) {
			losses = append(losses, x.Item(loss))
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return losses, sizes, nil
}

func (r *parityRun) close() {
	if r.learner != nil {
		r.learner.close()
	}
	os.RemoveAll(r.folder)
}

// dump writes at most `limit` batches of a loader's next epochs, in the form that step.py reads. It
// returns the sizes of the batches.
func dump(loader *imageloader.Loader, path string, epochs, limit int) (sizes []int, err error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	w := bufio.NewWriterSize(file, 1<<20)
	for range epochs {
		for batch, err := range loader.Epoch(context.Background()) {
			if err != nil {
				return nil, err
			}
			sizes = append(sizes, batch.N)
			w.Write(batch.Images)
			binary.Write(w, binary.NativeEndian, batch.Labels)
			binary.Write(w, binary.NativeEndian, batch.Flip)
			batch.Release()
			if len(sizes) == limit {
				break
			}
		}
	}
	return slices.Clip(sizes), w.Flush()
}
