package pt2

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
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
	// names then, and must be neither trained nor loaded anew. [Program.Report] tells what was done.
	Fuse bool
}

// A Program is a model that PyTorch has exported. It is an [nn.Module] with the names of the Python
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

	file      string
	device    cgotorch.Device
	float     cgotorch.DType
	graph     *graph
	nodes     []*Node
	in, out   *tree
	paths     []string // the names of the leaves of `in`
	positions []string // the names of the positional arguments
	inputs    []programInput
	values    []Value            // the inputs that a caller gives
	constants []*cgotorch.Tensor `state:"-"` // tensors that are in no state dict
	outputs   []programOutput
	guards    guards
	passed    atomic.Pointer[[]any] // what the guards have read when they held last
	waits     *Node                 // the first node that waits for the device, or nil
	report    report

	mutex  sync.RWMutex // Close waits for the calls that run
	closed bool
	frames sync.Pool
}

// A programInput is an input of the graph: a weight, a constant tensor, or a value of the caller.
type programInput struct {
	weight, constant, user int // an index, or -1
}

// A programOutput is an output of the graph: a result, or the new value of a tensor.
type programOutput struct {
	weight, constant, user int // the tensor that the output is written to; -1 each for a result
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
	b, err := parse(source, size, name, o)
	if err != nil {
		return nil, err
	}
	p := b.program
	p.device = x.Device()
	if err := b.bind(x.NoGrad().NoAutocast(), o.Fuse); err != nil {
		return nil, err
	}
	slots := p.graph.slots
	p.frames.New = func() any { return &frame{values: make([]any, slots)} }
	ready := x.Record() // other streams may run the program after Load
	defer ready.Close()
	if err := ready.Synchronize(); err != nil {
		return nil, errors.Join(fmt.Errorf("pt2: %s: %w", name, err), p.Close())
	}
	return p, nil
}

// parse reads a program without its tensors, and checks it.
func parse(source io.ReaderAt, size int64, name string, o Options) (*binder, error) {
	a, err := openArchive(source, size, name)
	if err != nil {
		return nil, err
	}
	model, err := a.model(o.Model)
	if err != nil {
		return nil, err
	}
	if o.DType != 0 && !o.DType.IsFloat() {
		return nil, fmt.Errorf("pt2: Options.DType is %v: use bfloat16 or float16", o.DType)
	}
	if o.DType == cgotorch.Float32 {
		o.DType = 0
	}
	var text exported
	if err := a.json("models/"+model+".json", &text); err != nil {
		return nil, err
	}
	if text.SchemaVersion == (schemaVersion{}) {
		return nil, a.Bad("the entry models/%.100s.json has no schema_version", model)
	}
	if v := text.SchemaVersion; v.Major != schemaMajor {
		return nil, a.Refuse("its schema has version %d.%d (PyTorch %.40s), and this package reads %d.x: export it with PyTorch 2.9 to 2.11",
			v.Major, v.Minor, text.TorchVersion, schemaMajor)
	}
	p := &Program{file: name, float: o.DType}
	c := &compiler{file: a, float: o.DType, missing: map[string]string{}}
	if p.graph, err = c.build("", &text.GraphModule.Graph); err != nil {
		return nil, err
	}
	if len(c.missing) > 0 {
		return nil, a.Refuse("LibTorch lacks %d of its operators: %s", len(c.missing), c.lacks())
	}
	p.nodes = c.nodes
	for _, n := range p.nodes {
		if n.Waits && p.waits == nil {
			p.waits = n
		}
	}
	if err := p.shapes(a, &text); err != nil {
		return nil, err
	}
	return p.plan(a, model, &text)
}

// schemaMajor is the version of torch.export's schema that this package reads.
const schemaMajor = 8

