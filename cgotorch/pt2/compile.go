package pt2

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
)

// Note [How a graph runs]
//
// The values of a graph have names, and each value is made once. compile gives each name a slot of
// a frame, and turns each node into a step with the slots of its arguments. Operators are found and
// their schemas are read once, so that a run neither looks up names nor reorders arguments. A step
// also knows which slots nobody reads after it. Their tensors are closed, so that the peak of
// memory is that of PyTorch. A frame belongs to one run, so runs do not meet.

// A graph is a list of steps. A sub-graph, such as a branch of a condition, is a graph too.
type graph struct {
	file    string // for errors
	name    string
	slots   int
	inputs  []int // the slots of the inputs
	outputs []operand
	aliased []bool // output i is also an input or an earlier output, so its handle must be made anew
	steps   []step

	shares  bool   // outputs may share memory with inputs
	writes  bool   // steps may write into inputs
	written []bool // steps may write into input i
}

// A step is one node.
type step struct {
	node  *Node
	act   action
	frees []int // the slots that no later step reads
}

// An action runs a node: it reads the slots of its arguments and fills the slots of its results.
type action interface {
	run(x *cgotorch.Exec, f *frame)
	reads() []*operand
	fills() []int
}

// An operand is an argument: a slot, a list with slots in it, or a constant.
type operand struct {
	slot     int  // -1 for a list or a constant
	number   bool // the slot holds a number, and no tensor
	constant any
	list     []operand
	of       listKind
}

type listKind int

const (
	noList listKind = iota
	tensorList
	intList
	boolList
	floatList
)

// onDevice is the constant that stands for the device of the Exec.
type onDevice struct{}

func constantOf(v any) operand { return operand{slot: -1, constant: v} }

// isDefault reports whether the operator's own default stands for the argument.
func (o *operand) isDefault() bool {
	return o.slot < 0 && o.of == noList && o.constant == cgotorch.Default
}

// isNone reports whether the argument is None of Python.
func (o *operand) isNone() bool { return o.slot < 0 && o.of == noList && o.constant == nil }

// A compiler makes the graphs of one program.
type compiler struct {
	file  *archive
	float cgotorch.DType // stands for float32 in arguments; 0 means float32 itself
	nodes []*Node
	depth int
	// `missing` has the operators that LibTorch lacks, each with the first node that needs it.
	missing map[string]string
}

const mostGraphDepth = 50

// A builder makes one graph.
type builder struct {
	*compiler
	text  *graphText
	slots map[string]int
	graph *graph
}

func (c *compiler) build(name string, text *graphText) (*graph, error) {
	if c.depth++; c.depth > mostGraphDepth {
		return nil, c.file.Bad("the graph %.100s: more than %d graphs inside each other", name, mostGraphDepth)
	}
	defer func() { c.depth-- }()
	b := &builder{compiler: c, text: text, slots: map[string]int{}, graph: &graph{file: c.file.Name, name: name}}
	place := "the program"
	if name != "" {
		place = fmt.Sprintf("the graph %.100s", name)
	}
	for i := range text.Inputs {
		slot, err := b.define(&text.Inputs[i])
		if err != nil {
			return nil, b.bad("input %d of %s: %w", i, place, err)
		}
		b.graph.inputs = append(b.graph.inputs, slot)
	}
	for i := range text.Nodes {
		if err := b.node(&text.Nodes[i]); err != nil {
			return nil, err
		}
	}
	given := map[int]bool{} // slots of inputs and of earlier outputs
	for _, slot := range b.graph.inputs {
		given[slot] = true
	}
	for i := range text.Outputs {
		o, err := b.operand(&text.Outputs[i])
		if err != nil {
			return nil, b.bad("output %d of %s: %w", i, place, err)
		}
		b.graph.outputs = append(b.graph.outputs, o)
		b.graph.aliased = append(b.graph.aliased, o.slot >= 0 && given[o.slot])
		given[o.slot] = true
	}
	b.graph.viewsMayCopy()
	b.graph.free()
	return b.graph, nil
}

func (b *builder) bad(format string, args ...any) error { return b.file.Bad(format, args...) }

