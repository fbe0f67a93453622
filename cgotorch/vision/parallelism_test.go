package vision_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Parallel branches give the same bits as serial branches, in training and in evaluation. The
// stream checker finds no race.
func TestSetParallelism_SameBits(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if d.IsCUDA() {
			torchtest.Deterministic(t)
		}
		for _, c := range []struct {
			model string
			size  int64 // height and width of the images
		}{{"googlenet", 32}, {"inception_v3", 75}, {"squeezenet1_1", 32}} {
			t.Run(c.model, func(t *testing.T) {
				want, _ := trained(t, d, nn.AlwaysSerial, c.model, c.size)
				got, races := trained(t, d, nn.AlwaysParallel, c.model, c.size)
				if len(want) < 30 || !maps.EqualFunc(got, want, slices.Equal) {
					for name := range want {
						if !slices.Equal(got[name], want[name]) {
							t.Fatalf("%s differs, and perhaps others of %d", name, len(want))
						}
					}
					t.Fatalf("%d tensors, want %d", len(got), len(want))
				}
				for _, r := range races {
					t.Error(r)
				}
			})
		}
	})
}

// trained does one step of training and one evaluation. It returns the tensors that they leave, and
// the races that the stream checker found.
func trained(t *testing.T, d cgotorch.Device, parallelism nn.Parallelism, model string, size int64) (left map[string][]float32, races []error) {
	s := torchtest.NewStream(t, d) // the end of this stream closes the streams of the branches
	stop, err := cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { races = append(races, r) })
	must.Do(t, err)
	defer stop()
	must.Do(t, cgotorch.Seed(5))
	left = map[string][]float32{}
	var m nn.Module
	defer func() { nn.Close(m) }()
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) error {
		leave := func(name string, t *cgotorch.Tensor) { left[name] = cgotorch.ToSlice[float32](x, t) }
		if m, err = vision.New(x, model, vision.Options{Classes: 5}); err != nil {
			return err
		}
		nn.SetParallelism(m, parallelism)
		images, labels := x.Rand(cgotorch.Float32, 2, 3, size, size), cgotorch.FromSlice(x, []int64{0, 4})
		logits := m.Forward(x, images)
		leave("logits", logits)
		x.Backward(nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{}))
		for _, n := range nn.State(m) {
			if g := n.Tensor.Grad(); g != nil {
				leave(n.Name+".grad", g)
			}
			if n.Buffer {
				leave(n.Name, x.To(n.Tensor, cgotorch.Float32))
			}
		}
		nn.SetTraining(m, false)
		leave("evaluated", m.Forward(x.NoGrad(), images))
		return nil
	})
	return left, races
}
