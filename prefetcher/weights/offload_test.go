package weights

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A parameter with gaps between its elements is refused, because its state would overlap the
// state of the next parameter.
func TestNewOffload_Strided(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, cgotorch.CPU)
	var p *cgotorch.Tensor
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { p = x.Keep(x.Narrow(x.Zeros(cgotorch.Float32, 4, 8), 1, 0, 4)) })
	defer p.Close()
	opt := must.Get(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*cgotorch.Tensor{p}}))(t)
	defer opt.Close()
	if _, err := NewOffload(opt, cgotorch.CPU, OffloadOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "parameter 0 has gaps") {
		t.Errorf("got %v", err)
	}
}

// network is a model with parameters of several sizes. The weight of Conv is channels last.
type network struct {
	Conv *nn.Conv2d
	A, B *nn.Linear
}

func newNetwork(x *cgotorch.Exec, dtype cgotorch.DType) *network {
	m := &network{
		Conv: nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{}),
		A:    nn.NewLinear(x, 4*4*4, 32, nn.LinearOptions{}),
		B:    nn.NewLinear(x, 32, 5, nn.LinearOptions{}),
	}
	nn.To(x, m, nn.ToOptions{DType: dtype, ChannelsLast: true})
	return m
}

func (m *network) loss(x *cgotorch.Exec) *cgotorch.Tensor {
	in := x.Contiguous(x.To(x.View(x.Sin(x.Arange(cgotorch.Float32, 0, 2*3*6*6, nil)), 2, 3, 6, 6), m.A.Weight.DType()), cgotorch.ChannelsLast)
	hidden := x.ReLU(m.Conv.Forward(x, in))
	out := m.B.Forward(x, x.ReLU(m.A.Forward(x, x.Flatten(hidden, 1, -1))))
	return nn.CrossEntropy(x, out, cgotorch.FromSlice(x, []int64{1, 3}), nn.CrossEntropyOptions{})
}

// trainNetwork trains a network and returns its weights. If `offload` is set, the optimizer's
// state lies in host memory.
func trainNetwork(t *testing.T, s *cgotorch.Stream, dtype cgotorch.DType, make func(groups ...optim.Group) (*optim.Optimizer, error), offload bool) (weights [][]byte) {
	var m *network
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		must.Do(t, cgotorch.Seed(3))
		m = newNetwork(x, dtype)
	})
	defer nn.Close(m)
	opt := must.Get(make(optim.Group{Params: nn.Parameters(m)}))(t)
	defer opt.Close()
	step := opt.Step
	if offload {
		f := must.Get(NewOffload(opt, s.Device(), OffloadOptions{UnitBytes: 1000, Slots: 2}))(t)
		defer f.Close()
		if len(f.units) < 2 {
			t.Errorf("%d units", len(f.units))
		}
		step = f.Step
		defer func() {
			st := f.Stats()
			if st.Written == 0 || st.Misses > 1 {
				t.Errorf("%+v", st)
			}
			must.Check(t, f.cache.Flush(context.Background()))
		}()
	}
	for range 5 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			opt.ZeroGrad()
			x.Backward(m.loss(x))
			step(x)
		})
	}
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		for _, p := range nn.Parameters(m) {
			weights = append(weights, cgotorch.ToBytes(x, p))
		}
	})
	return weights
}

// Steps with the state in host memory give the same bits as steps with the state on the device.
func TestOffload_Step(t *testing.T) {
	for name, make := range map[string]func(groups ...optim.Group) (*optim.Optimizer, error){
		"adam": func(g ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewAdam(optim.AdamOptions{LR: 0.01}, g...)
		},
		"adamw, masters": func(g ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewAdamW(optim.AdamOptions{LR: 0.01, MasterWeights: true}, g...)
		},
		"adam, foreach": func(g ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewAdam(optim.AdamOptions{LR: 0.01, AMSGrad: true, Foreach: true}, g...)
		},
		"sgd": func(g ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewSGD(optim.SGDOptions{LR: 0.01, Momentum: 0.9}, g...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				dtype := cgotorch.Float32
				if name == "adamw, masters" {
					dtype = cgotorch.BFloat16
				}
				s := torchtest.NewStream(t, d)
				want, got := trainNetwork(t, s, dtype, make, false), trainNetwork(t, s, dtype, make, true)
				for i := range want {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("parameter %d has other bits", i)
					}
				}
			})
		})
	}
}

