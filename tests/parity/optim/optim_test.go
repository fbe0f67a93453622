// Package optim_test compares cgotorch/optim with torch.optim. make.py has written the results of
// torch.optim to testdata.
package optim_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

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

// tolerance is the allowed difference relative to the largest element. On the processor that made
// the fixture the results are equal bit for bit. On CUDA and on other processors LibTorch may use
// kernels that round differently.
var tolerance = map[cgotorch.Device]float64{cgotorch.CPU: 1e-6, cgotorch.CUDA(0): 1e-5}

func read(t *testing.T, name string, v any) {
	data, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	must.Do(t, err)
}

func TestStep_EqualsPyTorch(t *testing.T) { testStep(t, cgotorch.CPU) }

func TestStep_EqualsPyTorch_CUDA(t *testing.T) {
	testStep(t, torchtest.CUDA(t))
}

func testStep(t *testing.T, device cgotorch.Device) {
	var f fixture
	read(t, "steps.json", &f)
	if len(f.Cases) == 0 {
		t.Fatal("the fixture has no cases")
	}
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, device)
	for _, c := range f.Cases {
		t.Run(c.Name+"/foreach", func(t *testing.T) { f.check(t, stream, c, true, c.Foreach) })
		want := c.Fused
		if want == nil { // PyTorch's fused optimizer does not support this case
			want = c.Foreach
		}
		t.Run(c.Name+"/fused", func(t *testing.T) { f.check(t, stream, c, false, want) })
	}
}

func (f *fixture) check(t *testing.T, stream *cgotorch.Stream, c testCase, foreach bool, want map[string][]float32) {
	var got map[string][]float32
	var norms []float64
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) (err error) {
		got, norms, err = f.train(x, c, foreach)
		return err
	})
	limit := tolerance[stream.Device()]
	if c.DType == "bfloat16" {
		limit = 1.0 / 128 // the error of one rounding
		if stream.Device().IsCUDA() {
			limit = 1.0 / 32
		}
	}
	bits := 0
	for name, w := range want {
		bits += compare(t, name, got[name], w, limit)
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

// compare returns how many elements differ in some bit. It fails the test if an element differs
// by more than the largest element times `limit`.
func compare(t *testing.T, name string, got, want []float32, limit float64) (bits int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", name, len(got), len(want))
	}
	var largest float64
	for _, v := range want {
		largest = max(largest, math.Abs(float64(v)))
	}
	for i, w := range want {
		if math.Float32bits(got[i]) != math.Float32bits(w) {
			bits++
		}
		if d := math.Abs(float64(got[i]-w)) / largest; !(d <= limit) {
			t.Errorf("%s[%d] is %v, want %v: off by %.2g", name, i, got[i], w, d)
		}
	}
	return bits
}

func values(x *cgotorch.Exec, t *cgotorch.Tensor) []float32 {
	return cgotorch.ToSlice[float32](x, x.To(t, cgotorch.Float32))
}

// problem is the problem that the optimizers of the fixture solve. The loss pulls each parameter
// to target/factor.
type problem struct{ params, factors, targets []*cgotorch.Tensor }

func (f *fixture) problem(x *cgotorch.Exec, dtype cgotorch.DType) (problem, error) {
	var all problem
	for _, p := range f.Params {
		load := func(values []float32) *cgotorch.Tensor {
			return x.To(x.Reshape(cgotorch.FromSlice(x, values), p.Shape...), dtype)
		}
		param := x.Detach(load(p.Start))
		if len(p.Shape) == 4 {
			param = x.Contiguous(param, cgotorch.ChannelsLast)
		}
		if err := param.SetRequiresGrad(true); err != nil {
			return all, err
		}
		all.params = append(all.params, param)
		all.factors, all.targets = append(all.factors, load(p.Factor)), append(all.targets, load(p.Target))
	}
	return all, nil
}

// loss returns the part of the loss that belongs to parameter i.
func (p problem) loss(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	return x.Sum(x.Square(x.Sub(x.Mul(p.params[i], p.factors[i]), p.targets[i])))
}

func (f *fixture) train(x *cgotorch.Exec, c testCase, foreach bool) (map[string][]float32, []float64, error) {
	dtype := cgotorch.Float32
	if c.DType != "" {
		dtype, _ = cgotorch.ParseDType(c.DType)
	}
	p, err := f.problem(x, dtype)
	if err != nil {
		return nil, nil, err
	}
	params := p.params
	groups := []optim.Group{{Params: params}}
	if c.Groups {
		groups = []optim.Group{
			{Params: []*cgotorch.Tensor{params[0], params[3]}},
			{Params: []*cgotorch.Tensor{params[1], params[2]}, NoWeightDecay: true, LR: 2 * c.LR},
		}
	}
	opt, err := newOptimizer(c, foreach, groups)
	if err != nil {
		return nil, nil, err
	}
	defer opt.Close()
	var norms []float64
	for step := range f.Steps {
		opt.ZeroGrad()
		loss := x.Zeros(dtype)
		for i := range params {
			if f.Params[i].Name == "table" && slices.Contains(c.Skipped, step) {
				continue
			}
			loss = x.Add(loss, p.loss(x, i))
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
		got[p.Name] = values(x, params[i])
	}
	return got, norms, nil
}

func newOptimizer(c testCase, foreach bool, groups []optim.Group) (*optim.Optimizer, error) {
	var decay float64
	if c.WeightDecay != nil {
		decay = *c.WeightDecay
	}
	if c.Rule == "sgd" {
		return optim.NewSGD(optim.SGDOptions{
			LR: c.LR, Momentum: c.Momentum, Dampening: c.Dampening, Nesterov: c.Nesterov, WeightDecay: decay, Foreach: foreach,
		}, groups...)
	}
	var betas cgotorch.Opt[[2]float64]
	if c.Betas != nil {
		betas = cgotorch.Set(*c.Betas)
	}
	options := optim.AdamOptions{
		LR: c.LR, Betas: betas, Eps: c.Eps, WeightDecay: decay, NoWeightDecay: c.WeightDecay != nil && decay == 0,
		AMSGrad: c.AMSGrad, Foreach: foreach,
	}
	if c.Rule == "adamw" {
		return optim.NewAdamW(options, groups...)
	}
	return optim.NewAdam(options, groups...)
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
