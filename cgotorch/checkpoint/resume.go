package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Resume makes the run of c continue from a checkpoint. It loads the model, LibTorch's default
// generators, and the optimizer, LBFGS, scaler and averages that c has. It sets c.Epoch and c.Step.
// It decodes the loader's place and the settings into c.Loader and c.Config, unless these are nil.
// Both must then be pointers, or decode JSON themselves as loaders do. The same c can then be
// saved again. Dtypes are converted. The CUDA generator is restored only if x's device is CUDA and
// was CUDA when the run was saved. Resume waits for the device.
//
// Resume fails with [ErrDamaged] for a damaged file, and with a [*nn.LoadError] if the model does
// not fit the checkpoint. It fails if the optimizer does not fit, if the checkpoint lacks a part
// that c has, and if its Epoch does not fit its Loader, see [Save]. In these cases nothing has
// changed. It also fails if another part does not fit, for instance a loader of other data. The
// model and the generators have then not changed. Use [LoadModel] for a file that this package has
// not saved.
//
// With a distributed.Sharded, each rank calls Resume and takes its part of the state. The number of
// ranks may differ from that of the run that was saved.
func Resume(x *cgotorch.Exec, path string, c *Checkpoint) error {
	f, err := openWhole(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.info.Version == 0 {
		return f.fail("it holds tensors alone, no run to go on with: use LoadModel for a state dict")
	}
	x = x.NoGrad().NoAutocast()
	matched, err := f.match(x, c.Model, nn.LoadOptions{})
	if err != nil {
		return err
	}
	generators, err := f.generators(x.Device())
	if err != nil {
		return err
	}
	if err := f.lacks(c); err != nil {
		return err
	}
	if err := f.restore(x, c); err != nil {
		return err
	}
	if err := f.copyTo(x, matched); err != nil {
		return err
	}
	for device, state := range generators {
		if err := cgotorch.SetGeneratorState(device, state); err != nil {
			return f.fail("the state of %v's generator: %w", device, err)
		}
	}
	c.Epoch, c.Step = f.info.Epoch, f.info.Step
	return nil
}

// lacks fails if c has a part with which the run was not saved.
func (f *file) lacks(c *Checkpoint) error {
	for _, part := range []struct {
		name        string
		want, saved bool
	}{
		{"an optimizer", !none(c.Optimizer), f.info.Optimizer != nil},
		{"an LBFGS", c.LBFGS != nil, f.info.LBFGS != nil},
		{"a scaler", c.Scaler != nil, f.info.Scaler != nil},
		{"a Loader", c.Loader != nil, f.info.Loader != nil},
		{"a Config", c.Config != nil, f.info.Config != nil},
	} {
		if part.want && !part.saved {
			return f.fail("it was saved without %s: leave it out of the Checkpoint", part.name)
		}
	}
	if err := f.info.fits(); err != nil && c.Loader != nil {
		return f.fail("its %w; to continue from this file, leave the Loader out of the Checkpoint and Restore it yourself: %w", err, cgotorch.ErrInvalidArgument)
	}
	if c.EMA == nil {
		return nil
	}
	names, err := paramNames("the averages", c.EMA.Params(), tensorNames(c.Model))
	if err != nil {
		return f.fail("%w", err)
	}
	for _, name := range names {
		if _, ok := f.Lookup(ofEMA + name); !ok {
			return f.fail("it was saved without an average of %s: leave the EMA out of the Checkpoint", name)
		}
	}
	return nil
}

// restore restores all parts of c but the model.
func (f *file) restore(x *cgotorch.Exec, c *Checkpoint) error {
	if !none(c.Optimizer) {
		if err := f.restoreOptimizer(x, c.Model, c.Optimizer); err != nil {
			return err
		}
	}
	if c.LBFGS != nil {
		if err := f.restoreLBFGS(x, c.Model, c.LBFGS); err != nil {
			return err
		}
	}
	if c.EMA != nil {
		if err := f.restoreEMA(x, c.Model, c.EMA); err != nil {
			return err
		}
	}
	if c.Scaler != nil {
		if err := c.Scaler.Restore(x, *f.info.Scaler); err != nil {
			return f.fail("%w", err)
		}
	}
	if c.Config != nil {
		if err := json.Unmarshal(f.info.Config, c.Config); err != nil {
			return f.fail("Config: %w", err)
		}
	}
	if c.Loader != nil {
		if err := json.Unmarshal(f.info.Loader, c.Loader); err != nil {
			return f.fail("Loader: %w", err)
		}
	}
	return nil
}

// restoreEMA restores the averages. The file has one of each parameter.
func (f *file) restoreEMA(x *cgotorch.Exec, model any, ema *optim.EMA) error {
	var averages []*cgotorch.Tensor
	defer func() {
		for _, t := range averages {
			t.Close()
		}
	}()
	names := tensorNames(model)
	for _, p := range ema.Params() {
		t, err := f.tensor(x, ofEMA+names[p])
		if err != nil {
			return err
		}
		averages = append(averages, t)
	}
	if err := ema.Restore(x, averages); err != nil {
		return f.fail("%w", err)
	}
	return nil
}

// ratesOf returns the learning rates of groups, by the numbers that an optimizer has for the groups
// of the same parameters. `names` are the names of its parameters.
func (saved *OptimizerInfo) ratesOf(opt *optim.Optimizer, names []string) (map[int]float64, error) {
	rates := map[int]float64{}
	for group, lr := range saved.GroupLRs {
		want := slices.Sorted(slices.Values(saved.Groups[group]))
		number := -1
		var have []string
		for i, name := range names {
			if number < 0 && slices.Contains(want, name) {
				number = opt.GroupOf(i)
			}
		}
		for i, name := range names {
			if number >= 0 && opt.GroupOf(i) == number {
				have = append(have, name)
			}
		}
		slices.Sort(have)
		if !slices.Equal(want, have) {
			return nil, fmt.Errorf("SetGroupLR gave a learning rate of %v to the group of %.200s, and this optimizer has no group of these parameters: divide its parameters in the same way", lr, strings.Join(want, ", "))
		}
		rates[number] = lr
	}
	return rates, nil
}

// restoreOptimizer finds the state of each parameter by the parameter's name, so
// the order of parameters does not matter.
func (f *file) restoreOptimizer(x *cgotorch.Exec, model any, opt Optimizer) error {
	saved := f.info.Optimizer
	if len(saved.Steps) != len(saved.Params) {
		return f.fail("its optimizer has %d parameters and %d counts of steps: %w", len(saved.Params), len(saved.Steps), ErrDamaged)
	}
	steps := map[string]int64{}
	for i, name := range saved.Params {
		steps[name] = saved.Steps[i]
	}
	tensors := opt.Params()
	params, err := paramNames("the optimizer", tensors, tensorNames(model))
	if err != nil {
		return f.fail("%w", err)
	}
	state := optim.State{Rule: saved.Rule, LR: saved.LR, Scale: saved.Scale, GroupLRs: saved.GroupLRs}
	if own, ok := opt.(*optim.Optimizer); ok && saved.Groups != nil {
		if state.GroupLRs, err = saved.ratesOf(own, params); err != nil {
			return f.fail("%w", err)
		}
	}
	index := map[string]int{}
	for i, name := range params {
		n, ok := steps[name]
		if !ok {
			return f.fail("its optimizer did not have the parameter %s, which this one has", name)
		}
		state.Steps = append(state.Steps, n)
		index[name] = i
		delete(steps, name)
	}
	if len(steps) > 0 {
		return f.fail("its optimizer had parameters that this one has not: %s", strings.Join(slices.Sorted(maps.Keys(steps)), ", "))
	}
	for _, t := range f.Tensors() {
		rest, ok := strings.CutPrefix(t.Name, ofOptimizer)
		if !ok {
			continue
		}
		kind, name, _ := strings.Cut(rest, "/")
		i, ok := index[name]
		if !ok {
			return f.fail("tensor %s is of no parameter: %w", t.Name, ErrDamaged)
		}
		dtype, ok := DType(t.DType)
		if !ok {
			return f.unsupported(t)
		}
		if want := tensors[i]; !slices.Equal(t.Shape, want.Shape()) {
			return f.fail("tensor %s has the shape %v, the parameter is %s: %w", t.Name, t.Shape, want, cgotorch.ErrInvalidArgument)
		}
		load := func(x *cgotorch.Exec) (*cgotorch.Tensor, error) { return f.tensor(x, t.Name) } // one at a time: an Offload's state is larger than the device
		state.Tensors = append(state.Tensors, optim.RememberedTensor{Param: i, Name: kind, DType: dtype, Load: load})
	}
	if err := opt.Restore(x, state); err != nil {
		return f.fail("%w", err)
	}
	return nil
}

func (f *file) generators(device cgotorch.Device) (map[cgotorch.Device][]byte, error) {
	states := map[cgotorch.Device][]byte{}
	for name, d := range map[string]cgotorch.Device{cpuGenerator: cgotorch.CPU, gpuGenerator: device} {
		if _, saved := f.Lookup(name); !saved || (name == gpuGenerator && !device.IsCUDA()) {
			continue
		}
		state, err := f.Read(name)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
		states[d] = state
	}
	return states, nil
}
