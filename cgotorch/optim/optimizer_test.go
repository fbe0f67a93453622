package optim

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// param returns a parameter that holds values, with a gradient of ones.
func param(x *cgotorch.Exec, values ...float32) *cgotorch.Tensor {
	p := cgotorch.FromSlice(x, values)
	setGrad(x, p, 1)
	return p
}

func setGrad(x *cgotorch.Exec, p *cgotorch.Tensor, value float64) {
	if err := p.SetGrad(x.FullLike(p, value)); err != nil {
		x.Fail("test", err)
	}
}

func values(x *cgotorch.Exec, t *cgotorch.Tensor) []float32 {
	return cgotorch.ToSlice[float32](x, x.To(t, cgotorch.Float32))
}

// resultOfOperator returns a tensor that depends on a leaf, so that no gradient is kept for it.
func resultOfOperator(t *testing.T, x *cgotorch.Exec) *cgotorch.Tensor {
	leaf := x.Ones(cgotorch.Float32, 2)
	must.Do(t, leaf.SetRequiresGrad(true))
	return x.Exp(leaf)
}

func TestNew_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := param(x, 1)
		closed := param(x, 1)
		closed.Close()
		some := Group{Params: []*cgotorch.Tensor{p}}
		nan := math.NaN()
		sgd := func(o SGDOptions, g ...Group) func() (*Optimizer, error) {
			return func() (*Optimizer, error) { return NewSGD(o, g...) }
		}
		adam := func(o AdamOptions, g ...Group) func() (*Optimizer, error) {
			return func() (*Optimizer, error) { return NewAdam(o, g...) }
		}
		for _, c := range []struct {
			make func() (*Optimizer, error)
			want string
		}{
			{sgd(SGDOptions{}), "there are no parameters"},
			{sgd(SGDOptions{}, Group{}), "there are no parameters"},
			{sgd(SGDOptions{LR: -1}, some), "a learning rate of -1"},
			{sgd(SGDOptions{LR: nan}, some), "a learning rate of NaN"},
			{sgd(SGDOptions{LR: math.Inf(1)}, some), "a learning rate of +Inf"},
			{sgd(SGDOptions{Momentum: -1}, some), "a momentum of -1"},
			{sgd(SGDOptions{Dampening: nan}, some), "a dampening of NaN"},
			{sgd(SGDOptions{WeightDecay: -1}, some), "a weight decay of -1"},
			{sgd(SGDOptions{Nesterov: true}, some), "Nesterov needs Momentum above 0"},
			{sgd(SGDOptions{Nesterov: true, Momentum: 0.9, Dampening: 0.1}, some), "Nesterov needs Momentum above 0 and Dampening 0"},
			{sgd(SGDOptions{}, some, Group{LR: -2}), "group 1: a learning rate of -2"},
			{sgd(SGDOptions{}, some, Group{WeightDecay: -2}), "group 1: a weight decay of -2"},
			{sgd(SGDOptions{}, some, Group{WeightDecay: 1, NoWeightDecay: true}), "group 1 has both"},
			{sgd(SGDOptions{}, some, some), "group 1: parameter 0 (float32[1]) is in group 0 already"},
			{sgd(SGDOptions{}, Group{Params: []*cgotorch.Tensor{resultOfOperator(t, x)}}), "group 0: parameter 0 (float32[2]) is the result of an operator"},
			{sgd(SGDOptions{}, some, Group{Params: []*cgotorch.Tensor{nil}}), "group 1: parameter 0 is nil"},
			{sgd(SGDOptions{}, Group{Params: []*cgotorch.Tensor{closed}}), "group 0: parameter 0 is closed"},
			{sgd(SGDOptions{}, Group{Params: []*cgotorch.Tensor{x.Zeros(cgotorch.Int64, 3)}}), "int64[3]: only floating dtypes"},
			{adam(AdamOptions{Betas: cgotorch.Set([2]float64{1, 0.9})}, some), "betas 1 and 0.9"},
			{adam(AdamOptions{Betas: cgotorch.Set([2]float64{0.9, -0.1})}, some), "betas 0.9 and -0.1"},
			{adam(AdamOptions{Eps: -1}, some), "an eps of -1"},
			{adam(AdamOptions{WeightDecay: 1, NoWeightDecay: true}, some), "both a weight decay of 1 and NoWeightDecay"},
		} {
			_, err := c.make()
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}

