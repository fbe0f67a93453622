package pt2

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// shapes reads the trees of arguments and results.
func (p *Program) shapes(a *archive, text *exported) error {
	m := &text.GraphModule
	if len(m.ModuleCalls) == 0 || m.ModuleCalls[0].Signature == nil {
		return a.Bad("it has no signature")
	}
	s := m.ModuleCalls[0].Signature
	var err error
	if p.in, err = parseTree(s.In, m.NamedTuples); err != nil {
		return a.Bad("the arguments: %w", err)
	}
	if p.out, err = parseTree(s.Out, m.NamedTuples); err != nil {
		return a.Bad("the results: %w", err)
	}
	if len(p.in.children) != 2 || p.in.children[0].leaf() || p.in.children[1].leaf() || !p.in.children[1].named {
		return a.Bad("the arguments are no tuple and no dict")
	}
	if have := len(m.Signature.Inputs); p.in.leaves() > have {
		return a.Bad("the arguments have %d values, and the signature has %d", p.in.leaves(), have)
	}
	arguments, keywords := p.in.children[0], p.in.children[1]
	if len(s.Names) == len(arguments.children)+len(keywords.children) {
		p.positions = s.Names[:len(arguments.children)]
	}
	for i, c := range arguments.children {
		p.paths = c.paths(p.position(i), p.paths)
	}
	for i, c := range keywords.children {
		p.paths = c.paths(keywords.keys[i], p.paths)
	}
	return nil
}

// position returns the name of a positional argument, as far as the file has names.
func (p *Program) position(i int) string {
	if i < len(p.positions) {
		return p.positions[i]
	}
	return fmt.Sprintf("argument %d", i)
}

// plan finds for each input and output of the graph what it stands for.
func (p *Program) plan(a *archive, model string, text *exported) (*binder, error) {
	weights, err := a.stored("data/weights", model)
	if err != nil {
		return nil, err
	}
	constants, err := a.stored("data/constants", model)
	if err != nil {
		return nil, err
	}
	b := &binder{program: p, file: a, text: text, weightAt: map[string]int{}, constantAt: map[string]int{}, userAt: map[string]int{}, weights: weights, constants: constants}
	signature := &text.GraphModule.Signature
	if len(signature.Inputs) != len(p.graph.inputs) || len(signature.Outputs) != len(p.graph.outputs) {
		return nil, a.Bad("the signature has %d inputs and %d outputs, and the graph has %d and %d",
			len(signature.Inputs), len(signature.Outputs), len(p.graph.inputs), len(p.graph.outputs))
	}
	for i := range signature.Inputs {
		if err := b.input(&signature.Inputs[i]); err != nil {
			return nil, err
		}
	}
	if len(p.values) != len(p.paths) {
		return nil, a.Bad("the arguments have %d values, and the signature has %d", len(p.paths), len(p.values))
	}
	for i := range p.values {
		p.values[i].Name, p.values[i].Keyword = p.paths[i], i >= p.in.children[0].leaves()
	}
	p.readGuards(a, text)
	results := 0
	for i := range signature.Outputs {
		o, err := b.output(&signature.Outputs[i])
		if err != nil {
			return nil, err
		}
		if o == (programOutput{-1, -1, -1}) {
			results++
		}
		p.outputs = append(p.outputs, o)
	}
	if want := p.out.leaves(); results != want {
		return nil, a.Bad("the results have %d values, and the signature has %d", want, results)
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) { // those that no node reads, such as a second name of a weight
		if _, ok := b.weightAt[name]; !ok && weights[name].entry != "" { // a pickled one is no tensor
			b.weight(name, false)
		}
	}
	return b, nil
}

// bind reads the weights and constants, and makes them the program's own. It fuses the steps if
// `fuse` is set.
func (b *binder) bind(x *cgotorch.Exec, fuse bool) error {
	reader := &weightReader{file: b.file, float: b.program.float, bases: map[string]*cgotorch.Tensor{}}
	if err := reader.read(x, append(slices.Clone(b.weightList), b.constantList...)); err != nil {
		return err
	}
	if b.program.device.IsCUDA() {
		b.fillNumbers(x)
	}
	if fuse {
		b.fuse(x)
	}
	if err := b.keep(x); err != nil {
		return errors.Join(err, b.program.Close())
	}
	return nil
}

