package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// A goKind says which Go type a kind of schema argument has, and which call passes the value.
type goKind struct {
	goType string
	push   string // the method call on c that passes a value, with %s for the value
}

// goKinds holds the kinds of arguments that can be passed. The key is the kind in the schema,
// without a question mark at its end.
var goKinds = map[string]goKind{
	"Tensor":       {"*Tensor", "c.Tensor(%s)"},
	"Tensor[]":     {"[]*Tensor", "c.TensorList(%s)"},
	"Tensor?[]":    {"[]*Tensor", "c.OptTensorList(%s)"},
	"int":          {"int", "c.Int(int64(%s))"},
	"SymInt":       {"int", "c.Int(int64(%s))"},
	"float":        {"float64", "c.Float(%s)"},
	"bool":         {"bool", "c.Bool(%s)"},
	"str":          {"string", "c.Text(%s)"},
	"Scalar":       {"Scalar", "c.Scalar(%s)"},
	"Scalar[]":     {"[]Scalar", "c.ScalarList(%s)"},
	"int[]":        {"[]int64", "c.IntList(%s)"},
	"SymInt[]":     {"[]int64", "c.IntList(%s)"},
	"float[]":      {"[]float64", "c.FloatList(%s)"},
	"ScalarType":   {"DType", "c.DType(%s)"},
	"MemoryFormat": {"MemoryFormat", "c.MemoryFormat(%s)"},
}

// dtypes maps the number that a schema has for a dtype to the name of the dtype in cgotorch.
var dtypes = map[string]string{
	"0": "Uint8", "1": "Int8", "2": "Int16", "3": "Int32", "4": "Int64", "5": "Float16", "6": "Float32", "7": "Float64",
	"9": "Complex64", "10": "Complex128", "11": "Bool", "15": "BFloat16",
}

// kindOf returns the goKind of an argument. It fails for a kind that is not supported.
func kindOf(a opschema.Argument) (goKind, error) {
	switch base := strings.TrimSuffix(a.Kind, "?"); {
	case base == "Device":
		return goKind{}, fmt.Errorf("%s is filled from the Exec", a.Name)
	case a.Kind == "Tensor?":
		return goKind{"*Tensor", "c.OptTensor(%s)"}, nil
	case a.Kind == "int" && a.Name == "reduction":
		return goKind{"Reduction", "c.Reduction(%s)"}, nil
	case strings.HasSuffix(a.Kind, "[]?") && strings.Contains(base, "Tensor"):
		return goKind{}, fmt.Errorf("%s has the type %s, which is not supported", a.Name, a.Kind)
	default:
		kind, ok := goKinds[base]
		if !ok {
			return goKind{}, fmt.Errorf("%s has the type %s, which is not supported", a.Name, a.Kind)
		}
		return kind, nil
	}
}

func (k goKind) pushed(value string) string { return fmt.Sprintf(k.push, value) }

// constant returns the statement that passes a literal of the list as an argument.
func constant(a opschema.Argument, literal string) (string, error) {
	kind, err := kindOf(a)
	if err != nil {
		return "", err
	}
	valid := false
	switch strings.TrimSuffix(a.Kind, "?") {
	case "int", "SymInt", "int[]", "SymInt[]": // one number stands for a list of equal numbers
		_, err := strconv.ParseInt(literal, 10, 64)
		valid = err == nil
		kind.push = "c.Int(%s)"
	case "float":
		_, err := strconv.ParseFloat(literal, 64)
		valid = err == nil
	case "bool":
		valid = literal == "true" || literal == "false"
	case "str":
		_, err := strconv.Unquote(literal)
		valid = err == nil
	}
	if !valid {
		return "", fmt.Errorf("%s has the type %s and cannot be %s", a.Name, a.Kind, literal)
	}
	return kind.pushed(literal), nil
}

// inPackage returns a Go type of package cgotorch as the given package writes it.
func inPackage(pkg, goType string) string {
	if pkg == "" {
		return goType
	}
	return exportedName.ReplaceAllString(goType, "cgotorch.$0")
}

var exportedName = regexp.MustCompile(`\b[A-Z]\w*`)

// isZero reports whether the default `fallback` is the zero value of its Go type.
func isZero(fallback string) bool {
	f, err := strconv.ParseFloat(fallback, 64)
	return err == nil && f == 0 || strings.EqualFold(fallback, "false")
}

// meaning returns the default `fallback` as text for a doc comment. It returns "" if the
// description of the field has to say the default.
func meaning(a opschema.Argument, fallback string) string {
	switch base := strings.TrimSuffix(a.Kind, "?"); {
	case fallback == "None" || fallback == "[]":
		return ""
	case base == "ScalarType":
		return dtypes[fallback]
	case base == "bool":
		return strings.ToLower(fallback)
	case base == "float" || base == "Scalar":
		if f, err := strconv.ParseFloat(fallback, 64); err == nil {
			return strconv.FormatFloat(f, 'g', 6, 64)
		}
	}
	return fallback
}