func TestStep_Defaults(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := param(x, 1)
		for _, c := range []struct {
			new  func() (*Optimizer, error)
			lr   float64
			want float32 // the parameter after one step from 1 with a gradient of 1
		}{
			{func() (*Optimizer, error) { return NewSGD(SGDOptions{}, Group{Params: []*cgotorch.Tensor{p}}) }, 1e-3, 0.999},
			{func() (*Optimizer, error) { return NewAdam(AdamOptions{}, Group{Params: []*cgotorch.Tensor{p}}) }, 1e-3, 0.999},
			{func() (*Optimizer, error) { return NewAdamW(AdamOptions{}, Group{Params: []*cgotorch.Tensor{p}}) }, 1e-3, 1 - 1e-3 - 1e-5},
		} {
			opt := cgotorch.Must(c.new())
			x.FillInPlace(p, 1)
			opt.Step(x)
			if got := values(x, p)[0]; opt.LR(0) != c.lr || math.Abs(float64(got-c.want)) > 1e-7 {
				t.Errorf("%s: lr %v, %v after a step; want %v, %v", opt.rule.name(), opt.LR(0), got, c.lr, c.want)
			}
			opt.Close()
		}
	})
}

// A step and a swap count as writes. So a cast of a weight from before is not taken for it, and a
// backward that needs the old weight fails.
func TestStep_Version(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		for _, foreach := range []bool{false, true} {
			for _, masters := range []bool{false, true} {
				p := param(x, 1, 2)
				if masters {
					p = x.Detach(x.To(p, cgotorch.BFloat16))
					cgotorch.Check(p.SetRequiresGrad(true))
					setGrad(x, p, 1)
				}
				opt := cgotorch.Must(NewAdamW(AdamOptions{Foreach: foreach, MasterWeights: masters}, Group{Params: []*cgotorch.Tensor{p}}))
				before := inside.Core.Version(p)
				opt.Step(x)
				if inside.Core.Version(p) == before {
					t.Errorf("foreach %v, masters %v: a step is no write", foreach, masters)
				}
				opt.Close()
			}
		}
		p := param(x, 1, 2)
		ema := cgotorch.Must(NewEMA(x, []*cgotorch.Tensor{p}, 0.9))
		defer ema.Close()
		for range 2 {
			before := inside.Core.Version(p)
			if ema.Swap(x); inside.Core.Version(p) == before {
				t.Error("a swap is no write")
			}
		}
	})
}

// A step changes the elements of a parameter with gaps, and nothing between them.
func TestStep_Gaps(t *testing.T) {
	for name, rule := range map[string]func(g Group) (*Optimizer, error){
		"sgd":   func(g Group) (*Optimizer, error) { return NewSGD(SGDOptions{LR: 0.5, Momentum: 0.9}, g) },
		"adamw": func(g Group) (*Optimizer, error) { return NewAdamW(AdamOptions{LR: 0.5}, g) },
		"lion":  func(g Group) (*Optimizer, error) { return NewLion(AdamOptions{LR: 0.5}, g) },
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				all := x.Ones(cgotorch.Float32, 4, 10)
				p, dense := x.Detach(x.Narrow(all, 1, 0, 3)), x.Ones(cgotorch.Float32, 4, 3)
				for _, each := range []*cgotorch.Tensor{p, dense} {
					cgotorch.Check(each.SetRequiresGrad(true))
					setGrad(x, each, 1)
				}
				opt := cgotorch.Must(rule(Group{Params: []*cgotorch.Tensor{p, dense}}))
				defer opt.Close()
				opt.Step(x)
				opt.Step(x)
				if !x.Equal(p, dense) || x.Item(x.Sum(x.Narrow(all, 1, 3, 7))) != 28 {
					t.Errorf("%s, want %s in three columns", x.Format(all), x.Format(dense))
				}
			})
		})
	}
}

