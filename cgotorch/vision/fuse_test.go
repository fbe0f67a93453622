package vision_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// forked lists the models that have branches.
var forked = map[string]bool{"googlenet": true, "inception_v3": true, "squeezenet1_0": true, "squeezenet1_1": true}

// trainedModel returns a model in evaluation mode with random parameters, as after a training.
// Its batch norms change their input, but the values stay about as large as before.
func trainedModel(x *cgotorch.Exec, name string, o vision.Options) nn.Module {
	m, err := vision.New(x, name, o)
	if err != nil {
		x.Fail("trainedModel", err)
	}
	x = x.NoGrad()
	normed := map[string]bool{}
	for _, n := range nn.State(m) {
		if layer, ok := strings.CutSuffix(n.Name, "running_mean"); ok {
			normed[layer+"weight"], normed[layer+"bias"] = true, true
		}
	}
	for _, n := range nn.State(m) {
		switch t := n.Tensor; {
		case n.Name == "heads.head.weight": // begins as zeros
			nn.Normal(x, t, 0, 0.1)
		case strings.HasSuffix(n.Name, "running_var"), normed[n.Name] && strings.HasSuffix(n.Name, "weight"):
			nn.Copy(x, t, x.AddScalar(x.Rand(cgotorch.Float32, t.Shape()...), 0.5))
		case strings.HasSuffix(n.Name, "running_mean"), strings.HasSuffix(n.Name, "bias"):
			nn.Normal(x, t, 0, 0.2)
		case t.Dim() == 4 && (name == "googlenet" || name == "inception_v3"): // with the initial weights, results have a usual size only if the batch norms are in training
			nn.KaimingUniform(x, t, nn.KaimingOptions{})
		}
	}
	nn.SetTraining(m, false)
	return m
}

// apart returns the largest difference between two tensors, divided by the largest value of want.
func apart(x *cgotorch.Exec, got, want *cgotorch.Tensor) float64 {
	difference := x.Sub(x.To(got, cgotorch.Float64), x.To(want, cgotorch.Float64))
	return x.Item(x.Max(x.Abs(difference))) / x.Item(x.Max(x.Abs(x.To(want, cgotorch.Float64))))
}

// onFusingDevices runs test on the CPU and on CUDA, without TF32 and with the same random
// numbers. Each run has a new stream.
func onFusingDevices(t *testing.T, test func(t *testing.T, s *cgotorch.Stream)) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		must.Do(t, cgotorch.Seed(11))
		test(t, torchtest.NewStream(t, d))
	})
}

