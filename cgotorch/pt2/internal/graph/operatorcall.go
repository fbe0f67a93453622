package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// Call calls an operator of LibTorch.
type Call struct {
	Op     opcall.Operator
	Schema *opschema.Schema // without a text if LibTorch lacks the operator
	Args   []Operand        // in the order of the schema
	Outs   []int
	Single bool // the operator has one result, a tensor
}

// NewCall returns a call without arguments. It fails with [cgotorch.ErrNotFound] and returns a call
// without a schema if LibTorch lacks the operator.
func NewCall(name string) (*Call, error) {
	c := &Call{Op: opcall.New(name), Schema: &opschema.Schema{}}
	text, err := c.Op.Schema()
	if err != nil {
		return c, err
	}
	c.Schema, err = opschema.Parse(text)
	return c, err
}

// Arg returns the place of argument i. Arguments before it that are not there become defaults.
func (o *Call) Arg(i int) *Operand {
	for len(o.Args) <= i {
		o.Args = append(o.Args, ConstantOf(cgotorch.Default))
	}
	return &o.Args[i]
}

func (o *Call) Reads() []*Operand { return Pointers(o.Args) }

func (o *Call) Fills() []int { return o.Outs }

func (o *Call) Run(x *cgotorch.Exec, f *Frame) {
	c := opcall.Begin(x, o.Op)
	o.Pass(c, f)
	if o.Single {
		f.Values[o.Outs[0]] = c.Run1()
		return
	}
	store(x, f, o.Outs, c.RunAll())
}

// Pass passes the arguments.
func (o *Call) Pass(c opcall.Call, f *Frame) {
	for i := range o.Args {
		switch v := o.Args[i].Value(f).(type) {
		case *cgotorch.Tensor:
			c.Tensor(v)
		case OnDevice:
			c.Device()
		default:
			c.Any(v)
		}
	}
	c.RestDefault()
}

// store puts results into slots. A list of tensors has a slot for each tensor. Results without a
// slot are closed.
func store(x *cgotorch.Exec, f *Frame, slots []int, results []any) {
	at := 0
	put := func(v any) {
		if at < len(slots) {
			f.Values[slots[at]] = v
		} else if t, ok := v.(*cgotorch.Tensor); ok && t != nil {
			t.Close()
		}
		at++
	}
	for _, v := range results {
		if list, ok := v.([]*cgotorch.Tensor); ok {
			for _, t := range list {
				put(t)
			}
			continue
		}
		put(v)
	}
	if at < len(slots) {
		x.Fail("pt2.Program", fmt.Errorf("a node has %d results, want %d: %w", at, len(slots), cgotorch.ErrInvalidArgument))
	}
}
