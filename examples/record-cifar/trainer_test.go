package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// newTrainer returns a trainer of a narrow network for p, ready for its first step. Functions `set`
// change its flags.
func newTrainer(t *testing.T, d cgotorch.Device, p *pictures, batch int, epochs, lr float64, set ...func(*Config)) *trainer {
	t.Helper()
	tr := &trainer{
		Config: Config{Batch: batch, Epochs: epochs, LR: lr, Seed: 3, TTA: 2, Graph: true, Fused: true, DType: "float32", widths: [3]int{8, 8, 8}},
		clock:  newClock(), device: d, stream: torchtest.NewStream(t, d), train: p,
	}
	t.Cleanup(func() {
		if err := tr.close(); err != nil {
			t.Error(err)
		}
	})
	for _, set := range set {
		set(&tr.Config)
	}
	if err := tr.make(); err != nil {
		t.Fatal(err)
	}
	if err := tr.prepare(); err != nil {
		t.Fatal(err)
	}
	return tr
}

// Each epoch mirrors the images that the epoch before did not mirror, and has an order of its
// own. The whitening layer's bias is trained in the first three epochs only.
func TestTrainer_Epochs(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const n, batch = 24, 8
		p, _ := noise(t, d, n, 256)
		tr := newTrainer(t, d, p, batch, 4.5, 11.5)
		if tr.batches != 3 || tr.steps != 14 {
			t.Fatalf("%d batches an epoch and %d steps, want 3 and 14", tr.batches, tr.steps)
		}
		var flips [][]bool
		var orders [][]int64
		var biases [][]float32
		for step := range tr.steps {
			err := tr.stream.Do(func(x *cgotorch.Exec) error {
				tr.once(x, step)
				if step%tr.batches == 0 {
					flips = append(flips, cgotorch.ToSlice[bool](x, tr.flips))
					orders = append(orders, cgotorch.ToSlice[int64](x, tr.order))
				}
				biases = append(biases, cgotorch.ToSlice[float32](x, x.Detach(tr.net.whiten.Bias)))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for epoch := range flips {
			if epoch > 0 && slices.Equal(orders[epoch], orders[epoch-1]) {
				t.Errorf("epoch %d has the order of the epoch before", epoch)
			}
			if sorted := slices.Sorted(slices.Values(orders[epoch])); sorted[0] != 0 || sorted[n-1] != n-1 || len(slices.Compact(sorted)) != n {
				t.Errorf("epoch %d: %v is no order", epoch, orders[epoch])
			}
			for i := range n {
				if epoch > 0 && flips[epoch][i] == flips[epoch-1][i] {
					t.Fatalf("image %d is mirrored alike in epochs %d and %d", i, epoch-1, epoch)
				}
			}
		}
		if !slices.Contains(flips[0], true) || !slices.Contains(flips[0], false) {
			t.Errorf("the first epoch mirrors %v, want some", flips[0])
		}
		// Lookahead changes the bias too, in step 10 and at the end: steps 11 to 13 show it alone.
		frozen := whiteningPart * tr.batches
		if slices.Equal(biases[frozen-1], biases[frozen-2]) || !slices.Equal(biases[frozen+1], biases[frozen+2]) {
			t.Errorf("the whitening layer's bias must change up to step %d only: %v", frozen, biases)
		}
	})
}

// A training has the losses of the same recipe in PyTorch, and ends with its weights and logits.
// testdata/make.py trains with bench/record_cifar.py on the same files and from the same seed.
func TestTrainer_EqualsPyTorch(t *testing.T) {
	var want struct {
		Losses                 []float64
		Parameters, Statistics [][2]float64 // the sum and the sum of squares of each tensor
		Logits                 []float64
	}
	data, err := os.ReadFile("testdata/reference.json")
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := cgotorch.CPU // its random numbers are those of PyTorch's CPU
	archive := filepath.Join("..", "train", "data", "cifar10-10k.tgz")
	to := &target{opened: make(chan struct{}), copies: torchtest.NewStream(t, d)}
	close(to.opened)
	train, test := readBoth(t.Context(), newClock(), source{archive, "train", 150}, source{archive, "test", 4}, to)
	t.Cleanup(func() { train.close(); test.close() })
	p, err := train.wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tested, err := test.wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tr := newTrainer(t, d, p, 50, 5.5, 60, func(c *Config) { c.widths = [3]int{8, 16, 8} })
	if tr.steps != len(want.Losses) {
		t.Fatalf("%d steps, want %d", tr.steps, len(want.Losses))
	}
	// Eigenvalues near 0 amplify the rounding of the whitening, which depends on the processor. The
	// losses do not feel it.
	tolerance := 1e-4
	near := func(what string, got, want float64) {
		if !(math.Abs(got-want) < tolerance*max(1, math.Abs(want))) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	for step, loss := range want.Losses {
		torchtest.DoOn(t, tr.stream, func(x *cgotorch.Exec) {
			near(fmt.Sprintf("loss of step %d", step), x.Item(tr.once(x, step))/float64(tr.Batch), loss)
		})
	}
	nn.SetTraining(tr.net.Sequential, false)
	tolerance = 1e-2
	torchtest.DoOn(t, tr.stream, func(x *cgotorch.Exec) {
		x = x.NoGrad()
		sums := func(what string, tensors []*cgotorch.Tensor, want [][2]float64) {
			if len(tensors) != len(want) {
				t.Fatalf("%d %s, want %d", len(tensors), what, len(want))
			}
			for i, tensor := range tensors {
				near(fmt.Sprintf("sum of %s %d", what, i), x.Item(x.Sum(tensor)), want[i][0])
				near(fmt.Sprintf("squares of %s %d", what, i), x.Item(x.Sum(x.Mul(tensor, tensor))), want[i][1])
			}
		}
		sums("parameters", nn.Parameters(tr.net.Sequential), want.Parameters)
		var statistics []*cgotorch.Tensor
		for _, norm := range tr.net.norms {
			statistics = append(statistics, norm.RunningMean, norm.RunningVar)
		}
		sums("statistics", statistics, want.Statistics)
		for i, got := range cgotorch.ToSlice[float32](x, tr.logits(x, tested.use(x), 0, 4)) {
			near(fmt.Sprintf("logit %d", i), float64(got), want.Logits[i])
		}
	})
}

// Captured steps and eager steps draw the same shifts and have the same losses.
func TestTrainer_GraphEqualsEager(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.NoTF32(t)
	const n, batch = 24, 8
	p, _ := noise(t, d, n, 16)
	var losses [2][]float64
	for i := range losses {
		tr := newTrainer(t, d, p, batch, 4.5, 60, func(c *Config) { c.Graph = i == 1 })
		for step := range tr.steps {
			torchtest.DoOn(t, tr.stream, func(x *cgotorch.Exec) {
				losses[i] = append(losses[i], x.Item(tr.once(x, step))/batch)
			})
		}
		if got := tr.step.Stats().Captures; i == 1 && got != 2 {
			t.Errorf("%d captures, want one, and one more without the gradient of the whitening layer's bias", got)
		}
	}
	for step, want := range losses[0] {
		if got := losses[1][step]; !(math.Abs(got-want) < 1e-3) {
			t.Errorf("step %d: the loss is %v captured and %v eager", step, got, want)
		}
	}
}

// A network learns classes of different brightness, and equal seeds give equal losses.
func TestTrainer_Learns(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const n = 40
		p, _ := noise(t, d, n, 16)
		var losses []float64
		for range 2 {
			tr := newTrainer(t, d, p, n/2, 15, 200)
			if err := tr.all(t.Context()); err != nil {
				t.Fatal(err)
			}
			right, err := tr.evaluate(p)
			if err != nil {
				t.Fatal(err)
			}
			if right < n/2 { // by chance it would be a tenth
				t.Errorf("%d of %d images are classified right, loss %v", right, n, tr.loss)
			}
			losses = append(losses, tr.loss)
		}
		if d == cgotorch.CPU && losses[0] != losses[1] {
			t.Errorf("losses %v of equal seeds", losses)
		}
	})
}

func TestTriangle(t *testing.T) {
	schedule := triangle(100)
	for step, want := range map[int]float64{0: 0.2, 23: 1, 100: 0.07, 12: 0.2 + 0.8*12/23} {
		if got := schedule(step); math.Abs(got-want) > 1e-12 {
			t.Errorf("step %d: got %v, want %v", step, got, want)
		}
	}
}

func TestLookahead(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			values := cgotorch.FromSlice(x, []float32{1, 2})
			l := newLookahead(x, []*cgotorch.Tensor{values})
			defer l.close()
			for _, step := range []struct {
				set, decay, want float64
			}{{5, 0, 5}, {9, 0.75, 6}, {100, 1, 6}} {
				x.FillInPlace(values, step.set)
				l.update(x, step.decay)
				if got := cgotorch.ToSlice[float32](x, values); got[0] != float32(step.want) || got[1] != got[0] {
					t.Errorf("decay %v: got %v, want %v", step.decay, got, step.want)
				}
			}
		})
	})
	if first, last := lookaheadDecay(0, 10), lookaheadDecay(10, 10); first != 0 || math.Abs(last-0.7737809375) > 1e-12 {
		t.Errorf("the decay goes from %v to %v, want 0 to 0.95^5", first, last)
	}
}
