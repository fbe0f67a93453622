// Package programs compares exported programs with PyTorch. make.py exports the models and writes
// the arguments and results. The tests need CGOTORCH_PEER, the path of a Python with torch 2.11 and
// torchvision, or CGOTORCH_PROGRAMS, a folder that make.py has filled.
package programs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// folder returns a folder with programs. It makes the folder with the peer's Python if none is
// given.
func folder(t *testing.T, names ...string) string {
	if made := os.Getenv("CGOTORCH_PROGRAMS"); made != "" {
		return made
	}
	python := os.Getenv("CGOTORCH_PEER")
	if python == "" {
		t.Skip("CGOTORCH_PEER is not set: it is the path of a Python with torch 2.11 and torchvision")
	}
	made := t.TempDir()
	command := exec.Command(python, append([]string{"make.py", made}, names...)...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make.py: %v\n%s", err, out)
	}
	return made
}

// openTorchvision opens torchvision's operators, of the Python that has made the programs.
func openTorchvision(t *testing.T, made string) {
	t.Helper()
	path, err := os.ReadFile(filepath.Join(made, "torchvision.txt"))
	if err == nil {
		err = cgotorch.OpenOperators(string(path))
	}
	if err != nil {
		t.Log("torchvision's operators cannot be opened, so programs with them fail: ", err)
	}
}

type call struct {
	Args   []json.RawMessage          `json:"args"`
	Kwargs map[string]json.RawMessage `json:"kwargs"`
	Result json.RawMessage            `json:"result"`
	After  []json.RawMessage          `json:"after"`
}

type record struct {
	Threads int               `json:"threads"` // of PyTorch; sums depend on it
	Calls   []call            `json:"calls"`
	State   map[string]string `json:"state"`
}

// values turns the JSON of make.py into Go values.
type values struct {
	x    *cgotorch.Exec
	file *safetensors.File
}

func (v values) tensor(t testing.TB, key string) *cgotorch.Tensor {
	info, ok := v.file.Lookup(key)
	if !ok {
		t.Fatalf("no tensor %s", key)
	}
	data := must.Get(v.file.Read(key))(t)
	dtype, ok := checkpoint.DType(info.DType)
	if !ok {
		t.Fatalf("tensor %s is %s", key, info.DType)
	}
	return cgotorch.FromBytes(v.x, data, dtype, info.Shape)
}

func (v values) of(t testing.TB, text json.RawMessage) any {
	var union struct {
		Tensor *string                     `json:"tensor"`
		List   *[]json.RawMessage          `json:"list"`
		Dict   *map[string]json.RawMessage `json:"dict"`
		Int    *string                     `json:"int"`
		Value  any                         `json:"value"`
	}
	must.Do(t, json.Unmarshal(text, &union))
	switch {
	case union.Tensor != nil:
		return v.tensor(t, *union.Tensor)
	case union.List != nil:
		list := []any{}
		for _, item := range *union.List {
			list = append(list, v.of(t, item))
		}
		return list
	case union.Dict != nil:
		dict := map[string]any{}
		for k, item := range *union.Dict {
			dict[k] = v.of(t, item)
		}
		return dict
	case union.Int != nil:
		return must.Get(strconv.ParseInt(*union.Int, 10, 64))(t)
	}
	return union.Value
}

// difference returns "" if two values are equal, and else the largest difference or another reason.
// Numbers may differ by the tolerance, a share of the largest number of their tensor. With 0 they
// must be equal to the bit.
func difference(x *cgotorch.Exec, at string, got, want any, tolerance float64) string {
	switch w := want.(type) {
	case *cgotorch.Tensor:
		g, ok := got.(*cgotorch.Tensor)
		if !ok || g == nil || fmt.Sprint(g.Shape(), g.DType()) != fmt.Sprint(w.Shape(), w.DType()) {
			return fmt.Sprintf("%s is %v, want %v", at, got, w)
		}
		g = x.Contiguous(g, cgotorch.Contiguous)
		if bytes.Equal(cgotorch.ToBytes(x, g), cgotorch.ToBytes(x, w)) {
			return ""
		}
		if !w.DType().IsFloat() {
			return at + " differs"
		}
		a, b := cgotorch.ToSlice[float64](x, x.To(g, cgotorch.Float64)), cgotorch.ToSlice[float64](x, x.To(w, cgotorch.Float64))
		worst, scale := 0.0, 0.0
		for i := range a {
			if a[i] != b[i] && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
				worst = math.Max(worst, math.Abs(a[i]-b[i]))
				if math.IsNaN(a[i]) != math.IsNaN(b[i]) {
					worst = math.Inf(1)
				}
			}
			scale = math.Max(scale, math.Abs(b[i]))
		}
		if worst <= tolerance*scale {
			return "" // with 0: NaNs with other bits, or zeros of other signs
		}
		return fmt.Sprintf("%s differs by %.3g of %.3g", at, worst, scale)
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %T, want %d values", at, got, len(w))
		}
		for i := range w {
			if d := difference(x, fmt.Sprintf("%s[%d]", at, i), g[i], w[i], tolerance); d != "" {
				return d
			}
		}
		return ""
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %T, want a map of %d values", at, got, len(w))
		}
		for k := range w {
			if d := difference(x, at+"."+k, g[k], w[k], tolerance); d != "" {
				return d
			}
		}
		return ""
	}
	if got != want && !(want == "NaN" && fmt.Sprint(got) == "NaN") {
		return fmt.Sprintf("%s is %v (a %T), want %v (a %T)", at, got, got, want, want)
	}
	return ""
}

