package gosource

import (
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"

	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// operatorTable describes the typed operators. opgen writes it.
//
//go:embed operators.json
var operatorTable string

// goOperator is a typed operator: a method of Exec, or a function of a package.
type goOperator struct {
	Go       string            `json:"go"` // such as Conv2d or linalg.SVD
	Operator string            `json:"operator"`
	Struct   string            `json:"struct"` // the options
	Params   []goParameter     `json:"params"`
	Options  []goParameter     `json:"options"`
	Fixed    map[string]string `json:"fixed"`
}

// goParameter is a parameter, or a field of the options.
type goParameter struct {
	Argument string `json:"argument"`
	Go       string `json:"go"`
	Type     string `json:"type"`
	Inverted bool   `json:"inverted"`
	Zero     bool   `json:"zero"` // 0 means the default
	All      bool   `json:"all"`  // an empty list means all dimensions
	Fallback string `json:"fallback"`
}

// typedOperators returns the typed operators by the names of LibTorch's.
func typedOperators() (map[string][]goOperator, error) {
	var list []goOperator
	if err := json.Unmarshal([]byte(operatorTable), &list); err != nil {
		return nil, fmt.Errorf("gosource: operators.json: %w", err)
	}
	operators := map[string][]goOperator{}
	for _, o := range list {
		operators[o.Operator] = append(operators[o.Operator], o)
	}
	return operators, nil
}

// withNumber are operators on a tensor that are also there for a number in the place of the second
// tensor, with equal results.
const withNumber = " aten::add.Tensor aten::sub.Tensor aten::mul.Tensor aten::div.Tensor aten::add_.Tensor aten::sub_.Tensor aten::mul_.Tensor aten::div_.Tensor "

// operator writes the call of an operator.
func (f *goFunction) operator(n *goNode) error {
	schema := n.act.(*graph.Call).Schema
	if args, ok := fullRange(n.op, n.args); ok {
		n.op, n.args = "aten::arange.start_step", args
		c, err := graph.NewCall(n.op)
		if err != nil {
			return err
		}
		schema = c.Schema
	}
	parameters := plainKinds(schema.Arguments)
	n.args = plainArgs(n.op, n.args)
	names := []string{n.op}
	if strings.Contains(withNumber, " "+n.op+" ") && len(n.args) > 1 {
		if _, isNumber := n.args[1].number(); isNumber {
			names = []string{strings.TrimSuffix(n.op, "Tensor") + "Scalar"}
		}
	}
	for _, name := range names {
		for i := range f.s.operators[name] {
			o := &f.s.operators[name][i]
			if call, ok := f.typed(n, o, parameters, name != n.op); ok {
				return f.results(n, call, true)
			}
		}
	}
	return f.results(n, f.byName(n, parameters), false)
}

// fullRange returns the arguments of aten::arange.start_step with the meaning of an arange: with a
// start, a step, and a dtype if the numbers tell it. It returns false for another operator.
func fullRange(op string, args []goArg) ([]goArg, bool) {
	bounds := map[string]int{"aten::arange": 1, "aten::arange.start": 2, "aten::arange.start_step": 3}[op]
	if bounds == 0 || len(args) < bounds {
		return nil, false
	}
	full, rest := slices.Clone(args[:bounds]), args[bounds:]
	if bounds == 1 {
		full = slices.Insert(full, 0, goArg{constant: int64(0)})
	}
	if bounds < 3 {
		full = append(full, goArg{constant: int64(1)})
	}
	integers := !slices.ContainsFunc(full, func(a goArg) bool { kind, ok := a.number(); return !ok || kind != goInt })
	full = append(full, rest...)
	if len(rest) == 0 {
		full = append(full, goArg{constant: cgotorch.Default})
	}
	if dtype := &full[3]; integers && (dtype.isDefault() || equalsConstant("", *dtype, nil)) {
		*dtype = goArg{constant: cgotorch.Int64}
	}
	return full, true
}

// plainArgs returns arguments with the same meaning, as the typed operators have them.
func plainArgs(op string, args []goArg) []goArg {
	args = slices.Clone(args)
	is := func(i int, v any) bool { return i < len(args) && equalsConstant("int", args[i], v) }
	switch op {
	case "aten::slice.Tensor": // from the first place, to the last one
		if is(2, nil) || is(2, cgotorch.Default) {
			args[2] = goArg{constant: int64(0)}
		}
		if is(3, int64(math.MaxInt64)) {
			args[3] = goArg{}
		}
	case "aten::pad":
		for len(args) < 4 {
			args = append(args, goArg{constant: cgotorch.Default})
		}
		if is(3, nil) || is(3, cgotorch.Default) {
			args[3] = goArg{constant: 0.0}
		}
	}
	return args
}

// typed returns the call of a typed operator. It returns false if the operator cannot take exactly
// these arguments.
func (f *goFunction) typed(n *goNode, o *goOperator, parameters []opschema.Argument, number bool) (string, bool) {
	given, kinds, ok := n.given(parameters, number)
	if !ok {
		return "", false
	}
	var args, fields []string
	for _, g := range o.Params {
		arg, ok := given[g.Argument]
		if !ok || g.All && !(arg.of == graph.IntList || isInts(arg.constant)) {
			return "", false
		}
		text, ok := f.literal(g.Type, kinds[g.Argument], arg)
		if !ok {
			return "", false
		}
		args = append(args, text)
		delete(given, g.Argument)
	}
	for _, g := range o.Options {
		arg, ok := given[g.Argument]
		if !ok {
			return "", false
		}
		text, ok := f.field(g, kinds[g.Argument], arg)
		if !ok {
			return "", false
		}
		if text != "" {
			fields = append(fields, g.Go+": "+text)
		}
		delete(given, g.Argument)
	}
	if !o.implies(given, kinds) {
		return "", false
	}
	if o.Struct != "" {
		name := o.Struct
		if !strings.Contains(name, ".") {
			name = "cgotorch." + name
		}
		args = append(args, name+"{"+strings.Join(fields, ", ")+"}")
	}
	name := "x" + n.exec + "." + o.Go
	if strings.Contains(o.Go, ".") { // a function of a package
		name, args = o.Go, slices.Insert(args, 0, "x"+n.exec)
	}
	return name + "(" + strings.Join(args, ", ") + ")", true
}

// given returns the arguments of a node by their names, and the parameters. It returns false if a
// default has no form in Go. A number stands for the tensor other if `number` is set.
func (n *goNode) given(parameters []opschema.Argument, number bool) (given map[string]goArg, kinds map[string]opschema.Argument, ok bool) {
	given = map[string]goArg{}
	kinds = map[string]opschema.Argument{}
	for i, p := range parameters {
		if number && p.Name == "other" {
			p.Kind = "Scalar"
		}
		arg := goArg{constant: cgotorch.Default}
		if i < len(n.args) {
			arg = n.args[i]
		}
		if arg.isDefault() {
			v, ok := schemaValue(p.Kind, p.Fallback)
			if !ok && p.Fallback != "" {
				return nil, nil, false
			}
			arg = goArg{constant: v}
		}
		given[p.Name], kinds[p.Name] = arg, p
	}
	return given, kinds, true
}

// implies reports whether the operator is called with exactly these arguments where the source does
// not name them.
func (o *goOperator) implies(given map[string]goArg, kinds map[string]opschema.Argument) bool {
	for name, arg := range given {
		p := kinds[name]
		want := p.Fallback
		if fixed, ok := o.Fixed[name]; ok {
			want = fixed
		}
		switch {
		case strings.TrimSuffix(p.Kind, "?") == "Device": // the only device is that of the Exec
		case name == "cudnn_enabled" || name == "cudnn_enable": // on the CPU it has no meaning, and on CUDA cuDNN is always there
		case name == "pin_memory" && (arg.constant == nil || arg.constant == false) && arg.value == nil:
		case strings.TrimSuffix(p.Kind, "?") == "Layout" && (arg.constant == nil || arg.constant == int64(0)):
		default:
			v, ok := schemaValue(p.Kind, want)
			if !ok || !equalsConstant(p.Kind, arg, v) {
				return false
			}
		}
	}
	return true
}

// field returns the source of an options field. It returns "" for the field's default, and false if
// the field cannot hold the value.
func (f *goFunction) field(g goParameter, p opschema.Argument, arg goArg) (string, bool) {
	fallback := p.Fallback
	if g.Fallback != "" {
		fallback = g.Fallback
	}
	v, ok := schemaValue(p.Kind, fallback)
	if ok && equalsConstant(p.Kind, arg, v) {
		return "", true
	}
	isNil := arg.value == nil && arg.of == graph.NoList && arg.constant == nil
	of := strings.ReplaceAll(g.Type, "cgotorch.", "")
	switch {
	case g.Inverted:
		if b, ok := arg.constant.(bool); ok && arg.of == graph.NoList {
			return strconv.FormatBool(!b), true
		}
		text, ok := f.literal("bool", p, arg)
		return "!" + text, ok && arg.value != nil
	case isNil:
		return "", of == "*Tensor"
	case g.Zero:
		if n, ok := arg.number(); !ok || arg.value != nil || n == goBool || arg.constant == int64(0) || arg.constant == 0.0 {
			return "", false
		}
	case of == "string" && arg.constant == "":
		return "", false
	}
	if inner, ok := strings.CutPrefix(of, "Opt["); ok {
		text, ok := f.literal(strings.TrimSuffix(inner, "]"), p, arg)
		return "cgotorch.Set(" + text + ")", ok
	}
	return f.literal(of, p, arg)
}

// byName returns the call of an operator by its name, without the method's name. Arguments that are
// the defaults of the schema are left out.
func (f *goFunction) byName(n *goNode, parameters []opschema.Argument) string {
	args := slices.Clone(n.args)
	for i := range args {
		if i >= len(parameters) || parameters[i].Fallback == "" {
			continue
		}
		p := parameters[i]
		v, ok := schemaValue(p.Kind, p.Fallback)
		_, isDevice := args[i].constant.(graph.OnDevice)
		if ok && equalsConstant(p.Kind, args[i], v) || isDevice || p.Name == "pin_memory" && equalsConstant(p.Kind, args[i], false) ||
			p.Kind == "Layout?" && equalsConstant(p.Kind, args[i], int64(0)) {
			args[i] = goArg{constant: cgotorch.Default}
		}
	}
	for len(args) > 0 && args[len(args)-1].isDefault() {
		args = args[:len(args)-1]
	}
	text := strconv.Quote(n.op)
	for _, arg := range args {
		text += ", " + f.any(arg)
	}
	return "(" + text + ")"
}

// results writes the statement for a call, with its results.
func (f *goFunction) results(n *goNode, call string, typed bool) error {
	exec := "x" + n.exec
	var outs []*goValue
	used := 0
	for _, v := range n.outs {
		if !v.used {
			v = nil
		} else {
			used++
		}
		outs = append(outs, v)
	}
	isList := len(n.kind) == 1 && n.kind[0].Kind == "Tensor[]"
	one := len(n.kind) == 1 && n.kind[0].Kind == "Tensor"
	switch {
	case !typed && one:
		call = exec + ".Call1" + call
	case !typed:
		call = exec + ".Call" + call
	}
	if used == 0 {
		f.line("%s", call)
		return nil
	}
	if !isList && (typed || one) {
		var names []string
		for i := range n.kind {
			name := "_"
			if i < len(outs) && outs[i] != nil {
				name = f.define(outs[i], n.resultName(i))
			}
			names = append(names, name)
		}
		if typed && n.kind[0].Kind == "int" {
			call = "int64(" + call + ")"
		}
		f.line("%s := %s", strings.Join(names, ", "), call)
		return nil
	}
	if !typed && isList {
		call += "[0].([]*cgotorch.Tensor)"
	}
	f.items(n, call, outs, used, isList)
	return nil
}

// items writes the results of a call that returns a list. It has values of any type, if isList is
// false. nil is a result that nobody uses.
func (f *goFunction) items(n *goNode, list string, outs []*goValue, used int, isList bool) {
	if used > 1 || len(list) > 60 {
		name := unique(identifier(nodeBase(n.node.Name), false)+"s", f.taken)
		f.line("%s := %s", name, list)
		list = name
	}
	var names, items []string
	for i, v := range outs {
		if v == nil {
			continue
		}
		item := fmt.Sprintf("%s[%d]", list, i)
		if !isList {
			item += ".(" + v.kind.source() + ")"
		}
		names, items = append(names, f.define(v, n.resultName(i))), append(items, item)
	}
	f.line("%s := %s", strings.Join(names, ", "), strings.Join(items, ", "))
}

// resultName returns a name for result i.
func (n *goNode) resultName(i int) string {
	if len(n.kind) > 1 && n.kind[i].Name != "" && i > 0 {
		return identifier(n.kind[i].Name, false)
	}
	return n.outs[i].base
}
