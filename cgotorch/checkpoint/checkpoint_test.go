package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// network returns the model of testdata/make.py. With dropout above 0 its steps draw random
// numbers.
func network(x *cgotorch.Exec, dropout float64) *nn.Sequential {
	return nn.NewSequential(
		nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true}),
		nn.NewBatchNorm2d(x, 4, nn.BatchNormOptions{}),
		&nn.ReLU{},
		nn.NewConv2d(x, 4, 6, nn.Size{3, 1}, nn.Conv2dOptions{Stride: nn.Square(2), Groups: 2}),
		&nn.AdaptiveAvgPool2d{Output: nn.Square(2)},
		&nn.Flatten{},
		nn.NewLinear(x, 24, 5, nn.LinearOptions{}),
		&nn.Dropout{P: dropout},
	)
}

type run struct {
	model *nn.Sequential
	opt   *optim.Optimizer
}

func newRun(t *testing.T, x *cgotorch.Exec, rule string) *run {
	r := &run{model: network(x, 0.3)}
	var err error
	switch group := (optim.Group{Params: nn.Parameters(r.model)}); rule {
	case "sgd":
		r.opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, group)
	case "adamw":
		r.opt, err = optim.NewAdamW(optim.AdamOptions{AMSGrad: true}, group)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *run) close() {
	nn.Close(r.model)
	if r.opt != nil {
		r.opt.Close()
	}
}

func (r *run) train(x *cgotorch.Exec, steps int) (losses []float64) {
	for range steps {
		r.opt.ZeroGrad()
		loss := x.Mean(x.Square(r.model.Forward(x, x.Randn(cgotorch.Float32, 4, 3, 9, 8))))
		x.Backward(loss)
		r.opt.Step(x)
		losses = append(losses, x.Item(loss))
	}
	return losses
}

type place struct{ Epoch, Batch int }

// halfRun trains one matrix of 16 bits with a scaler, and with averages.
type halfRun struct {
	model  *struct{ W *cgotorch.Tensor }
	opt    *optim.Optimizer
	scaler *optim.Scaler
	ema    *optim.EMA
}

func newHalfRun(x *cgotorch.Exec, masters bool) (*halfRun, error) {
	r := &halfRun{model: &struct{ W *cgotorch.Tensor }{x.Ones(cgotorch.BFloat16, 4, 5)}}
	params := []*cgotorch.Tensor{r.model.W}
	var err error
	if r.opt, err = optim.NewAdamW(optim.AdamOptions{MasterWeights: masters}, optim.Group{Params: params}); err != nil {
		return nil, err
	}
	if r.scaler, err = optim.NewScaler(x, optim.ScalerOptions{}); err != nil {
		return nil, err
	}
	r.ema, err = optim.NewEMA(x, params, 0.9)
	return r, err
}

func (r *halfRun) close() {
	r.opt.Close()
	r.scaler.Close()
	r.ema.Close()
}

// train does training steps. The scaler skips the first of them, because its gradient is infinite.
func (r *halfRun) train(x *cgotorch.Exec, steps int) error {
	for i := range steps {
		grad := x.Sub(x.To(r.model.W, cgotorch.Float32), x.Linspace(cgotorch.Float32, 0, 2, 5))
		if i == 0 {
			grad = x.MulScalar(grad, math.Inf(1))
		}
		cgotorch.Check(r.model.W.SetGrad(x.To(r.scaler.Scale(x, grad), cgotorch.BFloat16)))
		r.scaler.Step(x, r.opt)
		r.scaler.Update(x)
		r.ema.Update(x)
	}
	return nil
}

// savedHalfRun makes a run with a master: a float32 copy of its 16-bit parameter. It trains the
// run for five steps and saves it at path.
func savedHalfRun(x *cgotorch.Exec, path string) (*halfRun, Checkpoint, error) {
	r, err := newHalfRun(x, true)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	saved := Checkpoint{Model: r.model, Optimizer: r.opt, Scaler: r.scaler, EMA: r.ema}
	if err = r.train(x, 5); err == nil {
		err = Save(x, path, saved)
	}
	return r, saved, err
}

