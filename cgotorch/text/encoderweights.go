package text

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// parameter is a tensor of an encoder. It is listed first. [encoderWeights.fill] makes its Tensor,
// when it has compared the files with config.json.
type parameter struct {
	*cgotorch.Tensor
	dtype cgotorch.DType
	shape []int64
	files weightSet
	names []string // of its parts in the files, each of which has an equal share of the rows
}

// product is a layer of weights [out, in] and a bias that may be nil.
type product struct {
	weight, bias *parameter
	packed       *cgotorch.Tensor // the weights in oneDNN's order, in place of `weight`, or nil
}

// forward maps in [rows, in] to activation(in*weight + bias).
func (p *product) forward(x *cgotorch.Exec, in *cgotorch.Tensor, activation string) *cgotorch.Tensor {
	if p.packed == nil {
		return activate(x, activation, x.Linear(in, p.weight.Tensor, p.bias.tensor()))
	}
	attribute, algorithm, ok := fused(activation)
	if !ok {
		attribute, algorithm = "none", "none"
	}
	out := call(x, "mkldnn::_linear_pointwise", in, p.packed, p.bias.tensor(), attribute, []cgotorch.Scalar{}, algorithm)
	if !ok {
		out = activate(x, activation, out)
	}
	return out
}

// added maps in [rows, in] to in*weight + bias + other.
func (p *product) added(x *cgotorch.Exec, in, other *cgotorch.Tensor) *cgotorch.Tensor {
	if p.packed == nil {
		return x.Add(x.Linear(in, p.weight.Tensor, p.bias.tensor()), other)
	}
	return call(x, "mkldnn::_linear_pointwise.binary", in, other, p.packed, p.bias.tensor(), "add")
}

// tensor returns the tensor. That of a nil parameter is nil.
func (s *parameter) tensor() *cgotorch.Tensor {
	if s == nil {
		return nil
	}
	return s.Tensor
}

// layerNorm is a norm over the width. A nil layerNorm changes nothing.
type layerNorm struct {
	weight, bias *parameter
	eps          float64
}

func (n *layerNorm) forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if n == nil {
		return in
	}
	return x.LayerNorm(in, n.weight.shape, n.weight.Tensor, n.bias.tensor(), cgotorch.LayerNormOptions{Eps: cgotorch.Set(n.eps)})
}

// encoderWeights lists the tensors of an encoder before they are made.
type encoderWeights struct {
	dtype      cgotorch.DType
	files      weightSet // of the module whose tensors are listed now
	prefixes   []string  // of its names
	parameters []*parameter
	products   []*product
	sets       []weightSet
}

// open begins a module, whose weights are in a folder. What is listed from then on is the module's.
func (w *encoderWeights) open(folder string, prefixes ...string) error {
	paths, err := weightFiles(folder)
	if err != nil {
		return err
	}
	w.files, err = openWeights(paths)
	w.sets, w.prefixes = append(w.sets, w.files), prefixes
	return err
}

// close closes the files, and keeps the tensors.
func (w *encoderWeights) close() {
	for _, set := range w.sets {
		set.close()
	}
}

// parameter lists a tensor. Each of its names stands for an equal share of its rows.
func (w *encoderWeights) parameter(dtype cgotorch.DType, names []string, shape ...int) *parameter {
	s := &parameter{dtype: dtype, names: names, files: w.files}
	for _, n := range shape {
		s.shape = append(s.shape, int64(n))
	}
	w.parameters = append(w.parameters, s)
	return s
}

// table lists a table of embeddings.
func (w *encoderWeights) table(name string, rows, width int) *parameter {
	return w.parameter(w.dtype, []string{name + ".weight"}, rows, width)
}

// linear lists a product.
func (w *encoderWeights) linear(dtype cgotorch.DType, names []string, in, out int, bias bool) *product {
	suffixed := func(suffix string) (all []string) {
		for _, name := range names {
			all = append(all, name+suffix)
		}
		return all
	}
	p := &product{weight: w.parameter(dtype, suffixed(".weight"), out, in)}
	if bias {
		p.bias = w.parameter(dtype, suffixed(".bias"), out)
	}
	w.products = append(w.products, p)
	return p
}

// norm lists a norm.
func (w *encoderWeights) norm(dtype cgotorch.DType, name string, width int, eps float64, bias bool) *layerNorm {
	n := &layerNorm{weight: w.parameter(dtype, []string{name + ".weight"}, width), eps: eps}
	if bias {
		n.bias = w.parameter(dtype, []string{name + ".bias"}, width)
	}
	return n
}

// find returns the source of a part of a parameter. The file of that is nil if no file has the
// part.
func (w *encoderWeights) find(s *parameter, name string) source {
	shape := slices.Clone(s.shape)
	shape[0] /= int64(len(s.names))
	src := source{shape: shape}
	for _, prefix := range append([]string{""}, w.prefixes...) {
		old := strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta").Replace(name)
		for _, n := range []string{prefix + name, prefix + old} {
			if f := s.files.of[n]; f != nil && src.file == nil {
				src.file, src.name = f, n
				src.info, _ = f.Lookup(n)
			}
		}
	}
	return src
}

