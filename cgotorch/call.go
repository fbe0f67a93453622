package cgotorch

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Default, as an argument of [Exec.Call], stands for the default of that argument in the
// operator's schema.
var Default = defaultArgument{}

type defaultArgument struct{}

// The map `named` holds, by name, the operators that Call has found.
var named sync.Map // string -> *operator

// Call runs any operator of LibTorch by name and overload, such as "aten::add.Tensor". It waits
// for the device only if the operator waits. The Do owns the tensors of the results.
//
// The arguments are in the order of the operator's schema. [Schemas] returns the schemas. An
// argument has one of these types:
//
//	*Tensor, int, int64, float64, float32, complex128, complex64, bool, string,
//	[]*Tensor, []int64, []int, []float64, []bool, []Scalar,
//	DType, MemoryFormat, Reduction, Device (only the device of x),
//	nil for None, and Default
//
// A number where the schema wants a tensor becomes a tensor without dimensions, which takes part in
// type promotion as a number does. Arguments that are left out at the end take their defaults. An
// operator that makes a new tensor, such as aten::zeros, makes it on x's device.
//
// Results are *Tensor, []*Tensor, int64, float64, bool, []int64, []float64 or nil. A *Tensor is
// nil where LibTorch leaves a result undefined.
//
// Call fails with [ErrNotFound] for an unknown name. The error names the overloads that exist. Call
// fails with [ErrInvalidArgument] for an argument that does not fit the schema. The error names
// the argument.
func (x *Exec) Call(op string, args ...any) []any {
	c := x.callNamed(op, args)
	values := c.values()
	c.done()
	return values
}

// Call1 is [Exec.Call] for an operator with exactly one result, a tensor. For an operator with
// other results it fails with [ErrInvalidArgument], after the operator has run. The tensor is nil
// if LibTorch leaves the result undefined.
func (x *Exec) Call1(op string, args ...any) *Tensor {
	c := x.callNamed(op, args)
	if c.Results.Words != 1 || c.ResultWords[0] != ct.ArgTensor {
		values := c.values() // the Do owns them
		c.done()
		x.Fail(op, refuse(op, ErrInvalidArgument, "the result is %s, and not one tensor: use Call", describeResults(values)))
	}
	t := c.own(0)
	c.done()
	return t
}

// describeResults returns a text such as "a list of 3 tensors" or "2 results".
func describeResults(values []any) string {
	if len(values) != 1 {
		return fmt.Sprintf("%d results", len(values))
	}
	switch v := values[0].(type) {
	case []*Tensor:
		return fmt.Sprintf("a list of %d tensors", len(v))
	case nil:
		return "None"
	default:
		return describeValue(v)
	}
}

// callNamed runs the operator with the name `op`. The returned call holds the results.
func (x *Exec) callNamed(op string, args []any) *call {
	o, ok := named.Load(op)
	if !ok {
		found := &operator{name: op}
		if _, err := found.find(); err != nil {
			x.Fail(op, withOverloads(op, err))
		}
		o, _ = named.LoadOrStore(op, found)
	}
	c := x.call(o.(*operator))
	for _, arg := range args {
		c.Any(arg)
	}
	c.RestDefault()
	c.run()
	return c
}

// Schemas returns the schema of each operator that [Exec.Call] can run. Each schema is one line,
// and the lines are sorted. A line reads "aten::add.Tensor(Tensor self, Tensor other, *, Scalar
// alpha=1) -> Tensor".
func Schemas() (string, error) {
	var text string
	if err := check("Schemas", ct.OpSchemas(&text)); err != nil {
		return "", err
	}
	return text, nil
}

// A call holds the arguments of one call of an operator, and later the results.
type call struct {
	x      *Exec
	op     *operator
	kept   []*Tensor // arguments that the garbage collector could free before the core reads them
	closed bool      // an argument is a closed tensor

	ct.Operands
}

// The pool `calls` holds call objects for reuse. The scope does not hold a call object, because
// two goroutines can misuse one Exec at the same time. Until the core refuses one of these
// goroutines, each goroutine needs a call object of its own.
var calls = sync.Pool{New: func() any {
	return &call{Operands: ct.Operands{
		Words: make([]uint64, 0, 64), Tensors: make([]*ct.Tensor, 0, 16),
		ResultWords: make([]uint64, 32), ResultTensors: make([]*ct.Tensor, 16),
	}}
}}

