package export

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// The types of this file are the JSON texts of an archive, field by field. A struct with fields
// "as_…" is a union: exactly one of its fields is set.

type exported struct {
	GraphModule      graphModule           `json:"graph_module"`
	RangeConstraints map[string]constraint `json:"range_constraints"`
	SchemaVersion    schemaVersion         `json:"schema_version"`
	TorchVersion     string                `json:"torch_version"`
	Guards           *[]string             `json:"guards_code"` // nil for a file of an older PyTorch
}

type schemaVersion struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

type constraint struct {
	Min *float64 `json:"min_val"`
	Max *float64 `json:"max_val"`
}

type graphModule struct {
	Graph     graphText `json:"graph"`
	Signature struct {
		Inputs  []inputSpec  `json:"input_specs"`
		Outputs []outputSpec `json:"output_specs"`
	} `json:"signature"`
	ModuleCalls []struct {
		Name      string         `json:"fqn"`
		Signature *callSignature `json:"signature"`
	} `json:"module_call_graph"`
	NamedTuples map[string]namedTuple `json:"treespec_namedtuple_fields"`
}

type namedTuple struct {
	Fields []string `json:"field_names"`
}

type callSignature struct {
	In    string   `json:"in_spec"`
	Out   string   `json:"out_spec"`
	Names []string `json:"forward_arg_names"`
}

type graphText struct {
	Inputs  []argument            `json:"inputs"`
	Outputs []argument            `json:"outputs"`
	Nodes   []nodeText            `json:"nodes"`
	Tensors map[string]tensorMeta `json:"tensor_values"`
	Ints    map[string]sizeText   `json:"sym_int_values"`
}

type nodeText struct {
	Target   string          `json:"target"`
	Inputs   []namedArgument `json:"inputs"`
	Outputs  []argument      `json:"outputs"`
	Name     string          `json:"name"`
	Metadata struct {
		Stack   string `json:"stack_trace"`
		Modules string `json:"nn_module_stack"`
	} `json:"metadata"`
}

type namedArgument struct {
	Name string   `json:"name"`
	Arg  argument `json:"arg"`
	Kind int      `json:"kind"` // 2 means a keyword argument
}

type named struct {
	Name string `json:"name"`
}

// argument is a union.
type argument struct {
	None            json.RawMessage   `json:"as_none"`
	Tensor          *named            `json:"as_tensor"`
	Tensors         *[]named          `json:"as_tensors"`
	Int             *int64            `json:"as_int"`
	Ints            *[]int64          `json:"as_ints"`
	Float           *number           `json:"as_float"`
	Floats          *[]number         `json:"as_floats"`
	Text            *string           `json:"as_string"`
	Texts           *[]string         `json:"as_strings"`
	SymInt          *symbol           `json:"as_sym_int"`
	SymInts         *[]symbol         `json:"as_sym_ints"`
	ScalarType      *int              `json:"as_scalar_type"`
	MemoryFormat    *int              `json:"as_memory_format"`
	Layout          *int              `json:"as_layout"`
	Device          *device           `json:"as_device"`
	Bool            *bool             `json:"as_bool"`
	Bools           *[]bool           `json:"as_bools"`
	SymBool         *symbol           `json:"as_sym_bool"`
	SymBools        *[]symbol         `json:"as_sym_bools"`
	Graph           *subgraph         `json:"as_graph"`
	OptionalTensor  *optionalTensor   `json:"as_optional_tensor"`
	OptionalTensors *[]optionalTensor `json:"as_optional_tensors"`
	SymFloat        *symbol           `json:"as_sym_float"`
	SymFloats       *[]symbol         `json:"as_sym_floats"`
	Complex         *complexNumber    `json:"as_complex"`

	unknown string // the name of the field, if this package does not know it
}

// UnmarshalJSON remembers the name of a kind that this package does not know.
func (a *argument) UnmarshalJSON(text []byte) error {
	type plain argument
	if err := json.Unmarshal(text, (*plain)(a)); err != nil {
		return err
	}
	if *a.used() {
		return nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	for name := range fields {
		a.unknown = name
	}
	if len(fields) != 1 {
		return fmt.Errorf("an argument with %d kinds, want one", len(fields))
	}
	return nil
}

// used returns whether a field that this package knows is set.
func (a *argument) used() *bool {
	used := a.None != nil || a.Tensor != nil || a.Tensors != nil || a.Int != nil || a.Ints != nil || a.Float != nil || a.Floats != nil ||
		a.Text != nil || a.Texts != nil || a.SymInt != nil || a.SymInts != nil || a.ScalarType != nil || a.MemoryFormat != nil ||
		a.Layout != nil || a.Device != nil || a.Bool != nil || a.Bools != nil || a.SymBool != nil || a.SymBools != nil || a.Graph != nil ||
		a.OptionalTensor != nil || a.OptionalTensors != nil || a.SymFloat != nil || a.SymFloats != nil || a.Complex != nil
	return &used
}

// number is a float64. JSON writes an infinite number as a text.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"Infinity"`:
		*n = number(math.Inf(1))
	case `"-Infinity"`:
		*n = number(math.Inf(-1))
	case `"NaN"`:
		*n = number(math.NaN())
	default:
		return json.Unmarshal(text, (*float64)(n))
	}
	return nil
}

