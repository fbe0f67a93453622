package vision_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

func TestNew_Names(t *testing.T) {
	names := vision.Names()
	if !slices.IsSorted(names) {
		t.Errorf("%v are not sorted", names)
	}
	for _, name := range []string{"mlp", "mobilenet_v2", "resnet20", "resnet50"} {
		if !slices.Contains(names, name) {
			t.Errorf("%v are without %s", names, name)
		}
	}
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		_, err := vision.New(x, "resnet19", vision.Options{})
		return err
	})
	for _, part := range append(names, "vision: ", `"resnet19"`) {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %s in it", err, part)
		}
	}
}

// Forward leaves one new handle open, that of its result, for any number of layers.
func TestForward_ClosesIntermediates(t *testing.T) {
	for _, name := range vision.Names() {
		for _, o := range []vision.Options{{}, {PadShortcut: true}} {
			if o.PadShortcut && name != "resnet20" {
				continue
			}
			if name == "vit_b_16" {
				o.ImageSize = nn.Square(32)
			}
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				m := must.Get(vision.New(x, name, o))(t)
				defer nn.Close(m)
				must.Check(t, nn.Check(m))
				size := int64(32)
				if name == "inception_v3" {
					size = 75
				}
				images := x.Zeros(cgotorch.Float32, 2, 3, size, size)
				for _, training := range []bool{true, false} {
					nn.SetTraining(m, training)
					if (name == "resnet101" || name == "wide_resnet50_2") && training {
						continue // like resnet50, but slow
					}
					before := cgotorch.LiveHandles()["tensor"]
					out := m.Forward(x, images)
					if got := cgotorch.LiveHandles()["tensor"] - before; got != 1 {
						t.Errorf("%s %+v, training %v: %d handles after Forward, want 1", name, o, training, got)
					}
					out.Close()
				}
				if images.Closed() {
					t.Errorf("%s: Forward closed its input", name)
				}
			})
		}
	}
}

// Two training steps give the same bits with Recompute as without it. They leave no autograd
// graph.
func TestOptions_Recompute(t *testing.T) {
	for _, name := range []string{"mobilenet_v2", "resnet20", "resnet18"} {
		var want map[string][]float32
		for _, segments := range []int{0, 1, 2} {
			got := map[string][]float32{}
			must.Do(t, cgotorch.Seed(5))
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				m := must.Get(vision.New(x, name, vision.Options{Classes: 4, Recompute: segments}))(t)
				defer nn.Close(m)
				images, labels := x.Randn(cgotorch.Float32, 2, 3, 32, 32), cgotorch.FromSlice(x, []int64{0, 3})
				for range 2 {
					before := cgotorch.LiveHandles()["function"]
					loss := nn.CrossEntropy(x, m.Forward(x, images), labels, nn.CrossEntropyOptions{})
					if recomputed := cgotorch.LiveHandles()["function"] - before; (recomputed > 0) != (segments > 0) {
						t.Errorf("%s: %d segments are to be computed again", name, recomputed)
					}
					x.Backward(loss)
					got["loss"] = append(got["loss"], cgotorch.ToSlice[float32](x, loss)...)
				}
				for _, n := range nn.State(m) {
					if n.Tensor.DType() == cgotorch.Float32 {
						got[n.Name] = cgotorch.ToSlice[float32](x, n.Tensor)
					}
					if g := n.Tensor.Grad(); g != nil {
						got[n.Name+".grad"] = cgotorch.ToSlice[float32](x, g)
					}
				}
			})
			if segments == 0 {
				want = got
			} else if !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s in %d segments learns otherwise", name, segments)
			}
		}
	}
}

