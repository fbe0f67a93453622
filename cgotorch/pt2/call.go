package pt2

import (
	"fmt"
	"math"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

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
	if inputs := p.exported.Signature.Inputs; len(inputs) != 1 {
		leaves = make([]any, len(inputs))
		given := false
		for i, v := range inputs {
			leaves[i] = v.Fixed
			if v.Tensor || v.Bounds != nil {
				if given {
					p.fail(x, op, "%s has the inputs %s: use Call", p.file, p.exported.Signature.InputNames())
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
	v, _ := p.exported.Signature.Out.Unflatten(p.run(x, op, p.flatten(x, op, args)))
	return v
}

// flatten returns the leaves of arguments, in the order of the program's inputs.
func (p *Program) flatten(x *cgotorch.Exec, op string, args []any) []any {
	var named Keywords
	if n := len(args); n > 0 {
		if k, ok := args[n-1].(Keywords); ok {
			named, args = k, args[:n-1]
		}
	}
	leaves, err := p.exported.Signature.Flatten(args, named)
	if err != nil {
		p.fail(x, op, "%s: %w", p.file, err)
	}
	return leaves
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
	g := p.exported.Graph
	f := p.frames.Get().(*graph.Frame)
	defer func() {
		clear(f.Values)
		p.frames.Put(f)
	}()
	for i, slot := range g.Inputs {
		switch in := p.exported.Inputs[i]; {
		case in.Weight >= 0:
			f.Values[slot] = p.Weights[in.Weight].Tensor
		case in.Constant >= 0:
			f.Values[slot] = p.constants[in.Constant]
		case in.User >= 0:
			f.Values[slot] = leaves[in.User]
		}
	}
	outputs := g.Run(x, f)
	for i, in := range p.exported.Inputs { // a step has written into a copy of another dtype
		if in.User < 0 || !g.Written[i] {
			continue
		}
		to, _ := given[in.User].(*cgotorch.Tensor)
		if from, _ := leaves[in.User].(*cgotorch.Tensor); to != from {
			nn.Copy(x, to, from)
		}
	}
	written := p.write(x, op, given, outputs)
	results := outputs[:0:0]
	for i, o := range p.exported.Outputs {
		if !o.IsResult() {
			continue
		}
		// As in PyTorch, a result that was written into a tensor is that tensor. A later write may
		// have changed the value itself.
		if to := written[g.Outputs[i].Slot]; to != nil && g.Outputs[i].Slot >= 0 {
			outputs[i] = x.Alias(to)
		}
		results = append(results, outputs[i])
	}
	return results
}

// write writes outputs into the tensors for which they are new values. It returns these tensors, by
// the slot of the value.
func (p *Program) write(x *cgotorch.Exec, op string, given, outputs []any) map[int]*cgotorch.Tensor {
	var written map[int]*cgotorch.Tensor
	for i, o := range p.exported.Outputs {
		var to *cgotorch.Tensor
		switch {
		case o.Weight >= 0:
			to = p.Weights[o.Weight].Tensor
		case o.Constant >= 0:
			to = p.constants[o.Constant]
		case o.User >= 0:
			to, _ = given[o.User].(*cgotorch.Tensor)
		default:
			continue
		}
		from, ok := outputs[i].(*cgotorch.Tensor)
		if !ok || from == nil || to == nil {
			p.fail(x, op, "%s: output %d is %v, want a tensor to write", p.file, i, outputs[i])
		}
		nn.Copy(x, to, from)
		if slot := p.exported.Graph.Outputs[i].Slot; slot >= 0 {
			if written == nil {
				written = map[int]*cgotorch.Tensor{}
			}
			written[slot] = to
		}
	}
	return written
}

// check compares the leaves with the program's inputs, and converts what has to be.
func (p *Program) check(x *cgotorch.Exec, op string, leaves []any) []any {
	checked := make([]any, len(leaves))
	for i, leaf := range leaves {
		v := &p.exported.Signature.Inputs[i]
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
	if err := p.exported.Guards.Fits(checked); err != nil {
		p.fail(x, op, "%s: %w", p.file, err)
	}
	return checked
}

// same reports whether two numbers, truth values or texts are equal. NaN is equal to NaN.
func same(a, b any) bool {
	v, ok := a.(float64)
	w, ok2 := b.(float64)
	return a == b || ok && ok2 && math.IsNaN(v) && math.IsNaN(w)
}