// A run is loaded with its float32 master, its scaler and its averages. Its next steps then give
// the same bits as the next steps of the run that was saved.
func TestResume_MastersScalerAverages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		a, _, err := savedHalfRun(x, path)
		if err != nil {
			return err
		}
		defer a.close()
		b := cgotorch.Must(newHalfRun(x, true))
		defer b.close()
		c := Checkpoint{Model: b.model, Optimizer: b.opt, Scaler: b.scaler, EMA: b.ema}
		cgotorch.Check(Resume(x, path, &c))
		info := cgotorch.Must(Inspect(path))
		if want := []int64{4}; !slices.Equal(info.Optimizer.Steps, want) {
			t.Errorf("steps %v, want %v", info.Optimizer.Steps, want)
		}
		if info.Scaler == nil || *info.Scaler != (optim.ScalerState{Scale: 32768, Growth: 4, Skipped: 1}) {
			t.Errorf("scaler %+v", info.Scaler)
		}
		for _, r := range []*halfRun{a, b} {
			cgotorch.Check(r.train(x, 4))
		}
		if !x.Equal(a.model.W, b.model.W) || !x.Equal(a.ema.Averages()[0], b.ema.Averages()[0]) || a.scaler.State(x) != b.scaler.State(x) {
			t.Error("the run that was loaded goes on otherwise")
		}
		for i, r := range b.opt.State(x).Tensors {
			if !x.Equal(r.Tensor, a.opt.State(x).Tensors[i].Tensor) {
				t.Errorf("%s differs", r.Name)
			}
		}
		return nil
	})
}

// load makes a model and its optimizer continue, and returns the other fields of the checkpoint.
func load(x *cgotorch.Exec, path string, model any, opt Optimizer) (Info, error) {
	if err := Resume(x, path, &Checkpoint{Model: model, Optimizer: opt}); err != nil {
		return Info{}, err
	}
	return Inspect(path)
}

// A master is a float32 copy of a 16-bit parameter. If the file has no masters, the first step
// makes them from the loaded parameters. If the file has masters, an optimizer that keeps no
// masters cannot load it.
func TestResume_MastersOnOneSide(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		with, _, err := savedHalfRun(x, path)
		if err != nil {
			return err
		}
		defer with.close()
		plain := cgotorch.Must(newHalfRun(x, false))
		defer plain.close()
		if _, err := load(x, path, plain.model, plain.opt); err == nil || !strings.Contains(err.Error(), "master of parameter 0 is not kept with these options") {
			t.Errorf("masters into an optimizer without: %v", err)
		}
		cgotorch.Check(plain.train(x, 5))
		cgotorch.Check(Save(x, path, Checkpoint{Model: plain.model, Optimizer: plain.opt}))
		x.FillInPlace(with.model.W, 7)
		if _, err := load(x, path, with.model, with.opt); err != nil {
			return err
		}
		cgotorch.Check(with.train(x, 2))
		if d := x.Item(x.Max(x.Abs(x.Sub(x.To(with.model.W, cgotorch.Float32), x.To(plain.model.W, cgotorch.Float32))))); d > 0.05 {
			t.Errorf("the step did not begin from the parameters that were loaded: they are off by %v", d)
		}
		torchtest.WantError(t, Resume(x, path, &Checkpoint{Model: with.model, EMA: with.ema}), nil, "it was saved without an average of w")
		torchtest.WantError(t, Resume(x, path, &Checkpoint{Model: plain.model, EMA: with.ema}), nil, "parameter 0 of the averages (bfloat16[4 5]) is not in the model")
		return nil
	})
}

// An LBFGS that was saved and loaded goes on with the same bits. It also goes on if it was saved
// before its first step.
func TestResume_LBFGS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	for _, wolfe := range []bool{false, true} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			o := optim.LBFGSOptions{LR: 0.1, Iterations: 3, History: 4, StrongWolfe: wolfe}
			train := func(m *nn.Linear, opt *optim.LBFGS, steps int) (losses []float64) {
				in := x.Sin(x.Reshape(x.Arange(cgotorch.Float32, 0, 40, nil), 8, 5))
				for range steps {
					losses = append(losses, opt.Step(x, func(x *cgotorch.Exec) *cgotorch.Tensor {
						return x.Mean(x.Square(x.Sub(x.Sin(m.Forward(x, in)), x.Narrow(in, 1, 1, 3))))
					}))
				}
				return losses
			}
			fresh := func() (*nn.Linear, *optim.LBFGS) {
				m := nn.NewLinear(x, 5, 3, nn.LinearOptions{})
				nn.Constant(x, m.Weight, 0.1)
				nn.Constant(x, m.Bias, 0.2)
				opt := cgotorch.Must(optim.NewLBFGS(o, nn.Parameters(m)))
				return m, opt
			}
			a, first := fresh()
			defer nn.Close(a)
			defer first.Close()
			want := train(a, first, 6)
			for _, steps := range []int{0, 3} {
				b, second := fresh()
				defer nn.Close(b)
				defer second.Close()
				train(b, second, steps)
				cgotorch.Check(Save(x, path, Checkpoint{Model: b, LBFGS: second}))
				c, third := fresh()
				defer nn.Close(c)
				defer third.Close()
				cgotorch.Check(Resume(x, path, &Checkpoint{Model: c, LBFGS: third}))
				if got := train(c, third, 6-steps); !slices.Equal(got, want[steps:]) {
					t.Errorf("wolfe %v, after %d steps: the losses are %v, want %v", wolfe, steps, got, want[steps:])
				}
				other := cgotorch.Must(optim.NewLBFGS(o, nn.Parameters(c)[:1]))
				defer other.Close()
				torchtest.WantError(t, Resume(x, path, &Checkpoint{Model: c, LBFGS: other}), cgotorch.ErrInvalidArgument, "had 2 parameters and this one has 1")
			}
		})
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewLinear(x, 5, 3, nn.LinearOptions{})
		defer nn.Close(m)
		opt := cgotorch.Must(optim.NewLBFGS(optim.LBFGSOptions{}, nn.Parameters(m)))
		defer opt.Close()
		cgotorch.Check(Save(x, path, Checkpoint{Model: m}))
		torchtest.WantError(t, Resume(x, path, &Checkpoint{Model: m, LBFGS: opt}), nil, "saved without an LBFGS")
	})
}

