package graph

import "github.com/streamtorch/streamtorch/cgotorch"

// Program is a graph, with what its inputs and outputs stand for.
type Program struct {
	Graph              *Graph
	Inputs             []Input
	Outputs            []Output
	Weights, Constants []*Variable
}

// Variable is a weight, or a constant tensor that is in no state dict.
type Variable struct {
	Name         string
	Tensor       *cgotorch.Tensor // nil before it is read
	Parameter    bool
	Constant     bool // the tensor is in no state dict
	RequiresGrad bool
}

// Input is an input of the graph: a weight, a constant tensor, or a value of the caller.
type Input struct {
	Weight, Constant, User int // an index, or -1
}

// Output is an output of the graph: a result, or the new value of a tensor.
type Output struct {
	Weight, Constant, User int // the tensor that the output is written to; -1 each for a result
}

// IsResult reports whether the output is a result.
func (o Output) IsResult() bool { return o == Output{-1, -1, -1} }

// Variable returns the weight or constant at a place, or nil.
func (p *Program) Variable(weight, constant int) *Variable {
	switch {
	case weight >= 0:
		return p.Weights[weight]
	case constant >= 0:
		return p.Constants[constant]
	}
	return nil
}

// Replaced returns the slots of the weights and constants that a run replaces by outputs of the
// graph, under any of their names.
func (p *Program) Replaced() map[int]bool {
	written := map[*cgotorch.Tensor]bool{}
	for _, o := range p.Outputs {
		if v := p.Variable(o.Weight, o.Constant); v != nil {
			written[v.Tensor] = true
		}
	}
	slots := map[int]bool{}
	for i, slot := range p.Graph.Inputs {
		if v := p.Variable(p.Inputs[i].Weight, p.Inputs[i].Constant); v != nil && written[v.Tensor] {
			slots[slot] = true
		}
	}
	return slots
}

// Results returns the outputs of the graph that are results.
func (p *Program) Results() (list []Operand) {
	for i, o := range p.Outputs {
		if o.IsResult() {
			list = append(list, p.Graph.Outputs[i])
		}
	}
	return list
}