func TestFuse_EqualsUnfused(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, s *cgotorch.Stream) {
		for _, name := range append(vision.Names(), "resnet20 with PadShortcut") {
			t.Run(name, func(t *testing.T) {
				name, pad := strings.CutSuffix(name, " with PadShortcut")
				if err := s.Do(func(x *cgotorch.Exec) error {
					m := trainedModel(x, name, vision.Options{TransformInput: true, PadShortcut: pad, ImageSize: nn.Square(32)})
					defer nn.Close(m)
					size := int64(32)
					if name == "inception_v3" {
						size = 75
					}
					images := x.Randn(cgotorch.Float32, 2, 3, size, size)
					for i, to := range []struct {
						nn.ToOptions
						tolerance float64
					}{
						{nn.ToOptions{DType: cgotorch.Float32}, 1e-5},
						{nn.ToOptions{DType: cgotorch.Float64}, 1e-13},
						{nn.ToOptions{DType: cgotorch.Float64, ChannelsLast: true}, 1e-13},
						{nn.ToOptions{DType: cgotorch.Float32, ChannelsLast: true}, 1e-5},
					} {
						if i%2 == 1 && (name == "inception_v3" || name == "resnet50") || i > 0 && slices.Contains([]string{"resnet34", "resnet101", "resnext50_32x4d", "wide_resnet50_2"}, name) {
							continue // slow, and similar to the other models
						}
						format := cgotorch.Contiguous
						if to.ChannelsLast {
							format = cgotorch.ChannelsLast
						}
						nn.To(x, m, to.ToOptions)
						compareFused(t, x, m, i == 0, forked[name], x.ToFormat(images, to.DType, format), to.ToOptions, to.tolerance)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func compareFused(t *testing.T, x *cgotorch.Exec, m nn.Module, merge, forks bool, images *cgotorch.Tensor, to nn.ToOptions, tolerance float64) {
	fused := nn.Fuse(x, m, nn.FuseOptions{Merge: merge, Log: func(text string) { t.Error(text) }})
	defer nn.Close(fused)
	for _, n := range nn.State(fused) {
		shape := n.Tensor.Shape()
		if n.Buffer || n.Tensor.DType() != to.DType {
			t.Errorf("%s is %v, buffer %v", n.Name, n.Tensor, n.Buffer)
		}
		if last := len(shape) == 4 && n.Tensor.Strides()[1] == 1; len(shape) == 4 && shape[1] > 1 && shape[2] > 1 && last != to.ChannelsLast {
			t.Errorf("%s is channels last: %v", n.Name, last)
		}
	}
	nn.SetParallelism(m, nn.AlwaysSerial)
	want := m.Forward(x.NoGrad(), images)
	for i, parallelism := range []nn.Parallelism{nn.AlwaysParallel, nn.AlwaysSerial} {
		if i > 0 && !forks {
			break
		}
		nn.SetParallelism(fused, parallelism)
		before := cgotorch.LiveHandles()["tensor"]
		got := fused.Forward(x, images)
		if left := cgotorch.LiveHandles()["tensor"] - before; left != 1 {
			t.Errorf("%d handles after Forward, want 1", left)
		}
		if d := apart(x, got, want); !(d <= tolerance) {
			t.Errorf("%+v, %s: the logits differ by %.2g, want %g", to, parallelism, d, tolerance)
		}
		if got.RequiresGrad() {
			t.Error("the logits require gradients")
		}
	}
}

// In 16 bits, a fused model is about as far from the float32 model as an unfused model is.
func TestFuse_HalfPrecision(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, s *cgotorch.Stream) {
		dtypes, names := []cgotorch.DType{cgotorch.BFloat16}, []string{"resnet20"} // only these, because others are slow on a CPU
		if s.Device().IsCUDA() {
			dtypes, names = append(dtypes, cgotorch.Float16), []string{"googlenet", "mobilenet_v2", "resnet18", "resnet20", "resnet50", "squeezenet1_1"}
		}
		for _, name := range names {
			for _, to := range []nn.ToOptions{{}, {ChannelsLast: true}} {
				for _, to.DType = range dtypes {
					if err := s.Do(func(x *cgotorch.Exec) error {
						m := trainedModel(x, name, vision.Options{NoAux: true})
						defer nn.Close(m)
						images := x.Randn(cgotorch.Float32, 2, 3, 32, 32)
						want := m.Forward(x.NoGrad(), images)
						nn.To(x, m, to)
						fused := nn.Fuse(x, m, nn.FuseOptions{})
						defer nn.Close(fused)
						halves := x.ToFormat(images, to.DType, map[bool]cgotorch.MemoryFormat{true: cgotorch.ChannelsLast}[to.ChannelsLast])
						logits := fused.Forward(x, halves)
						got, unfused := apart(x, logits, want), apart(x, m.Forward(x.NoGrad(), halves), want)
						if limit := 2*unfused + 0.002; !(got <= limit) || logits.DType() != to.DType {
							t.Errorf("%s, %+v: %v, %.2g from float32, want at most %.2g", name, to, logits, got, limit)
						}
						return nil
					}); err != nil {
						t.Errorf("%s, %+v: %v", name, to, err)
					}
				}
			}
		}
	})
}

// convolutions returns the number of convolutions in a model.
func convolutions(m nn.Module) (n int) {
	for _, s := range nn.State(m) {
		if s.Tensor.Dim() == 4 {
			n++
		}
	}
	return n
}

func TestFuse_Merges(t *testing.T) {
	for name, want := range map[string]struct{ fused, unmerged int }{
		"googlenet":     {57 - 9*2, 57},           // in each of nine blocks, one convolution replaces three of the four that read the input
		"inception_v3":  {94 - 7*2 - 2*2 - 1, 94}, // merging saves 2 in each of 5b to 5d and 6b to 6e, 2 in each of 7b and 7c, 1 in 7a
		"resnet18":      {20, 20},
		"squeezenet1_1": {26, 26},
	} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := must.Get(vision.New(x, name, vision.Options{}))(t)
			defer nn.Close(m)
			nn.SetTraining(m, false)
			fused, apart := nn.Fuse(x, m, nn.FuseOptions{Merge: true}), nn.Fuse(x, m, nn.FuseOptions{})
			defer nn.Close(fused)
			defer nn.Close(apart)
			if got := convolutions(fused); got != want.fused {
				t.Errorf("%s has %d convolutions, want %d", name, got, want.fused)
			}
			if got := convolutions(apart); got != want.unmerged {
				t.Errorf("%s has %d convolutions apart, want %d", name, got, want.unmerged)
			}
			if f, a := countParameters(fused), countParameters(apart); f != a {
				t.Errorf("%s has %d parameters, and %d apart", name, f, a)
			}
		})
	}
}

// A fused model does not need the original. It can be captured and served.
func TestFuse_Serves(t *testing.T) {
	onFusingDevices(t, func(t *testing.T, s *cgotorch.Stream) {
		var fused nn.Module
		var want []float32
		pixels := make([]float32, 2*3*32*32)
		for i := range pixels {
			pixels[i] = float32(i%17)/8 - 1
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			m := trainedModel(x, "googlenet", vision.Options{Classes: 9})
			defer nn.Close(m)
			fused = nn.Fuse(x, m, nn.FuseOptions{})
			want = cgotorch.ToSlice[float32](x, m.Forward(x.NoGrad(), cgotorch.FromSlice(x, pixels, 2, 3, 32, 32)))
		})
		defer nn.Close(fused)
		serve := must.Get(cgotorch.NewInference(s.Device(), fused.Forward, cgotorch.InferenceOptions{Streams: 2}))(t)
		defer serve.Close()
		for range 3 {
			var got []float32
			must.Do(t, serve.Do(t.Context(), func(x *cgotorch.Exec, forward func(in *cgotorch.Tensor) *cgotorch.Tensor) error {
				got = cgotorch.ToSlice[float32](x, forward(cgotorch.FromSlice(x, pixels, 2, 3, 32, 32)))
				return nil
			}))
			for i := range want {
				if d := got[i] - want[i]; d*d > 1e-8*want[i]*want[i]+1e-8 {
					t.Fatalf("logit %d is %v, want %v", i, got[i], want[i])
				}
			}
		}
	})
}

// countParameters returns the number of elements of all parameters of m.
func countParameters(m any) (n int64) {
	for _, p := range nn.Parameters(m) {
		n += p.Numel()
	}
	return n
}