// fillNumber has the schema that LibTorch prints for its operator.
var fillNumber = operatorCall{op: opcall.New("aten::fill_.Scalar"), schema: "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)", single: true}

// fillNumbers makes fills with a constant of one number fills with that number. In PyTorch such a
// constant stays on the host, and here it is on the device, where two kernels more would copy it.
func (b *binder) fillNumbers(x *cgotorch.Exec) {
	f := newFuser(b.program.graph)
	constants, replaced := map[int]*cgotorch.Tensor{}, b.replaced()
	for i, slot := range f.graph.inputs {
		if at := b.program.inputs[i].constant; at >= 0 && !f.graph.written[i] && !replaced[slot] {
			constants[slot] = b.constantList[at].tensor
		}
	}
	gone := map[int]bool{}
	for i := range f.graph.steps {
		fill := f.call(i, "aten.fill_.Tensor")
		if fill == nil || len(fill.args) != 2 || !fill.args[1].isTensor() {
			continue
		}
		from, ok := f.source(fill.args[1], i, gone)
		if !ok {
			continue
		}
		lifted := f.call(from, "aten.lift_fresh_copy.default")
		if lifted == nil || lifted.args[0].slot < 0 {
			continue
		}
		t := constants[lifted.args[0].slot]
		if t == nil || t.Dim() != 0 || !t.DType().IsFloat() && t.DType() != cgotorch.Int64 {
			continue
		}
		number := constantOf(x.Item(t))
		if t.DType() == cgotorch.Int64 {
			number = constantOf(cgotorch.ToSlice[int64](x, t)[0])
		}
		act := fillNumber
		act.args, act.outs = []operand{fill.args[0], number}, fill.outs
		f.graph.steps[i].act = &act
		gone[from] = true
	}
	f.remove(gone)
}

// A binder binds the inputs and outputs of one program.
type binder struct {
	program                      *Program
	file                         *archive
	text                         *exported
	weights, constants           map[string]*storedTensor
	weightList, constantList     []*storedTensor
	weightAt, constantAt, userAt map[string]int // by name; users by the name of the graph's value
}

func (b *binder) weight(name string, parameter bool) (int, bool) {
	if i, ok := b.weightAt[name]; ok {
		return i, true
	}
	t := b.weights[name]
	if t == nil {
		return 0, false
	}
	t.parameter = parameter || t.parameter
	b.weightAt[name] = len(b.weightList)
	b.weightList = append(b.weightList, t)
	return b.weightAt[name], true
}

func (b *binder) constant(name string) (int, bool) {
	if i, ok := b.constantAt[name]; ok {
		return i, true
	}
	t := b.constants[name]
	if t == nil {
		return 0, false
	}
	t.constant = true
	b.constantAt[name] = len(b.constantList)
	b.constantList = append(b.constantList, t)
	return b.constantAt[name], true
}

func (b *binder) input(s *inputSpec) error {
	p := b.program
	in := programInput{-1, -1, -1}
	ok := true
	name := ""
	switch {
	case s.Parameter != nil:
		name = s.Parameter.Name
		in.weight, ok = b.weight(name, true)
	case s.Buffer != nil && s.Buffer.Persistent:
		name = s.Buffer.Name
		in.weight, ok = b.weight(name, false)
	case s.Buffer != nil:
		name = s.Buffer.Name
		in.constant, ok = b.constant(name)
	case s.TensorConstant != nil:
		name = s.TensorConstant.Name
		in.constant, ok = b.constant(name)
	case s.User != nil:
		v, err := b.value(&s.User.Arg)
		if err != nil {
			return err
		}
		if t := s.User.Arg.Tensor; t != nil {
			b.userAt[t.Name] = len(p.values)
		}
		in.user = len(p.values)
		p.values = append(p.values, v)
	case s.Constant != nil:
		v, err := b.value(&s.Constant.Value)
		if err != nil {
			return err
		}
		in.user = len(p.values)
		p.values = append(p.values, v)
	case s.CustomObject != nil:
		return b.file.Refuse("the input %.100q is a custom object", s.CustomObject.Name)
	case s.Token != nil:
		return b.file.Refuse("it orders side effects by tokens")
	default:
		return b.file.Refuse("input %d of its signature is of a kind that this package does not know", len(p.inputs))
	}
	if !ok {
		return b.file.Bad("the tensor %.100q is in no table of the archive", name)
	}
	p.inputs = append(p.inputs, in)
	return nil
}