func TestForward_DTypesAndShapes(t *testing.T) {
	for _, name := range []string{"mlp", "mobilenet_v2", "resnet20", "googlenet", "squeezenet1_1"} { // the other models are left out, because bfloat16 is slow on a CPU
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := must.Get(vision.New(x, name, vision.Options{Classes: 7, Channels: 1, NoAux: true}))(t)
			defer nn.Close(m)
			images := x.Rand(cgotorch.Float32, 2, 1, 32, 32)
			labels := cgotorch.FromSlice(x, []int64{0, 6})
			logits := m.Forward(x.Autocast(cgotorch.BFloat16), images)
			if got := logits.DType(); got != cgotorch.BFloat16 {
				t.Errorf("%s: the logits under autocast are %v", name, got)
			}
			x.Backward(nn.CrossEntropy(x.Autocast(cgotorch.BFloat16), logits, labels, nn.CrossEntropyOptions{}))
			for _, p := range nn.NamedParameters(m) {
				if g := p.Tensor.Grad(); g == nil || g.DType() != cgotorch.Float32 {
					t.Fatalf("%s: the gradient of %s under autocast is %v", name, p.Name, g)
				}
			}
			nn.To(x, m, nn.ToOptions{DType: cgotorch.BFloat16, ChannelsLast: true})
			logits = m.Forward(x, x.ToFormat(images, cgotorch.BFloat16, cgotorch.ChannelsLast))
			if got := logits.String(); got != "bfloat16[2 7]" {
				t.Errorf("%s: the logits are %s", name, got)
			}
			x.Backward(nn.CrossEntropy(x, logits, labels, nn.CrossEntropyOptions{}))
		})
	}
}

func TestConstructors_RefuseOptions(t *testing.T) {
	for _, c := range []struct {
		model   string
		options vision.Options
		want    []string
	}{
		{"resnet50", vision.Options{Classes: -1}, []string{"vision.resnet50", "-1 classes"}},
		{"resnet18", vision.Options{Recompute: -1}, []string{"vision.resnet18", "Recompute is -1"}},
		{"resnet20", vision.Options{Channels: -2}, []string{"vision.resnet20", "-2 channels"}},
		{"mobilenet_v2", vision.Options{Width: -1}, []string{"vision.mobilenet_v2", "Width is -1"}},
		{"mobilenet_v2", vision.Options{Width: math.NaN()}, []string{"Width is NaN"}},
		{"mobilenet_v2", vision.Options{Dropout: cgotorch.Set(1.5)}, []string{"vision.mobilenet_v2", "Dropout is 1.5"}},
		{"efficientnet_b0", vision.Options{Dropout: cgotorch.Set(1.5)}, []string{"vision.efficientnet_b0", "Dropout is 1.5"}},
		{"efficientnet_b0", vision.Options{StochasticDepth: cgotorch.Set(-0.1)}, []string{"StochasticDepth is -0.1"}},
		{"vit_b_16", vision.Options{ImageSize: nn.Square(40)}, []string{"vision.vit_b_16", "ImageSize is 40x40", "multiple of 16"}},
		{"vit_b_16", vision.Options{ImageSize: nn.Size{32, 48}}, []string{"ImageSize is 32x48"}},
		{"vit_b_16", vision.Options{Dropout: cgotorch.Set(2.0)}, []string{"vision.vit_b_16", "Dropout is 2"}},
		{"googlenet", vision.Options{Dropout: cgotorch.Set(-0.5)}, []string{"vision.googlenet", "Dropout is -0.5"}},
		{"googlenet", vision.Options{AuxDropout: cgotorch.Set(1.5)}, []string{"vision.googlenet", "AuxDropout is 1.5"}},
		{"googlenet", vision.Options{TransformInput: true, Channels: 1}, []string{"vision.googlenet", "TransformInput", "1 channels"}},
		{"inception_v3", vision.Options{Dropout: cgotorch.Set(1.5)}, []string{"vision.inception_v3", "Dropout is 1.5"}},
		{"inception_v3", vision.Options{TransformInput: true, Channels: 4}, []string{"vision.inception_v3", "TransformInput", "4 channels"}},
		{"squeezenet1_0", vision.Options{Dropout: cgotorch.Set(1.5)}, []string{"vision.squeezenet1_0", "Dropout is 1.5"}},
		{"squeezenet1_1", vision.Options{Recompute: -1}, []string{"vision.squeezenet1_1", "Recompute is -1"}},
		{"mlp", vision.Options{Dropout: cgotorch.Set(math.NaN())}, []string{"vision.NewMLP", "Dropout NaN"}},
		{"mlp", vision.Options{Hidden: []int{8, 0}}, []string{"vision.NewMLP", "Hidden [8 0]"}},
		{"mlp", vision.Options{ImageSize: nn.Size{0, 8}}, []string{"vision.NewMLP", "ImageSize is 0x8"}},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			_, err := vision.New(x, c.model, c.options)
			return err
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("%s %+v: got error %v, want ErrInvalidArgument", c.model, c.options, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s %+v: got error %q, want %q in it", c.model, c.options, err, part)
			}
		}
	}
}

// named makes a model by its name.
func named[M nn.Module](x *cgotorch.Exec, name string, o vision.Options) M {
	m, err := vision.New(x, name, o)
	if err != nil {
		x.Fail("named", err)
	}
	return m.(M)
}

