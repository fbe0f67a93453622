package pt2

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/export"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/fuse"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Options choose what [Load] loads. The zero value loads the only program of a file as it is.
type Options struct {
	Model string // the name of the program, if the file holds several; "" means the only one

	// DType is the floating-point dtype that takes the place of float32: in weights, in the
	// program's own casts, and in inputs, which are converted. 0 means float32. Use
	// [cgotorch.BFloat16] or [cgotorch.Float16].
	//
	// Models such as transformers cast to float32 for an RMSNorm or a softmax. With DType these
	// parts lose digits too, and float16 may overflow there. To keep such casts, leave DType unset.
	// Then export model.bfloat16() or model.half(), or use [cgotorch.Exec.Autocast].
	DType cgotorch.DType

	// Fuse makes a program for inference with fewer operators, as [nn.Fuse] does for models. Batch
	// norms go into the convolutions before them, or on CUDA into the activations behind them. Sums
	// and ReLUs become part of a convolution where cuDNN has one operator for them. Sums take
	// products in, and layer norms take sums in. Dropouts are left out. What depends on weights and
	// constants alone is computed once, at Load. Results change by rounding. The weights have other
	// names then, and must be neither trained nor loaded anew. [Program.Report] tells what was
	// done.
	Fuse bool
}

// Program is a model that PyTorch has exported. It is an [nn.Module] with the names of the Python
// model's state dict, so optimizers, checkpoints and [nn.Load] take it. It runs on the device that
// it was loaded on.
//
// A program stays in the mode in which it was exported, training or evaluation.
//
// In evaluation any number of goroutines may call Forward and Call at once, each in its own Do. If
// the program changes its buffers, as in training mode and as a cache does, the caller must make
// one call at a time. The same holds while its parameters are trained.
type Program struct {
	// Weights are the parameters and the persistent buffers, under the names that Python gave them.
	// Do not change the names.
	Weights []nn.Named `state:",named"`

	exported  *export.Program `state:"-"`
	file      string
	device    cgotorch.Device
	float     cgotorch.DType     // stands for float32; 0 means float32
	constants []*cgotorch.Tensor `state:"-"` // tensors that are in no state dict
	waits     *graph.Node        // the first node that waits for the device, or nil
	report    string

	mutex  sync.RWMutex // Close waits for the calls that run
	closed bool
	frames sync.Pool
}

// Load reads a program and its weights from a file to x's device. It waits for the device. The
// program belongs to the caller, who must Close it.
//
// Load reads files of torch.export.save from PyTorch 2.9 and newer. Its errors wrap [ErrFormat] for
// a damaged file. They wrap [ErrUnsupported] for a program that cannot run, such as one with an
// operator that LibTorch lacks. The error names the entry or the node. Load never runs code of the
// file.
func Load(x *cgotorch.Exec, path string, o Options) (*Program, error) {
	f, size, err := torchzip.OpenFile("pt2", path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return LoadFrom(x, f, size, path, o)
}

// LoadFrom is [Load] for the first `size` bytes of source, such as those of a [bytes.Reader].
// Errors show `name` as the name of the file.
func LoadFrom(x *cgotorch.Exec, source io.ReaderAt, size int64, name string, o Options) (*Program, error) {
	p, err := load(x, source, size, name, o, fuse.Options{CUDA: x.Device().IsCUDA(), ManyRows: fuse.ManyRows})
	if err != nil {
		return nil, err
	}
	ready := x.Record() // other streams may run the program after Load
	defer ready.Close()
	if err := ready.Synchronize(); err != nil {
		return nil, errors.Join(fmt.Errorf("pt2: %s: %w", name, err), p.Close())
	}
	return p, nil
}

// Nodes returns the nodes in the order in which they run. The nodes of a sub-graph come before the
// node that runs it.
func (p *Program) Nodes() []Node {
	list := make([]Node, len(p.exported.Nodes))
	for i, n := range p.exported.Nodes {
		list[i] = Node{n.Name, n.Operator, n.Text, n.Module, n.Where, n.Waits}
	}
	return list
}

// Report tells what [Options].Fuse has done, as in "53 of 53 convolutions took a batch norm in, 49
// a ReLU, 16 a sum; 0 dropouts left out; own kernels for 1 pools, …". It returns "" for a program
// that is not fused.
func (p *Program) Report() string { return p.report }

// Inputs describes the inputs of [Program.Call]. Nested arguments are listed one by one.
func (p *Program) Inputs() []Value {
	inputs := p.exported.Signature.Inputs
	list := make([]Value, len(inputs))
	for i := range inputs {
		list[i] = valueOf(&inputs[i])
	}
	return list
}

// Close frees the weights and constants. It waits for calls that run on other goroutines. It does
// not wait for the device. Later calls fail with [cgotorch.ErrClosed].
func (p *Program) Close() error {
	if p == nil {
		return nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.closed = true
	errs := []error{nn.Close(p)}
	for _, t := range p.constants {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// Accepts returns nil if the program runs on tensors of these shapes, and else the error that Call
// would have for them. The shapes are those of the tensors among [Program.Inputs], in their order.
// An integer that may change has its value of the export. Accepts enqueues nothing. It knows
// nothing of nodes, such as assertions, that may fail for some sizes.
func (p *Program) Accepts(shapes ...[]int64) error {
	inputs := p.exported.Signature.Inputs
	leaves := make([]any, len(inputs))
	at := 0
	for i := range inputs {
		switch v := &inputs[i]; {
		case v.Tensor && at == len(shapes):
			return fmt.Errorf("pt2: %s: the input %s has no shape", p.file, v.Name)
		case v.Tensor && len(shapes[at]) != len(v.Shape):
			return fmt.Errorf("pt2: %s: the input %s is %v%v, want %s: %w", p.file, v.Name, v.DType, shapes[at], v, cgotorch.ErrInvalidArgument)
		case v.Tensor:
			leaves[i] = shapes[at]
			at++
		case v.Bounds != nil && v.Bounds.Hint == nil:
			return fmt.Errorf("pt2: %s: the file does not say the value of the integer %s in the export", p.file, v.Name)
		case v.Bounds != nil:
			leaves[i] = *v.Bounds.Hint
		default:
			leaves[i] = v.Fixed
		}
	}
	if at < len(shapes) {
		return fmt.Errorf("pt2: %s: %d shapes, and the program has %d tensors as inputs", p.file, len(shapes), at)
	}
	if err := p.exported.Guards.Fits(leaves); err != nil {
		return fmt.Errorf("pt2: %s: %w: %w", p.file, err, cgotorch.ErrInvalidArgument)
	}
	return nil
}