func TestSave_SwappedAverages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		r, saved, err := savedHalfRun(x, path)
		if err != nil {
			return err
		}
		defer r.close()
		r.ema.Swap(x)
		torchtest.WantError(t, Save(x, path, saved), cgotorch.ErrInvalidArgument, "Swap them before")
		r.ema.Swap(x)
		return nil
	})
}

func TestResume_GoesOn(t *testing.T) { testGoesOn(t, cgotorch.CPU, 0) }

// The CUDA generator continues too. The losses may differ slightly, because some of cuDNN's
// kernels add in no fixed order.
func TestResume_GoesOn_CUDA(t *testing.T) {
	if err := cgotorch.CUDA(0).Check(); err != nil {
		t.Skip("no GPU to train on: ", err)
	}
	testGoesOn(t, cgotorch.CUDA(0), 1e-4)
}

func testGoesOn(t *testing.T, device cgotorch.Device, tolerance float64) {
	for _, rule := range []string{"sgd", "adamw"} {
		path := filepath.Join(t.TempDir(), "run.safetensors")
		var want []float64
		torchtest.Do(t, device, func(x *cgotorch.Exec) error {
			a := newRun(t, x, rule)
			defer a.close()
			a.train(x, 3)
			a.opt.SetLR(0.05)
			a.opt.SetScale(0.5)
			config := map[string]any{"model": "network", "classes": []string{"cat", "dog"}}
			err := Save(x, path, Checkpoint{Model: a.model, Optimizer: a.opt, Epoch: 2, Step: 3, Loader: place{2, 7}, Config: config})
			want = a.train(x, 3)
			return err
		})
		must.Do(t, cgotorch.Seed(99))
		torchtest.Do(t, device, func(x *cgotorch.Exec) error {
			b := newRun(t, x, rule)
			defer b.close()
			b.train(x, 2) // gives the optimizer a state that Load must replace
			info, err := load(x, path, b.model, b.opt)
			if err != nil {
				return err
			}
			for i, got := range b.train(x, 3) {
				if !(math.Abs(got-want[i]) <= tolerance*want[i]) {
					t.Errorf("%s: loss %d is %v, without interruption %v", rule, i, got, want[i])
				}
			}
			var loader place
			if err := json.Unmarshal(info.Loader, &loader); err != nil || loader != (place{2, 7}) || info.Epoch != 2 || info.Step != 3 {
				t.Errorf("%s: epoch %d, step %d, loader %v, %v", rule, info.Epoch, info.Step, loader, err)
			}
			again, err := Inspect(path)
			if string(again.Config) != `{"classes":["cat","dog"],"model":"network"}` || again.Optimizer.Rule != rule {
				t.Errorf("%s: config %s, optimizer %v", rule, again.Config, again.Optimizer)
			}
			return err
		})
	}
}

func TestSave_SameBytes(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		r := newRun(t, x, "adamw")
		defer r.close()
		r.train(x, 1)
		var files [2]string
		for i := range files {
			path := filepath.Join(t.TempDir(), "run.safetensors")
			cgotorch.Check(Save(x, path, Checkpoint{Model: r.model, Optimizer: r.opt}))
			data := cgotorch.Must(os.ReadFile(path))
			files[i] = string(data)
		}
		if files[0] != files[1] {
			t.Error("two files of one state differ")
		}
	})
}