func TestGoogLeNet_ForwardAux(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		images := x.Zeros(cgotorch.Float32, 2, 3, 32, 32)
		heads := func(m *vision.GoogLeNet) int {
			before := cgotorch.LiveHandles()["tensor"]
			logits, aux2, aux1 := m.ForwardAux(x, images)
			n := 0
			for _, head := range []*cgotorch.Tensor{logits, aux2, aux1} {
				if head == nil {
					continue
				}
				n++
				if got := head.String(); got != "float32[2 6]" {
					t.Errorf("the logits are %s", got)
				}
			}
			if got := cgotorch.LiveHandles()["tensor"] - before; got != n {
				t.Errorf("%d handles after ForwardAux, want %d", got, n)
			}
			return n - 1
		}
		m := named[*vision.GoogLeNet](x, "googlenet", vision.Options{Classes: 6})
		defer nn.Close(m)
		if got := heads(m); got != 2 {
			t.Errorf("%d heads in training, want 2", got)
		}
		nn.SetTraining(m, false)
		if got := heads(m); got != 0 {
			t.Errorf("%d heads in evaluation, want none", got)
		}
		plain := named[*vision.GoogLeNet](x, "googlenet", vision.Options{Classes: 6, NoAux: true})
		defer nn.Close(plain)
		if got := heads(plain); got != 0 {
			t.Errorf("%d heads with NoAux, want none", got)
		}
	})
}

func TestInceptionV3_NoAux(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := named[*vision.InceptionV3](x, "inception_v3", vision.Options{NoAux: true})
		defer nn.Close(m)
		if got := countParameters(m); got != 23834568 {
			t.Errorf("%d parameters, want 23834568", got)
		}
		if _, aux := m.ForwardAux(x, x.Zeros(cgotorch.Float32, 2, 3, 75, 75)); aux != nil {
			t.Errorf("the logits of an auxiliary head are %v, want none", aux)
		}
	})
}

func TestInceptionV3_SmallImages(t *testing.T) {
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		m := named[*vision.InceptionV3](x, "inception_v3", vision.Options{})
		defer nn.Close(m)
		m.ForwardAux(x, x.Zeros(cgotorch.Float32, 2, 3, 75, 75))
		return nil
	})
	if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "299x299") {
		t.Errorf("the auxiliary head of images of 75x75: %v", err)
	}
}

func TestMobileNetV2_Dropout(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		for given, want := range map[cgotorch.Opt[float64]]float64{{}: 0.2, cgotorch.Set(0.4): 0.4, cgotorch.Set(0.0): 0} {
			m := named[*vision.MobileNetV2](x, "mobilenet_v2", vision.Options{Dropout: given, Width: 0.1})
			if got := m.Classifier.Modules[0].Module.(*nn.Dropout).P; got != want {
				t.Errorf("Dropout %v: the probability is %v, want %v", given, got, want)
			}
			nn.Close(m)
		}
	})
}

// If a layer fails, the layers made before are freed. TryDo checks that no handle is left.
func TestConstructors_FailureFreesLayers(t *testing.T) {
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		vision.NewMLP(x, vision.Options{Hidden: []int{16, 16, 1 << 50}})
		return nil
	})
	if !errors.Is(err, cgotorch.ErrOutOfMemory) {
		t.Errorf("got error %v, want ErrOutOfMemory", err)
	}
}

func TestResNet_ZeroInitResidual(t *testing.T) {
	for name, want := range map[string]int{"resnet18": 8, "resnet20": 9, "resnet50": 16} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := must.Get(vision.New(x, name, vision.Options{ZeroInitResidual: true}))(t)
			defer nn.Close(m)
			last := ".bn2.weight"
			if name == "resnet50" {
				last = ".bn3.weight"
			}
			zeros := 0
			for _, p := range nn.NamedParameters(m) {
				if !strings.Contains(p.Name, "bn") || !strings.HasSuffix(p.Name, ".weight") {
					continue
				}
				zero := x.Item(x.Sum(x.Detach(p.Tensor))) == 0
				if zero {
					zeros++
				}
				if zero != strings.HasSuffix(p.Name, last) {
					t.Errorf("%s: %s is zero: %v", name, p.Name, zero)
				}
			}
			if zeros != want {
				t.Errorf("%s: %d weights are zero, want %d", name, zeros, want)
			}
		})
	}
}