func (x *Exec) call(op *operator) *call {
	c := calls.Get().(*call)
	c.x, c.op = x, op
	c.Words, c.Tensors, c.closed = c.Words[:0], c.Tensors[:0], false
	return c
}

func (c *call) Tensor(t *Tensor) {
	c.Words = append(c.Words, ct.ArgTensor)
	c.handle(t)
}

func (c *call) handle(t *Tensor) {
	if t == nil {
		c.Tensors = append(c.Tensors, nil)
		return
	}
	if t.h == nil {
		c.closed = true
	}
	if t.owner == nil {
		c.kept = append(c.kept, t)
	}
	c.Tensors = append(c.Tensors, t.h)
}

// OptTensor adds an argument that is a tensor or None. A nil tensor means None.
func (c *call) OptTensor(t *Tensor) { c.Tensor(t) }

func (c *call) TensorList(ts []*Tensor) {
	c.Words = append(c.Words, ct.ArgTensors, uint64(len(ts)))
	for _, t := range ts {
		c.handle(t)
	}
}

func (c *call) OptTensorList(ts []*Tensor) { c.TensorList(ts) }

func (c *call) Int(v int64)     { c.Words = append(c.Words, ct.ArgInt, uint64(v)) }
func (c *call) Float(v float64) { c.Words = append(c.Words, ct.ArgFloat, math.Float64bits(v)) }

func (c *call) Bool(v bool) { c.Words = append(c.Words, ct.ArgBool, wordOf(v)) }