// value describes an input that a caller gives.
func (b *binder) value(a *argument) (Value, error) {
	if a.Tensor != nil {
		m, ok := b.text.GraphModule.Graph.Tensors[a.Tensor.Name]
		if !ok {
			return Value{}, b.file.Bad("the input %.100q has no shape", a.Tensor.Name)
		}
		dtype, err := (&compiler{float: b.program.float}).dtype(m.DType)
		if err != nil {
			return Value{}, b.file.Bad("the input %.100q: %w", a.Tensor.Name, err)
		}
		v := Value{Tensor: true, DType: dtype}
		for _, s := range m.Sizes {
			size, err := b.size(s)
			if err != nil {
				return Value{}, b.file.Bad("the input %.100q: %w", a.Tensor.Name, err)
			}
			v.Shape = append(v.Shape, size)
		}
		return v, nil
	}
	if a.SymInt != nil && a.SymInt.Name != nil {
		return b.integer(*a.SymInt.Name)
	}
	if a.SymInt != nil && a.SymInt.Int != nil {
		return Value{Fixed: *a.SymInt.Int}, nil
	}
	fixed, err := (&builder{compiler: &compiler{file: b.file}}).constant(a)
	if err != nil {
		return Value{}, b.file.Bad("input %d of the program: %w", len(b.program.inputs), err)
	}
	switch fixed.(type) {
	case nil, int64, float64, bool, string:
		return Value{Fixed: fixed}, nil
	}
	return Value{}, b.file.Bad("input %d of the program is fixed to %.100s, which is no number, truth value or text", len(b.program.inputs), fmt.Sprint(fixed))
}

const maxSize = 1<<63 - 1

// integer describes an integer that a caller gives.
func (b *binder) integer(name string) (Value, error) {
	v := Value{Bounds: &Size{Text: name, Min: math.MinInt64, Max: maxSize}}
	text, ok := b.text.GraphModule.Graph.Ints[name]
	if !ok {
		return v, nil
	}
	s, err := b.size(text)
	if err != nil {
		return Value{}, b.file.Bad("the input %.100q: %w", name, err)
	}
	if s.Min <= 0 { // PyTorch says 0 also where it accepts negative numbers
		s.Min = math.MinInt64
	}
	v.Bounds = &s
	return v, nil
}

func (b *binder) size(s size) (Size, error) {
	if s.Int != nil {
		if *s.Int < 0 {
			return Size{}, fmt.Errorf("its size %d is negative", *s.Int)
		}
		return Size{Text: fmt.Sprint(*s.Int), Min: *s.Int, Max: *s.Int}, nil
	}
	if s.Expr == nil {
		return Size{}, errors.New("a size without a value")
	}
	e, err := parseExpr(s.Expr.Text)
	if err != nil {
		return Size{}, err
	}
	size := Size{Text: e.String(), Max: maxSize, expr: e}
	if s.Expr.Hint != nil {
		size.hint = s.Expr.Hint.Int
	}
	if e.of == "symbol" {
		c := b.text.RangeConstraints[e.symbol]
		// PyTorch says 2 where it has not looked at 0 and 1, and accepts them.
		if c.Min != nil && *c.Min > 2 && *c.Min < maxSize {
			size.Min = int64(*c.Min)
		}
		if c.Max != nil && *c.Max >= 0 && *c.Max < maxSize {
			size.Max = int64(*c.Max)
		}
		if size.Min > size.Max {
			return Size{}, fmt.Errorf("its size %.60s is from %d to %d", e, size.Min, size.Max)
		}
	}
	return size, nil
}