// define gives a slot to the value that an input or a result names.
func (b *builder) define(a *argument) (int, error) {
	name := ""
	switch {
	case a.Tensor != nil:
		name = a.Tensor.Name
	case a.SymInt != nil && a.SymInt.Name != nil:
		name = *a.SymInt.Name
	case a.SymBool != nil && a.SymBool.Name != nil:
		name = *a.SymBool.Name
	case a.SymFloat != nil && a.SymFloat.Name != nil:
		name = *a.SymFloat.Name
	case a.unknown != "":
		return 0, fmt.Errorf("its kind is %.50q, which this package does not know", a.unknown)
	}
	return b.defineName(name)
}

func (b *builder) defineName(name string) (int, error) {
	slot := b.graph.slots
	if name != "" {
		if _, twice := b.slots[name]; twice {
			return 0, fmt.Errorf("two values have the name %.100q", name)
		}
		b.slots[name] = slot
	}
	b.graph.slots++
	return slot, nil
}

func (b *builder) use(name string) (operand, error) {
	slot, ok := b.slots[name]
	if !ok {
		return operand{}, fmt.Errorf("there is no value %.100q before it", name)
	}
	return operand{slot: slot}, nil
}

// free gives each step the slots that no step and no output reads after it. The inputs belong to
// the caller.
func (g *graph) free() {
	last := map[int]int{} // by slot: the last step that fills or reads it
	for i := range g.steps {
		for _, slot := range g.steps[i].act.fills() {
			last[slot] = i
		}
		for _, slot := range slotsOf(g.steps[i].act.reads()...) {
			if _, own := last[slot]; own {
				last[slot] = i
			}
		}
		g.steps[i].frees = nil
	}
	for i := range g.outputs {
		for _, slot := range slotsOf(&g.outputs[i]) {
			delete(last, slot)
		}
	}
	for slot, i := range last {
		g.steps[i].frees = append(g.steps[i].frees, slot)
	}
}

// slotsOf returns the slots that operands name.
func slotsOf(operands ...*operand) (slots []int) {
	for _, o := range operands {
		if o.slot >= 0 {
			slots = append(slots, o.slot)
		}
		for i := range o.list {
			slots = append(slots, slotsOf(&o.list[i])...)
		}
	}
	return slots
}

