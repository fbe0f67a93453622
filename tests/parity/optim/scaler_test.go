package optim_test

import (
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// scalerCase is a run of torch.amp.GradScaler in which gradients overflow at some steps.
type scalerCase struct {
	Name      string
	Rules     []string
	Overflows []int
	Unscale   bool
	Clip      float64
	Init      float64 `json:"init_scale"`
	Grow      float64 `json:"growth_factor"`
	Backoff   float64 `json:"backoff_factor"`
	Interval  int     `json:"growth_interval"`
	Factors   []float64
	Growth    []int64
	Params    map[string][]float32
}

func TestScaler_EqualsPyTorch(t *testing.T) { testScaler(t, cgotorch.CPU) }

func TestScaler_EqualsPyTorch_CUDA(t *testing.T) {
	testScaler(t, torchtest.CUDA(t))
}

func testScaler(t *testing.T, device cgotorch.Device) {
	var f fixture
	var cases []scalerCase
	read(t, "steps.json", &f)
	read(t, "scaler.json", &cases)
	if len(cases) == 0 {
		t.Fatal("the fixture has no cases")
	}
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, device)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error { return f.scaled(t, x, c) })
		})
	}
}

func (f *fixture) scaled(t *testing.T, x *cgotorch.Exec, c scalerCase) error {
	p, err := f.problem(x, cgotorch.Float32)
	if err != nil {
		return err
	}
	parts := [][]*cgotorch.Tensor{p.params}
	if len(c.Rules) == 2 {
		parts = [][]*cgotorch.Tensor{{p.params[0], p.params[3]}, {p.params[1], p.params[2]}}
	}
	var opts []*optim.Optimizer
	for i, rule := range c.Rules {
		group := optim.Group{Params: parts[i]}
		var opt *optim.Optimizer
		switch rule {
		case "sgd":
			opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9, WeightDecay: 0.01}, group)
		case "adam":
			opt, err = optim.NewAdam(optim.AdamOptions{LR: 0.02, WeightDecay: 0.1}, group)
		case "adamw":
			opt, err = optim.NewAdamW(optim.AdamOptions{LR: 0.02, WeightDecay: 0.3, AMSGrad: true}, group)
		}
		if err != nil {
			return err
		}
		defer opt.Close()
		opts = append(opts, opt)
	}
	scaler, err := optim.NewScaler(x, optim.ScalerOptions{InitScale: c.Init, GrowthFactor: c.Grow, BackoffFactor: c.Backoff, GrowthInterval: c.Interval})
	if err != nil {
		return err
	}
	defer scaler.Close()
	for step := range f.Steps {
		loss := x.Zeros(cgotorch.Float32)
		for i := range p.params {
			l := p.loss(x, i)
			if f.Params[i].Name == "table" && slices.Contains(c.Overflows, step) {
				l = x.MulScalar(l, math.Inf(1))
			}
			loss = x.Add(loss, l)
		}
		for _, opt := range opts {
			opt.ZeroGrad()
		}
		x.Backward(scaler.Scale(x, loss))
		for i, opt := range opts {
			if c.Unscale {
				scaler.Unscale(x, opt)
				optim.ClipGradNorm(x, parts[i], c.Clip)
			}
			scaler.Step(x, opt)
		}
		scaler.Update(x)
		if s := scaler.State(x); s.Scale != c.Factors[step] || s.Growth != c.Growth[step] {
			t.Fatalf("step %d: %+v, want a factor of %v and %d steps since it changed", step, s, c.Factors[step], c.Growth[step])
		}
	}
	if got, want := scaler.State(x).Skipped, int64(len(c.Overflows)); got != want {
		t.Errorf("%d steps were skipped, want %d", got, want)
	}
	if c.Rules[0] != "sgd" { // SGD does not count its steps on the device
		if got, want := opts[0].State(x).Steps[0], int64(f.Steps-len(c.Overflows)); got != want {
			t.Errorf("%d steps were done, want %d", got, want)
		}
	}
	bits := 0
	for i, q := range f.Params {
		bits += compare(t, q.Name, values(x, p.params[i]), c.Params[q.Name], tolerance[x.Device()])
	}
	if bits > 0 {
		t.Logf("%d elements differ in a bit", bits)
	}
	return nil
}

func TestEMA_EqualsPyTorch(t *testing.T) {
	var f fixture
	var want struct {
		Decay    float64
		Averages map[string][]float32
	}
	read(t, "steps.json", &f)
	read(t, "averages.json", &want)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, err := f.problem(x, cgotorch.Float32)
		if err != nil {
			return err
		}
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9, WeightDecay: 0.01}, optim.Group{Params: p.params})
		if err != nil {
			return err
		}
		defer opt.Close()
		ema, err := optim.NewEMA(x, p.params, want.Decay)
		if err != nil {
			return err
		}
		defer ema.Close()
		for range f.Steps {
			loss := x.Zeros(cgotorch.Float32)
			for i := range p.params {
				loss = x.Add(loss, p.loss(x, i))
			}
			opt.ZeroGrad()
			x.Backward(loss)
			opt.Step(x)
			ema.Update(x)
		}
		for i, average := range ema.Averages() {
			name := f.Params[i].Name
			if bits := compare(t, name, values(x, average), want.Averages[name], tolerance[cgotorch.CPU]); bits > 0 {
				t.Logf("%s: %d elements differ in a bit", name, bits)
			}
		}
		return nil
	})
}