// compare runs the calls of a program, and returns how the results differ by more than the
// tolerance of [difference].
func compare(t testing.TB, folder, name string, options pt2.Options, tolerance float64) (differs string, err error) {
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err != nil {
		return "", err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return "", err
	}
	file, err := safetensors.Open(filepath.Join(folder, name+".safetensors"))
	if err != nil {
		return "", err
	}
	defer file.Close()
	cgotorch.SetThreads(cmp.Or(r.Threads, 2))
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	var p *pt2.Program
	if err := stream.Do(func(x *cgotorch.Exec) (err error) {
		p, err = pt2.Load(x, filepath.Join(folder, name+".pt2"), options)
		return err
	}); err != nil {
		return "", err
	}
	defer p.Close()
	for i, c := range r.Calls {
		if err := stream.Do(func(x *cgotorch.Exec) error {
			v := values{x, file}
			var args []any
			for _, a := range c.Args {
				args = append(args, v.of(t, a))
			}
			keywords := pt2.Keywords{}
			for k, a := range c.Kwargs {
				keywords[k] = v.of(t, a)
			}
			if err := cgotorch.Seed(5); err != nil {
				return err
			}
			y := x
			if len(r.State) == 0 {
				y = x.NoGrad()
			}
			got := p.Call(y, append(append([]any{}, args...), keywords)...)
			differs = difference(x, fmt.Sprintf("call %d: the result", i), got, v.of(t, c.Result), tolerance)
			for k := range c.After {
				if differs == "" {
					differs = difference(x, fmt.Sprintf("call %d: argument %d afterwards", i, k), args[k], v.of(t, c.After[k]), tolerance)
				}
			}
			return nil
		}); err != nil || differs != "" {
			return differs, err
		}
	}
	err = stream.Do(func(x *cgotorch.Exec) error {
		for _, w := range p.Weights {
			if key, ok := r.State[w.Name]; ok && differs == "" {
				differs = difference(x, w.Name+" afterwards", w.Tensor, values{x, file}.tensor(t, key), tolerance)
			}
		}
		return nil
	})
	return differs, err
}

// eachProgram runs a test for each program of the folder that no training belongs to. It returns
// their number.
func eachProgram(t *testing.T, made string, test func(t *testing.T, name string)) int {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(made, "*.pt2"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s holds no programs: %v", made, err)
	}
	n := 0
	for _, path := range paths {
		if name := strings.TrimSuffix(filepath.Base(path), ".pt2"); !strings.HasPrefix(name, "train_") {
			n++
			t.Run(name, func(t *testing.T) { test(t, name) })
		}
	}
	return n
}

// TestPrograms_EqualPyTorch runs all programs that there are.
func TestPrograms_EqualPyTorch(t *testing.T) {
	made := folder(t)
	openTorchvision(t, made)
	equal := 0
	n := eachProgram(t, made, func(t *testing.T, name string) {
		differs := must.Get(compare(t, made, name, pt2.Options{}, 0))(t)
		if differs != "" {
			t.Fatal(differs)
		}
		equal++
	})
	t.Logf("%d of %d programs are equal to the bit", equal, n)
}

// TestPrograms_TrainAsPyTorch trains programs that were exported in training mode.
func TestPrograms_TrainAsPyTorch(t *testing.T) {
	made := folder(t)
	cgotorch.SetThreads(2)
	paths, err := filepath.Glob(filepath.Join(made, "train_*.pt2"))
	if err != nil || len(paths) == 0 {
		t.Skipf("%s holds no trainings", made)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".pt2"), func(t *testing.T) { train(t, path) })
	}
}

