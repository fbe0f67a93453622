package cgotorch

import (
	"fmt"
	"math"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Default, as an argument of [Exec.Call], stands for that argument's default in the operator's schema.
var Default = defaultArgument{}

type defaultArgument struct{}

// named holds the operators that Call has found.
var named sync.Map // string -> *operator

// Call runs any operator of LibTorch by name and overload, such as "aten::add.Tensor". Arguments are in the schema's order:
// *[Tensor], []*Tensor, int, int64, float64, float32, bool, string, []int64, []int, []float64, []bool, []Scalar, [DType],
// [MemoryFormat], [Reduction], [Device] (which must be x's), nil for None, and [Default]; [Schemas] says what an operator takes.
// Those left out at the end take their defaults, and a factory makes its result on x's device. Results are *Tensor (nil where
// LibTorch leaves one undefined), []*Tensor, int64, float64, bool, []int64, []float64 or nil. It waits for the device only if the
// operator does. It fails with [ErrNotFound] for an unknown name and with [ErrInvalidArgument], naming the argument, where one
// does not fit the schema.
func (x *Exec) Call(op string, args ...any) []any {
	o, ok := named.Load(op)
	if !ok {
		found := &operator{name: op}
		if _, err := found.find(); err != nil {
			x.Fail(op, err)
		}
		o, _ = named.LoadOrStore(op, found)
	}
	c := x.call(o.(*operator))
	for _, arg := range args {
		c.any(arg)
	}
	c.restDefault()
	c.run()
	values := c.values()
	c.done()
	return values
}

// Schemas returns what LibTorch says of each operator that [Exec.Call] can run, as in
// "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", one a line, sorted.
func Schemas() (string, error) {
	var text string
	if err := check("Schemas", ct.OpSchemas(&text)); err != nil {
		return "", err
	}
	return text, nil
}

func (c *call) any(arg any) {
	switch v := arg.(type) {
	case nil:
		c.none()
	case defaultArgument:
		c.def()
	case *Tensor:
		c.tensor(v)
	case []*Tensor:
		c.tensors(v)
	case string:
		c.str(v)
	case []int64:
		c.ints(v)
	case []int:
		c.words = append(c.words, ct.ArgInts, uint64(len(v)))
		for _, n := range v {
			c.words = append(c.words, uint64(n))
		}
	case []float64:
		c.floats(v)
	case []bool:
		c.bools(v)
	case []Scalar:
		c.scalars(v)
	case DType:
		c.dtype(v)
	case MemoryFormat:
		c.memoryFormat(v)
	case Reduction:
		c.reduction(v)
	case Device:
		if v != c.x.Device() {
			c.refuse(v, fmt.Sprintf("the Exec's device, %v", c.x.Device()))
		}
		c.device()
	default:
		c.scalar(v)
	}
}

// values reads the results by their kinds.
func (c *call) values() []any {
	words, handle := c.outWords[:c.results.Words], 0
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

func describeValue(v any) string { return fmt.Sprintf("%v (a %T)", v, v) }