// pointers returns the addresses of the items of lists.
func pointers(lists ...[]operand) (all []*operand) {
	for _, list := range lists {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

var errLayout = errors.New("only strided tensors are supported")

// node adds a step for a node.
func (b *builder) node(text *nodeText) error {
	n := newNode(text)
	b.nodes = append(b.nodes, n)
	act, err := b.action(n, text)
	if err != nil {
		var core *cgotorch.Error
		if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrFormat) || errors.As(err, &core) { // the last one is no fault of the file
			return err
		}
		if errors.Is(err, errLayout) {
			return b.unsupported(n, "%w", err)
		}
		return b.bad("node %.100s (%.100s): %w", n.Name, n.Operator, err)
	}
	if act != nil {
		b.graph.steps = append(b.graph.steps, step{node: n, act: act})
	}
	return nil
}

func (b *builder) unsupported(n *Node, format string, args ...any) error {
	return b.file.Refuse("node %.100s (%.100s): %w", n.Name, n.Operator, fmt.Errorf(format, args...))
}

// dropped are operators that only tell the compiler of PyTorch something.
var dropped = map[string]bool{
	"aten._assert_tensor_metadata.default": true, "aten.sym_constrain_range.default": true,
	"aten.sym_constrain_range_for_size.default": true,
}

// waiting are operators for which the host waits: their results have sizes that depend on values,
// or they look at the values before they return.
var waiting = map[string]bool{
	"aten.item.default": true, "aten._local_scalar_dense.default": true, "aten.nonzero.default": true,
	"aten.nonzero_numpy.default": true, "aten.where.default": true, "aten.masked_select.default": true, "aten._unique2.default": true,
	"aten.unique_dim.default": true, "aten.unique_consecutive.default": true, "aten._unique.default": true,
	"aten.repeat_interleave.Tensor": true, "aten.repeat_interleave.self_Tensor": true, "aten.bincount.default": true,
	"aten.argwhere.default": true, "aten.one_hot.default": true, "aten.tensor_split.tensor_indices_or_sections": true, "aten.is_nonzero.default": true, "aten.equal.default": true, "torchvision.nms.default": true,
	"transformers.grouped_mm_fallback.default": true, "aten.multinomial.default": true, "aten.combinations.default": true, "aten.istft.default": true,
}

func init() {
	for _, name := range strings.Fields(`cholesky inverse linalg_cholesky linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_ldl_factor
		linalg_lstsq linalg_lu_factor linalg_pinv linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve`) {
		waiting["aten."+name+".default"] = true
	}
}

func (b *builder) action(n *Node, text *nodeText) (action, error) {
	n.Waits = waiting[n.Operator] && !waitsNot(n, text) || b.indexesByMask(n, text)
	switch name := n.Operator; {
	case dropped[name]:
		return nil, nil
	case strings.HasPrefix(name, "higher_order."):
		return b.higherOrder(n, text)
	case sizeOf[name] != nil:
		return b.size(n, text)
	case name == "aten._assert_scalar.default":
		args, err := b.operands(text.Inputs)
		if err == nil && len(args) < 1 {
			err = errors.New("it has no arguments")
		}
		return &assertion{args: args}, err
	case pythonFunctions[text.Target] != nil:
		args, err := b.operands(text.Inputs)
		if err != nil {
			return nil, err
		}
		outs, err := b.results(text.Outputs)
		if err == nil && len(outs) != 1 {
			err = fmt.Errorf("%d results, want one", len(outs))
		}
		return &function{node: n, of: pythonFunctions[text.Target], args: args, outs: outs}, err
	case packageOperators[name] != nil:
		return b.packageOperator(n, text)
	case strings.HasPrefix(text.Target, "torch.ops."):
		return b.operator(n, text)
	}
	return nil, b.unsupported(n, "a Python function that has no counterpart")
}

// waitsNot reports whether the arguments spare the host the wait: they give the size, or ask for
// several samples with replacement.
func waitsNot(n *Node, text *nodeText) bool {
	name := "output_size"
	switch n.Operator {
	case "aten.multinomial.default":
		several, replaced := false, false
		for _, in := range text.Inputs {
			several = several || in.Name == "num_samples" && in.Arg.Int != nil && *in.Arg.Int > 1
			replaced = replaced || in.Name == "replacement" && in.Arg.Bool != nil && *in.Arg.Bool
		}
		return several && replaced
	case "aten.one_hot.default":
		name = "num_classes"
	case "aten.repeat_interleave.Tensor", "aten.repeat_interleave.self_Tensor":
	default:
		return false
	}
	for _, in := range text.Inputs {
		if in.Name == name {
			return in.Arg.Int != nil && *in.Arg.Int >= 0
		}
	}
	return false
}

// indexesByMask reports whether a node is an index by truth values.
func (b *builder) indexesByMask(n *Node, text *nodeText) bool {
	if !slices.Contains([]string{"aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default"}, n.Operator) {
		return false
	}
	for _, in := range text.Inputs {
		if in.Arg.OptionalTensors == nil && in.Arg.Tensors == nil {
			continue
		}
		for _, name := range tensorNames(&in.Arg) {
			if d := dtypes[b.text.Tensors[name].DType]; name != "" && b.text.Tensors[name].DType != 0 && (d == cgotorch.Bool || d == cgotorch.Uint8) {
				return true
			}
		}
	}
	return false
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

// operator makes the action of an operator of LibTorch.
func (b *builder) operator(n *Node, text *nodeText) (action, error) {
	dot := strings.LastIndexByte(n.Operator, '.')
	namespace, name, ok := strings.Cut(n.Operator[:max(dot, 0)], ".")
	if !ok {
		return nil, fmt.Errorf("%.100q names no operator", text.Target)
	}
	name = namespace + "::" + name
	if overload := n.Operator[dot+1:]; overload != "default" {
		name += "." + overload
	}
	op := opcall.New(name)
	schema, err := op.Schema()
	if errors.Is(err, cgotorch.ErrNotFound) {
		if _, known := b.missing[name]; !known {
			b.missing[name] = n.Name
		}
		schema, err = "", nil
	}
	if err != nil {
		return nil, err
	}
	parameters := parametersOf(schema)
	args, err := b.inSchemaOrder(schema, parameters, text.Inputs)
	if err != nil {
		return nil, err
	}
	args = b.inFloat(parameters, args, text.Outputs)
	outs, err := b.results(text.Outputs)
	if err != nil {
		return nil, err
	}
	single := len(outs) == 1 && text.Outputs[0].Tensor != nil && strings.HasSuffix(schema, "-> Tensor") || returnsOneTensor(schema)
	return &operatorCall{op: op, schema: schema, args: args, outs: outs, single: single && len(outs) == 1}, nil
}

// returnsOneTensor reports whether a schema ends with a single result such as Tensor(a!).
func returnsOneTensor(schema string) bool {
	_, result, _ := strings.Cut(schema, ") -> ")
	for strings.Contains(result, ") -> ") {
		_, result, _ = strings.Cut(result, ") -> ")
	}
	return strings.HasPrefix(result, "Tensor(") && !strings.HasSuffix(result, "[]") || result == "Tensor"
}

// inSchemaOrder returns the arguments in the order of the schema.
func (b *builder) inSchemaOrder(schema string, parameters []parameter, inputs []namedArgument) ([]operand, error) {
	var args []operand
	for i := range inputs {
		in := &inputs[i]
		place := i
		if in.Kind == 2 && schema != "" {
			if place = slices.IndexFunc(parameters, func(p parameter) bool { return p.name == in.Name }); place < 0 {
				return nil, fmt.Errorf("the operator has no argument %.100q: its schema is %.200s", in.Name, schema)
			}
		}
		if schema != "" && place >= len(parameters) {
			return nil, fmt.Errorf("it has more arguments than its schema %.200s", schema)
		}
		for len(args) <= place {
			args = append(args, constantOf(cgotorch.Default))
		}
		o, err := b.operand(&in.Arg)
		if err != nil {
			return nil, fmt.Errorf("argument %.100q: %w", in.Name, err)
		}
		// PyTorch writes an empty list of any kind as a list of tensors.
		if o.of == tensorList && len(o.list) == 0 && schema != "" && !strings.HasPrefix(parameters[place].of, "Tensor") {
			o = constantOf([]int64{})
		}
		args[place] = o
	}
	for i, p := range parameters {
		if p.fallback == "" && (i >= len(args) || args[i].isDefault()) {
			return nil, fmt.Errorf("its argument %s is missing: its schema is %.200s", p.name, schema)
		}
	}
	return args, nil
}

// inFloat adds the argument dtype of an operator that makes a float32 tensor of no other one, such
// as torch.zeros(2), if another dtype stands for float32.
func (b *builder) inFloat(parameters []parameter, args []operand, outputs []argument) []operand {
	if b.float == 0 || len(outputs) != 1 || outputs[0].Tensor == nil || dtypes[b.text.Tensors[outputs[0].Tensor.Name].DType] != cgotorch.Float32 {
		return args
	}
	at := slices.IndexFunc(parameters, func(p parameter) bool { return p.name == "dtype" && p.of == "ScalarType?" })
	if at < 0 || slices.ContainsFunc(parameters, func(p parameter) bool { return strings.HasPrefix(p.of, "Tensor") }) {
		return args
	}
	for len(args) <= at {
		args = append(args, constantOf(cgotorch.Default))
	}
	if args[at].isDefault() || args[at].isNone() {
		args[at] = constantOf(b.float)
	}
	return args
}

// A parameter is one argument of a schema.
type parameter struct {
	of, name string
	fallback string // the text of the default, or ""
}

// parametersOf returns the parameters of a schema. They are self and alpha for this one:
//
//	aten::add(Tensor self, *, Scalar alpha=1) -> Tensor
func parametersOf(schema string) (parameters []parameter) {
	_, list, _ := strings.Cut(schema, "(")
	depth, from := 0, 0
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case '(', '[':
			depth++
			continue
		case ']':
			depth--
			continue
		case ')':
			if depth--; depth >= 0 {
				continue
			}
		case ',':
			if depth > 0 {
				continue
			}
		default:
			continue
		}
		one, fallback, _ := strings.Cut(strings.TrimSpace(list[from:i]), "=")
		if words := strings.Fields(one); len(words) > 1 {
			parameters = append(parameters, parameter{words[0], words[len(words)-1], fallback})
		}
		if from = i + 1; depth < 0 {
			break
		}
	}
	return parameters
}