// match compares the tensors with the files. Its error names all that do not fit.
func (w *encoderWeights) match() ([]source, error) {
	var sources []source
	var errs []error
	known := map[string]bool{}
	for _, s := range w.parameters {
		for _, name := range s.names {
			src := w.find(s, name)
			if src.file == nil {
				errs = append(errs, fmt.Errorf("text: %s: tensor %s is missing: %w", s.files.names(), name, cgotorch.ErrInvalidArgument))
				continue
			}
			if err := src.check(); err != nil {
				errs = append(errs, err)
			}
			known[src.file.Name()+src.name] = true
			sources = append(sources, src)
		}
	}
	for _, set := range w.sets {
		for _, f := range set.files {
			for _, t := range f.Tensors() {
				if !known[f.Name()+t.Name] && !w.passesOver(t.Name) {
					errs = append(errs, fmt.Errorf("text: %s: tensor %s is not the model's: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument))
				}
			}
		}
	}
	return sources, few(errs)
}

// passesOver reports whether an encoder leaves out a tensor of the files: a head of training, or
// the positions of an old file.
func (w *encoderWeights) passesOver(name string) bool {
	for _, prefix := range w.prefixes {
		name = strings.TrimPrefix(name, prefix)
	}
	return strings.HasSuffix(name, "position_ids") || strings.HasSuffix(name, ".inv_freq") ||
		slices.ContainsFunc([]string{"pooler.", "cls.", "lm_head.", "head.", "decoder.", "classifier."}, func(head string) bool { return strings.HasPrefix(name, head) })
}

// fill makes the tensors, and loads them. It waits for the device.
func (w *encoderWeights) fill(stream *cgotorch.Stream) error {
	sources, err := w.match()
	if err != nil {
		return err
	}
	if err := w.fits(stream.Device()); err != nil {
		return err
	}
	var parts []*cgotorch.Tensor
	err = stream.Do(func(x *cgotorch.Exec) error {
		for _, s := range w.parameters {
			s.Tensor = x.Empty(s.dtype, s.shape...)
			rows := int(s.shape[0]) / len(s.names)
			for i := range s.names {
				parts = append(parts, x.Narrow(s.Tensor, 0, i*rows, rows))
			}
		}
		for _, t := range parts {
			x.Keep(t)
		}
		for _, s := range w.parameters {
			x.Keep(s.Tensor)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range sources {
		sources[i].to = parts[i]
	}
	err = fillSources(stream, sources)
	for _, t := range parts {
		t.Close()
	}
	return err
}

// fits fails with [cgotorch.ErrOutOfMemory] if the tensors need more memory than is free.
func (w *encoderWeights) fits(device cgotorch.Device) error {
	memory, err := device.Memory()
	if err != nil {
		return err
	}
	bytes := int64(0)
	for _, s := range w.parameters {
		n := int64(s.dtype.Size())
		for _, d := range s.shape {
			n *= d
		}
		bytes += n
	}
	if memory.Free > 0 && bytes > memory.Free {
		return fmt.Errorf("text: the weights take %.2f GB as %v, and %.2f GB of %v are free: open the model with a narrower DType: %w",
			float64(bytes)/1e9, w.dtype, float64(memory.Free)/1e9, device, cgotorch.ErrOutOfMemory)
	}
	return nil
}

// packRows is the number of rows for which oneDNN orders weights. Inputs may have another number.
const packRows = 2048

// pack orders the weights of products for oneDNN, on a CPU for which LibTorch has it. Products with
// ordered weights take about half the time. Without oneDNN they stay as they are.
func (w *encoderWeights) pack(stream *cgotorch.Stream) {
	if stream.Device().IsCUDA() {
		return
	}
	for _, p := range w.products {
		if p.weight.dtype != cgotorch.Float32 {
			continue
		}
		err := stream.Do(func(x *cgotorch.Exec) error {
			x = plain(x)
			packed := call(x, "mkldnn::_reorder_linear_weight", p.weight.Tensor, packRows)
			call(x, "mkldnn::_linear_pointwise", x.Zeros(p.weight.dtype, 1, p.weight.shape[1]), packed, p.bias.tensor(), "none", []cgotorch.Scalar{}, "none")
			p.packed = x.Keep(packed)
			return nil
		})
		if err != nil {
			return
		}
		p.weight.Tensor.Close()
	}
}

// free closes the tensors.
func (w *encoderWeights) free() error {
	var errs []error
	for _, s := range w.parameters {
		errs = append(errs, s.tensor().Close())
	}
	for _, p := range w.products {
		errs = append(errs, p.packed.Close())
	}
	return errors.Join(errs...)
}
