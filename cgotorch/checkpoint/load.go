package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// Load makes a run continue from a checkpoint. It loads the model, LibTorch's default generators,
// and the optimizer unless opt is nil. Dtypes are converted. The CUDA generator is restored only
// if x's device is CUDA and was CUDA when the run was saved. Load waits for the device. From the
// Info that Load returns, the caller restores a scaler and the state of the program. [LoadEMA]
// restores averages.
//
// Load fails with [ErrDamaged] for a damaged file. It fails with a [*nn.LoadError] if model does
// not fit the checkpoint. It also fails if opt does not fit. In these three cases nothing has
// changed. Use [LoadModel] for a file that this package has not saved.
//
// With a distributed.Sharded, each rank calls Load and takes its part of the state. The number of
// ranks may differ from that of the run that was saved.
func Load(x *cgotorch.Exec, path string, model any, opt Optimizer) (Info, error) {
	f, err := openWhole(path)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	if f.info.Version == 0 {
		return Info{}, f.fail("it holds tensors alone, no run to go on with: use LoadModel for a state dict")
	}
	x = x.NoGrad().NoAutocast()
	matched, err := f.match(x, model, nn.LoadOptions{})
	if err != nil {
		return Info{}, err
	}
	generators, err := f.generators(x.Device())
	if err != nil {
		return Info{}, err
	}
	if !none(opt) {
		if err := f.restore(x, model, opt); err != nil {
			return Info{}, err
		}
	}
	if err := f.copyTo(x, matched); err != nil {
		return Info{}, err
	}
	for device, state := range generators {
		if err := cgotorch.SetGeneratorState(device, state); err != nil {
			return Info{}, f.fail("the state of %v's generator: %w", device, err)
		}
	}
	return f.info, nil
}

// LoadEMA makes averages of the model's parameters continue from a checkpoint. It waits for the
// device. It fails with [ErrDamaged] for a damaged file. It also fails if the checkpoint lacks
// the average of a parameter. In these cases nothing has changed.
func LoadEMA(x *cgotorch.Exec, path string, model any, ema *optim.EMA) error {
	f, err := openWhole(path)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := paramNames("the averages", ema.Params(), tensorNames(model))
	if err != nil {
		return f.fail("%w", err)
	}
	var averages []*cgotorch.Tensor
	defer func() {
		for _, t := range averages {
			t.Close()
		}
	}()
	for _, name := range names {
		t, err := f.tensor(x, ofEMA+name)
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

// LoadModel copies a model's tensors from a checkpoint, from another safetensors file such as a
// torchvision state dict, or from a file of PyTorch's torch.save. The path may also be that of a
// folder or an index of several files, as [pth.OpenWeights] opens it. Dtypes are converted. If the
// model's number of classes differs from that in the file, skip the last layer with
// [nn.LoadOptions].Skip. Names with a prefix, such as "module.", are changed by
// [nn.LoadOptions].Rename. LoadModel waits for the device.
//
// Of a tied weight, which the model holds under several names, the file needs one name, as in
// [nn.Load]. If the file's metadata note that a name was left out for another one, as Python's
// safetensors.torch.save_model does, the tensor of that one is loaded for both.
//
// LoadModel fails with [ErrDamaged] for a damaged file. It fails with a [*nn.LoadError] if names
// or shapes differ, unless o allows the difference. In these cases nothing has changed.
func LoadModel(x *cgotorch.Exec, path string, model any, o nn.LoadOptions) error {
	f, err := openWhole(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.loadModel(x, model, o)
}

// LoadWeights is [LoadModel] for weights that are open. Those of an embed.FS come from
// [pth.OpenWeightsFS]. The weights stay the caller's.
func LoadWeights(x *cgotorch.Exec, weights pth.Weights, model any, o nn.LoadOptions) error {
	f, err := newFile(weights)
	if err != nil {
		return err
	}
	if err := f.verify(); err != nil {
		return err
	}
	return f.loadModel(x, model, o)
}

func (f *file) loadModel(x *cgotorch.Exec, model any, o nn.LoadOptions) error {
	x = x.NoGrad().NoAutocast()
	matched, err := f.match(x, model, o)
	if err != nil {
		return err
	}
	return f.copyTo(x, matched)
}

// match returns the model's tensors that the file has. It reads no tensors, but for those that the
// file has under several names of one tensor of the model.
func (f *file) match(x *cgotorch.Exec, model any, o nn.LoadOptions) ([]nn.Matched, error) {
	if err := nn.Check(model); err != nil {
		return nil, f.fail("%w", err)
	}
	if len(nn.State(model)) == 0 {
		return nil, f.fail("the model, a %T, has no tensors: give a pointer to a module", model)
	}
	var entries []nn.Entry
	var unread error
	add := func(name string, t safetensors.Info, of string) {
		load := func(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
			tensor, err := f.tensor(x, t.Name)
			unread = err
			return tensor, err
		}
		shown := fmt.Sprintf("%s%v", t.DType, t.Shape)
		if t.Bytes == 0 { // it is empty, or cannot be read
			if _, err := f.Read(t.Name); err != nil {
				shown = err.Error()
			}
		}
		entries = append(entries, nn.Entry{Name: name, Shape: t.Shape, Text: shown, Of: of, Load: load})
	}
	for _, t := range f.Tensors() {
		if f.ofModel(t.Name) {
			add(t.Name, t, "")
		}
	}
	// Python's save_model notes the names of tied weights that it leaves out.
	for _, name := range slices.Sorted(maps.Keys(f.Metadata())) {
		of := f.Metadata()[name]
		_, stored := f.Lookup(name)
		if t, ok := f.Lookup(of); ok && !stored && f.ofModel(name) && f.ofModel(of) {
			add(name, t, of)
		}
	}
	matched, err := nn.Match(x, model, entries, o)
	if mismatch := (*nn.LoadError)(nil); errors.As(err, &mismatch) {
		return nil, f.fail("it is of another model than this %T: %w", model, err)
	} else if unread != nil {
		return nil, unread
	} else if err != nil {
		return nil, f.fail("%w", err)
	}
	for _, n := range matched {
		t, _ := f.Lookup(n.Stored)
		if _, ok := DType(t.DType); !ok {
			return nil, f.unsupported(t)
		}
	}
	return matched, nil
}

// unsupported returns the error for a tensor whose dtype no model has. Read says more about those
// that cannot be read at all.
func (f *file) unsupported(t safetensors.Info) error {
	if _, err := f.Read(t.Name); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return f.fail("tensor %s: LibTorch has no %s for a model: convert it first, in Python with .float()", t.Name, t.DType)
}

func (f *file) copyTo(x *cgotorch.Exec, matched []nn.Matched) error {
	for _, n := range matched {
		t, err := f.tensor(x, n.Stored)
		if err != nil {
			return err
		}
		nn.Copy(x, n.Tensor, t)
		t.Close()
	}
	return nil
}

func tensorNames(model any) map[*cgotorch.Tensor]string {
	names := map[*cgotorch.Tensor]string{}
	for _, n := range nn.State(model) {
		names[n.Tensor] = n.Name
	}
	return names
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

// restore restores the optimizer. It finds the state of each parameter by the parameter's name, so
// the order of parameters does not matter.
func (f *file) restore(x *cgotorch.Exec, model any, opt Optimizer) error {
	saved := f.info.Optimizer
	if saved == nil {
		return f.fail("it was saved without an optimizer: load it with none")
	}
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
