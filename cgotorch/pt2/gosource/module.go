package gosource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/export"
)

// goModule is a module of the Python model: a struct in Go.
type goModule struct {
	name      string // the last part of its path
	field     string // in the struct of its parent
	class     string // of Python, or a name made of the path
	typeName  string
	weights   []*goWeight
	constants []*goWeight // tensors that are in no state dict
	children  []*goModule
	taken     map[string]bool // the fields
}

const mostModuleDepth = 100

// goWeight is a field that holds a tensor.
type goWeight struct {
	name, field string
	tensor      *export.Stored
}

func (m *goModule) child(name string) *goModule {
	for _, c := range m.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// modules makes the structs for the names of the weights.
func (s *writer) modules() error {
	classes := s.classes()
	s.root = &goModule{class: "Net", taken: map[string]bool{"Forward": true, "Call": true, "Close": true}}
	for _, t := range s.p.WeightList {
		v := &goValue{kind: goTensor, global: true, base: "weight"}
		m, parts := s.root, strings.Split(t.Name, ".")
		if len(parts) > mostModuleDepth {
			return s.cannot("the weight %.100q lies in more than %d modules", t.Name, mostModuleDepth)
		}
		for i, part := range parts {
			if part == "" || part == "-" || strings.ContainsAny(part, ",") {
				return s.cannot("the name of the weight %.100q cannot be the tag of a Go field", t.Name)
			}
			if i == len(parts)-1 {
				w := &goWeight{name: part, field: unique(identifier(part, true), m.taken), tensor: t}
				if m.child(part) != nil {
					return s.p.File.Bad("the weight %.100q is a module too", t.Name)
				}
				m.weights = append(m.weights, w)
				v.fields = append(v.fields, w.field)
				break
			}
			for _, w := range m.weights {
				if w.name == part {
					return s.p.File.Bad("the weight %.100q lies inside a weight", t.Name)
				}
			}
			c := m.child(part)
			if c == nil {
				path := strings.Join(parts[:i+1], ".")
				c = &goModule{name: part, field: unique(identifier(part, true), m.taken), class: classes[path], taken: map[string]bool{}}
				if c.class == "" {
					c.class = lastWord(parts[:i+1])
				}
				m.children = append(m.children, c)
			}
			m = c
			v.fields, v.modules = append(v.fields, c.field), append(v.modules, part)
		}
		s.weightValues = append(s.weightValues, v)
	}
	for _, t := range s.p.ConstList {
		v := &goValue{kind: goTensor, global: true, base: "constant"}
		m, parts := s.root, strings.Split(t.Name, ".")
		for len(parts) > 1 && m.child(parts[0]) != nil {
			m = m.child(parts[0])
			v.fields, v.modules = append(v.fields, m.field), append(v.modules, parts[0])
			parts = parts[1:]
		}
		w := &goWeight{name: strings.Join(parts, "."), tensor: t}
		w.field = unique(identifier(w.name, false), m.taken)
		m.constants = append(m.constants, w)
		v.fields = append(v.fields, w.field)
		s.constantValues = append(s.constantValues, v)
	}
	names := map[string]bool{"Net": true, "New": true}
	s.declare(s.root, map[string]string{}, names)
	return nil
}

// lastWord returns the last part of a path that is no number.
func lastWord(parts []string) string {
	for i := len(parts) - 1; i >= 0; i-- {
		if _, err := strconv.Atoi(parts[i]); err != nil {
			return identifier(parts[i], true)
		}
	}
	return "Item"
}

// classes returns the Python classes of modules, by path.
func (s *writer) classes() map[string]string {
	classes := map[string]string{}
	for _, n := range s.p.Nodes {
		for _, entry := range strings.Split(n.Modules, ";") {
			parts := strings.Split(entry, ",")
			if len(parts) < 3 || parts[1] == "" {
				continue
			}
			class := parts[2]
			class = identifier(class[strings.LastIndexByte(class, '.')+1:], true)
			path, _, _ := strings.Cut(parts[1], "@")
			classes[path] = class
		}
	}
	return classes
}

// declare writes the struct of a module, and those of its children. Modules with equal classes and
// fields have one struct.
func (s *writer) declare(m *goModule, known map[string]string, names map[string]bool) {
	place := len(s.types)
	if m == s.root {
		s.types = append(s.types, "")
	}
	var fields strings.Builder
	line := func(field, of, tag string) {
		quoted := "`state:" + strconv.Quote(tag) + "`"
		if strings.ContainsAny(tag, "`\\\"") || strconv.Quote(tag) != `"`+tag+`"` {
			quoted = strconv.Quote("state:" + strconv.Quote(tag))
		}
		fmt.Fprintf(&fields, "%s %s %s\n", field, of, quoted)
	}
	for _, w := range m.weights {
		tag := w.name
		if !w.tensor.Parameter {
			tag += ",buffer"
		}
		line(w.field, "*cgotorch.Tensor", tag)
	}
	for _, c := range m.children {
		s.declare(c, known, names)
		line(c.field, c.typeName, c.name)
	}
	for _, w := range m.constants {
		fmt.Fprintf(&fields, "%s *cgotorch.Tensor `state:\"-\"` // %s, in no state dict\n", w.field, describeLayout(w.tensor))
	}
	if m == s.root {
		m.typeName = "Net"
		s.types[place] = fmt.Sprintf("%s\ntype Net struct {\n%s}\n", s.netComment(), fields.String())
		return
	}
	key := m.class + "\n" + fields.String()
	if m.typeName = known[key]; m.typeName == "" {
		m.typeName = unique("net"+m.class, names)
		known[key] = m.typeName
		s.types = append(s.types, fmt.Sprintf("type %s struct {\n%s}\n", m.typeName, fields.String()))
	}
}

func (s *writer) netComment() string {
	return fmt.Sprintf("// Net is the model of %s. [New] makes it.", commentText(fmt.Sprintf("%q", baseName(s.p.File.Name)), 60))
}

func baseName(path string) string { return path[strings.LastIndexAny(path, `/\`)+1:] }

func describeLayout(t *export.Stored) string { return fmt.Sprintf("%v%v", t.DType, t.Shape) }

// goDType returns a dtype as Go source.
func goDType(d cgotorch.DType) string {
	if name, ok := map[cgotorch.DType]string{
		cgotorch.Uint8: "Uint8", cgotorch.Int8: "Int8", cgotorch.Int16: "Int16", cgotorch.Int32: "Int32", cgotorch.Int64: "Int64",
		cgotorch.Float16: "Float16", cgotorch.Float32: "Float32", cgotorch.Float64: "Float64", cgotorch.Complex64: "Complex64",
		cgotorch.Complex128: "Complex128", cgotorch.Bool: "Bool", cgotorch.BFloat16: "BFloat16", cgotorch.Uint16: "Uint16",
	}[d]; ok {
		return "cgotorch." + name
	}
	return fmt.Sprintf("cgotorch.DType(%d)", int(d))
}

// makes returns the statements that make the tensors.
func (s *writer) makes() (lines []string, err error) {
	first := map[string][]int{} // the tensors of a storage
	for i, t := range s.p.WeightList {
		if t.Entry == "" {
			return nil, s.p.File.Pickled(t)
		}
		target := "m." + strings.Join(s.weightValues[i].fields, ".")
		shared := false
		for _, j := range first[t.Entry] {
			other := s.p.WeightList[j]
			if other.Equal(&t.Layout) {
				lines = append(lines, target+" = m."+strings.Join(s.weightValues[j].fields, "."))
				shared = true
				break
			}
			if t.Offset < other.Span && other.Offset < t.Span {
				return nil, s.cannot("the tensors %.100q and %.100q are different parts of one memory", other.Name, t.Name)
			}
		}
		if shared {
			continue
		}
		first[t.Entry] = append(first[t.Entry], i)
		made := fmt.Sprintf("x.Zeros(%s%s)", goDType(t.DType), commaInts(t.Shape))
		if !rowMajor(t.Shape, t.Strides) {
			for d, n := range t.Shape {
				if n > 1 && t.Strides[d] == 0 {
					return nil, s.cannot("the tensor %.100q has the shape %v and the strides %v", t.Name, t.Shape, t.Strides)
				}
			}
			made = fmt.Sprintf("x.ZeroInPlace(x.EmptyStrided(%s, %s, %s))", goDType(t.DType), intsSource(t.Shape), intsSource(t.Strides))
		}
		if t.Parameter && t.RequiresGrad {
			s.helpers["parameter"] = true
			lines = append(lines, fmt.Sprintf("%s = parameter(x, %s)", target, made))
		} else {
			lines = append(lines, fmt.Sprintf("%s = x.Keep(%s)", target, made))
		}
	}
	return lines, nil
}

// rowMajor reports whether strides are those of a contiguous tensor. The stride of a dimension of
// size 1 has no meaning.
func rowMajor(shape, strides []int64) bool {
	step, equal := int64(1), true
	for d := len(shape) - 1; d >= 0; d-- {
		equal = equal && (shape[d] == 1 || strides[d] == step)
		step *= max(shape[d], 1)
	}
	return equal || slices.Contains(shape, 0)
}

func commaInts(list []int64) string {
	text := ""
	for _, n := range list {
		text += ", " + strconv.FormatInt(n, 10)
	}
	return text
}

func intsSource(list []int64) string {
	return "[]int64{" + strings.TrimPrefix(commaInts(list), ", ") + "}"
}
