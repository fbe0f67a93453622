package export

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// action makes the action of a node, or nil for a node that has nothing to do.
func (b *builder) action(n *graph.Node, text *nodeText) (graph.Action, error) {
	n.Waits = waiting[n.Operator] && !waitsNot(n, text) || b.indexesByMask(n, text)
	name := n.Operator
	switch {
	case dropped[name]:
		return nil, nil
	case strings.HasPrefix(name, "higher_order."):
		return b.higherOrder(n, text)
	case graph.SizeOf[name] != nil:
		args, out, err := b.oneResult(text)
		if err != nil {
			return nil, err
		}
		s := &graph.SizeRead{Node: n, Of: graph.SizeOf[name], Out: out}
		if s.Dim, s.HasDim = graph.ConstantAt[int64](args, 1); len(args) == 0 || !s.HasDim && name != "aten.sym_numel.default" {
			return nil, errArguments
		}
		s.Tensor = args[0]
		return s, nil
	case name == "aten._assert_scalar.default":
		args, err := b.operands(text.Inputs)
		if err == nil && len(args) < 1 {
			err = errors.New("it has no arguments")
		}
		return &graph.Assertion{Args: args}, err
	case expr.Functions[text.Target] != nil:
		args, out, err := b.oneResult(text)
		return &graph.Function{Node: n, Of: expr.Functions[text.Target], Args: args, Out: out}, err
	case graph.PackageOperators[name] != nil:
		args, out, err := b.oneResult(text)
		return &graph.PackageCall{Node: n, Of: graph.PackageOperators[name], Args: args, Out: out}, err
	case strings.HasPrefix(text.Target, "torch.ops."):
		return b.operator(n, text)
	}
	return nil, b.unsupported(n, "a Python function that has no counterpart")
}

// oneResult returns the arguments and the only result of a node.
func (b *builder) oneResult(text *nodeText) (args []graph.Operand, out int, err error) {
	if args, err = b.operands(text.Inputs); err != nil {
		return nil, 0, err
	}
	outs, err := b.results(text.Outputs)
	if err != nil {
		return nil, 0, err
	}
	if len(outs) != 1 {
		return nil, 0, fmt.Errorf("%d results, want one", len(outs))
	}
	return args, outs[0], nil
}

var errArguments = errors.New("its arguments are not those of this operator")

// waitsNot reports whether the arguments spare the host the wait: they give the size, or ask for
// several samples with replacement.
func waitsNot(n *graph.Node, text *nodeText) bool {
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
func (b *builder) indexesByMask(n *graph.Node, text *nodeText) bool {
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

// dropped are operators that only tell the compiler of PyTorch something.
var dropped = graph.OperatorSet("_assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size")

// waiting are operators for which the host waits: their results have sizes that depend on values,
// or they look at the values before they return.
var waiting = graph.OperatorSet(`item _local_scalar_dense nonzero nonzero_numpy where masked_select _unique2 unique_dim unique_consecutive _unique
	repeat_interleave.Tensor repeat_interleave.self_Tensor bincount argwhere one_hot tensor_split.tensor_indices_or_sections is_nonzero equal
	torchvision.nms.default transformers.grouped_mm_fallback.default multinomial combinations istft cholesky inverse linalg_cholesky linalg_cond
	linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_ldl_factor linalg_lstsq linalg_lu_factor linalg_pinv linalg_solve
	linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve`)