// In every floating dtype, fused and foreach steps of every rule give the results of float64, up
// to rounding. The sizes of the parameters are around the length of a vector and around the
// number of elements that one thread takes. LibTorch's fused kernels behave differently around
// these sizes: see sgd.canFuse.
func TestStep_EveryDType(t *testing.T) {
	rules := map[string]func(foreach bool, g Group) (*Optimizer, error){
		"sgd": func(foreach bool, g Group) (*Optimizer, error) {
			return NewSGD(SGDOptions{LR: 0.05, Foreach: foreach}, g)
		},
		"nesterov": func(foreach bool, g Group) (*Optimizer, error) {
			return NewSGD(SGDOptions{LR: 0.05, Momentum: 0.5, Nesterov: true, WeightDecay: 0.1, Foreach: foreach}, g)
		},
		"adam": func(foreach bool, g Group) (*Optimizer, error) {
			return NewAdam(AdamOptions{LR: 0.05, Eps: 0.01, WeightDecay: 0.1, Foreach: foreach}, g)
		},
		"adamw": func(foreach bool, g Group) (*Optimizer, error) {
			return NewAdamW(AdamOptions{LR: 0.05, Eps: 0.01, AMSGrad: true, Foreach: foreach}, g)
		},
		"rmsprop": func(_ bool, g Group) (*Optimizer, error) {
			return NewRMSprop(RMSpropOptions{Eps: 0.01, Momentum: 0.5, Centered: true}, g)
		},
		"adamax": func(_ bool, g Group) (*Optimizer, error) { return NewAdamax(AdamOptions{LR: 0.05, Eps: 0.01}, g) },
		"radam":  func(_ bool, g Group) (*Optimizer, error) { return NewRAdam(AdamOptions{LR: 0.05, Eps: 0.01}, g) },
		"lamb": func(_ bool, g Group) (*Optimizer, error) {
			return NewLAMB(AdamOptions{LR: 0.05, Eps: 0.01, WeightDecay: 0.1}, g)
		},
	}
	tolerances := map[cgotorch.DType]float64{cgotorch.Float64: 1e-12, cgotorch.Float32: 1e-5, cgotorch.Float16: 0.005, cgotorch.BFloat16: 0.03}
	torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
		for name, new := range rules {
			torchtest.Do(t, device, func(x *cgotorch.Exec) {
				var starts, grads []*cgotorch.Tensor
				for _, n := range []int64{1, 15, 16, 17, 33, 1000, 70_001} {
					starts = append(starts, x.Rand(cgotorch.Float64, n))
					grads = append(grads, x.AddScalar(x.Rand(cgotorch.Float64, n), 0.5)) // squares of gradients fit into float16
				}
				train := func(foreach bool, dtype cgotorch.DType) ([]*cgotorch.Tensor, error) {
					params := make([]*cgotorch.Tensor, len(starts))
					for i := range params {
						params[i] = x.Clone(x.To(starts[i], dtype))
						if err := params[i].SetGrad(x.To(grads[i], dtype)); err != nil {
							return nil, err
						}
					}
					opt, err := new(foreach, Group{Params: params})
					if err != nil {
						return nil, err
					}
					defer opt.Close()
					for range 3 {
						opt.Step(x)
					}
					for _, s := range opt.State(x).Tensors {
						if s.Tensor.DType() != dtype || s.Tensor.Device() != device {
							t.Errorf("%s keeps %v for a parameter of %v on %v", name, s.Tensor, dtype, device)
						}
					}
					return params, nil
				}
				want := cgotorch.Must(train(true, cgotorch.Float64))
				for dtype, tolerance := range tolerances {
					for _, foreach := range []bool{false, true} {
						got := cgotorch.Must(train(foreach, dtype))
						for i := range got {
							if d := x.Item(x.Max(x.Abs(x.Sub(x.To(got[i], cgotorch.Float64), want[i])))); !(d <= tolerance) {
								t.Errorf("%s on %v, foreach %v, %v: off by %v", name, device, foreach, got[i], d)
							}
						}
					}
				}
			})
		}
	})
}

func TestStep_DTypesInOneGroup(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		params := []*cgotorch.Tensor{param(x, 1), x.To(param(x, 2), cgotorch.BFloat16), param(x, 3)}
		setGrad(x, params[1], 1)
		opt := cgotorch.Must(NewSGD(SGDOptions{LR: 0.5}, Group{Params: params}))
		defer opt.Close()
		opt.Step(x)
		for i, p := range params {
			if got, want := values(x, p)[0], float32(i)+0.5; got != want {
				t.Errorf("parameter %d is %v, want %v", i, got, want)
			}
		}
		if n := len(opt.groups[0].buckets); n != 2 {
			t.Errorf("%d calls for two dtypes", n)
		}
		if !slices.Equal(opt.Params(), params) {
			t.Error("Params has another order than the group")
		}
	})
}

