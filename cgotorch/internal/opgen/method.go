package main

import (
	"fmt"
	"go/token"
	"slices"
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// A method is an entry of the list together with its schema, ready to be printed. It is a method
// of Exec, or a function of a package.
type method struct {
	entry   *entry
	schema  *opschema.Schema
	params  []variable
	options []variable // the fields of the options struct
	body    []string   // statements that pass the arguments
	result  string     // the Go results with a leading space, or ""
	run     string     // the last statement, which runs the operator
}

// A variable is a parameter of a method, or a field of an options struct.
type variable struct {
	name    string
	goType  string
	meaning string // what the zero value of a field means, such as "nil means [1, 1]"
}

// structName returns the name of the options struct.
func (m *method) structName() string {
	if m.entry.structName != "" {
		return m.entry.structName
	}
	return m.entry.goName + "Options"
}

// join checks an entry against its schema and returns the method.
func join(e *entry, s *opschema.Schema) (*method, error) {
	m := &method{entry: e, schema: s}
	if err := m.checkName(); err != nil {
		return nil, err
	}
	items := make(map[string]item) // by the name of the schema argument
	place := make(map[string]func(opschema.Argument, item) (string, error))
	for _, group := range []struct {
		items []item
		push  func(opschema.Argument, item) (string, error)
	}{{e.positional, m.pushParam}, {e.options, m.pushOption}, {e.fixed, m.pushFixed}} {
		for _, it := range group.items {
			if s.Find(it.argument) == nil {
				return nil, fmt.Errorf("%s has no argument %s: it is %s", s.Name, it.argument, s.Text)
			}
			if place[it.argument] != nil {
				return nil, fmt.Errorf("argument %s is named twice", it.argument)
			}
			items[it.argument], place[it.argument] = it, group.push
		}
	}
	defaults := 0 // number of successive arguments, up to here, that keep their defaults
	statements := make(map[string]string)
	for _, a := range s.Arguments {
		push := place[a.Name]
		switch {
		case push != nil:
			statement, err := push(a, items[a.Name])
			if err != nil {
				return nil, err
			}
			statements[a.Name] = statement
		case a.Kind == "Device" || a.Kind == "Device?":
			statements[a.Name] = "c.Device()"
		case a.Fallback == "":
			return nil, fmt.Errorf("argument %s of %s has no default: it must be named", a.Name, s.Name)
		default:
			defaults++
			continue
		}
		for ; defaults > 0; defaults-- {
			m.body = append(m.body, "c.Default()")
		}
		m.body = append(m.body, statements[a.Name])
	}
	if defaults > 0 {
		m.body = append(m.body, "c.RestDefault()")
	}
	if err := m.order(); err != nil {
		return nil, err
	}
	return m, m.results()
}

// checkName checks that the name of a method ends in InPlace or Out if the method changes an
// argument. No other name may end in these words.
func (m *method) checkName() error {
	base, _, _ := strings.Cut(m.schema.Name, ".")
	want := ""
	if slices.ContainsFunc(m.schema.Arguments, func(a opschema.Argument) bool { return a.Writes }) {
		want = "Out"
		if strings.HasSuffix(base, "_") {
			want = "InPlace"
		}
	}
	for _, suffix := range []string{"InPlace", "Out"} {
		if strings.HasSuffix(m.entry.goName, suffix) != (suffix == want) {
			if want == "" {
				return fmt.Errorf("%s changes none of its arguments, so its name cannot end in %s", m.schema.Name, suffix)
			}
			return fmt.Errorf("%s changes an argument, so its name must end in %s", m.schema.Name, want)
		}
	}
	return nil
}

// order puts parameters and fields into the order of the list. Before this call they are in the
// order of the schema. `order` fails for a name that cannot be used.
func (m *method) order() error {
	sorted := func(items []item, variables []variable, name func(item) string) []variable {
		var out []variable
		for _, it := range items {
			i := slices.IndexFunc(variables, func(v variable) bool { return v.name == name(it) })
			out = append(out, variables[i])
		}
		return out
	}
	m.params = sorted(m.entry.positional, m.params, paramName)
	m.options = sorted(m.entry.options, m.options, fieldName)
	taken := map[string]bool{"x": true, "c": true, "v": true, "ok": true, "options": true}
	for _, p := range m.params {
		if taken[p.name] || !token.IsIdentifier(p.name) {
			return fmt.Errorf("the parameter name %s cannot be used: rename it, as in self=input", p.name)
		}
		taken[p.name] = true
	}
	taken = make(map[string]bool)
	for _, f := range m.options {
		if taken[f.name] || !token.IsExported(f.name) {
			return fmt.Errorf("the field name %s cannot be used: rename it, as in keepdim=KeepDim", f.name)
		}
		taken[f.name] = true
	}
	return nil
}

// pushParam adds a parameter to m and returns the statement that passes the parameter.
func (m *method) pushParam(a opschema.Argument, it item) (string, error) {
	kind, err := kindOf(a)
	if err != nil {
		return "", err
	}
	name, goType := paramName(it), kind.goType
	if it.variadic {
		element, ok := strings.CutPrefix(goType, "[]")
		if !ok || a.Optional() {
			return "", fmt.Errorf("%s has the type %s and cannot be variadic", a.Name, a.Kind)
		}
		goType = "..." + element
	}
	if it.all && (goType != "[]int64" || it.variadic || len(m.params) == 0 || !strings.HasSuffix(m.params[0].goType, "Tensor")) {
		return "", fmt.Errorf("*%s: only a list of dimensions behind a tensor can stand for all", a.Name)
	}
	m.params = append(m.params, variable{name: name, goType: inPackage(m.entry.pkg, goType)})
	absent := ""
	if a.Fallback != "" {
		absent = "c.Default()"
	} else if a.Optional() {
		absent = "c.None()"
	}
	switch {
	case it.all:
		return choose("len("+name+") > 0", kind.pushed(name), "c.AllDims("+m.params[0].name+")"), nil
	case absent == "" || goType == "*Tensor":
	case goType == "string":
		return choose(name+` != ""`, kind.pushed(name), absent), nil
	case goType == "Scalar", strings.HasPrefix(goType, "[]") && (a.Optional() || strings.HasPrefix(a.Fallback, "[") && a.Fallback != "[]"):
		return choose(name+" != nil", kind.pushed(name), absent), nil
	}
	return kind.pushed(name), nil
}

// pushOption adds a field to m and returns the statement that passes the field. The zero value of
// the field means the default.
func (m *method) pushOption(a opschema.Argument, it item) (string, error) {
	kind, err := kindOf(a)
	if err != nil {
		return "", err
	}
	absent, fallback := "c.Default()", a.Fallback
	if it.fallback != "" {
		fallback = it.fallback
		if absent, err = constant(a, fallback); err != nil {
			return "", err
		}
	}
	if fallback == "" {
		return "", fmt.Errorf("option %s of %s has no default: make it positional, or give it one, as in %s:0", a.Name, m.schema.Name, a.Name)
	}
	name := fieldName(it)
	field, value := variable{name: name, goType: kind.goType}, "options."+name
	statement := kind.pushed(value)
	means := meaning(a, fallback)
	say := func(zero string) {
		if means != "" {
			field.meaning = zero + " means " + means
		}
	}
	switch {
	case it.inverted:
		if kind.goType != "bool" || !strings.EqualFold(fallback, "true") {
			return "", fmt.Errorf("!%s: only a bool that defaults to true can be shown as its opposite", a.Name)
		}
		statement = kind.pushed("!" + value)
	case it.zero:
		if kind.goType != "int" && kind.goType != "float64" || isZero(fallback) {
			return "", fmt.Errorf("~%s: only a number whose default is not 0 can take 0 for its default", a.Name)
		}
		statement = choose(value+" != 0", statement, absent)
		say("0")
	case kind.goType == "*Tensor":
		if fallback != "None" {
			return "", fmt.Errorf("option %s has the default %s, which is not supported", a.Name, fallback)
		}
	case kind.goType == "Reduction":
		if fallback != "1" {
			return "", fmt.Errorf("option %s has the default %s: the zero value of Reduction is the mean, 1", a.Name, fallback)
		}
	case kind.goType == "string":
		if fallback != `""` {
			statement = choose(value+` != ""`, statement, absent)
			say(`""`)
		}
	case kind.goType == "Scalar", strings.HasPrefix(kind.goType, "[]"):
		statement = choose(value+" != nil", statement, absent)
		say("nil")
	case kind.goType != "DType" && isZero(fallback): // the zero value is the default, but the zero DType is Uint8
	default:
		field.goType = "Opt[" + kind.goType + "]"
		statement = choose("v, ok := "+value+".Get(); ok", kind.pushed("v"), absent)
		say("unset")
	}
	field.goType = inPackage(m.entry.pkg, field.goType)
	m.options = append(m.options, field)
	return statement, nil
}

func (m *method) pushFixed(a opschema.Argument, it item) (string, error) {
	return constant(a, it.fallback)
}

// results sets the Go results of the method, and the statement that runs the operator.
func (m *method) results() error {
	results := m.schema.Results
	tensors := 0
	var kinds, names []string
	for _, r := range results {
		kinds, names = append(kinds, r.Kind), append(names, paramName(item{argument: r.Name}))
		if r.Kind == "Tensor" {
			tensors++
		}
	}
	value := false // the result is a Go value, so the call waits for the device
	switch {
	case len(results) == 0:
		m.run = "c.Run0()"
	case tensors == len(results) && tensors == 1:
		m.result, m.run = " *Tensor", "return c.Run1()"
	case tensors == len(results) && tensors <= 4:
		list := strings.TrimSuffix(strings.Repeat("*Tensor, ", tensors), ", ")
		if distinct(names, m.params) {
			list = strings.Join(names, ", ") + " *Tensor"
		}
		m.result, m.run = " ("+list+")", fmt.Sprintf("return c.Run%d()", tensors)
	case len(results) == 2 && kinds[0] == "Tensor" && kinds[1] == "Tensor[]" && distinct(names, m.params):
		m.result, m.run = fmt.Sprintf(" (%s *Tensor, %s []*Tensor)", names[0], names[1]), "return c.Run1List()"
	case len(results) == 1 && kinds[0] == "ScalarType":
		m.result, m.run, value = " DType", "return c.RunDType()", true
	case len(results) == 1 && kinds[0] == "Tensor[]":
		m.result, m.run = " []*Tensor", "return c.RunList()"
	case len(results) == 1 && kinds[0] == "bool":
		m.result, m.run, value = " bool", "return c.RunBool()", true
	case len(results) == 1 && (kinds[0] == "int" || kinds[0] == "SymInt"):
		m.result, m.run, value = " int", "return int(c.RunInt())", true
	case len(results) == 1 && kinds[0] == "float":
		m.result, m.run, value = " float64", "return c.RunFloat()", true
	default:
		return fmt.Errorf("%s returns (%s), which is not supported", m.schema.Name, strings.Join(kinds, ", "))
	}
	m.result = inPackage(m.entry.pkg, m.result)
	if value && !strings.Contains(m.entry.doc, "waits for the device") {
		return fmt.Errorf(`%s returns a Go value, so its doc must say "waits for the device"`, m.schema.Name)
	}
	return nil
}

// distinct reports whether `names` can be the names of the results. Each name must be an
// identifier. No parameter, and no second result, may have the same name.
func distinct(names []string, params []variable) bool {
	taken := map[string]bool{"x": true, "c": true, "v": true, "ok": true, "options": true}
	for _, p := range params {
		taken[p.name] = true
	}
	for _, name := range names {
		if taken[name] || !token.IsIdentifier(name) {
			return false
		}
		taken[name] = true
	}
	return true
}

func choose(condition, then, otherwise string) string {
	return fmt.Sprintf("if %s {\n%s\n} else {\n%s\n}", condition, then, otherwise)
}

// paramName returns the name of an item as a parameter: numGroups for num_groups.
func paramName(it item) string {
	switch {
	case it.goName != "":
		return it.goName
	case it.argument == "self":
		return "input"
	case it.argument == "keepdim":
		return "keepDim"
	}
	words := strings.Split(strings.Trim(it.argument, "_"), "_")
	if it.argument != "" && unicode.IsUpper(rune(it.argument[0])) {
		words[0] = strings.ToLower(words[0]) // LU and Vh
	}
	for i := range words {
		if i > 0 {
			words[i] = title(words[i])
		}
	}
	return strings.Join(words, "")
}

// fieldName returns the name of an item as a field: CeilMode for ceil_mode.
func fieldName(it item) string {
	switch {
	case it.goName != "":
		return it.goName
	case it.argument == "dtype":
		return "DType"
	}
	return title(paramName(it))
}

func title(word string) string {
	if word == "" {
		return ""
	}
	return string(unicode.ToUpper(rune(word[0]))) + word[1:]
}
