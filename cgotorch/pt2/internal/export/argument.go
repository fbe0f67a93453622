package export

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

func (b *builder) operands(inputs []namedArgument) ([]graph.Operand, error) {
	args := make([]graph.Operand, len(inputs))
	for i := range inputs {
		var err error
		if args[i], err = b.operand(&inputs[i].Arg); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return args, nil
}

// operand returns the argument of a step.
func (b *builder) operand(a *argument) (graph.Operand, error) {
	switch {
	case a.Tensor != nil:
		return b.use(a.Tensor.Name)
	case a.OptionalTensor != nil:
		return b.optional(*a.OptionalTensor)
	case a.SymInt != nil:
		return b.symbol(*a.SymInt)
	case a.SymBool != nil:
		return b.symbol(*a.SymBool)
	case a.SymFloat != nil:
		return b.symbol(*a.SymFloat)
	case a.Tensors != nil:
		return listOf(graph.TensorList, *a.Tensors, func(t named) (graph.Operand, error) { return b.use(t.Name) })
	case a.OptionalTensors != nil:
		return listOf(graph.TensorList, *a.OptionalTensors, b.optional)
	case a.SymInts != nil:
		return listOf(graph.IntList, *a.SymInts, b.symbol)
	case a.SymBools != nil:
		return listOf(graph.BoolList, *a.SymBools, b.symbol)
	case a.SymFloats != nil:
		return listOf(graph.FloatList, *a.SymFloats, b.symbol)
	}
	v, err := a.constant(b.float)
	return graph.ConstantOf(v), err
}

func (b *builder) optional(t optionalTensor) (graph.Operand, error) {
	if t.Tensor == nil {
		return graph.ConstantOf((*cgotorch.Tensor)(nil)), nil
	}
	return b.use(t.Tensor.Name)
}

func (b *builder) symbol(s symbol) (graph.Operand, error) {
	switch {
	case s.Name != nil:
		o, err := b.use(*s.Name)
		o.Number = true
		return o, err
	case s.Int != nil:
		return graph.ConstantOf(*s.Int), nil
	case s.Bool != nil:
		return graph.ConstantOf(*s.Bool), nil
	case s.Float != nil:
		return graph.ConstantOf(float64(*s.Float)), nil
	}
	return graph.Operand{}, errors.New("a symbol without a name or a value")
}

// listOf returns the operand of a list. A list of numbers without slots is a constant.
func listOf[T any](of graph.ListKind, items []T, one func(T) (graph.Operand, error)) (graph.Operand, error) {
	list := graph.Operand{Slot: -1, Of: of, List: make([]graph.Operand, len(items))}
	fixed := of != graph.TensorList
	for i, item := range items {
		var err error
		if list.List[i], err = one(item); err != nil {
			return graph.Operand{}, err
		}
		fixed = fixed && list.List[i].Slot < 0
	}
	if fixed {
		v, err := list.Gather(nil)
		return graph.ConstantOf(v), err
	}
	return list, nil
}

// constant returns the value of an argument that names no value of the graph. `float` stands for
// float32; 0 means float32 itself.
func (a *argument) constant(float cgotorch.DType) (any, error) {
	switch {
	case a.None != nil:
		return nil, nil
	case a.Int != nil:
		return *a.Int, nil
	case a.Ints != nil:
		return *a.Ints, nil
	case a.Float != nil:
		return Limited(float64(*a.Float), float), nil
	case a.Floats != nil:
		list := make([]float64, len(*a.Floats))
		for i, f := range *a.Floats {
			list[i] = Limited(float64(f), float)
		}
		return list, nil
	case a.Text != nil:
		return *a.Text, nil
	case a.Bool != nil:
		return *a.Bool, nil
	case a.Bools != nil:
		return *a.Bools, nil
	case a.Complex != nil:
		return complex(float64(a.Complex.Real), float64(a.Complex.Imaginary)), nil
	case a.ScalarType != nil:
		return dtypeOf(*a.ScalarType, float)
	case a.Device != nil:
		return graph.OnDevice{}, nil
	case a.Layout != nil:
		if *a.Layout != strided {
			return nil, fmt.Errorf("the layout number %d, as of sparse tensors: %w", *a.Layout, errLayout)
		}
		return int64(0), nil
	case a.MemoryFormat != nil:
		if f, ok := memoryFormats[*a.MemoryFormat]; ok {
			return f, nil
		}
		return nil, fmt.Errorf("there is no memory format number %d", *a.MemoryFormat)
	case a.Graph != nil:
		return nil, errors.New("a graph where a value is expected")
	}
	return nil, fmt.Errorf("its kind is %.50q, which this package does not know", cmp.Or(a.unknown, "of another node"))
}

// Limited returns a number of a program. The largest float32, which models write into masks,
// becomes the largest number of the dtype that takes float32's place.
func Limited(v float64, float cgotorch.DType) float64 {
	if math.Abs(v) == math.MaxFloat32 {
		switch float {
		case cgotorch.BFloat16:
			return math.Copysign(0x1.fep127, v)
		case cgotorch.Float16:
			return math.Copysign(65504, v)
		}
	}
	return v
}

// dtypeOf returns the dtype with a number of the schema. `float` stands for float32.
func dtypeOf(number int, float cgotorch.DType) (cgotorch.DType, error) {
	d, ok := dtypes[number]
	if !ok {
		return 0, fmt.Errorf("there is no dtype number %d", number)
	}
	if d == cgotorch.Float32 && float != 0 {
		d = float
	}
	return d, nil
}

func tensorNames(a *argument) (names []string) {
	if a.Tensors != nil {
		for _, t := range *a.Tensors {
			names = append(names, t.Name)
		}
	}
	if a.OptionalTensors != nil {
		for _, t := range *a.OptionalTensors {
			if t.Tensor != nil {
				names = append(names, t.Tensor.Name)
			}
		}
	}
	return names
}

var errLayout = errors.New("only strided tensors are supported")
