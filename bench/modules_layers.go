package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// linears are linear layers and ReLUs, one after another, as in modules.py.
type linears struct {
	Weight []*cgotorch.Tensor // [width, width]
}

func (m *linears) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		for _, w := range m.Weight {
			in = x.ReLUInPlace(x.Linear(in, w, nil))
		}
		return x.LayerNorm(in, []int64{in.Shape()[1]}, nil, nil, cgotorch.LayerNormOptions{})
	})
}

// benchModulesLayers runs passes through a stack of layers that come from host memory in order.
func benchModulesLayers(c *config, emit func(row)) error {
	s := switches{}
	p, err := c.startPeer("modules.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	n, width, depth, tokens, passes := c.or(3, 24), c.or(64, 2048), 4, c.or(8, 16384), c.or(1, 4)
	dtype := c.dtype()
	store, err := layerStore(n, width, depth, dtype)
	if err != nil {
		return err
	}
	defer store.Close()
	stream := cgotorch.DefaultStream(c.device)
	var in *cgotorch.Tensor
	if err := stream.Do(func(x *cgotorch.Exec) error {
		in = x.Keep(x.To(x.Randn(cgotorch.Float32, int64(tokens), int64(width)), dtype))
		return nil
	}); err != nil {
		return err
	}
	defer in.Close()
	pass := func(cache *weights.Cache[*linears]) side {
		return func() (float64, error) {
			seconds, err := c.secondsEach(passes, func() error {
				return stream.Do(func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					hidden := x.Alias(in)
					for _, name := range store.Units() {
						u := cache.Use(x, name)
						next := u.Module.Forward(x, hidden)
						u.Release(x)
						hidden.Close()
						hidden = next
					}
					return nil
				})
			})
			return 1e3 * seconds, err
		}
	}
	var sides []side
	var ahead *weights.Cache[*linears]
	for _, policy := range []weights.Policy{weights.Resident, weights.OnDemand, weights.NextLayer} {
		ahead, err = weights.NewCache(store, c.device, newLinears(width, depth, dtype), weights.CacheOptions{Policy: policy})
		if err != nil {
			return err
		}
		defer ahead.Close()
		sides = append(sides, pass(ahead))
	}
	ask := func(mode string) side {
		return p.value("milliseconds", "layers", "mode", mode, "device", c.device.String(), "n", n, "kind", "linear", "width", width, "depth", depth, "tokens", tokens, "passes", passes, "dtype", dtype.String())
	}
	values, err := interleave(c.roundsOr(7), append(sides, ask("resident"), ask("on_demand"), ask("ahead"))...)
	if err != nil {
		return err
	}
	st := ahead.Stats()
	note := fmt.Sprintf("%d layers of %d %v matrices [%d, %d], %d tokens; ms a pass resident %.2f, on demand %.2f, ahead %.2f, PyTorch %.2f, %.2f, %.2f; %.3f of the copying hidden; %v; %s; %v; %s", n, depth, dtype, width, width, tokens,
		values[0].median(), values[1].median(), values[2].median(), values[3].median(), values[4].median(), values[5].median(), st.Hidden(), values[2], c.settings(), s, p.versions)
	emit(against("modules/layers/ahead", values[2].median(), "ms", "PyTorch, two slots by hand", values[5].median(), lower, note))
	emit(against("modules/layers/resident", values[2].median(), "ms", "resident", values[0].median(), lower, note))
	emit(against("modules/layers/on-demand", values[1].median(), "ms", "PyTorch, on demand", values[4].median(), lower, note))
	return nil
}

func newLinears(width, depth int, dtype cgotorch.DType) func(x *cgotorch.Exec, name string) (*linears, error) {
	return func(x *cgotorch.Exec, _ string) (*linears, error) {
		m := &linears{}
		for range depth {
			m.Weight = append(m.Weight, x.Keep(x.Empty(dtype, int64(width), int64(width))))
		}
		return m, nil
	}
}

