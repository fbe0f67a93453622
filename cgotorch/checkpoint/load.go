package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

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