// The optimizer's state is found by the names of the parameters, so their order does not matter.
func TestResume_ParametersInAnotherOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		a, b := newRun(t, x, "sgd"), &run{model: network(x, 0.3)}
		defer a.close()
		defer b.close()
		a.train(x, 2)
		cgotorch.Check(Save(x, path, Checkpoint{Model: a.model, Optimizer: a.opt}))
		params := nn.Parameters(b.model)
		slices.Reverse(params)
		var err error
		if b.opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: params}); err != nil {
			return err
		}
		if _, err := load(x, path, b.model, b.opt); err != nil {
			return err
		}
		first, last := a.opt.State(x).Tensors, b.opt.State(x).Tensors
		for i := range first {
			if !x.Equal(first[i].Tensor, last[len(last)-1-i].Tensor) {
				t.Errorf("parameter %d has another buffer", i)
			}
		}
		return nil
	})
}

func TestLoadModel_PythonFile(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		model := network(x, 0)
		defer nn.Close(model)
		cgotorch.Check(LoadModel(x, "testdata/python.safetensors", model, nn.LoadOptions{}))
		nn.SetTraining(model, false)
		f := cgotorch.Must(open("testdata/logits.safetensors"))
		defer f.Close()
		images := cgotorch.Must(f.tensor(x, "images"))
		want := cgotorch.Must(f.tensor(x, "logits"))
		got := model.Forward(x.NoGrad(), images)
		if d := x.Item(x.Max(x.Abs(x.Sub(got, want)))); !(d < 1e-6) {
			t.Errorf("logits differ from Python's by %v", d)
		}
		if info, err := Inspect("testdata/python.safetensors"); err != nil || info.Version != 0 {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
	})
}

// LoadModel reads what torch.save wrote. A checkpoint of several parts needs Rename.
func TestLoadModel_TorchSave(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		last := nn.NewLinear(x, 2, 2, nn.LinearOptions{NoBias: true})
		m := nn.NewSequential(nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{}), nn.NewBatchNorm2d(x, 4, nn.BatchNormOptions{}), &nn.ReLU{}, last)
		defer nn.Close(m)
		var first []float32
		for file, o := range map[string]nn.LoadOptions{"state.pth": {}, "module.pth": {}, "checkpoint.pth": {Prefix: "model."}, "script.pt": {}} {
			nn.Constant(x, last.Weight, 0)
			if err := LoadModel(x, "../pth/testdata/"+file, m, o); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			got := cgotorch.ToSlice[float32](x, x.Detach(last.Weight))
			if first == nil {
				first = got
			}
			if got[0] == 0 || !slices.Equal(got, first) {
				t.Errorf("%s: the weights are %v, and %v from another file", file, got, first)
			}
		}
		var mismatch *nn.LoadError
		if err := LoadModel(x, "../pth/testdata/checkpoint.pth", m, nn.LoadOptions{}); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), `"model."`) {
			t.Errorf("a checkpoint without Prefix: %v", err)
		}
	})
}

func TestLoadModel_OfCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		a, b := newRun(t, x, "sgd"), network(x, 0)
		defer a.close()
		defer nn.Close(b)
		a.train(x, 2)
		cgotorch.Check(Save(x, path, Checkpoint{Model: a.model, Optimizer: a.opt}))
		cgotorch.Check(LoadModel(x, path, b, nn.LoadOptions{}))
		for i, n := range nn.State(a.model) {
			if m := nn.State(b)[i]; !x.Equal(n.Tensor, m.Tensor) || m.Tensor.RequiresGrad() == n.Buffer {
				t.Errorf("%s differs", n.Name)
			}
		}
		// A model whose last layer differs from that in the file loads its other layers.
		head := nn.NewSequential(a.model.Modules[0].Module, nn.NewLinear(x, 2, 2, nn.LinearOptions{}))
		defer nn.Close(head.Modules[1].Module)
		body := &struct{ Body *nn.Sequential }{head}
		o := nn.LoadOptions{AllowMissing: true, AllowUnexpected: true}
		torchtest.WantError(t, LoadModel(x, path, body, o), cgotorch.ErrInvalidArgument, "nothing would be loaded")
		o.Rename = func(name string) string { return "body." + name }
		o.Skip = func(name string) bool { return strings.HasPrefix(name, "body.1.") }
		return LoadModel(x, path, body, o)
	})
}

