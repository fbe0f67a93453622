package export

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/guard"
)

// binder binds the inputs and outputs of one program.
type binder struct {
	*Program
	float                        cgotorch.DType // stands for float32
	text                         *exported
	paths                        []string           // the names of the inputs that a caller gives
	weightTable, constantTable   map[string]*Stored // of the archive
	weightAt, constantAt, userAt map[string]int     // by name; users by the name of the graph's value
}

func (b *binder) weight(name string, parameter bool) (int, bool) {
	if i, ok := b.weightAt[name]; ok {
		return i, true
	}
	t := b.weightTable[name]
	if t == nil {
		return 0, false
	}
	t.Parameter = parameter || t.Parameter
	b.weightAt[name] = len(b.WeightList)
	b.WeightList = append(b.WeightList, t)
	return b.weightAt[name], true
}

func (b *binder) constant(name string) (int, bool) {
	if i, ok := b.constantAt[name]; ok {
		return i, true
	}
	t := b.constantTable[name]
	if t == nil {
		return 0, false
	}
	t.Constant = true
	b.constantAt[name] = len(b.ConstList)
	b.ConstList = append(b.ConstList, t)
	return b.constantAt[name], true
}

func (b *binder) input(s *inputSpec) error {
	in := graph.Input{Weight: -1, Constant: -1, User: -1}
	ok := true
	name := ""
	switch {
	case s.Parameter != nil:
		name = s.Parameter.Name
		in.Weight, ok = b.weight(name, true)
	case s.Buffer != nil && s.Buffer.Persistent:
		name = s.Buffer.Name
		in.Weight, ok = b.weight(name, false)
	case s.Buffer != nil:
		name = s.Buffer.Name
		in.Constant, ok = b.constant(name)
	case s.TensorConstant != nil:
		name = s.TensorConstant.Name
		in.Constant, ok = b.constant(name)
	case s.User != nil:
		v, err := b.value(&s.User.Arg)
		if err != nil {
			return err
		}
		if t := s.User.Arg.Tensor; t != nil {
			b.userAt[t.Name] = len(b.Signature.Inputs)
		}
		in.User = len(b.Signature.Inputs)
		b.Signature.Inputs = append(b.Signature.Inputs, v)
	case s.Constant != nil:
		v, err := b.value(&s.Constant.Value)
		if err != nil {
			return err
		}
		in.User = len(b.Signature.Inputs)
		b.Signature.Inputs = append(b.Signature.Inputs, v)
	case s.CustomObject != nil:
		return b.File.Refuse("the input %.100q is a custom object", s.CustomObject.Name)
	case s.Token != nil:
		return b.File.Refuse("it orders side effects by tokens")
	default:
		return b.File.Refuse("input %d of its signature is of a kind that this package does not know", len(b.Inputs))
	}
	if !ok {
		return b.File.Bad("the tensor %.100q is in no table of the archive", name)
	}
	b.Inputs = append(b.Inputs, in)
	return nil
}

// value describes an input that a caller gives.
func (b *binder) value(a *argument) (guard.Input, error) {
	if a.Tensor != nil {
		m, ok := b.text.GraphModule.Graph.Tensors[a.Tensor.Name]
		if !ok {
			return guard.Input{}, b.File.Bad("the input %.100q has no shape", a.Tensor.Name)
		}
		dtype, err := dtypeOf(m.DType, b.float)
		if err != nil {
			return guard.Input{}, b.File.Bad("the input %.100q: %w", a.Tensor.Name, err)
		}
		v := guard.Input{Tensor: true, DType: dtype}
		for _, s := range m.Sizes {
			size, err := b.size(s)
			if err != nil {
				return guard.Input{}, b.File.Bad("the input %.100q: %w", a.Tensor.Name, err)
			}
			v.Shape = append(v.Shape, size)
		}
		return v, nil
	}
	if a.SymInt != nil && a.SymInt.Name != nil {
		return b.integer(*a.SymInt.Name)
	}
	if a.SymInt != nil && a.SymInt.Int != nil {
		return guard.Input{Fixed: *a.SymInt.Int}, nil
	}
	fixed, err := a.constant(0)
	if err != nil {
		return guard.Input{}, b.File.Bad("input %d of the program: %w", len(b.Inputs), err)
	}
	switch fixed.(type) {
	case nil, int64, float64, bool, string:
		return guard.Input{Fixed: fixed}, nil
	}
	return guard.Input{}, b.File.Bad("input %d of the program is fixed to %.100s, which is no number, truth value or text", len(b.Inputs), fmt.Sprint(fixed))
}

// integer describes an integer that a caller gives.
func (b *binder) integer(name string) (guard.Input, error) {
	v := guard.Input{Bounds: &guard.Size{Text: name, Limits: guard.Limits{Min: math.MinInt64, Max: guard.MaxSize}}}
	text, ok := b.text.GraphModule.Graph.Ints[name]
	if !ok {
		return v, nil
	}
	s, err := b.size(text)
	if err != nil {
		return guard.Input{}, b.File.Bad("the input %.100q: %w", name, err)
	}
	if s.Min <= 0 { // PyTorch says 0 also where it accepts negative numbers
		s.Min = math.MinInt64
	}
	v.Bounds = &s
	return v, nil
}

