package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"

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
	// Without this variable cuBLAS refuses to be deterministic, in this process and in the peer.
	os.Setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
	s := switches{deterministic: true}
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	archive, err := c.find(cifar.archive)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "bench-parity-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	weights, batches := filepath.Join(folder, "weights.safetensors"), filepath.Join(folder, "train")
	schedule, sizes, err := dump(c, archive, batches, steps)
	if err != nil {
		return err
	}
	l, err := cifar.learner(c, 1, schedule)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.save(weights); err != nil {
		return err
	}
	ours, err := l.losses(c, archive, steps)
	if err != nil {
		return err
	}
	var reply struct{ Losses []float64 }
	if err := p.do(&reply, "train", "weights", weights, "path", batches, "sizes", sizes, "steps", schedule, "device", c.device.String()); err != nil {
		return err
	}
	if len(reply.Losses) != steps || len(ours) != steps {
		return fmt.Errorf("%d losses, the peer has %d, want %d", len(ours), len(reply.Losses), steps)
	}
	worst, text := difference(ours, reply.Losses)
	r := against("parity/cifar/first-100-losses/"+c.kind(), worst, "relative difference", "allowed", allowed, lower,
		fmt.Sprintf("ours against PyTorch, %s; first loss %.6f, last %.6f; same weights, pixels, labels and flips; %s; %s; %v; %s",
			text, ours[0], ours[steps-1], cifarText, c.settings(), s, p.versions))
	r.Ratio = ratioOf(allowed, max(worst, 0x1p-24)) // 0x1p-24, the smallest difference in float32, stands for no difference
	emit(r)
	return nil
}

// difference returns the largest relative difference between two lists of losses. `text`
// describes where the lists differ.
func difference(a, b []float64) (worst float64, text string) {
	at, equal := 0, 0
	for i := range a {
		d := math.Abs(a[i]-b[i]) / math.Abs(b[i])
		if !(d <= worst) {
			worst, at = d, i
		}
		if d == 0 {
			equal++
		}
	}
	return worst, fmt.Sprintf("%d of %d losses equal to the bit, the largest difference is that of loss %d (%.9g and %.9g)", equal, len(a), at+1, a[at], b[at])
}

// losses trains for some steps on the batches that dump writes, and returns the losses.
func (l *learner) losses(c *config, archive string, steps int) (losses []float64, err error) {
	loader, err := cifar.open(c, archive, 1, cifar.batch)
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, c.device, prefetcher.Options{})
	if err != nil {
		return nil, err
	}
	defer ahead.Close()
	for err == nil && len(losses) < steps {
		_, err = l.epoch(ahead, steps-len(losses), func(x *cgotorch.Exec, loss *cgotorch.Tensor) {
			losses = append(losses, x.Item(loss))
		})
	}
	return losses, err
}

// dump writes the first batches of the archive's epochs to a file, in the form that step.py reads.
// It returns the number of steps of the recipe, and the sizes of the batches.
func dump(c *config, archive, path string, steps int) (schedule int, sizes []int, err error) {
	var loader *imageloader.Loader
	if loader, err = cifar.open(c, archive, 1, cifar.batch); err != nil {
		return 0, nil, err
	}
	defer loader.Close()
	file, err := os.Create(path)
	if err != nil {
		return 0, nil, err
	}
	defer file.Close()
	w := bufio.NewWriterSize(file, 1<<20)
	for len(sizes) < steps {
		for batch, err := range loader.Epoch(context.Background()) {
			if err != nil {
				return 0, nil, err
			}
			sizes = append(sizes, batch.N)
			w.Write(batch.Images)
			binary.Write(w, binary.NativeEndian, batch.Labels)
			binary.Write(w, binary.NativeEndian, batch.Flip)
			batch.Release()
			if len(sizes) == steps {
				break
			}
		}
	}
	return epochs * loader.Batches(), sizes, w.Flush()
}