// For fine-tuning, a model whose number of classes differs from that in the file skips its last
// layer.
func TestLoadModel_Skip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a, b := network(x, 0), network(x, 0)
		defer nn.Close(a)
		defer nn.Close(b)
		b.Modules[6].Module.(*nn.Linear).Weight.Close()
		b.Modules[6].Module.(*nn.Linear).Bias.Close()
		b.Modules[6].Module = nn.NewLinear(x, 24, 7, nn.LinearOptions{})
		cgotorch.Check(Save(x, path, Checkpoint{Model: a}))
		var mismatch *nn.LoadError
		if err := LoadModel(x, path, b, nn.LoadOptions{}); !errors.As(err, &mismatch) || len(mismatch.Misshapen) != 2 {
			t.Errorf("another last layer: %v", err)
		}
		last := func(name string) bool { return strings.HasPrefix(name, "6.") }
		head := x.Clone(nn.State(b)[len(nn.State(b))-1].Tensor)
		cgotorch.Check(LoadModel(x, path, b, nn.LoadOptions{Skip: last}))
		for i, n := range nn.State(a) {
			if m := nn.State(b)[i]; !last(n.Name) && !x.Equal(n.Tensor, m.Tensor) {
				t.Errorf("%s was not loaded", n.Name)
			} else if n.Name == "6.bias" && !x.Equal(head, m.Tensor) {
				t.Error("6.bias was changed")
			}
		}
	})
}

// A model with a tensor that State does not see is neither saved nor loaded.
func TestSave_Checks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := &struct{ W, v *cgotorch.Tensor }{x.Zeros(cgotorch.Float32), x.Zeros(cgotorch.Float32)}
		torchtest.WantError(t, Save(x, path, Checkpoint{Model: m}), cgotorch.ErrInvalidArgument, path+": not saved: nn: ", "v, an unexported field")
		cgotorch.Check(Save(x, path, Checkpoint{Model: &struct{ W *cgotorch.Tensor }{m.W}}))
		none := &struct{ v *cgotorch.Tensor }{m.v}
		for _, err := range []error{LoadModel(x, path, m, nn.LoadOptions{}), LoadModel(x, path, none, nn.LoadOptions{AllowUnexpected: true})} {
			if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: "+path+": nn: ") || !strings.Contains(err.Error(), "v, an unexported field") {
				t.Errorf("LoadModel: %v", err)
			}
		}
	})
}

func TestResume_AnotherModelOrOptimizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	bare := filepath.Join(t.TempDir(), "bare.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a := newRun(t, x, "sgd")
		defer a.close()
		a.train(x, 1)
		cgotorch.Check(Save(x, path, Checkpoint{Model: a.model, Optimizer: a.opt}))
		cgotorch.Check(Save(x, bare, Checkpoint{Model: a.model}))
		before := x.Clone(nn.State(a.model)[0].Tensor)
		a.train(x, 1)
		changed := x.Clone(nn.State(a.model)[0].Tensor)

		other := nn.NewSequential(a.model.Modules[0].Module, nn.NewLinear(x, 24, 6, nn.LinearOptions{}), nn.NewLinear(x, 3, 3, nn.LinearOptions{}))
		defer nn.Close(nn.NewSequential(other.Modules[1].Module, other.Modules[2].Module))
		_, err := load(x, path, other, nil)
		var mismatch *nn.LoadError
		if !errors.As(err, &mismatch) || !strings.HasPrefix(err.Error(), "checkpoint: "+path+": it is of another model than this *nn.Sequential: ") {
			t.Fatalf("another model: %v", err)
		}
		if want := []string{"2.weight", "2.bias"}; !slices.Equal(mismatch.Missing, want) {
			t.Errorf("missing %v, want %v", mismatch.Missing, want)
		}
		if want := []string{"1.num_batches_tracked", "1.running_mean", "1.running_var", "3.bias", "3.weight", "6.bias", "6.weight"}; !slices.Equal(mismatch.Unexpected, want) {
			t.Errorf("unexpected %v, want %v", mismatch.Unexpected, want)
		}
		if want := []string{"1.weight (F32[4], the model has float32[6 24])", "1.bias (F32[4], the model has float32[6])"}; !slices.Equal(mismatch.Misshapen, want) {
			t.Errorf("misshapen %v, want %v", mismatch.Misshapen, want)
		}

		params := nn.Parameters(a.model)
		adam := cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: params}))
		plain, _ := optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: params})
		fewer, _ := optim.NewSGD(optim.SGDOptions{Momentum: 0.9}, optim.Group{Params: params[1:]})
		foreign, _ := optim.NewSGD(optim.SGDOptions{Momentum: 0.9}, optim.Group{Params: nn.Parameters(other)[2:]})
		buffer, _ := optim.NewSGD(optim.SGDOptions{Momentum: 0.9}, optim.Group{Params: append(params, nn.State(a.model)[3].Tensor)})
		for _, c := range []struct {
			path string
			opt  *optim.Optimizer
			want string
		}{
			{path, adam, `adam: the state is one of "sgd"`},
			{path, plain, "momentum_buffer of parameter 0 is not kept with these options"},
			{path, fewer, "its optimizer had parameters that this one has not: 0.weight"},
			{path, buffer, "its optimizer did not have the parameter 1.running_mean"},
			{path, foreign, "parameter 0 of the optimizer (float32[6]) is not in the model"},
			{bare, a.opt, "it was saved without an optimizer"},
			{"testdata/python.safetensors", a.opt, "use LoadModel for a state dict"},
			{"testdata/none.safetensors", nil, "no such file"},
		} {
			_, err := load(x, c.path, a.model, c.opt)
			if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") || !strings.Contains(err.Error(), c.path) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if !x.Equal(nn.State(a.model)[0].Tensor, changed) {
			t.Error("a Load that failed has changed the model")
		}
		if _, err := load(x, bare, a.model, nil); err != nil {
			t.Error(err)
		}
		closed := &struct{ W *cgotorch.Tensor }{x.Zeros(cgotorch.Float32)}
		closed.W.Close()
		if _, err := load(x, bare, closed, nil); !errors.Is(err, cgotorch.ErrClosed) || !strings.Contains(err.Error(), "tensor w of the model") {
			t.Errorf("a closed model: %v", err)
		}
		if !x.Equal(nn.State(a.model)[0].Tensor, before) {
			t.Error("a Load has not changed the model")
		}
	})
}