// results gives slots to the results of a node. A list of tensors has a slot for each of them. A
// result without a name has a slot too.
func (b *builder) results(outputs []argument) (slots []int, err error) {
	for i := range outputs {
		if list := outputs[i].Tensors; list != nil {
			for _, t := range *list {
				slot, err := b.defineName(t.Name)
				if err != nil {
					return nil, err
				}
				slots = append(slots, slot)
			}
			continue
		}
		slot, err := b.define(&outputs[i])
		if err != nil {
			return nil, err
		}
		slots = append(slots, slot)
	}
	return slots, nil
}

func (b *builder) operands(inputs []namedArgument) ([]operand, error) {
	args := make([]operand, len(inputs))
	for i := range inputs {
		var err error
		if args[i], err = b.operand(&inputs[i].Arg); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return args, nil
}

// operand returns the argument of a step.
func (b *builder) operand(a *argument) (operand, error) {
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
		return listOf(tensorList, *a.Tensors, func(t named) (operand, error) { return b.use(t.Name) })
	case a.OptionalTensors != nil:
		return listOf(tensorList, *a.OptionalTensors, b.optional)
	case a.SymInts != nil:
		return listOf(intList, *a.SymInts, b.symbol)
	case a.SymBools != nil:
		return listOf(boolList, *a.SymBools, b.symbol)
	case a.SymFloats != nil:
		return listOf(floatList, *a.SymFloats, b.symbol)
	}
	v, err := b.constant(a)
	return constantOf(v), err
}