// A gradient that the program has set may have other strides than its parameter. Even then, steps
// must give the same results.
func TestStep_GradientOfAnotherLayout(t *testing.T) {
	for _, foreach := range []bool{false, true} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			grad := x.Contiguous(x.Reshape(x.Arange(cgotorch.Float32, 0, 120, nil), 2, 3, 4, 5), cgotorch.ChannelsLast)
			p := x.Zeros(cgotorch.Float32, 2, 3, 4, 5)
			cgotorch.Check(p.SetGrad(grad))
			opt := cgotorch.Must(NewSGD(SGDOptions{LR: 1, Momentum: 0.9, Foreach: foreach}, Group{Params: []*cgotorch.Tensor{p}}))
			defer opt.Close()
			opt.Step(x)
			opt.Step(x)
			for i, got := range values(x, p) {
				if want := -2.9 * float32(i); math.Abs(float64(got-want)) > 1e-4 {
					t.Fatalf("foreach %v: element %d is %v, want %v", foreach, i, got, want)
				}
			}
		})
	}
}

// A step leaves the gradients unchanged, so that a program can read them after the step.
// PyTorch's foreach SGD changes them.
func TestStep_LeavesGradients(t *testing.T) {
	for _, foreach := range []bool{false, true} {
		for _, decay := range []float64{0, 0.1} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				p, q := param(x, 1), param(x, 1)
				a := cgotorch.Must(NewSGD(SGDOptions{Momentum: 0.9, Nesterov: true, WeightDecay: decay, Foreach: foreach}, Group{Params: []*cgotorch.Tensor{p}}))
				defer a.Close()
				b := cgotorch.Must(NewAdam(AdamOptions{WeightDecay: decay, AMSGrad: true, Foreach: foreach}, Group{Params: []*cgotorch.Tensor{q}}))
				defer b.Close()
				for range 2 {
					a.Step(x)
					b.Step(x)
				}
				if p, q := values(x, p.Grad())[0], values(x, q.Grad())[0]; p != 1 || q != 1 {
					t.Errorf("foreach %v: gradients %v and %v, want 1", foreach, p, q)
				}
			})
		}
	}
}

func TestStep_Modes(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := x.Detach(param(x, 1, 2))
		cgotorch.Check(p.SetRequiresGrad(true))
		opt := cgotorch.Must(NewAdamW(AdamOptions{LR: 0.5, Foreach: true}, Group{Params: []*cgotorch.Tensor{p}}))
		defer opt.Close()
		x.Backward(x.Sum(p))
		opt.Step(x.WithGrad().Autocast(cgotorch.BFloat16)) // Step must not be recorded: a recorded change of the leaf p in place would fail
		if got := opt.parameters[0].state[0]; got.DType() != cgotorch.Float32 || got.RequiresGrad() {
			t.Errorf("keeps %v, requiring a gradient: %v", got, got.RequiresGrad())
		}
	})
}

func TestZeroGrad(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, q := param(x, 1), param(x, 1)
		opt := cgotorch.Must(NewSGD(SGDOptions{LR: 0.5}, Group{Params: []*cgotorch.Tensor{p}}, Group{Params: []*cgotorch.Tensor{q}}))
		opt.ZeroGrad()
		if p.Grad() != nil || q.Grad() != nil {
			t.Error("a gradient is left")
		}
		opt.Step(x)
		if got := values(x, p)[0]; got != 1 {
			t.Errorf("a parameter without a gradient was changed to %v", got)
		}
		if s := opt.State(x); s.Steps[0] != 0 {
			t.Errorf("its steps are %v", s.Steps)
		}
		p.Close()
		opt.ZeroGrad() // ZeroGrad must not fail for a closed parameter

	})
}

func TestStep_GroupsAndRates(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, q, r := param(x, 1), param(x, 1), param(x, 1)
		opt := cgotorch.Must(NewSGD(SGDOptions{LR: 0.5, WeightDecay: 1},
			Group{Params: []*cgotorch.Tensor{p}},
			Group{Params: []*cgotorch.Tensor{q}, LR: 0.25, WeightDecay: 3},
			Group{Params: []*cgotorch.Tensor{r}, NoWeightDecay: true}))
		defer opt.Close()
		opt.Step(x)
		for i, want := range []float32{0, 0, 0.5} {
			if got := values(x, opt.Params()[i])[0]; got != want {
				t.Errorf("group %d: %v, want %v", i, got, want)
			}
		}
		opt.SetLR(2)
		opt.SetScale(0.5)
		for i, want := range []float64{1, 0.125, 1} {
			if got := opt.LR(i); got != want {
				t.Errorf("group %d: learning rate %v, want %v", i, got, want)
			}
		}
	})
}

