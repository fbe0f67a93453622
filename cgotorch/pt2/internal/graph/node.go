package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Node is one line of a program.
type Node struct {
	Name     string // the name of its result, or that of the first one
	Operator string // as in "aten.conv2d.default"
	Text     string // the whole line: results, operator and arguments
	Module   string // the name of the Python module that made it, such as "layer1.0.conv1"; "" if it is not known
	Where    string // the line of Python that made it, as in "model.py:42: y = self.fc(x)"; "" if it is not known
	Waits    bool   // it waits for the device, because a size or a branch depends on its values

	Modules string   // the names and classes of the Python modules around it, as the file has them
	Cure    string   // what to do if it fails; "" means what the error says anyway
	Results []Result // as the file has them
}

// place describes a node of a file in an error.
func (n *Node) place(file string) string {
	text := fmt.Sprintf("in node %.80s of %.200s", n.Name, file)
	if n.Where != "" {
		text += fmt.Sprintf(", from %.120s", n.Where)
	}
	return text
}

// Tensor returns the only result, if it is a tensor.
func (n *Node) Tensor() (t TensorResult, ok bool) {
	if len(n.Results) != 1 || n.Results[0].List || len(n.Results[0].Tensors) != 1 {
		return t, false
	}
	return n.Results[0].Tensors[0], true
}

// Result is what a file says of a result of a node.
type Result struct {
	Number  string         // "float" or "bool"; "" for integers and tensors
	List    bool           // it is a list of tensors
	Tensors []TensorResult // the tensor, or those of the list
}

// TensorResult is what a file says of a tensor.
type TensorResult struct {
	Known bool    // the file describes it
	Sizes []int64 // -1 for a size that is not fixed
	Typed bool    // DType is known too
	DType cgotorch.DType
}