func (b *binder) output(s *outputSpec) (programOutput, error) {
	o, ok, name := programOutput{-1, -1, -1}, true, ""
	switch {
	case s.User != nil, s.Loss != nil:
	case s.Buffer != nil:
		name = s.Buffer.Name
		if o.weight, ok = b.weight(name, false); !ok {
			o.weight = -1
			o.constant, ok = b.constant(name)
		}
	case s.Parameter != nil:
		name = s.Parameter.Name
		o.weight, ok = b.weight(name, true)
	case s.Input != nil:
		name = s.Input.Name
		o.user, ok = b.userAt[name]
	case s.Gradient != nil, s.InputGradient != nil:
		return o, b.file.Refuse("it computes its own gradients: export the model for training without them, and use Exec.Backward")
	default:
		return o, b.file.Refuse("output %d of its signature is of a kind that this package does not know", len(b.program.outputs))
	}
	if !ok {
		return o, b.file.Bad("an output is written to %.100q, which the program does not have", name)
	}
	return o, nil
}

// keep makes the tensors the program's own.
func (b *binder) keep(x *cgotorch.Exec) error {
	// A tensor may be a view of all that was read. Views of such a view would not require a gradient,
	// although the tensor does, and LibTorch looks at that. So each tensor is detached.
	kept := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	own := func(t *cgotorch.Tensor) *cgotorch.Tensor {
		if kept[t] == nil {
			kept[t] = x.Keep(x.Detach(t))
		}
		return kept[t]
	}
	for _, t := range b.constantList {
		b.program.constants = append(b.program.constants, own(t.tensor))
	}
	for _, t := range b.weightList {
		named := nn.Named{Name: t.name, Tensor: own(t.tensor), Buffer: !t.parameter}
		b.program.Weights = append(b.program.Weights, named)
		if t.parameter && t.requiresGrad && !named.Tensor.RequiresGrad() {
			if err := named.Tensor.SetRequiresGrad(true); err != nil {
				return b.file.Bad("the parameter %.100q: %w", t.name, err)
			}
		}
	}
	return nil
}

// drop removes the weights and constants that no step reads any more.
func (b *binder) drop() {
	p := b.program
	f := newFuser(p.graph)
	weights, constants := map[int]bool{}, map[int]bool{} // those that are used
	for i, slot := range p.graph.inputs {
		if f.read[slot] > 0 {
			weights[p.inputs[i].weight], constants[p.inputs[i].constant] = true, true
		}
	}
	for _, o := range p.outputs {
		weights[o.weight], constants[o.constant] = true, true
	}
	var weightTo, constantTo map[int]int
	b.weightList, weightTo = only(b.weightList, weights)
	b.constantList, constantTo = only(b.constantList, constants)
	for i := range p.inputs {
		in := &p.inputs[i]
		in.weight, in.constant = newPlace(weightTo, in.weight), newPlace(constantTo, in.constant)
	}
	for i := range p.outputs {
		o := &p.outputs[i]
		o.weight, o.constant = newPlace(weightTo, o.weight), newPlace(constantTo, o.constant)
	}
}

// only returns the tensors whose places in the list are used. It also returns their new places.
func only(list []*storedTensor, used map[int]bool) (kept []*storedTensor, to map[int]int) {
	to = map[int]int{}
	for i, t := range list {
		if used[i] {
			to[i] = len(kept)
			kept = append(kept, t)
		}
	}
	return kept, to
}

// newPlace returns the new place of a tensor, or -1 if it is dropped or -1.
func newPlace(to map[int]int, place int) int {
	if at, ok := to[place]; ok {
		return at
	}
	return -1
}
