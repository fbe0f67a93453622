package export

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Note [How a graph runs]
//
// The values of a graph have names, and each value is made once. compile gives each name a slot of
// a frame, and turns each node into a step with the slots of its arguments. Operators are found and
// their schemas are read once, so that a run neither looks up names nor reorders arguments. A step
// also knows which slots nobody reads after it. Their tensors are closed, so that the peak of
// memory is that of PyTorch. A frame belongs to one run, so runs do not meet.

// compiler makes the graphs of one program.
type compiler struct {
	file  *Archive
	float cgotorch.DType // stands for float32 in arguments; 0 means float32 itself
	nodes []*graph.Node
	depth int
	// `missing` has the operators that LibTorch lacks, each with the first node that needs it.
	missing map[string]string
}

const mostGraphDepth = 50

// builder makes one graph.
type builder struct {
	*compiler
	text  *graphText
	slots map[string]int
	graph *graph.Graph
}

func (c *compiler) build(name string, text *graphText) (*graph.Graph, error) {
	if c.depth++; c.depth > mostGraphDepth {
		return nil, c.file.Bad("the graph %.100s: more than %d graphs inside each other", name, mostGraphDepth)
	}
	defer func() { c.depth-- }()
	b := &builder{compiler: c, text: text, slots: map[string]int{}, graph: &graph.Graph{File: c.file.Name, Name: name}}
	place := "the program"
	if name != "" {
		place = fmt.Sprintf("the graph %.100s", name)
	}
	for i := range text.Inputs {
		slot, err := b.define(&text.Inputs[i])
		if err != nil {
			return nil, b.bad("input %d of %s: %w", i, place, err)
		}
		b.graph.Inputs = append(b.graph.Inputs, slot)
	}
	for i := range text.Nodes {
		if err := b.node(&text.Nodes[i]); err != nil {
			return nil, err
		}
	}
	given := map[int]bool{} // slots of inputs and of earlier outputs
	for _, slot := range b.graph.Inputs {
		given[slot] = true
	}
	for i := range text.Outputs {
		o, err := b.operand(&text.Outputs[i])
		if err != nil {
			return nil, b.bad("output %d of %s: %w", i, place, err)
		}
		b.graph.Outputs = append(b.graph.Outputs, o)
		b.graph.Aliased = append(b.graph.Aliased, o.Slot >= 0 && given[o.Slot])
		given[o.Slot] = true
	}
	b.graph.ViewsMayCopy()
	b.graph.Free()
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
	slot := b.graph.Slots
	if name != "" {
		if _, twice := b.slots[name]; twice {
			return 0, fmt.Errorf("two values have the name %.100q", name)
		}
		b.slots[name] = slot
	}
	b.graph.Slots++
	return slot, nil
}

func (b *builder) use(name string) (graph.Operand, error) {
	slot, ok := b.slots[name]
	if !ok {
		return graph.Operand{}, fmt.Errorf("there is no value %.100q before it", name)
	}
	return graph.Operand{Slot: slot}, nil
}

// node adds a step for a node.
func (b *builder) node(text *nodeText) error {
	n := b.newNode(text)
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
		b.graph.Steps = append(b.graph.Steps, graph.Step{Node: n, Act: act})
	}
	return nil
}

func (b *builder) unsupported(n *graph.Node, format string, args ...any) error {
	return b.file.Refuse("node %.100s (%.100s): %w", n.Name, n.Operator, fmt.Errorf(format, args...))
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
