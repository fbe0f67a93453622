package gosource

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// floatSource returns a float64 as Go source, with a point or an exponent.
func floatSource(v float64) string {
	switch {
	case math.IsNaN(v):
		return "math.NaN()"
	case math.IsInf(v, 1):
		return "math.Inf(1)"
	case math.IsInf(v, -1):
		return "math.Inf(-1)"
	case v == 0 && math.Signbit(v):
		return "math.Copysign(0, -1)"
	}
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

var memoryFormatSource = [...]string{"cgotorch.Contiguous", "cgotorch.Preserve", "cgotorch.ChannelsLast", "cgotorch.ChannelsLast3D"}

// literal returns an argument as Go source of a type. It returns false if the type cannot hold
// exactly this argument.
func (f *goFunction) literal(of string, p opschema.Argument, arg goArg) (string, bool) {
	of = strings.ReplaceAll(of, "cgotorch.", "")
	isConstant := arg.value == nil && arg.of == graph.NoList
	optional := strings.HasSuffix(p.Kind, "?")
	if isConstant && arg.constant == nil {
		// nil is None only where the schema's default is None too
		return "nil", optional && (p.Fallback == "" || p.Fallback == "None") && (of == "*Tensor" || of == "Scalar" || strings.HasPrefix(of, "[]"))
	}
	switch of {
	case "*Tensor":
		if arg.value != nil && arg.value.kind == goTensor {
			return f.name(arg.value), true
		}
	case "[]*Tensor", "...*Tensor":
		return f.tensors(of, p, arg)
	case "[]int64", "...int64":
		items, ok := f.ints(arg)
		if of[0] == '.' {
			return items, ok && items != ""
		}
		return "[]int64{" + items + "}", ok
	}
	if isConstant {
		return f.constant(of, optional, arg)
	}
	if arg.value == nil {
		return "", false
	}
	name := f.name(arg.value)
	switch kind := arg.value.kind; {
	case of == "int" && kind == goInt:
		return "int(" + name + ")", true
	case of == "float64" && kind == goInt:
		return "float64(" + name + ")", true
	case of == "float64" && kind == goFloat, of == "bool" && kind == goBool, of == "Scalar" && kind != goTensor:
		return name, true
	}
	return "", false
}

// tensors returns a list of tensors as Go source.
func (f *goFunction) tensors(of string, p opschema.Argument, arg goArg) (string, bool) {
	if arg.of != graph.TensorList {
		return "", false
	}
	var items []string
	for _, item := range arg.list {
		switch {
		case item.value != nil && item.value.kind == goTensor:
			items = append(items, f.name(item.value))
		case item.value == nil && p.Kind == "Tensor?[]":
			items = append(items, "nil")
		default:
			return "", false
		}
	}
	if of[0] == '.' {
		return strings.Join(items, ", "), len(items) > 0
	}
	return "[]*cgotorch.Tensor{" + strings.Join(items, ", ") + "}", true
}

// constant returns a constant as Go source of a type.
func (f *goFunction) constant(of string, optional bool, arg goArg) (string, bool) {
	ok := false
	switch v := arg.constant.(type) {
	case []float64:
		ok = of == "[]float64"
	case int64:
		if of == "float64" {
			return floatSource(float64(v)), true
		}
		if of == "Reduction" && v >= 0 && v < 3 {
			return [...]string{"cgotorch.ReductionNone", "cgotorch.ReductionMean", "cgotorch.ReductionSum"}[v], true
		}
		ok = of == "int" || of == "Scalar"
	case float64:
		ok = of == "float64" || of == "Scalar"
	case bool:
		ok = of == "bool" || of == "Scalar"
	case complex128:
		ok = of == "Scalar"
	case string:
		ok = of == "string" && (v != "" || !optional)
	case cgotorch.DType:
		ok = of == "DType"
	case cgotorch.MemoryFormat:
		ok = of == "MemoryFormat" && int(v) < len(memoryFormatSource)
	}
	return f.any(arg), ok
}

// ints returns the numbers of a list of integers.
func (f *goFunction) ints(arg goArg) (string, bool) {
	if arg.of == graph.IntList {
		var items []string
		for _, item := range arg.list {
			kind, ok := item.number()
			if !ok || kind != goInt {
				return "", false
			}
			items = append(items, f.any(item))
		}
		return strings.Join(items, ", "), true
	}
	list, ok := arg.constant.([]int64)
	return strings.TrimPrefix(commaInts(list), ", "), ok && arg.value == nil && arg.of == graph.NoList
}

// any returns an argument as Go source for [cgotorch.Exec.Call].
func (f *goFunction) any(arg goArg) string {
	if arg.value != nil {
		return f.name(arg.value)
	}
	if arg.of != graph.NoList {
		var items []string
		for _, item := range arg.list {
			items = append(items, f.any(item))
		}
		of := map[graph.ListKind]string{graph.TensorList: "[]*cgotorch.Tensor", graph.IntList: "[]int64", graph.BoolList: "[]bool", graph.FloatList: "[]float64"}[arg.of]
		return of + "{" + strings.Join(items, ", ") + "}"
	}
	switch v := arg.constant.(type) {
	case nil:
		return "nil"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return floatSource(v)
	case bool:
		return strconv.FormatBool(v)
	case string:
		return strconv.Quote(v)
	case complex128:
		return fmt.Sprintf("complex(%s, %s)", floatSource(real(v)), floatSource(imag(v)))
	case []int64:
		return intsSource(v)
	case []bool:
		return fmt.Sprintf("%#v", v)
	case []float64:
		var items []string
		for _, n := range v {
			items = append(items, floatSource(n))
		}
		return "[]float64{" + strings.Join(items, ", ") + "}"
	case cgotorch.DType:
		return goDType(v)
	case cgotorch.MemoryFormat:
		return memoryFormatSource[max(0, min(int(v), len(memoryFormatSource)-1))]
	case graph.OnDevice:
		return "x.Device()"
	}
	return "cgotorch.Default"
}