// lacks names the first operators that LibTorch lacks, and says where others may be.
func (c *compiler) lacks() string {
	const shown = 3
	var parts []string
	for i, name := range slices.Sorted(maps.Keys(c.missing)) {
		if i == shown {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%.80s (node %.60s)", name, c.missing[name]))
	}
	advice := ""
	for name := range c.missing {
		if !strings.HasPrefix(name, "aten::") {
			advice = "; open their library with cgotorch.OpenOperators before. If Python code defines them, write them with PyTorch's operators and export again"
		}
	}
	return strings.Join(parts, ", ") + advice
}

// Nodes returns the nodes in the order in which they run. The nodes of a sub-graph come before the
// node that runs it. Do not change them.
func (p *Program) Nodes() []*Node { return p.nodes }

// Report tells what [Options].Fuse has done, as in "53 of 53 convolutions took a batch norm in, 49
// a ReLU, 16 a sum; 0 dropouts left out; own kernels for 1 pools, …". It returns "" for a program
// that is not fused.
func (p *Program) Report() string {
	if p.report == (report{}) {
		return ""
	}
	return p.report.String()
}

// Inputs describes the inputs of [Program.Call]. Nested arguments are listed one by one. Do not
// change them.
func (p *Program) Inputs() []Value { return p.values }

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

// Forward runs the program on one tensor. The result is the program's only result, or its first
// one if it is a tuple, a list or a dataclass of Python. The Do owns the result. Forward waits for
// the device only if [Node.Waits] is set for a node.
//
// Forward fails with [cgotorch.ErrInvalidArgument] if the program has more than one input, or if
// `in` has another dtype or shape than [Program.Inputs] says. The Exec must be on the program's
// device. An operator that fails names its node and the line of Python.
func (p *Program) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	const op = "pt2.Program.Forward"
	leaves := []any{in}
	if len(p.values) != 1 {
		leaves = make([]any, len(p.values))
		given := false
		for i, v := range p.values {
			leaves[i] = v.Fixed
			if v.Tensor || v.Bounds != nil {
				if given {
					p.fail(x, op, "%s has the inputs %s: use Call", p.file, p.inputNames())
				}
				leaves[i], given = in, true
			}
		}
		if !given {
			p.fail(x, op, "%s takes no tensor: use Call", p.file)
		}
	}
	results := p.run(x, op, leaves)
	for _, r := range results {
		if t, ok := r.(*cgotorch.Tensor); ok && t != nil {
			for _, other := range results {
				if o, ok := other.(*cgotorch.Tensor); ok && o != nil && o != t {
					o.Close()
				}
			}
			return t
		}
	}
	p.fail(x, op, "%s returns no tensor: use Call", p.file)
	return nil
}

func (p *Program) inputNames() string {
	var names []string
	for _, v := range p.values {
		names = append(names, v.Name)
	}
	return fmt.Sprintf("%.200s", strings.Join(names, ", "))
}

// Keywords are the keyword arguments of a call, or positional arguments by their names.
type Keywords map[string]any

// Call runs the program with the arguments of the Python function, and returns its result. The
// last argument may be [Keywords]. A tensor is a *cgotorch.Tensor; an int of Python is an int or an
// int64; a list or a tuple is a slice; a dict, a named tuple or a dataclass is a map from strings.
// An argument with one accepted value, such as use_cache=False, may be left out. In results these
// are []any and map[string]any, and an int is an int64. The Do owns the tensors of the result. Call
// waits for the device only if [Node.Waits] is set for a node.
//
// Call fails with [cgotorch.ErrInvalidArgument] if the arguments do not fit, and names the
// argument. They must have the program's dtypes and ranks, and sizes for which its guards hold: the
// conditions on sizes that the Python code has asked.
func (p *Program) Call(x *cgotorch.Exec, args ...any) any {
	const op = "pt2.Program.Call"
	leaves, err := p.flatten(args)
	if err != nil {
		x.Fail(op, fmt.Errorf("%s: %w: %w", p.file, err, cgotorch.ErrInvalidArgument))
	}
	v, _ := p.out.unflatten(p.run(x, op, leaves))
	return v
}

