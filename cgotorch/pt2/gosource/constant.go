package gosource

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// schemaValue returns the value of a default in a schema, or of a literal in operators.txt.
func schemaValue(kind, text string) (any, bool) {
	base := strings.TrimSuffix(kind, "?")
	if text == "None" {
		return nil, true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		return listValue(base, strings.TrimSuffix(inner, "]"))
	}
	switch base {
	case "int", "int[]":
		v, err := strconv.ParseInt(text, 10, 64)
		return v, err == nil
	case "float":
		v, err := strconv.ParseFloat(text, 64)
		return v, err == nil
	case "bool":
		v, err := strconv.ParseBool(strings.ToLower(text))
		return v, err == nil
	case "str":
		v, err := strconv.Unquote(text)
		return v, err == nil
	case "Scalar":
		if v, err := strconv.ParseInt(text, 10, 64); err == nil {
			return v, true
		}
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			return v, true
		}
	case "ScalarType":
		v, err := strconv.ParseInt(text, 10, 8)
		return cgotorch.DType(v), err == nil
	case "MemoryFormat":
		v, err := strconv.ParseInt(text, 10, 8)
		return cgotorch.MemoryFormat(v), err == nil
	}
	return nil, false
}

func listValue(kind, text string) (any, bool) {
	var parts []string
	if strings.TrimSpace(text) != "" {
		parts = strings.Split(text, ",")
	}
	switch kind {
	case "int[]":
		list := []int64{}
		for _, part := range parts {
			v, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
			if err != nil {
				return nil, false
			}
			list = append(list, v)
		}
		return list, true
	case "bool[]":
		list := []bool{}
		for _, part := range parts {
			list = append(list, strings.TrimSpace(part) == "True")
		}
		return list, true
	}
	return nil, false
}

// equalsConstant reports whether an argument is a constant with the value v. If the argument is a
// list and v is a number, all elements of the list must equal v.
func equalsConstant(kind string, arg goArg, v any) bool {
	if arg.value != nil || arg.of != graph.NoList {
		return false
	}
	c := arg.constant
	if strings.HasPrefix(kind, "float") {
		if n, ok := c.(int64); ok {
			c = float64(n)
		}
	}
	if list, ok := c.([]int64); ok {
		if n, isOne := v.(int64); isOne {
			for _, m := range list {
				if m != n {
					return false
				}
			}
			return len(list) > 0
		}
		want, ok := v.([]int64)
		return ok && intsSource(list) == intsSource(want)
	}
	return reflect.DeepEqual(c, v)
}

func isInts(v any) bool {
	list, ok := v.([]int64)
	return ok && len(list) > 0
}