func wordOf(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

func cbool(v bool) int32 {
	if v {
		return 1
	}
	return 0
}

func (c *call) Scalar(v Scalar) {
	switch v := v.(type) {
	case int:
		c.Int(int64(v))
	case int64:
		c.Int(v)
	case float64:
		c.Float(v)
	case float32:
		c.Float(float64(v))
	case bool:
		c.Bool(v)
	case complex128:
		c.Complex(v)
	case complex64:
		c.Complex(complex128(v))
	case nil:
		c.None()
	default:
		c.refuse(v, "a number: use int, int64, float64, float32, complex128, complex64 or bool")
	}
}

// Complex adds an argument that is a complex number.
func (c *call) Complex(v complex128) {
	c.Words = append(c.Words, ct.ArgComplex, math.Float64bits(real(v)), math.Float64bits(imag(v)))
}

func (c *call) ScalarList(vs []Scalar) {
	c.Words = append(c.Words, ct.ArgScalars, uint64(len(vs)))
	for _, v := range vs {
		c.Scalar(v)
	}
}

func (c *call) IntList(vs []int64) {
	c.Words = append(c.Words, ct.ArgInts, uint64(len(vs)))
	for _, v := range vs {
		c.Words = append(c.Words, uint64(v))
	}
}

// AllDims adds a list of all dimensions of t. For a tensor that the call will refuse the list is
// empty.
func (c *call) AllDims(t *Tensor) {
	dims := 0
	if t != nil && t.h != nil {
		dims = len(t.Shape())
	}
	c.Words = append(c.Words, ct.ArgInts, uint64(dims))
	for i := range dims {
		c.Words = append(c.Words, uint64(i))
	}
}

func (c *call) FloatList(vs []float64) {
	c.Words = append(c.Words, ct.ArgFloats, uint64(len(vs)))
	for _, v := range vs {
		c.Words = append(c.Words, math.Float64bits(v))
	}
}

func (c *call) BoolList(vs []bool) {
	c.Words = append(c.Words, ct.ArgBools, uint64(len(vs)))
	for _, v := range vs {
		c.Words = append(c.Words, wordOf(v))
	}
}

func (c *call) Text(v string) {
	c.Words = append(c.Words, ct.ArgString, uint64(len(v)))
	for i := 0; i < len(v); i += 8 {
		var word uint64
		for k := 0; k < 8 && i+k < len(v); k++ {
			word |= uint64(v[i+k]) << (8 * k)
		}
		c.Words = append(c.Words, word)
	}
}

func (c *call) Reduction(v Reduction) {
	switch v {
	case ReductionMean:
		c.Int(1)
	case ReductionSum:
		c.Int(2)
	case ReductionNone:
		c.Int(0)
	default:
		c.refuse(int(v), "a Reduction: use ReductionMean, ReductionSum or ReductionNone")
	}
}

func (c *call) DType(v DType)               { c.Int(int64(v)) }
func (c *call) MemoryFormat(v MemoryFormat) { c.Int(int64(v)) }
func (c *call) Device()                     { c.Words = append(c.Words, ct.ArgDevice) }
func (c *call) None()                       { c.Words = append(c.Words, ct.ArgNone) }
func (c *call) Default()                    { c.Words = append(c.Words, ct.ArgDefault) }
func (c *call) RestDefault()                { c.Words = append(c.Words, ct.ArgRestDefault) }

// run enqueues the operator. Afterwards the results lie in c.ResultWords and c.ResultTensors.
func (c *call) run() {
	x := c.x
	x.check(c.op.name)
	op, err := c.op.find()
	if err != nil {
		x.Fail(c.op.name, err)
	}
	if c.closed {
		x.s.fail(&Error{Op: c.op.name, Kind: ErrClosed, Shapes: c.shapes(), Caller: caller(),
			Message: "a tensor is closed: it was closed by the program, or freed when the Do that made it returned (Keep it there)"})
	}
	if op.guard != nil {
		if why := op.guard(c); why != "" {
			x.s.fail(&Error{Op: c.op.name, Kind: ErrInvalidArgument, Shapes: c.shapes(), Caller: caller(), Message: why})
		}
	}
	c.Results.WordCapacity, c.Results.TensorCapacity = int32(len(c.ResultWords)), int32(len(c.ResultTensors))
	status := ct.Call(&x.c, op.h, &c.Operands)
	runtime.KeepAlive(c)
	if status != nil {
		e := statusError(c.op.name, status)
		e.Shapes = c.shapes()
		x.report(e)
	}
	if len(x.s.observers) > 0 {
		x.after(c.op.name, c.kept)
	}
	if c.Overflow != nil {
		c.ResultWords = slices.Grow(c.ResultWords[:0], int(c.Results.Words))
		c.ResultTensors = slices.Grow(c.ResultTensors[:0], int(c.Results.Tensors))
		c.ResultWords, c.ResultTensors = c.ResultWords[:cap(c.ResultWords)], c.ResultTensors[:cap(c.ResultTensors)]
		ct.OverflowTake(c.Overflow, c.ResultWords, c.ResultTensors)
		c.Overflow = nil
	}
}

func (c *call) shapes() string { return describeAll(c.Tensors) }

// refuse fails the Do. The error reads "V is not W". V describes the argument `v`, and W is the
// text `want`, such as "a number".
func (c *call) refuse(v any, want string) {
	c.x.check(c.op.name)
	c.x.s.fail(refuse(c.op.name, ErrInvalidArgument, "%s is not %v", describeValue(v), want))
}

// own returns result i as a tensor that the Do owns. If LibTorch has left the result undefined,
// `own` returns nil.
func (c *call) own(i int) *Tensor {
	if h := c.ResultTensors[i]; h != nil {
		return c.x.s.own(h)
	}
	return nil
}

func (c *call) done() {
	clear(c.kept)
	c.x, c.kept = nil, c.kept[:0]
	calls.Put(c)
}

// RunAll runs the operator and returns its results as [Exec.Call] does.
func (c *call) RunAll() []any {
	c.run()
	values := c.values()
	c.done()
	return values
}

func (c *call) Run0() {
	c.run()
	for i := range int(c.Results.Tensors) {
		freeTensor(c.ResultTensors[i])
	}
	c.done()
}

func (c *call) Run1() *Tensor {
	c.run()
	t := c.own(0)
	c.done()
	return t
}

func (c *call) Run2() (*Tensor, *Tensor) {
	c.run()
	a, b := c.own(0), c.own(1)
	c.done()
	return a, b
}

func (c *call) Run3() (*Tensor, *Tensor, *Tensor) {
	c.run()
	r0, r1, r2 := c.own(0), c.own(1), c.own(2)
	c.done()
	return r0, r1, r2
}

func (c *call) Run4() (*Tensor, *Tensor, *Tensor, *Tensor) {
	c.run()
	r0, r1, r2, r3 := c.own(0), c.own(1), c.own(2), c.own(3)
	c.done()
	return r0, r1, r2, r3
}

func (c *call) RunList() []*Tensor {
	c.run()
	ts := c.ownFrom(0)
	c.done()
	return ts
}

// Run1List runs an operator that returns a tensor and a list of tensors.
func (c *call) Run1List() (*Tensor, []*Tensor) {
	c.run()
	t, ts := c.own(0), c.ownFrom(1)
	c.done()
	return t, ts
}

// ownFrom returns the results from number i on. The Do owns them.
func (c *call) ownFrom(i int) []*Tensor {
	ts := make([]*Tensor, int(c.Results.Tensors)-i)
	for k := range ts {
		ts[k] = c.own(i + k)
	}
	return ts
}

func (c *call) RunDType() DType { return DType(c.RunInt()) }

func (c *call) RunBool() bool {
	c.run()
	v := c.ResultWords[1] != 0
	c.done()
	return v
}

func (c *call) RunInt() int64 {
	c.run()
	v := int64(c.ResultWords[1])
	c.done()
	return v
}

func (c *call) RunFloat() float64 {
	c.run()
	kind, v := c.ResultWords[0], c.ResultWords[1]
	c.done()
	if kind == ct.ArgFloat {
		return math.Float64frombits(v)
	}
	return float64(int64(v))
}

// Any adds an argument of one of the types that [Exec.Call] takes.
func (c *call) Any(arg any) {
	switch v := arg.(type) {
	case nil:
		c.None()
	case defaultArgument:
		c.Default()
	case *Tensor:
		c.Tensor(v)
	case []*Tensor:
		c.TensorList(v)
	case string:
		c.Text(v)
	case []int64:
		c.IntList(v)
	case []int:
		c.Words = append(c.Words, ct.ArgInts, uint64(len(v)))
		for _, n := range v {
			c.Words = append(c.Words, uint64(n))
		}
	case []float64:
		c.FloatList(v)
	case []bool:
		c.BoolList(v)
	case []Scalar:
		c.ScalarList(v)
	case DType:
		c.DType(v)
	case MemoryFormat:
		c.MemoryFormat(v)
	case Reduction:
		c.Reduction(v)
	case Device:
		if v != c.x.Device() {
			c.refuse(v, fmt.Sprintf("the Exec's device, %v", c.x.Device()))
		}
		c.Device()
	default:
		c.Scalar(v)
	}
}

// values returns the results as Go values.
func (c *call) values() []any {
	words, handle := c.ResultWords[:c.Results.Words], 0
	next := func() uint64 {
		w := words[0]
		words = words[1:]
		return w
	}
	var values []any
	for len(words) > 0 {
		switch next() {
		case ct.ArgTensor:
			values = append(values, c.own(handle))
			handle++
		case ct.ArgTensors:
			list := make([]*Tensor, next())
			for i := range list {
				list[i] = c.own(handle)
				handle++
			}
			values = append(values, list)
		case ct.ArgInt:
			values = append(values, int64(next()))
		case ct.ArgFloat:
			values = append(values, math.Float64frombits(next()))
		case ct.ArgBool:
			values = append(values, next() != 0)
		case ct.ArgInts:
			list := make([]int64, next())
			for i := range list {
				list[i] = int64(next())
			}
			values = append(values, list)
		case ct.ArgFloats:
			list := make([]float64, next())
			for i := range list {
				list[i] = math.Float64frombits(next())
			}
			values = append(values, list)
		default:
			values = append(values, nil)
		}
	}
	return values
}

func describeValue(v any) string {
	if t, ok := v.(*Tensor); ok {
		return t.String() + " (a tensor)"
	}
	return fmt.Sprintf("%v (a %T)", v, v)
}