// flatten returns the leaves of arguments, in the order of the program's inputs.
func (p *Program) flatten(args []any) (leaves []any, err error) {
	arguments, keywords := p.in.children[0], p.in.children[1]
	named := Keywords{}
	if n := len(args); n > 0 {
		if k, ok := args[n-1].(Keywords); ok {
			named, args = k, args[:n-1]
		}
	}
	if len(args) > len(arguments.children) {
		return nil, p.tooMany(len(args))
	}
	used := 0
	for i, c := range arguments.children {
		name := p.position(i)
		var v any
		if i < len(args) {
			v = args[i]
		} else if byName, ok := named[name]; ok {
			v, used = byName, used+1
		} else if fixed, ok := p.fixed(c, len(leaves)); ok {
			leaves = append(leaves, fixed...)
			continue
		} else {
			return nil, fmt.Errorf("%s is missing", name)
		}
		if leaves, err = c.flatten(name, v, leaves); err != nil {
			return nil, err
		}
	}
	for i, c := range keywords.children {
		name := keywords.keys[i]
		v, ok := named[name]
		if !ok {
			fixed, ok := p.fixed(c, len(leaves))
			if !ok {
				return nil, fmt.Errorf("the keyword %s is missing", name)
			}
			leaves = append(leaves, fixed...)
			continue
		}
		used++
		if leaves, err = c.flatten(name, v, leaves); err != nil {
			return nil, err
		}
	}
	if used < len(named) {
		return nil, fmt.Errorf("there are %d keywords too many among %.100q; the program has %.200s", len(named)-used, slices.Sorted(maps.Keys(named)), p.inputNames())
	}
	return leaves, nil
}

// tooMany returns the error for more arguments without a name than the program has.
func (p *Program) tooMany(given int) error {
	arguments, keywords := p.in.children[0], p.in.children[1]
	names := make([]string, len(arguments.children))
	for i := range names {
		names[i] = p.position(i)
	}
	why := fmt.Sprintf("%d arguments without a name, and the program takes %d", given, len(names))
	if len(names) > 0 {
		why += fmt.Sprintf(": %.200s", strings.Join(names, ", "))
	}
	if len(keywords.children) > 0 {
		why += fmt.Sprintf("; give %.200s by name, in the last argument: pt2.Keywords{%.60q: …}", strings.Join(keywords.keys, ", "), keywords.keys[0])
	}
	return errors.New(why)
}

// fixed returns the leaves of an argument, which begin at leaf `from`, if the program accepts one
// value only for each.
func (p *Program) fixed(c *tree, from int) (leaves []any, ok bool) {
	for _, v := range p.values[from : from+c.leaves()] {
		if v.Tensor || v.Bounds != nil {
			return nil, false
		}
		leaves = append(leaves, v.Fixed)
	}
	return leaves, true
}

func (p *Program) fail(x *cgotorch.Exec, op, format string, args ...any) {
	x.Fail(op, fmt.Errorf("%w: %w", fmt.Errorf(format, args...), cgotorch.ErrInvalidArgument))
}

// run runs the graph on the leaves of the arguments, and returns those of the results.
func (p *Program) run(x *cgotorch.Exec, op string, leaves []any) []any {
	p.mutex.RLock()
	defer p.mutex.RUnlock()
	if p.closed {
		x.Fail(op, fmt.Errorf("%s: %w", p.file, cgotorch.ErrClosed))
	}
	if x.Device() != p.device {
		p.fail(x, op, "%s was loaded on %v, and the Exec is on %v: load it on that device", p.file, p.device, x.Device())
	}
	if p.waits != nil && (x.Capturing() || inside.Core.Watched(x)) {
		kind := cgotorch.ErrWaited
		if x.Capturing() {
			kind = cgotorch.ErrNotCapturable
		}
		x.Fail(op, fmt.Errorf("%s: node %.80s (%s) waits for the device, because a size or a branch depends on values: %w", p.file, p.waits.Name, p.waits.Operator, kind))
	}
	given := leaves
	leaves = p.check(x, op, given)
	f := p.frames.Get().(*frame)
	defer func() {
		clear(f.values)
		p.frames.Put(f)
	}()
	for i, slot := range p.graph.inputs {
		switch in := p.inputs[i]; {
		case in.weight >= 0:
			f.values[slot] = p.Weights[in.weight].Tensor
		case in.constant >= 0:
			f.values[slot] = p.constants[in.constant]
		case in.user >= 0:
			f.values[slot] = leaves[in.user]
		}
	}
	outputs := p.graph.run(x, f)
	for i, in := range p.inputs { // a step has written into a copy of another dtype
		if in.user < 0 || !p.graph.written[i] {
			continue
		}
		to, _ := given[in.user].(*cgotorch.Tensor)
		if from, _ := leaves[in.user].(*cgotorch.Tensor); to != from {
			nn.Copy(x, to, from)
		}
	}
	written := map[int]*cgotorch.Tensor{} // by slot of a value: the tensor that the value was written into
	for i, o := range p.outputs {
		var to *cgotorch.Tensor
		switch {
		case o.weight >= 0:
			to = p.Weights[o.weight].Tensor
		case o.constant >= 0:
			to = p.constants[o.constant]
		case o.user >= 0:
			to, _ = given[o.user].(*cgotorch.Tensor)
		default:
			continue
		}
		from, ok := outputs[i].(*cgotorch.Tensor)
		if !ok || from == nil || to == nil {
			p.fail(x, op, "%s: output %d is %v, want a tensor to write", p.file, i, outputs[i])
		}
		nn.Copy(x, to, from)
		if slot := p.graph.outputs[i].slot; slot >= 0 {
			written[slot] = to
		}
	}
	results := outputs[:0:0]
	for i, o := range p.outputs {
		if o != (programOutput{-1, -1, -1}) {
			continue
		}
		// As in PyTorch, a result that was written into a tensor is that tensor. A later write may have
		// changed the value itself.
		if to := written[p.graph.outputs[i].slot]; to != nil && p.graph.outputs[i].slot >= 0 {
			outputs[i] = x.Alias(to)
		}
		results = append(results, outputs[i])
	}
	return results
}