func TestSave_Refuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a, b := newRun(t, x, "sgd"), newRun(t, x, "sgd")
		defer a.close()
		defer b.close()
		closed := network(x, 0)
		nn.Close(closed)
		slash := &struct {
			W *cgotorch.Tensor `state:"a/b"`
		}{x.Zeros(cgotorch.Float32)}
		complexes := &struct{ W *cgotorch.Tensor }{x.Zeros(cgotorch.Complex128, 1)}
		for _, c := range []struct {
			c    Checkpoint
			want string
		}{
			{Checkpoint{}, "the model, a <nil>, has no tensors"},
			{Checkpoint{Model: &nn.ReLU{}}, "the model, a *nn.ReLU, has no tensors"},
			{Checkpoint{Model: closed}, "tensor 0.weight: closed"},
			{Checkpoint{Model: slash}, "named a/b"},
			{Checkpoint{Model: complexes}, "tensor w: the file format has no complex128"},
			{Checkpoint{Model: a.model, Optimizer: b.opt}, "parameter 0 of the optimizer (float32[4 3 3 3]) is not in the model"},
			{Checkpoint{Model: a.model, Loader: make(chan int)}, "Loader: json: unsupported type"},
			{Checkpoint{Model: a.model, Config: make(chan int)}, "Config: json: unsupported type"},
		} {
			err := Save(x, path, c.c)
			if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: "+path+": not saved: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is a file: %v", err)
		}
		if err := Save(x, filepath.Join(path, "x"), Checkpoint{Model: a.model}); err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") {
			t.Errorf("into a folder that is not there: %v", err)
		}
	})
}

// If a bit has changed anywhere or the end is missing, Load fails with an error that names the
// file. It loads nothing.
func TestResume_Damaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		r := newRun(t, x, "sgd")
		defer r.close()
		r.train(x, 1)
		cgotorch.Check(Save(x, path, Checkpoint{Model: r.model, Optimizer: r.opt, Epoch: 1, Config: "x"}))
		whole := cgotorch.Must(os.ReadFile(path))
		try := func(what string, data []byte) {
			t.Helper()
			must.Do(t, os.WriteFile(path, data, 0o666))
			_, err := load(x, path, r.model, r.opt)
			if err == nil || !strings.HasPrefix(err.Error(), "checkpoint: ") || !strings.Contains(err.Error(), path) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		harmless := strings.Index(string(whole), `"format":"pt"`)
		for at := 0; at < len(whole); at += 1 + at/500*3 { // every byte of the header, and some bytes of the elements
			if at >= harmless && at < harmless+len(`"format":"pt"`) {
				continue
			}
			damaged := slices.Clone(whole)
			damaged[at] ^= 1 << (at % 8)
			try(fmt.Sprintf("bit %d of byte %d", at%8, at), damaged)
		}
		for _, n := range []int{0, 7, 8, 100, len(whole) / 2, len(whole) - 1} {
			try(fmt.Sprintf("the first %d bytes", n), whole[:n])
		}
		try("one byte more", append(slices.Clone(whole), 0))

		damaged := slices.Clone(whole)
		damaged[len(whole)-len(whole)/4] ^= 1 // a byte of the CPU generator's state
		cgotorch.Check(os.WriteFile(path, damaged, 0o666))
		if _, err := load(x, path, r.model, r.opt); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "tensor generator/cpu has the CRC-32C") {
			t.Errorf("a changed generator: %v", err)
		}
		torchtest.WantError(t, LoadModel(x, path, r.model, nn.LoadOptions{}), ErrDamaged)
		at := bytes.Index(whole, []byte(`\"epoch\":`))
		if at < 0 {
			t.Fatal("the metadata has no epoch")
		}
		damaged = slices.Clone(whole)
		damaged[at+len(`\"epoch\":`)] ^= 1 // another epoch, in valid JSON
		cgotorch.Check(os.WriteFile(path, damaged, 0o666))
		if info, err := Inspect(path); !errors.Is(err, ErrDamaged) {
			t.Errorf("Inspect of a changed epoch: %v, %v", info.Epoch, err)
		}
		cgotorch.Check(os.WriteFile(path, whole[:200], 0o666))
		if _, err := Inspect(path); !errors.Is(err, ErrDamaged) {
			t.Errorf("Inspect: %v", err)
		}
	})
}

