// Package optim_test compares cgotorch/optim with torch.optim, whose results make.py has written to testdata.
package optim_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/leaktest"
)

type fixture struct {
	Steps  int
	Params []struct {
		Name                  string
		Shape                 []int64
		Start, Factor, Target []float32
	}
	Cases []testCase
}

type testCase struct {
	Name, Rule, DType   string
	LR                  float64
	WeightDecay         *float64 `json:"weight_decay"`
	Momentum, Dampening float64
	Nesterov, AMSGrad   bool
	Betas               *[2]float64
	Eps                 float64
	Groups              bool
	Skipped             []int
	Clip                float64
	Scales              []float64
	Norms               []float64
	Foreach, Fused      map[string][]float32
}

// tolerance is relative to the largest element. On the processor that made the fixture the results are equal to the bit; on
// another, and on CUDA, LibTorch may take kernels that round otherwise.
var tolerance = map[cgotorch.Device]float64{cgotorch.CPU: 1e-6, cgotorch.CUDA(0): 1e-5}

func read(t *testing.T, name string, v any) {
	data, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestStep_EqualsPyTorch(t *testing.T) { testStep(t, cgotorch.CPU) }

func TestStep_EqualsPyTorch_CUDA(t *testing.T) {
	if err := cgotorch.CUDA(0).Check(); err != nil {
		t.Skip("no GPU to compare with: ", err)
	}
	testStep(t, cgotorch.CUDA(0))
}

func testStep(t *testing.T, device cgotorch.Device) {
	var f fixture
	read(t, "steps.json", &f)
	if len(f.Cases) == 0 {
		t.Fatal("the fixture has no cases")
	}
	leaktest.Check(t, cgotorch.LiveHandles)
	stream, err := cgotorch.NewStream(device, cgotorch.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for _, c := range f.Cases {
		t.Run(c.Name+"/foreach", func(t *testing.T) { f.check(t, stream, c, optim.Foreach, c.Foreach) })
		want := c.Fused
		if want == nil { // PyTorch's cannot do it
			want = c.Foreach
		}
		t.Run(c.Name+"/fused", func(t *testing.T) { f.check(t, stream, c, optim.Fused, want) })
	}
}

func (f *fixture) check(t *testing.T, stream *cgotorch.Stream, c testCase, impl optim.Implementation, want map[string][]float32) {
	var got map[string][]float32
	var norms []float64
	err := stream.Do(func(x *cgotorch.Exec) (err error) {
		got, norms, err = f.train(x, c, impl)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	limit := tolerance[stream.Device()]
	if c.DType == "bfloat16" {
		limit = 1.0 / 128 // one rounding
		if stream.Device().IsCUDA() {
			limit = 1.0 / 32
		}
	}
	bits := 0
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			t.Fatalf("%s has %d elements, want %d", name, len(g), len(w))
		}
		var largest float64
		for _, v := range w {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i := range w {
			if math.Float32bits(g[i]) != math.Float32bits(w[i]) {
				bits++
			}
			if d := math.Abs(float64(g[i]-w[i])) / largest; !(d <= limit) {
				t.Errorf("%s[%d] is %v, want %v: off by %.2g", name, i, g[i], w[i], d)
			}
		}
	}
	if bits > 0 {
		t.Logf("%d elements differ in a bit", bits)
	}
	if len(norms) != len(c.Norms) {
		t.Fatalf("%d norms, want %d", len(norms), len(c.Norms))
	}
	for i, n := range norms {
		if w := c.Norms[i]; !(math.Abs(n-w) <= tolerance[stream.Device()]*w) {
			t.Errorf("step %d: norm %v, want %v", i, n, w)
		}
	}
}

func (f *fixture) train(x *cgotorch.Exec, c testCase, impl optim.Implementation) (map[string][]float32, []float64, error) {
	dtype := cgotorch.Float32
	if c.DType != "" {
		dtype, _ = cgotorch.ParseDType(c.DType)
	}
	n := len(f.Params)
	params, factors, targets := make([]*cgotorch.Tensor, n), make([]*cgotorch.Tensor, n), make([]*cgotorch.Tensor, n)
	for i, p := range f.Params {
		load := func(values []float32) *cgotorch.Tensor {
			return x.To(x.Reshape(cgotorch.FromSlice(x, values), p.Shape...), dtype)
		}
		params[i], factors[i], targets[i] = x.Detach(load(p.Start)), load(p.Factor), load(p.Target)
		if len(p.Shape) == 4 {
			params[i] = x.Contiguous(params[i], cgotorch.ChannelsLast)
		}
		if err := params[i].SetRequiresGrad(true); err != nil {
			return nil, nil, err
		}
	}
	groups := []optim.Group{{Params: params}}
	if c.Groups {
		groups = []optim.Group{
			{Params: []*cgotorch.Tensor{params[0], params[3]}},
			{Params: []*cgotorch.Tensor{params[1], params[2]}, NoWeightDecay: true, LR: 2 * c.LR},
		}
	}
	opt, err := newOptimizer(c, impl, groups)
	if err != nil {
		return nil, nil, err
	}
	defer opt.Close()
	var norms []float64
	for step := range f.Steps {
		opt.ZeroGrad()
		loss := x.Zeros(dtype)
		for i, p := range params {
			if f.Params[i].Name == "table" && contains(c.Skipped, step) {
				continue
			}
			loss = x.Add(loss, x.Sum(x.Square(x.Sub(x.Mul(p, factors[i]), targets[i]))))
		}
		x.Backward(loss)
		if c.Clip != 0 {
			norms = append(norms, x.Item(optim.ClipGradNorm(x, params, c.Clip)))
		}
		if c.Scales != nil {
			opt.SetScale(c.Scales[step])
		}
		opt.Step(x)
	}
	got := map[string][]float32{}
	for i, p := range f.Params {
		got[p.Name] = cgotorch.ToSlice[float32](x, x.To(params[i], cgotorch.Float32))
	}
	return got, norms, nil
}

func newOptimizer(c testCase, impl optim.Implementation, groups []optim.Group) (*optim.Optimizer, error) {
	var decay float64
	if c.WeightDecay != nil {
		decay = *c.WeightDecay
	}
	if c.Rule == "sgd" {
		return optim.NewSGD(optim.SGDOptions{
			LR: c.LR, Momentum: c.Momentum, Dampening: c.Dampening, Nesterov: c.Nesterov, WeightDecay: decay, Implementation: impl,
		}, groups...)
	}
	var betas cgotorch.Opt[[2]float64]
	if c.Betas != nil {
		betas = cgotorch.Set(*c.Betas)
	}
	options := optim.AdamOptions{
		LR: c.LR, Betas: betas, Eps: c.Eps, WeightDecay: decay, NoWeightDecay: c.WeightDecay != nil && decay == 0,
		AMSGrad: c.AMSGrad, Implementation: impl,
	}
	if c.Rule == "adamw" {
		return optim.NewAdamW(options, groups...)
	}
	return optim.NewAdam(options, groups...)
}

func contains(list []int, v int) bool {
	for _, n := range list {
		if n == v {
			return true
		}
	}
	return false
}

func TestSchedule_EqualsPyTorch(t *testing.T) {
	var want map[string][]float64
	read(t, "schedules.json", &want)
	schedules := map[string]optim.Schedule{
		"step":             optim.StepDecay(5, 0.3),
		"multistep":        optim.MultiStep([]int{11, 3, 4}, 0.2),
		"cosine":           optim.Cosine(20, 0),
		"cosine floor":     optim.Cosine(20, 0.05),
		"one cycle":        optim.OneCycle(23, optim.OneCycleOptions{}),
		"one cycle linear": optim.OneCycle(40, optim.OneCycleOptions{Rise: 0.45, Linear: true, DivFactor: 10, FinalDivFactor: 50}),
		"one cycle short":  optim.OneCycle(3, optim.OneCycleOptions{}),
		"warm step":        optim.Warmup(4, 0.1, optim.StepDecay(5, 0.3)),
		"warm cosine":      optim.Warmup(4, 0.01, optim.Cosine(16, 0)),
	}
	if len(schedules) != len(want) {
		t.Fatalf("%d schedules, the fixture has %d", len(schedules), len(want))
	}
	for name, factors := range want {
		for step, w := range factors {
			if got := schedules[name](step); math.Abs(got-w) > 1e-12 {
				t.Errorf("%s: step %d: %v, want %v", name, step, got, w)
			}
		}
	}
}