func (b *binder) size(s sizeText) (guard.Size, error) {
	if s.Int != nil {
		if *s.Int < 0 {
			return guard.Size{}, fmt.Errorf("its size %d is negative", *s.Int)
		}
		return guard.Size{Text: fmt.Sprint(*s.Int), Limits: guard.Limits{Min: *s.Int, Max: *s.Int}}, nil
	}
	if s.Expr == nil {
		return guard.Size{}, errors.New("a size without a value")
	}
	e, err := expr.ParseSympy(s.Expr.Text)
	if err != nil {
		return guard.Size{}, err
	}
	size := guard.Size{Text: e.String(), Limits: guard.Limits{Max: guard.MaxSize}, Expr: e}
	if s.Expr.Hint != nil {
		size.Hint = s.Expr.Hint.Int
	}
	if e.Of == "symbol" {
		if size.Limits = b.text.RangeConstraints[e.Symbol].limits(); size.Min > size.Max {
			return size, fmt.Errorf("its size %.60s is from %d to %d", e, size.Min, size.Max)
		}
	}
	return size, nil
}

func (b *binder) output(s *outputSpec) (graph.Output, error) {
	o, ok, name := graph.Output{Weight: -1, Constant: -1, User: -1}, true, ""
	switch {
	case s.User != nil, s.Loss != nil:
	case s.Buffer != nil:
		name = s.Buffer.Name
		if o.Weight, ok = b.weight(name, false); !ok {
			o.Weight = -1
			o.Constant, ok = b.constant(name)
		}
	case s.Parameter != nil:
		name = s.Parameter.Name
		o.Weight, ok = b.weight(name, true)
	case s.Input != nil:
		name = s.Input.Name
		o.User, ok = b.userAt[name]
	case s.Gradient != nil, s.InputGradient != nil:
		return o, b.File.Refuse("it computes its own gradients: export the model for training without them, and use Exec.Backward")
	default:
		return o, b.File.Refuse("output %d of its signature is of a kind that this package does not know", len(b.Outputs))
	}
	if !ok {
		return o, b.File.Bad("an output is written to %.100q, which the program does not have", name)
	}
	return o, nil
}

// bind finds for each input and output of the graph what it stands for.
func (b *binder) bind(model string) (err error) {
	if b.weightTable, err = b.File.stored("data/weights", model); err != nil {
		return err
	}
	if b.constantTable, err = b.File.stored("data/constants", model); err != nil {
		return err
	}
	signature := &b.text.GraphModule.Signature
	if len(signature.Inputs) != len(b.Graph.Inputs) || len(signature.Outputs) != len(b.Graph.Outputs) {
		return b.File.Bad("the signature has %d inputs and %d outputs, and the graph has %d and %d",
			len(signature.Inputs), len(signature.Outputs), len(b.Graph.Inputs), len(b.Graph.Outputs))
	}
	for i := range signature.Inputs {
		if err := b.input(&signature.Inputs[i]); err != nil {
			return err
		}
	}
	s := &b.Signature
	if len(s.Inputs) != len(b.paths) {
		return b.File.Bad("the arguments have %d values, and the signature has %d", len(b.paths), len(s.Inputs))
	}
	for i := range s.Inputs {
		s.Inputs[i].Name, s.Inputs[i].Keyword = b.paths[i], i >= s.in.Children[0].leaves()
	}
	b.readGuards()
	results := 0
	for i := range signature.Outputs {
		o, err := b.output(&signature.Outputs[i])
		if err != nil {
			return err
		}
		if o.IsResult() {
			results++
		}
		b.Outputs = append(b.Outputs, o)
	}
	if want := s.Out.leaves(); results != want {
		return b.File.Bad("the results have %d values, and the signature has %d", want, results)
	}
	for _, name := range slices.Sorted(maps.Keys(b.weightTable)) { // those that no node reads, such as a second name of a weight
		if _, ok := b.weightAt[name]; !ok && b.weightTable[name].Entry != "" { // a pickled one is no tensor
			b.weight(name, false)
		}
	}
	for _, t := range b.WeightList {
		b.Weights = append(b.Weights, &t.Variable)
	}
	for _, t := range b.ConstList {
		b.Constants = append(b.Constants, &t.Variable)
	}
	return nil
}

// readGuards reads the guards of the file.
func (b *binder) readGuards() {
	b.Guards.Inputs = b.Signature.Inputs
	if b.text.Guards == nil {
		slog.Warn(fmt.Sprintf("pt2: %.200s: the file has no guards, as PyTorch %.40s wrote it: only the ranges of its sizes are checked; export it with PyTorch 2.11 to check the conditions of its code", b.File.Name, b.text.TorchVersion))
		return
	}
	names := b.Signature.leafNames()
	for _, code := range *b.text.Guards {
		b.Guards.Read(code, names)
	}
	ranges := map[string]guard.Limits{}
	for key, c := range b.text.RangeConstraints {
		ranges[key] = c.limits()
	}
	b.Guards.ReadRanges(ranges)
}

// limits returns the sizes that a constraint accepts. PyTorch says 2 where it has not looked at 0
// and 1, and accepts them.
func (c constraint) limits() guard.Limits {
	l := guard.Limits{Max: guard.MaxSize}
	if c.Min != nil && *c.Min > 2 && *c.Min < guard.MaxSize {
		l.Min = int64(*c.Min)
	}
	if c.Max != nil && *c.Max >= 0 && *c.Max < guard.MaxSize {
		l.Max = int64(*c.Max)
	}
	return l
}