func TestResume_OtherVersionsAndWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	w := safetensors.Tensor{Name: "w", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}
	for _, c := range []struct {
		what     string
		metadata string
		tensors  []safetensors.Tensor
		want     string
		damaged  bool
	}{
		{"newer", `{"version":2}`, []safetensors.Tensor{w}, "it is of version 2, and this program reads version 1", false},
		{"no JSON", `{`, []safetensors.Tensor{w}, "metadata streamtorch: unexpected end of JSON input", true},
		{"no checksums", `{"version":1}`, []safetensors.Tensor{w}, "the tensor checkpoint/crc32c is missing", true},
		{"bad checksums", `{"version":1}`, []safetensors.Tensor{w, bytesEntry(checksumName, []byte("["))}, "tensor checkpoint/crc32c: unexpected end", true},
		{"counts", `{"version":1,"optimizer":{"rule":"sgd","params":["w"]}}`, nil, "1 parameters and 0 counts of steps", true},
		{"stray state", `{"version":1,"optimizer":{"rule":"sgd","lr":1,"scale":1,"params":["w"],"steps":[1]}}`,
			[]safetensors.Tensor{w, {Name: "optimizer/momentum_buffer/v", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}}, "is of no parameter", true},
		{"generator", `{"version":1,"optimizer":{"rule":"sgd","lr":1,"scale":1,"params":["w"],"steps":[0]}}`,
			[]safetensors.Tensor{w, bytesEntry(cpuGenerator, []byte("short"))}, "the state of cpu's generator: ", false},
		{"dtype", `{"version":1}`, []safetensors.Tensor{{Name: "w", DType: "F8_E4M3", Shape: []int64{1}, Data: []byte{1}}}, "tensor w: LibTorch has no F8_E4M3", false},
	} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			tensors := c.tensors
			if tensors == nil {
				tensors = []safetensors.Tensor{w}
			}
			if !strings.Contains(c.what, "checksums") {
				tensors = withChecksums(slices.Clone(tensors), []byte(c.metadata))
			}
			cgotorch.Check(safetensors.WriteFile(path, tensors, map[string]string{metadataKey: c.metadata}))
			model := &struct{ W *cgotorch.Tensor }{x.Zeros(cgotorch.Float32, 1)}
			opt, err := optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: []*cgotorch.Tensor{model.W}})
			if err != nil {
				return err
			}
			_, err = load(x, path, model, opt)
			if err == nil || !strings.Contains(err.Error(), "checkpoint: "+path+": ") || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrDamaged) != c.damaged {
				t.Errorf("%s: %v, want %q", c.what, err, c.want)
			}
			return nil
		})
	}
}

// The dtypes of a file may differ from those of the model. Load then converts them.
func TestLoadModel_ConvertsDTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		type holder struct{ A, B *cgotorch.Tensor }
		from := &holder{x.To(cgotorch.FromSlice(x, []float32{1.5, -2}), cgotorch.BFloat16), cgotorch.FromSlice(x, []int64{3})}
		cgotorch.Check(Save(x, path, Checkpoint{Model: from}))
		to := &holder{x.Zeros(cgotorch.Float32, 2), x.Zeros(cgotorch.Float64, 1)}
		cgotorch.Check(LoadModel(x, path, to, nn.LoadOptions{}))
		if a, b := cgotorch.ToSlice[float32](x, to.A), cgotorch.ToSlice[float64](x, to.B); !slices.Equal(a, []float32{1.5, -2}) || b[0] != 3 {
			t.Errorf("got %v and %v", a, b)
		}
	})
}

