package checkpoint

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// Checkpoint is a run that [Save] saves and [Resume] continues. All fields except Model may be left
// out.
type Checkpoint struct {
	Model     any           // a pointer to a module of package nn
	Optimizer Optimizer     // an *optim.Optimizer or *distributed.Sharded; its parameters must belong to Model
	LBFGS     *optim.LBFGS  // its parameters must belong to Model
	Scaler    *optim.Scaler // the scaler of the gradients
	EMA       *optim.EMA    // its parameters must belong to Model; must not be saved between two Swaps
	Epoch     int           // the number of the epoch, from 0; with a Loader it is the epoch of the Loader's place
	Step      int           // the number of the step, as the program counts
	Loader    any           // the place in the data: a prefetcher, a data.Loader, or any value that JSON can hold
	Config    any           // settings to make the model and the run again; any value that JSON can hold
	NotFinite bool          // also saves tensors with NaN or Inf
}

// Save writes a checkpoint. It adds the states of LibTorch's default generators, of the CPU and
// of x's device. Save waits for the device. The complete new file replaces an old file at path.
// If Save fails, for instance because the disk is full, the old file stays. It also stays if an
// operator panics. Save fails with the error of [nn.Check], and never saves a part of a model.
//
// Save fails with [cgotorch.ErrInvalidArgument] for a tensor with NaN, of the model, the optimizer
// or the averages, unless NotFinite is set. It fails for a tensor with Inf too, but not for a
// buffer of the model, such as a mask.
//
// Loader's place is in the epoch of the loop over its batches, and after the whole loop it is the
// start of the next epoch. Save fails with [cgotorch.ErrInvalidArgument] if Epoch is another
// number. A program that counts no epochs may leave Epoch 0 inside such loops.
//
// With a distributed.Sharded, all ranks call Save, because all have parts of its state. Rank 0
// writes the file, and alone learns whether that has failed. The other ranks return before the file
// is there.
func Save(x *cgotorch.Exec, path string, c Checkpoint) error {
	tensors, info, err := c.contents(x)
	if err != nil {
		return fmt.Errorf("checkpoint: %s: not saved: %w", path, err)
	}
	if shared, ok := c.Optimizer.(interface{ Saves() bool }); ok && !none(c.Optimizer) && !shared.Saves() {
		return nil
	}
	text, err := json.Marshal(info)
	if err != nil { // for instance if a learning rate is NaN
		return fmt.Errorf("checkpoint: %s: not saved: %w", path, err)
	}
	if !c.NotFinite {
		refuseNotFinite(tensors, c.Model)
	}
	tensors = withChecksums(tensors, text)
	if err := safetensors.WriteFile(path, tensors, map[string]string{"format": "pt", metadataKey: string(text)}); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (c *Checkpoint) contents(x *cgotorch.Exec) ([]safetensors.Tensor, Info, error) {
	info := Info{Version: version, Epoch: c.Epoch, Step: c.Step}
	fail := func(format string, args ...any) ([]safetensors.Tensor, Info, error) {
		return nil, info, fmt.Errorf(format, args...)
	}
	var err error
	if info.Loader, err = raw(c.Loader); err != nil {
		return fail("Loader: %w", err)
	}
	if err := info.fits(); err != nil {
		return fail("%w: %w", err, cgotorch.ErrInvalidArgument)
	}
	if info.Config, err = raw(c.Config); err != nil {
		return fail("Config: %w", err)
	}
	if err := nn.Check(c.Model); err != nil {
		return nil, info, err
	}
	var tensors []safetensors.Tensor
	names := map[*cgotorch.Tensor]string{}
	for _, n := range nn.State(c.Model) {
		if strings.Contains(n.Name, "/") {
			return fail("the model has a tensor named %s: names with a slash are the checkpoint's own", n.Name)
		}
		t, err := entry(x, n.Name, n.Tensor)
		if err != nil {
			return fail("tensor %s: %w", n.Name, err)
		}
		tensors = append(tensors, t)
		names[n.Tensor] = n.Name
	}
	if len(tensors) == 0 {
		return fail("the model, a %T, has no tensors: give a pointer to a module", c.Model)
	}
	if !none(c.Optimizer) {
		state := c.Optimizer.State(x)
		info.Optimizer = &OptimizerInfo{Rule: state.Rule, LR: state.LR, Scale: state.Scale, GroupLRs: state.GroupLRs, Steps: state.Steps}
		if info.Optimizer.Params, err = paramNames("the optimizer", c.Optimizer.Params(), names); err != nil {
			return nil, info, err
		}
		if opt, ok := c.Optimizer.(*optim.Optimizer); ok {
			info.Optimizer.Groups = groupNames(opt, state.GroupLRs, info.Optimizer.Params)
			if err := whole(opt, state); err != nil {
				return nil, info, err
			}
		}
		for _, r := range state.Tensors {
			name := ofOptimizer + r.Name + "/" + info.Optimizer.Params[r.Param]
			if r.Load != nil {
				t, err := lateEntry(x, name, r, c.Optimizer.Params()[r.Param].Shape())
				if err != nil {
					return fail("tensor %s: %w", name, err)
				}
				tensors = append(tensors, t)
				continue
			}
			t, err := entry(x, name, r.Tensor)
			if err != nil {
				return fail("tensor %s: %w", name, err)
			}
			tensors = append(tensors, t)
		}
	}
	if c.LBFGS != nil {
		if info.LBFGS, tensors, err = c.lbfgs(x, tensors, names); err != nil {
			return nil, info, err
		}
	}
	if c.Scaler != nil {
		state := c.Scaler.State(x)
		info.Scaler = &state
	}
	if c.EMA != nil {
		if c.EMA.Swapped() {
			return fail("the averages are in the parameters' place: Swap them before: %w", cgotorch.ErrInvalidArgument)
		}
		params, err := paramNames("the averages", c.EMA.Params(), names)
		if err != nil {
			return nil, info, err
		}
		for i, average := range c.EMA.Averages() {
			t, err := entry(x, ofEMA+params[i], average)
			if err != nil {
				return fail("tensor %s: %w", ofEMA+params[i], err)
			}
			tensors = append(tensors, t)
		}
	}
	state, err := cgotorch.GeneratorState(cgotorch.CPU)
	if err != nil {
		return nil, info, err
	}
	tensors = append(tensors, bytesEntry(cpuGenerator, state))
	if d := x.Device(); d.IsCUDA() {
		if state, err = cgotorch.GeneratorState(d); err != nil {
			return nil, info, err
		}
		tensors = append(tensors, bytesEntry(gpuGenerator, state))
	}
	return tensors, info, nil
}

func raw(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}

// whole fails if the state s lacks a part. The optimizer may have taken steps with state that it
// does not own, and that nobody keeps any more.
func whole(opt *optim.Optimizer, s optim.State) error {
	own := map[int]bool{}
	for _, r := range s.Tensors {
		own[r.Param] = true
	}
	for _, r := range opt.Remembers() {
		if s.Steps[r.Param] > 0 && !own[r.Param] {
			return fmt.Errorf("the optimizer's state of parameter %d was lent to it (Optimizer.StepParams) and is gone: save before the weights.Offload is closed, or leave the optimizer out: %w", r.Param, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// paramNames returns the names that params have in the model. `of` names the owner of params in
// errors.
func paramNames(of string, params []*cgotorch.Tensor, names map[*cgotorch.Tensor]string) ([]string, error) {
	list := make([]string, len(params))
	for i, p := range params {
		name, ok := names[p]
		if !ok {
			return nil, fmt.Errorf("parameter %d of %s (%s) is not in the model: give the model that it was made for", i, of, p)
		}
		list[i] = name
	}
	return list, nil
}

// entry describes the tensor t for safetensors.Write, under the given name. The elements of t are
// read only when Write writes them.
func entry(x *cgotorch.Exec, name string, t *cgotorch.Tensor) (safetensors.Tensor, error) {
	if t.Closed() {
		return safetensors.Tensor{}, cgotorch.ErrClosed
	}
	dtype, ok := DTypeName(t.DType())
	if !ok {
		return safetensors.Tensor{}, fmt.Errorf("the file format has no %v", t.DType())
	}
	read := func() ([]byte, error) { return cgotorch.ToBytes(x, t), nil }
	return safetensors.Tensor{Name: name, DType: dtype, Shape: t.Shape(), Read: read}, nil
}

// lateEntry is entry for a tensor that lies elsewhere. It is loaded only when Write writes it.
func lateEntry(x *cgotorch.Exec, name string, r optim.RememberedTensor, shape []int64) (safetensors.Tensor, error) {
	dtype, ok := DTypeName(r.DType)
	if !ok {
		return safetensors.Tensor{}, fmt.Errorf("the file format has no %v", r.DType)
	}
	read := func() ([]byte, error) {
		t, err := r.Load(x)
		if err != nil {
			return nil, err
		}
		defer t.Close()
		return cgotorch.ToBytes(x, t), nil
	}
	return safetensors.Tensor{Name: name, DType: dtype, Shape: shape, Read: read}, nil
}

func bytesEntry(name string, data []byte) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: "U8", Shape: []int64{int64(len(data))}, Data: data}
}

// groupNames returns the names of the parameters of each group that has a learning rate in `rates`.
// `names` are those of all parameters, in the optimizer's order.
func groupNames(opt *optim.Optimizer, rates map[int]float64, names []string) map[int][]string {
	var groups map[int][]string
	for i, name := range names {
		group := opt.GroupOf(i)
		if _, ok := rates[group]; !ok {
			continue
		}
		if groups == nil {
			groups = map[int][]string{}
		}
		groups[group] = append(groups[group], name)
	}
	return groups
}

// withChecksums appends a tensor with the checksums of all other tensors. The file must end with
// this tensor, because the checksums are computed while the other tensors are written.
// safetensors.Write puts tensors with wide elements first. The tensor with the checksums has
// elements of one byte, and it is the last of all tensors with elements of one byte.
func withChecksums(tensors []safetensors.Tensor, metadata []byte) []safetensors.Tensor {
	sums := checksums{metadataKey: checksum(metadata)}
	for i := range tensors {
		t := &tensors[i]
		read := t.Read
		if read == nil {
			read = func() ([]byte, error) { return t.Data, nil }
		}
		sums[t.Name] = checksum(nil) // so that the JSON text of `sums` already has its final length
		name := t.Name
		t.Read = func() ([]byte, error) {
			data, err := read()
			sums[name] = checksum(data)
			return data, err
		}
	}
	text, _ := json.Marshal(sums) // a map of strings can always be encoded
	return append(tensors, safetensors.Tensor{
		Name: checksumName, DType: "U8", Shape: []int64{int64(len(text))},
		Read: func() ([]byte, error) { return json.Marshal(sums) },
	})
}