func TestStep_Fails(t *testing.T) {
	for _, c := range []struct {
		what   string
		spoil  func(o *Optimizer)
		is     error
		wanted string
	}{
		{"closed optimizer", func(o *Optimizer) { o.Close() }, cgotorch.ErrClosed, "sgd: the optimizer: closed"},
		{"closed parameter", func(o *Optimizer) { o.parameters[1].tensor.Close() }, cgotorch.ErrClosed, "sgd: parameter 1: closed"},
		{"learning rate", func(o *Optimizer) { o.SetLR(math.NaN()) }, cgotorch.ErrInvalidArgument, "group 0: a learning rate of NaN"},
		{"scale", func(o *Optimizer) { o.SetScale(-1) }, cgotorch.ErrInvalidArgument, "group 0: a learning rate of -0.5"},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			opt := cgotorch.Must(NewSGD(SGDOptions{LR: 0.5, Momentum: 0.9}, Group{Params: []*cgotorch.Tensor{param(x, 1), param(x, 1)}}))
			defer opt.Close()
			opt.Step(x)
			c.spoil(opt)
			opt.Step(x)
		})
		torchtest.WantError(t, err, c.is, c.wanted, "optimizer_test.go:")
	}
}

func TestClose_Twice(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		opt := cgotorch.Must(NewAdam(AdamOptions{AMSGrad: true}, Group{Params: []*cgotorch.Tensor{param(x, 1)}}))
		opt.Step(x)
		must.Do(t, opt.Close())
		return opt.Close()
	})
}

// Fused steps take no memory except the state. Foreach steps take at most as much memory as the
// parameters, and free it.
func TestStep_Memory(t *testing.T) {
	if _, err := cgotorch.CPU.Memory(); err != nil { // the first call starts the counting of memory
		t.Fatal(err)
	}
	const size = 1 << 20
	for _, foreach := range []bool{false, true} {
		for _, new := range []func(g Group) (*Optimizer, error){
			func(g Group) (*Optimizer, error) {
				return NewSGD(SGDOptions{Momentum: 0.9, WeightDecay: 0.1, Nesterov: true, Foreach: foreach}, g)
			},
			func(g Group) (*Optimizer, error) {
				return NewAdam(AdamOptions{WeightDecay: 0.1, AMSGrad: true, Foreach: foreach}, g)
			},
		} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				p := x.Zeros(cgotorch.Float32, size/4)
				setGrad(x, p, 1)
				opt, err := new(Group{Params: []*cgotorch.Tensor{p}})
				if err != nil {
					return err
				}
				defer opt.Close()
				opt.Step(x)
				before, _ := cgotorch.CPU.Memory()
				cgotorch.Check(cgotorch.CPU.ResetPeakMemory())
				opt.Step(x)
				after, err := cgotorch.CPU.Memory()
				if after.Allocated != before.Allocated {
					t.Errorf("%s, foreach %v: %d bytes before a step, %d after", opt.rule.name(), foreach, before.Allocated, after.Allocated)
				}
				extra, most := after.PeakAllocated-before.Allocated, int64(size)/100
				if foreach {
					most += int64(size)
				}
				if extra > most {
					t.Errorf("%s, foreach %v: a step took %d bytes, want at most %d", opt.rule.name(), foreach, extra, most)
				}
				return err
			})
		}
	}
}

func TestOptimizer_Minimize_EqualsThreeCalls(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, q := param(x, 1, 2), param(x, 1, 2) // with gradients, which the first call removes
		for _, t := range []*cgotorch.Tensor{p, q} {
			cgotorch.Check(t.SetRequiresGrad(true))
		}
		of := func(p *cgotorch.Tensor) *Optimizer {
			return cgotorch.Must(NewSGD(SGDOptions{LR: 0.1, Momentum: 0.9}, Group{Params: []*cgotorch.Tensor{p}}))
		}
		a, b := of(p), of(q)
		defer a.Close()
		defer b.Close()
		for range 3 {
			a.Minimize(x, x.Sum(x.Mul(p, p)))
			b.ZeroGrad()
			x.Backward(x.Sum(x.Mul(q, q)))
			b.Step(x)
		}
		if got, want := values(x, p), values(x, q); !slices.Equal(got, want) || got[0] == 1 {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