func train(t *testing.T, path string) {
	torchtest.CheckLeaks(t)
	do := func(fn func(x *cgotorch.Exec) error) {
		t.Helper()
		must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(fn))
	}
	name := strings.TrimSuffix(path, ".pt2")
	text := must.Get(os.ReadFile(name + ".json"))(t)
	var want struct {
		Losses []float64 `json:"losses"`
		Rate   float64   `json:"rate"`
	}
	must.Do(t, json.Unmarshal(text, &want))
	file, err := safetensors.Open(name + ".safetensors")
	must.Do(t, err)
	defer file.Close()
	var p *pt2.Program
	var opt *optim.Optimizer
	var images, labels *cgotorch.Tensor
	do(func(x *cgotorch.Exec) error {
		v := values{x, file}
		images, labels = x.Keep(v.tensor(t, "x")), x.Keep(v.tensor(t, "labels"))
		p, err = pt2.Load(x, path, pt2.Options{})
		if err == nil {
			opt, err = optim.NewSGD(optim.SGDOptions{LR: want.Rate, Momentum: 0.9}, optim.Group{Params: nn.Parameters(p)})
		}
		return err
	})
	t.Cleanup(func() {
		for _, c := range []io.Closer{opt, p, images, labels} {
			must.Check(t, c.Close())
		}
	})
	must.Do(t, cgotorch.Seed(5))
	worst := 0.0
	for i, wanted := range want.Losses {
		do(func(x *cgotorch.Exec) error {
			opt.ZeroGrad()
			loss := nn.CrossEntropy(x, p.Forward(x, images), labels, nn.CrossEntropyOptions{})
			x.Backward(loss)
			opt.Step(x)
			got := x.Item(loss)
			worst = max(worst, math.Abs(got-wanted))
			if math.Abs(got-wanted) > 1e-4 || math.IsNaN(got) {
				t.Errorf("loss %d is %v, want %v", i, got, wanted)
			}
			return nil
		})
	}
	t.Logf("%d losses from %.4f to %.4f, the largest difference %.2g", len(want.Losses), want.Losses[0], want.Losses[len(want.Losses)-1], worst)
}

// TestPrograms_Fused runs all programs that there are as they are fused for the CPU. Sums are in
// another order there. Of the largest number, an untrained Visformer's scores are 5e-5 away from
// those of float64, fused or not.
func TestPrograms_Fused(t *testing.T) {
	made := folder(t)
	openTorchvision(t, made)
	eachProgram(t, made, func(t *testing.T, name string) {
		if strings.HasSuffix(name, "-training") {
			t.Skip("fused programs are for inference")
		}
		if strings.HasPrefix(name, "maskrcnn") {
			t.Skip("PyTorch too returns its boxes in another order, with other masks, when a convolution adds in another order")
		}
		differs := must.Get(compare(t, made, name, pt2.Options{Fuse: true}, 1e-4))(t)
		if differs != "" {
			t.Fatal(differs)
		}
	})
}

// TestPrograms_CUDA compares programs on a GPU, eager, captured and fused, with the same programs
// on the CPU.
func TestPrograms_CUDA(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.NoTF32(t)
	made := folder(t, "resnet18", "resnet50", "mobilenet_v3_small", "densenet121", "swin_t", "googlenet", "vit_b_16", "convnext_tiny")
	eachProgram(t, made, func(t *testing.T, name string) { runOnCUDA(t, filepath.Join(made, name+".pt2"), d) })
}

func runOnCUDA(t *testing.T, path string, d cgotorch.Device) {
	var pixels, want []float32
	var shape []int64
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := pt2.Load(x, path, pt2.Options{})
		if err != nil {
			return err
		}
		defer p.Close()
		if inputs := p.Inputs(); len(inputs) == 1 && inputs[0].DType == cgotorch.Float32 {
			for _, s := range inputs[0].Shape {
				shape = append(shape, max(s.Min, min(s.Max, 2)))
			}
			in := x.Randn(cgotorch.Float32, shape...)
			if out, ok := p.Call(x.NoGrad(), in).(*cgotorch.Tensor); ok {
				pixels, want = cgotorch.ToSlice[float32](x, in), cgotorch.ToSlice[float32](x, out)
			}
		}
		return nil
	})
	if want == nil {
		t.Skip("the program does not map one tensor in float32 to one tensor")
	}
	scale := 0.0
	for _, v := range want {
		scale = max(scale, math.Abs(float64(v)))
	}
	for _, fuse := range []bool{false, true} {
		runFusedOrNot(t, path, d, fuse, pixels, want, scale, shape)
	}
}

func runFusedOrNot(t *testing.T, path string, d cgotorch.Device, fuse bool, pixels, want []float32, scale float64, shape []int64) {
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, d)
	var p *pt2.Program
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) (err error) {
		p, err = pt2.Load(x, path, pt2.Options{Fuse: fuse})
		return err
	})
	defer p.Close()
	captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{p.Forward(x.NoGrad(), in[0])}
	}, cgotorch.CapturedOptions{})
	defer captured.Close()
	for run := range 6 { // the first one is eager
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			in := cgotorch.FromSlice(x, pixels, shape...)
			var out *cgotorch.Tensor
			if run == 0 {
				out = p.Forward(x.NoGrad(), in)
			} else {
				out = captured.Run(x, in)[0]
			}
			worst := 0.0
			for i, v := range cgotorch.ToSlice[float32](x, out) {
				worst = max(worst, math.Abs(float64(v-want[i])))
			}
			if !(worst <= 1e-4*scale+1e-6) {
				t.Errorf("fused %v, run %d differs by %.3g of %.3g", fuse, run, worst, scale)
			}
			if run == 0 {
				t.Logf("fused %v: %s; the largest difference is %.2g of %.2g", fuse, p.Report(), worst, scale)
			}
		})
	}
	if s := captured.Stats(); s.Launches == 0 {
		t.Errorf("fused %v: the program was not captured: %s", fuse, s.Why)
	}
}
