package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// twin is a recipe that trains here and in PyTorch, from equal weights and on equal pictures.
type twin struct {
	*pictures
	c        *config
	recipe   recipe
	switches switches
	steps    int // length of the schedule
	peer     *peer
	folder   string // files for the peer
}

// deterministicSwitches returns the switches with which a run gives the same bits each time. TF32
// is off. Call it before the first work on the device.
func deterministicSwitches() switches {
	// Without this variable cuBLAS refuses to be deterministic, in this process and in the peer.
	os.Setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
	return switches{deterministic: true}
}

func newTwin(c *config, r recipe, steps int) (*twin, error) {
	t := &twin{c: c, recipe: r, switches: deterministicSwitches(), steps: steps}
	err := t.open()
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *twin) open() error {
	var err error
	if t.folder, err = os.MkdirTemp("", "bench-twin-"); err != nil {
		return err
	}
	if t.peer, err = t.c.startPeer("parity.py", t.switches); err != nil {
		return err
	}
	t.pictures, err = newPictures(t.c, t.recipe, t.peer, t.steps)
	return err
}

// start says from which weights a run begins.
type start struct {
	seed uint64
	// Each weight w is moved to w * (1 + moved * z), where z is normally distributed.
	moved float64
}

// learner makes the model with the weights of a start.
func (t *twin) learner(from start) (*learner, error) {
	l, err := t.recipe.learner(t.c, from.seed, t.steps)
	if err != nil {
		return nil, err
	}
	l.autocast = t.recipe.autocast
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		if from.moved == 0 {
			return nil
		}
		x = x.NoGrad()
		for _, w := range nn.Parameters(l.model) {
			x.AddCMulInPlace(w, w, x.Randn(cgotorch.Float32, w.Shape()...), from.moved)
		}
		return nil
	})
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// path returns the path of a file for the peer.
func (t *twin) path(name string) string { return filepath.Join(t.folder, name+".safetensors") }

// trained is the result of a run.
type trained struct {
	losses sample
	state  [sha256.Size]byte // digest of the model's state after the last step
}

// train makes a run of ours with the recipe's autocast.
func (t *twin) train(from start, steps int, eager bool) (trained, error) {
	l, err := t.learner(from)
	if err != nil {
		return trained{}, err
	}
	defer l.close()
	captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{l.step(x, in[0], in[1])}
	}, cgotorch.CapturedOptions{Eager: eager, Log: t.c.tell})
	defer captured.Close()
	losses := make([]*cgotorch.Tensor, steps)
	defer func() {
		for _, loss := range losses {
			loss.Close()
		}
	}()
	for i := range losses {
		err := l.stream.Do(func(x *cgotorch.Exec) error {
			images, labels := t.batch(x, i)
			losses[i] = x.Keep(captured.Run(x, images, labels)[0])
			return nil
		})
		if err != nil {
			return trained{}, err
		}
	}
	if stats := captured.Stats(); t.c.device.IsCUDA() && !eager && stats.Graphs != 1 {
		return trained{}, fmt.Errorf("the step was not captured: %s", stats.Why)
	}
	var run trained
	state := sha256.New()
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		for _, loss := range cgotorch.ToSlice[float32](x, x.Stack(losses, 0)) {
			run.losses = append(run.losses, float64(loss))
		}
		for _, n := range nn.State(l.model) {
			state.Write(cgotorch.ToBytes(x, n.Tensor))
		}
		return nil
	})
	if err != nil {
		return trained{}, err
	}
	state.Sum(run.state[:0])
	return run, run.losses.finite()
}

// trainPeer makes a run of PyTorch and returns its losses.
func (t *twin) trainPeer(from start, steps int, autocast bool) (sample, error) {
	l, err := t.learner(from)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if err := l.save(t.path("weights")); err != nil {
		return nil, err
	}
	if err := t.prepare(autocast); err != nil {
		return nil, err
	}
	var reply struct{ Losses sample }
	if err := t.peer.do(&reply, "train", "steps", steps); err != nil {
		return nil, err
	}
	if len(reply.Losses) != steps {
		return nil, fmt.Errorf("the peer has %d losses, want %d", len(reply.Losses), steps)
	}
	return reply.Losses, reply.Losses.finite()
}

// prepare makes the peer's model from the weights in the file "weights".
func (t *twin) prepare(autocast bool) error {
	r := t.recipe
	return t.peer.do(nil, "prepare", "model", r.model, "classes", r.classes, "lr", r.lr, "decay", r.decay,
		"steps", t.steps, "weights", t.path("weights"), "autocast", autocast, "device", t.c.device.String())
}

// finite returns an error if a loss is infinite or not a number.
func (s sample) finite() error {
	for i, v := range s {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("loss %d is %v", i+1, v)
		}
	}
	return nil
}

// unequal compares the bits of two runs. It returns the number of losses that differ, and an error
// if anything differs.
func (a trained) unequal(b trained) (losses int, err error) {
	first := -1
	for i := range a.losses {
		if a.losses[i] != b.losses[i] {
			losses++
			if first < 0 {
				first = i
			}
		}
	}
	if first >= 0 {
		return losses, fmt.Errorf("%d of %d losses differ, the first is loss %d (%.9g and %.9g)",
			losses, len(a.losses), first+1, a.losses[first], b.losses[first])
	}
	if a.state != b.state {
		return 0, errors.New("all losses are equal, but the weights after the last step differ")
	}
	return 0, nil
}

// kernels counts the norms by the kernels that they run, for the images of step 0.
func (t *twin) kernels(l *learner) (text string, err error) {
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		images, _ := t.batch(x, 0)
		if l.autocast != 0 {
			x = x.Autocast(l.autocast)
		}
		text = countKernels(nn.KernelReport(x, l.model, images))
		return nil
	})
	return text, err
}

// countKernels shortens the text of nn.KernelReport. It counts the lines that tell the same.
func countKernels(report string) string {
	counts := map[string]int{}
	var ways []string
	for line := range strings.Lines(report) {
		_, way, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if counts[way]++; counts[way] == 1 {
			ways = append(ways, way)
		}
	}
	for i, way := range ways {
		ways[i] = fmt.Sprintf("%d %s", counts[way], way)
	}
	return "norms: " + strings.Join(ways, ", ")
}

// text describes what all runs of the twin share.
func (t *twin) text() string {
	r := t.recipe
	return fmt.Sprintf("same weights, pixels, order and flips; %s, batch %d of 3x%dx%d, %d images decoded once, channels last, fused SGD with Nesterov momentum, learning rate up to %g in a one-cycle schedule of %d steps; float32 without TF32; %s; %v; %s",
		r.model, r.batch, r.size, r.size, t.count, r.lr, t.steps, t.c.settings(), t.switches, t.peer.versions)
}

func (t *twin) close() {
	if t.pictures != nil {
		t.pictures.close()
	}
	if t.peer != nil {
		t.peer.close()
	}
	os.RemoveAll(t.folder)
}
