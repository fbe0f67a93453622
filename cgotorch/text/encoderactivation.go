package text

import (
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// activationNames returns the names of activations, as Hugging Face's transformers has them.
func activationNames() []string {
	return []string{"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish", "tanh", "sigmoid", "linear"}
}

func isActivation(name string) bool { return slices.Contains(activationNames(), name) }

// activate applies an activation.
func activate(x *cgotorch.Exec, name string, t *cgotorch.Tensor) *cgotorch.Tensor {
	switch name {
	case "gelu":
		return x.GELU(t)
	case "gelu_new", "gelu_fast", "gelu_pytorch_tanh":
		return x.GELUTanh(t)
	case "quick_gelu":
		return x.Mul(t, x.Sigmoid(x.MulScalar(t, 1.702)))
	case "relu":
		return x.ReLU(t)
	case "silu", "swish":
		return x.SiLU(t)
	case "tanh":
		return x.Tanh(t)
	case "sigmoid":
		return x.Sigmoid(t)
	}
	return t
}

// torchActivation returns the name of an activation that a Python path names, such as
// torch.nn.modules.activation.Tanh.
func torchActivation(path string) (name string, ok bool) {
	if !strings.HasPrefix(path, "torch.nn.") {
		return "", false
	}
	switch path[strings.LastIndexByte(path, '.')+1:] {
	case "Identity":
		return "linear", true
	case "Tanh":
		return "tanh", true
	case "GELU":
		return "gelu", true
	case "ReLU":
		return "relu", true
	case "SiLU":
		return "silu", true
	case "Sigmoid":
		return "sigmoid", true
	}
	return "", false
}

// fused returns how oneDNN names an activation that it computes with a product, and the algorithm.
func fused(name string) (attribute, algorithm string, ok bool) {
	switch name {
	case "gelu":
		return "gelu", "none", true
	case "gelu_new", "gelu_fast", "gelu_pytorch_tanh":
		return "gelu", "tanh", true
	case "relu", "tanh", "sigmoid":
		return name, "none", true
	case "silu", "swish":
		return "swish", "none", true
	case "linear":
		return "none", "none", true
	}
	return "", "", false
}