// A run that was saved and loaded ends with the bits of a run that was not. The checkpoint of an
// Offload is that of any optimizer, so either can load it.
func TestOffload_Checkpoint(t *testing.T) {
	for _, masters := range []bool{false, true} {
		torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
			s := torchtest.NewStream(t, d)
			dtype := cgotorch.Float32
			if masters {
				dtype = cgotorch.BFloat16
			}
			path := filepath.Join(t.TempDir(), "a.safetensors")
			// train does some steps and returns the weights.
			train := func(offload bool, steps int, load, save bool) (weights [][]byte) {
				var m *network
				torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
					must.Do(t, cgotorch.Seed(3))
					m = newNetwork(x, dtype)
				})
				defer nn.Close(m)
				opt, err := optim.NewAdamW(optim.AdamOptions{LR: 0.01, MasterWeights: masters}, optim.Group{Params: nn.Parameters(m)})
				must.Do(t, err)
				defer opt.Close()
				step := opt.Step
				var f *Offload
				if offload {
					if f, err = NewOffload(opt, d, OffloadOptions{UnitBytes: 1000, Slots: 2}); err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					step = f.Step
				}
				if load {
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) error {
						return checkpoint.Resume(x, path, &checkpoint.Checkpoint{Model: m, Optimizer: opt})
					})
				}
				for range steps {
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
						opt.ZeroGrad()
						x.Backward(m.loss(x))
						step(x)
					})
				}
				torchtest.DoOn(t, s, func(x *cgotorch.Exec) error {
					for _, p := range nn.Parameters(m) {
						weights = append(weights, cgotorch.ToBytes(x, p))
					}
					if !save {
						return nil
					}
					return checkpoint.Save(x, path, checkpoint.Checkpoint{Model: m, Optimizer: opt})
				})
				if offload && save { // the state goes with the Offload
					f.Close()
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
						err := checkpoint.Save(x, path+".late", checkpoint.Checkpoint{Model: m, Optimizer: opt})
						if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "before the weights.Offload is closed") {
							t.Errorf("after Close: got %v", err)
						}
					})
				}
				return weights
			}
			want := train(false, 6, false, false)
			for _, from := range []bool{false, true} {
				train(from, 3, false, true)
				for _, to := range []bool{false, true} {
					for i, got := range train(to, 3, true, false) {
						if !slices.Equal(got, want[i]) {
							t.Errorf("masters %v, saved with an Offload %v, loaded into one %v: parameter %d has other bits", masters, from, to, i)
						}
					}
				}
			}
		})
	}
}

func TestNewOffload_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, cgotorch.CPU)
	var p *cgotorch.Tensor
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { p = x.Keep(x.Zeros(cgotorch.Float32, 3)) })
	defer p.Close()
	sgd := must.Get(optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: []*cgotorch.Tensor{p}}))(t)
	defer sgd.Close()
	adam := must.Get(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*cgotorch.Tensor{p}}))(t)
	defer adam.Close()
	if _, err := NewOffload(sgd, cgotorch.CPU, OffloadOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("a rule that remembers nothing: %v", err)
	}
	if _, err := NewOffload(adam, cgotorch.CUDA(0), OffloadOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("parameters elsewhere: %v", err)
	}
	if _, err := NewOffload(adam, cgotorch.CPU, OffloadOptions{UnitBytes: -1}); !errors.Is(err, ErrInvalidOptions) {
		t.Errorf("negative: %v", err)
	}
}