func (b *builder) optional(t optionalTensor) (operand, error) {
	if t.Tensor == nil {
		return constantOf((*cgotorch.Tensor)(nil)), nil
	}
	return b.use(t.Tensor.Name)
}

func (b *builder) symbol(s symbol) (operand, error) {
	switch {
	case s.Name != nil:
		o, err := b.use(*s.Name)
		o.number = true
		return o, err
	case s.Int != nil:
		return constantOf(*s.Int), nil
	case s.Bool != nil:
		return constantOf(*s.Bool), nil
	case s.Float != nil:
		return constantOf(float64(*s.Float)), nil
	}
	return operand{}, errors.New("a symbol without a name or a value")
}

// listOf returns the operand of a list. A list of numbers without slots is a constant.
func listOf[T any](of listKind, items []T, one func(T) (operand, error)) (operand, error) {
	list := operand{slot: -1, of: of, list: make([]operand, len(items))}
	fixed := of != tensorList
	for i, item := range items {
		var err error
		if list.list[i], err = one(item); err != nil {
			return operand{}, err
		}
		fixed = fixed && list.list[i].slot < 0
	}
	if fixed {
		v, err := list.gather(nil)
		return constantOf(v), err
	}
	return list, nil
}

// constant returns the value of an argument that names no value of the graph.
func (b *builder) constant(a *argument) (any, error) {
	switch {
	case a.None != nil:
		return nil, nil
	case a.Int != nil:
		return *a.Int, nil
	case a.Ints != nil:
		return *a.Ints, nil
	case a.Float != nil:
		return limited(float64(*a.Float), b.float), nil
	case a.Floats != nil:
		list := make([]float64, len(*a.Floats))
		for i, f := range *a.Floats {
			list[i] = limited(float64(f), b.float)
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
		return b.dtype(*a.ScalarType)
	case a.Device != nil:
		return onDevice{}, nil
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

// limited returns a number of a program. The largest float32, which models write into masks,
// becomes the largest number of the dtype that takes float32's place.
func limited(v float64, float cgotorch.DType) float64 {
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

func (c *compiler) dtype(number int) (cgotorch.DType, error) {
	d, ok := dtypes[number]
	if !ok {
		return 0, fmt.Errorf("there is no dtype number %d", number)
	}
	if d == cgotorch.Float32 && c.float != 0 {
		d = c.float
	}
	return d, nil
}