type complexNumber struct {
	Real      number `json:"real"`
	Imaginary number `json:"imag"`
}

// symbol is a union: the name of a value of the graph, or a value.
type symbol struct {
	Name  *string `json:"as_name"`
	Int   *int64  `json:"as_int"`
	Bool  *bool   `json:"as_bool"`
	Float *number `json:"as_float"`
}

type optionalTensor struct {
	Tensor *named `json:"as_tensor"` // or None
}

type device struct {
	Type string `json:"type"`
}

type subgraph struct {
	Name  string    `json:"name"`
	Graph graphText `json:"graph"`
}

type tensorMeta struct {
	DType        int        `json:"dtype"`
	Sizes        []sizeText `json:"sizes"`
	RequiresGrad bool       `json:"requires_grad"`
	Strides      []sizeText `json:"strides"`
	Offset       sizeText   `json:"storage_offset"`
	Layout       int        `json:"layout"`
}

// sizeText is a union: a number, or an expression of symbols.
type sizeText struct {
	Int  *int64 `json:"as_int"`
	Expr *struct {
		Text string `json:"expr_str"`
		Hint *struct {
			Int *int64 `json:"as_int"`
		} `json:"hint"` // the size in the export
	} `json:"as_expr"`
}

type inputSpec struct {
	User *struct {
		Arg argument `json:"arg"`
	} `json:"user_input"`
	Parameter *struct {
		Arg  named  `json:"arg"`
		Name string `json:"parameter_name"`
	} `json:"parameter"`
	Buffer *struct {
		Arg        named  `json:"arg"`
		Name       string `json:"buffer_name"`
		Persistent bool   `json:"persistent"`
	} `json:"buffer"`
	TensorConstant *struct {
		Arg  named  `json:"arg"`
		Name string `json:"tensor_constant_name"`
	} `json:"tensor_constant"`
	CustomObject *struct {
		Arg  named  `json:"arg"`
		Name string `json:"custom_obj_name"`
	} `json:"custom_obj"`
	Constant *struct {
		Name  string   `json:"name"`
		Value argument `json:"value"`
	} `json:"constant_input"`
	Token json.RawMessage `json:"token"`
}

type outputSpec struct {
	User *struct {
		Arg argument `json:"arg"`
	} `json:"user_output"`
	Loss *struct {
		Arg named `json:"arg"`
	} `json:"loss_output"`
	Buffer *struct {
		Arg  named  `json:"arg"`
		Name string `json:"buffer_name"`
	} `json:"buffer_mutation"`
	Parameter *struct {
		Arg  named  `json:"arg"`
		Name string `json:"parameter_name"`
	} `json:"parameter_mutation"`
	Input *struct {
		Arg  named  `json:"arg"`
		Name string `json:"user_input_name"`
	} `json:"user_input_mutation"`
	Gradient *struct {
		Arg  named  `json:"arg"`
		Name string `json:"parameter_name"`
	} `json:"gradient_to_parameter"`
	InputGradient *struct {
		Arg  named  `json:"arg"`
		Name string `json:"user_input_name"`
	} `json:"gradient_to_user_input"`
	Token json.RawMessage `json:"token"`
}

// payload tells where the values of a weight or of a constant lie in the archive.
type payload struct {
	Path    string     `json:"path_name"`
	Pickled bool       `json:"use_pickle"`
	Meta    tensorMeta `json:"tensor_meta"`
}

// dtypes maps the numbers of the schema to LibTorch's.
var dtypes = map[int]cgotorch.DType{
	1: cgotorch.Uint8, 2: cgotorch.Int8, 3: cgotorch.Int16, 4: cgotorch.Int32, 5: cgotorch.Int64, 6: cgotorch.Float16,
	7: cgotorch.Float32, 8: cgotorch.Float64, 9: 8 /* complex32 */, 10: cgotorch.Complex64, 11: cgotorch.Complex128,
	12: cgotorch.Bool, 13: cgotorch.BFloat16, 28: cgotorch.Uint16,
	29: 24 /* float8_e4m3fn */, 30: 23 /* float8_e5m2 */, 31: 26 /* float8_e4m3fnuz */, 32: 25, /* float8_e5m2fnuz */
}

// memoryFormats maps the numbers of the schema to LibTorch's.
var memoryFormats = map[int]cgotorch.MemoryFormat{
	1: cgotorch.Contiguous, 2: cgotorch.ChannelsLast, 3: cgotorch.ChannelsLast3D, 4: cgotorch.Preserve,
}

// strided is the number of the only layout that this package reads.
const strided = 7