func TestDTypeName_IsTheInverseOfDType(t *testing.T) {
	for name, dtype := range dtypes {
		if got, ok := DTypeName(dtype); got != name || !ok {
			t.Errorf("%v: got %q, %v, want %q", dtype, got, ok, name)
		}
	}
	if got, ok := DTypeName(cgotorch.Complex128); ok {
		t.Errorf("complex128 has the name %q", got)
	}
}

// The learning rate of a group goes to the group of the same parameters, whatever its number is.
func TestResume_GroupRates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		model := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		defer nn.Close(model)
		optimizer := func(groups ...[]*cgotorch.Tensor) *optim.Optimizer {
			var all []optim.Group
			for _, params := range groups {
				all = append(all, optim.Group{Params: params})
			}
			o := cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.1}, all...))
			t.Cleanup(func() { o.Close() })
			return o
		}
		weight, bias := []*cgotorch.Tensor{model.Weight}, []*cgotorch.Tensor{model.Bias}
		saved := optimizer(weight, bias)
		cgotorch.Check(saved.SetGroupLR(0, 0.5))
		cgotorch.Check(Save(x, path, Checkpoint{Model: model, Optimizer: saved}))
		turned := optimizer(bias, weight)
		if _, err := load(x, path, model, turned); err != nil || turned.LR(0) != 0.1 || turned.LR(1) != 0.5 {
			t.Errorf("the rates of bias and weight are %v and %v, %v", turned.LR(0), turned.LR(1), err)
		}
		together := optimizer([]*cgotorch.Tensor{model.Bias, model.Weight})
		if _, err := load(x, path, model, together); err == nil || !strings.Contains(err.Error(), "0.5 to the group of weight, and this optimizer has no group of these parameters") {
			t.Errorf("one group: %v", err)
		}
	})
}

// The error for a file that is not there names the package once, and says what to do.
func TestOpen_NoFile(t *testing.T) {
	folder := t.TempDir()
	index := filepath.Join(folder, "model.safetensors.index.json")
	must.Do(t, os.WriteFile(index, []byte(`{"weight_map": {"a": "1.safetensors"}}`), 0o644))
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		model := newTiedModel(x, false)
		for path, want := range map[string]string{
			"none.safetensors": "checkpoint: stat none.safetensors: no such file or directory; check the path",
			"none.pth":         "checkpoint: stat none.pth: no such file or directory; check the path",
			"none.json":        "checkpoint: open none.json: no such file or directory; check the path",
			index:              "the index names the file " + filepath.Join(folder, "1.safetensors") + ", which is missing: get it too",
			folder:             "the index names the file",
		} {
			_, inspect := Inspect(path)
			_, load := load(x, path, model, nil)
			for _, err := range []error{LoadModel(x, path, model, nn.LoadOptions{}), load, inspect} {
				if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "pth: ") > 1 {
					t.Errorf("%s: %v, want %q", path, err, want)
				}
			}
		}
	})
}

// A tensor that no model can take does not keep a model without it from being loaded. The error for
// a model that has it names the tensor, and says how to save it.
func TestLoadModel_UnreadableTensor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.pth")
	// {"w": two bytes, "q": a quantized tensor of them}
	const storage = "(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
	pickle := "\x80\x02}(X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\x00K\x02\x85K\x01\x85\x89}tR" +
		"X\x01\x00\x00\x00qctorch._utils\n_rebuild_qtensor\n(" + storage + "K\x00K\x02\x85K\x01\x85)\x89}tRu."
	file := cgotorch.Must(os.Create(path))
	z := zip.NewWriter(file)
	for _, entry := range [][2]string{{"data.pkl", pickle}, {"data/0", "\x05\x06"}} {
		w := cgotorch.Must(z.CreateHeader(&zip.FileHeader{Name: "a/" + entry[0], Method: zip.Store}))
		if _, err := w.Write([]byte(entry[1])); err != nil {
			t.Fatal(err)
		}
	}
	must.Do(t, errors.Join(z.Close(), file.Close()))
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := &struct{ W, Q *cgotorch.Tensor }{W: x.Zeros(cgotorch.Float32, 2)}
		if err := LoadModel(x, path, m, nn.LoadOptions{AllowUnexpected: true}); err != nil || x.Item(x.Sum(m.W)) != 11 {
			t.Errorf("%v, and the sum is %v, want 11", err, x.Item(x.Sum(m.W)))
		}
		m.W, m.Q = x.Zeros(cgotorch.Float32, 2), x.Zeros(cgotorch.Float32, 2)
		err := LoadModel(x, path, m, nn.LoadOptions{})
		if want := "tensor q: it is quantized: save it in Python with .dequantize()"; err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrDamaged) || x.Item(x.Sum(m.W)) != 0 {
			t.Errorf("%v, want %q", err, want)
		}
	})
}