func layerStore(n, width, depth int, dtype cgotorch.DType) (*weights.Store, error) {
	var specs []weights.UnitSpec
	for i := range n {
		m := weights.UnitSpec{Name: fmt.Sprint(i)}
		for k := range depth {
			m.Tensors = append(m.Tensors, weights.TensorSpec{Name: fmt.Sprintf("weight.%d", k), DType: dtype, Shape: []int64{int64(width), int64(width)}})
		}
		specs = append(specs, m)
	}
	store, err := weights.NewStore(specs)
	if err != nil {
		return nil, err
	}
	noise := switchShape{dtype: dtype}.noise(width*width, 1/math.Sqrt(float64(width)))
	for _, m := range specs {
		for _, t := range m.Tensors {
			to, err := store.Bytes(m.Name, t.Name)
			if err != nil {
				return nil, errors.Join(err, store.Close())
			}
			copy(to, noise)
		}
	}
	return store, nil
}

// benchModulesOptimizer steps Adam with its state on the device and in host memory.
func benchModulesOptimizer(c *config, emit func(row)) error {
	s := switches{}
	p, err := c.startPeer("modules.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	groups, tensors, elements, steps := 8, 4, c.or(1000, 4<<20), c.or(1, 3)
	own, err := newAdamSide(c, groups*tensors, elements)
	if err != nil {
		return err
	}
	defer own.close()
	off, err := newAdamSide(c, groups*tensors, elements)
	if err != nil {
		return err
	}
	defer off.close()
	if off.offload, err = weights.NewOffload(off.opt, c.device, weights.OffloadOptions{PartBytes: int64(8 * elements * tensors), Slots: 4}); err != nil {
		return err
	}
	ask := func(mode string) side {
		return p.value("milliseconds", "optimizer", "mode", mode, "device", c.device.String(), "groups", groups, "tensors", tensors, "elements", elements, "steps", steps)
	}
	values, err := interleave(c.roundsOr(7), own.steps(c, steps), off.steps(c, steps), ask("resident"), ask("moved"), ask("host"))
	if err != nil {
		return err
	}
	host, device := off.offload.Memory()
	st := off.offload.Stats()
	note := fmt.Sprintf("Adam, %d float32 parameters of %d elements; ms a step resident %.2f, offloaded %.2f; PyTorch resident %.2f, moved %.2f, on the CPU %.2f; state of %d bytes in host memory, slots of %d bytes on the device; %.3f of the copying hidden; %v; %s; %v; %s",
		groups*tensors, elements, values[0].median(), values[1].median(), values[2].median(), values[3].median(), values[4].median(), host, device, st.Hidden(), values[1], c.settings(), s, p.versions)
	emit(against("modules/optimizer/moved", values[1].median(), "ms", "PyTorch, moved group by group", values[3].median(), lower, note))
	emit(against("modules/optimizer/host", values[1].median(), "ms", "PyTorch, Adam on the CPU", values[4].median(), lower, note))
	emit(against("modules/optimizer/resident", values[0].median(), "ms", "PyTorch, resident", values[2].median(), lower, note))
	return nil
}

// adamSide is Adam over random parameters and gradients.
type adamSide struct {
	stream  *cgotorch.Stream
	params  []*cgotorch.Tensor
	opt     *optim.Optimizer
	offload *weights.Offload // or nil
}

func newAdamSide(c *config, n, elements int) (*adamSide, error) {
	a := &adamSide{stream: cgotorch.DefaultStream(c.device)}
	err := a.stream.Do(func(x *cgotorch.Exec) error {
		for range n {
			p := x.Keep(x.Randn(cgotorch.Float32, int64(elements)))
			if err := errors.Join(p.SetRequiresGrad(true), p.SetGrad(x.Keep(x.Randn(cgotorch.Float32, int64(elements))))); err != nil {
				return err
			}
			a.params = append(a.params, p)
		}
		return nil
	})
	if err == nil {
		a.opt, err = optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: a.params})
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *adamSide) steps(c *config, n int) side {
	return func() (float64, error) {
		seconds, err := c.secondsEach(n, func() error {
			return a.stream.Do(func(x *cgotorch.Exec) error {
				if a.offload != nil {
					a.offload.Step(x)
				} else {
					a.opt.Step(x)
				}
				return nil
			})
		})
		return 1e3 * seconds, err
	}
}

func (a *adamSide) close() {
	if a.offload != nil {
		a.offload.Close()
	}
	if a.opt != nil {
		a.opt.Close()
	}
	for _, p := range a.params {
		p.Close()
	}
}