// check compares the leaves with the program's inputs, and converts what has to be.
func (p *Program) check(x *cgotorch.Exec, op string, leaves []any) []any {
	checked := make([]any, len(leaves))
	for i, leaf := range leaves {
		v := &p.values[i]
		if t, ok := leaf.(*cgotorch.Tensor); ok && t == nil && !v.Tensor {
			leaf = nil // None
		} else if given := reflect.ValueOf(leaf); given.CanInt() {
			leaf = given.Int()
		} else if given.CanUint() {
			leaf = int64(min(given.Uint(), math.MaxInt64))
		} else if given.CanFloat() {
			leaf = given.Float()
		}
		checked[i] = leaf
		if !v.Tensor {
			if _, isInt := leaf.(int64); v.Bounds != nil && !isInt {
				p.fail(x, op, "%s: the input %s is %s, want an int", p.file, v.Name, shown(leaf))
			}
			if v.Bounds == nil && !same(leaf, v.Fixed) {
				given, want := shown(leaf), shown(v.Fixed)
				if leaf != nil && reflect.TypeOf(leaf) == reflect.TypeOf(v.Fixed) {
					given, want = fmt.Sprint(leaf), fmt.Sprint(v.Fixed)
				}
				p.fail(x, op, "%s: the input %s is %.60s, and the program was exported for %.60s", p.file, v.Name, given, want)
			}
			continue
		}
		t, ok := leaf.(*cgotorch.Tensor)
		if !ok || t == nil {
			p.fail(x, op, "%s: the input %s is %s, want a tensor", p.file, v.Name, shown(leaf))
		}
		if t.Closed() {
			x.Fail(op, fmt.Errorf("%s: the input %s: %w", p.file, v.Name, cgotorch.ErrClosed))
		}
		if p.float != 0 && v.DType == p.float && t.DType() == cgotorch.Float32 {
			t = x.To(t, p.float)
			checked[i] = t
		}
		if t.DType() != v.DType || t.Dim() != len(v.Shape) {
			p.fail(x, op, "%s: the input %s is %s, want %s", p.file, v.Name, describe(t), v)
		}
	}
	if err := p.fits(checked); err != nil {
		p.fail(x, op, "%s: %w", p.file, err)
	}
	return checked
}

// Accepts returns nil if the program runs on tensors of these shapes, and else the error that Call
// would have for them. The shapes are those of the tensors among [Program.Inputs], in their order.
// An integer that may change has its value of the export. Accepts enqueues nothing. It knows
// nothing of nodes, such as assertions, that may fail for some sizes.
func (p *Program) Accepts(shapes ...[]int64) error {
	leaves := make([]any, len(p.values))
	at := 0
	for i := range p.values {
		switch v := &p.values[i]; {
		case v.Tensor && at == len(shapes):
			return fmt.Errorf("pt2: %s: the input %s has no shape", p.file, v.Name)
		case v.Tensor && len(shapes[at]) != len(v.Shape):
			return fmt.Errorf("pt2: %s: the input %s is %v%v, want %s: %w", p.file, v.Name, v.DType, shapes[at], v, cgotorch.ErrInvalidArgument)
		case v.Tensor:
			leaves[i] = shapes[at]
			at++
		case v.Bounds != nil && v.Bounds.hint == nil:
			return fmt.Errorf("pt2: %s: the file does not say the value of the integer %s in the export", p.file, v.Name)
		case v.Bounds != nil:
			leaves[i] = *v.Bounds.hint
		default:
			leaves[i] = v.Fixed
		}
	}
	if at < len(shapes) {
		return fmt.Errorf("pt2: %s: %d shapes, and the program has %d tensors as inputs", p.file, len(shapes), at)
	}
	if err := p.fits(leaves); err != nil {
		return fmt.Errorf("pt2: %s: %w: %w", p.file, err, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// shapeOf returns the shape of a leaf: of a tensor, or the shape itself.
func shapeOf(leaf any) []int64 {
	if t, ok := leaf.(*cgotorch.Tensor); ok {
		return t.Shape()
	}
	shape, _ := leaf.([]int64)
	return shape
}

// fits returns why the program does not run with the sizes of the leaves, or nil. A leaf is a
// tensor, the shape of a tensor, or a number. Ranks are those of the program's inputs.
func (p *Program) fits(leaves []any) error {
	symbols := map[string]any{}
	wrong := func(i int, format string, args ...any) error {
		v := &p.values[i]
		return fmt.Errorf("the input %s is %v%v, want %s%w", v.Name, v.DType, shapeOf(leaves[i]), v, fmt.Errorf(format, args...))
	}
	for i := range p.values {
		v := &p.values[i]
		if n, ok := leaves[i].(int64); ok && v.Bounds != nil {
			if err := v.accept(n, symbols); err != nil {
				return err
			}
		}
		if !v.Tensor {
			continue
		}
		for d, n := range shapeOf(leaves[i]) {
			s := &v.Shape[d]
			if n < s.Min || n > s.Max {
				if s.Min == s.Max {
					return wrong(i, ": dimension %d must be %d, as in the export", d, s.Min)
				}
				return wrong(i, " with %s from %d to %d, as in the export", s.Text, s.Min, s.Max)
			}
			if s.expr == nil || s.expr.of != "symbol" {
				continue
			}
			if before, ok := symbols[s.expr.symbol]; ok && before != n {
				return wrong(i, " with %s = %d as before", s.Text, before)
			}
			symbols[s.expr.symbol] = n
		}
	}
	for i := range p.values { // formulas come last, because their symbols may stand in later inputs
		for d, s := range p.values[i].Shape {
			if s.expr == nil || s.expr.of == "symbol" {
				continue
			}
			switch want, err := s.expr.eval(symbols); {
			case errors.Is(err, errUnknown): // a symbol that stands in no input alone
			case err != nil: // no size equals it, as where it is above 64 bits
				return wrong(i, ", whose size %s is %w", s.Text, err)
			case want != any(shapeOf(leaves[i])[d]):
				return wrong(i, " with %s = %v", s.Text, want)
			}
		}
	}
	return p.guard(leaves)
}

// accept returns why an integer does not lie in its bounds, or is not the size that it must equal.
func (v *Value) accept(n int64, symbols map[string]any) error {
	s := v.Bounds
	if n < s.Min {
		return fmt.Errorf("the input %s is %d, want %d or more", v.Name, n, s.Min)
	}
	if n > s.Max {
		return fmt.Errorf("the input %s is %d, want %d or less", v.Name, n, s.Max)
	}
	if s.expr == nil || s.expr.of != "symbol" {
		return nil
	}
	if before, ok := symbols[s.expr.symbol]; ok && before != n {
		return fmt.Errorf("the input %s is %d, want %s = %d as before", v.Name, n, s.Text, before)
	}
	symbols[s.expr.symbol] = n
	return nil
}

// same reports whether two numbers, truth values or texts are equal. NaN is equal to NaN.
func same(a, b any) bool {
	v, ok := a.(float64)
	w, ok2 := b.(float64)
	return a == b || ok && ok2 && math.IsNaN(v) && math.IsNaN(w)
}
