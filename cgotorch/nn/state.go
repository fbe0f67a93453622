package nn

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Named is one entry of a state dict.
type Named struct {
	Name   string // as in PyTorch: "layer1.0.conv1.weight"
	Tensor *cgotorch.Tensor
	Buffer bool // the tensor is not a parameter, so no optimizer changes it
	Host   bool // the tensor is a buffer that stays on the CPU when the module moves to a device
}

// option returns the option of a field's tag that stands for n.
func (n Named) option() string {
	switch {
	case n.Host:
		return "host"
	case n.Buffer:
		return "buffer"
	}
	return ""
}

// Child is a module with a name. The names of the module's tensors begin with this name.
type Child struct {
	// Name may be "". The module's tensors and children then have names as if they belonged to the
	// parent.
	Name   string
	Module Module
}

// Container is implemented by modules that name their children themselves. [State] does not look
// at the fields of a Container.
type Container interface {
	Children() []Child
}

// State returns the parameters and buffers of m in the order of PyTorch's state dict. m is a
// pointer to a module. Each module lists its parameters, then its buffers, then its children.
// Each of these three groups has the order of declaration.
//
// Names come from the exported fields. Field Conv1 has the name conv1, field RunningMean has the
// name running_mean, and field FC has the name fc. A field tag `state:"name"` gives a different
// name. `state:"-"` hides the field. `state:",buffer"` makes a tensor a buffer. `state:",host"`
// makes a tensor a buffer that [To] leaves on the CPU. The fields of embedded structs belong to the
// module itself. The elements of a slice or array have numbers from 0 as their names. With the tag
// `state:",suffixed"`, the tensors in a slice of structs belong to the module itself. The string
// field Suffix of a struct then ends the names of its tensors. With the tag `state:",named"`, a
// slice of [Named] lists tensors of the module itself, with their names.
//
// State looks into tensors, structs, modules, and slices or arrays of these. It skips all other
// fields, nil tensors and nil modules. So a tensor in a map or an unexported field is neither
// saved nor trained. [Check] names the fields whose tensors State skips: call Check once for each
// kind of module that you write. A tensor that is held twice is listed twice.
//
// If m is a struct or a map and no pointer, State panics as [cgotorch.Check] does: a Do around it
// fails with [cgotorch.ErrInvalidArgument]. So do all functions of this package that take such an m
// and return no error. They fail alike if an interface in m holds such a struct.
func State(m any) []Named { return cgotorch.Must(stateOf(m)) }

// stateOf is State with an error. What it finds is there beside the error too.
func stateOf(m any) (state []Named, err error) {
	err = walk(m, func(_ reflect.Value, own []heldTensor) {
		for _, s := range own {
			state = append(state, s.Named)
		}
	})
	return state, err
}

// NamedParameters returns the parameters of m in the order of [State]. Each tensor occurs once,
// under its first name.
func NamedParameters(m any) []Named {
	return trained(State(m))
}

// trained returns the parameters in a state, each once.
func trained(state []Named) (parameters []Named) {
	seen := map[*cgotorch.Tensor]bool{}
	for _, n := range state {
		if !n.Buffer && !seen[n.Tensor] {
			seen[n.Tensor] = true
			parameters = append(parameters, n)
		}
	}
	return parameters
}

// Parameters is [NamedParameters] without the names.
func Parameters(m any) []*cgotorch.Tensor {
	named := NamedParameters(m)
	tensors := make([]*cgotorch.Tensor, len(named))
	for i, n := range named {
		tensors[i] = n.Tensor
	}
	return tensors
}

var (
	tensorType      = reflect.TypeFor[*cgotorch.Tensor]()
	containerType   = reflect.TypeFor[Container]()
	parallelismType = reflect.TypeFor[Parallelism]()
)

// heldTensor is a tensor with its name. `field` is the field, or the element of a list, that
// holds the tensor.
type heldTensor struct {
	Named
	field reflect.Value
}

// walk calls `visit` for m and for every module below m, parents before children. The argument v
// of `visit` is the module's struct or list. The argument `own` has the tensors that the module
// itself holds. walk fails as the method `walk` of a walker does.
func walk(m any, visit func(v reflect.Value, own []heldTensor)) error {
	return (&walker{visit: visit, path: map[any]int{}}).walk(m)
}

// walk visits m and every module below m. It fails if m is refused by rootOf, or if an interface
// below m holds a struct that has tensors or flags of its own. Go copies such a struct whenever the
// interface is read, so no function can change it.
func (w *walker) walk(m any) error {
	v, err := rootOf(m)
	if err == nil && holdsState(v) {
		w.module("", v)
		err = w.copied
	}
	if err != nil {
		return fmt.Errorf("nn: %w: %w", err, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// rootOf returns the value of m. It fails for a struct, an array or a map that is no pointer, and
// for a tensor, because no function of this package could change them. What holds no tensors, such
// as nil, is a module without tensors.
func rootOf(m any) (reflect.Value, error) {
	v := reflect.ValueOf(m)
	at := v
	for at.Kind() == reflect.Pointer || at.Kind() == reflect.Interface {
		if at.Type() == tensorType {
			return v, fmt.Errorf("a tensor was given in place of a module: give a pointer to the struct that holds it")
		}
		at = at.Elem()
	}
	switch kind := at.Kind(); {
	case kind == reflect.Map:
		return v, fmt.Errorf("the module itself, a map of type %v, has no order: give a slice, or a pointer to a struct with a field for each", at.Type())
	case (kind == reflect.Struct || kind == reflect.Array) && !at.CanAddr():
		own := ""
		if all := membersOf(at); len(all) > 0 {
			own = " with its " + all[0].name
		}
		return v, fmt.Errorf("a %v was given by value, and a copy of it%s would be changed: give a pointer, as in &model", at.Type(), own)
	}
	return v, nil
}

type walker struct {
	visit func(v reflect.Value, own []heldTensor)
	leave func(v reflect.Value) // is called after the children; nil means no call
	path  map[any]int           // the depths of the pointers and lists around the current module
	depth int                   // number of modules from the root to the current module
	plain int                   // depth of the innermost struct around the current module that is no Container
	cycle string                // where a Container or list holds itself through others only, or ""
	// copied is the error of the first module that an interface holds by value, though it has tensors
	// or flags of its own.
	copied error
}

// mostDepth bounds the walk of a Container whose Children makes new children without end.
const mostDepth = 1000

// member is a tensor or a child of a module.
type member struct {
	name   string
	value  reflect.Value
	option string // from the field's tag: "buffer", "host" or ""
}

func (w *walker) module(prefix string, v reflect.Value) {
	name := strings.TrimSuffix(prefix, ".")
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		if v.Kind() != reflect.Interface && v.Type() != tensorType && (v.Kind() == reflect.Pointer || v.Len() > 0) {
			key := placeOf(v)
			if depth, around := w.path[key]; around {
				// A field may well lead to a parent. But a Sequential that holds itself runs without end.
				if w.cycle == "" && depth > w.plain {
					w.cycle = fmt.Sprintf("%s, of type %v, is around itself", cmp.Or(name, "the module"), v.Type())
				}
				return
			}
			w.path[key] = w.depth + 1
			defer delete(w.path, key)
		}
		if v.Kind() == reflect.Slice {
			break
		}
		v = v.Elem()
	}
	if w.copied == nil && !v.CanAddr() && changes(v) {
		w.copied = fmt.Errorf("%s, of type %v, is held by value, and a copy of it would be changed: hold a pointer, as in &%[2]v{…}", cmp.Or(name, "the module"), v.Type())
	}
	if w.depth++; w.depth > mostDepth {
		w.cycle = fmt.Sprintf("%.60s… lies more than %d modules deep", name, mostDepth)
		w.depth--
		return
	}
	plain := w.plain
	defer func() { w.depth, w.plain = w.depth-1, plain }()
	if _, container := containerOf(v); v.Kind() == reflect.Struct && !container {
		w.plain = w.depth
	}
	var own, buffers []heldTensor
	var children []member
	for _, m := range membersOf(v) {
		switch {
		case !holdsState(m.value):
		case m.value.Type() != tensorType:
			children = append(children, m)
		case m.option != "":
			buffers = append(buffers, heldTensor{Named{prefix + m.name, m.value.Interface().(*cgotorch.Tensor), true, m.option == "host"}, m.value})
		default:
			own = append(own, heldTensor{Named{prefix + m.name, m.value.Interface().(*cgotorch.Tensor), false, false}, m.value})
		}
	}
	w.visit(v, append(own, buffers...))
	for _, c := range children {
		within := prefix
		if c.name != "" {
			within += c.name + "."
		}
		w.module(within, c.value)
	}
	if w.leave != nil {
		w.leave(v)
	}
}

// changes reports whether a function of this package may change the struct or array v itself. It
// then has a flag such as Eval, a tensor, or a module that is not behind a pointer.
func changes(v reflect.Value) bool {
	if v.Kind() == reflect.Array {
		return v.Len() > 0 && (v.Type().Elem() == tensorType || changes(v.Index(0)))
	}
	if v.Kind() != reflect.Struct {
		return false
	}
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		switch {
		case stateTag(f) == "-" || !f.IsExported() && !f.Anonymous:
		case f.Type.Kind() == reflect.Bool && (f.Name == "Eval" || f.Name == "Unfused"), f.Type == tensorType, f.Type == parallelismType, changes(value):
			return true
		}
	}
	return false
}

// holdsState reports whether v is a tensor or may hold tensors.
func holdsState(v reflect.Value) bool {
	if !v.IsValid() {
		return false
	}
	switch v.Kind() {
	case reflect.Interface:
		return holdsState(v.Elem())
	case reflect.Pointer:
		return !v.IsNil() && holdsState(v.Elem())
	case reflect.Struct:
		return true
	case reflect.Slice, reflect.Array:
		return elementsMayHold(v.Type())
	}
	return false
}

// elementsMayHold reports whether an element of a slice or array may be a tensor or hold tensors.
func elementsMayHold(list reflect.Type) bool {
	switch e := list.Elem(); e.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Struct:
		return true
	case reflect.Slice, reflect.Array:
		return elementsMayHold(e)
	}
	return false
}

// membersOf returns the tensors and children of v. A container gives its children. A slice or
// array gives its elements. A struct gives its exported fields.
func membersOf(v reflect.Value) []member {
	var members []member
	if c, ok := containerOf(v); ok {
		for _, child := range c.Children() {
			members = append(members, member{name: child.Name, value: reflect.ValueOf(child.Module)})
		}
		return members
	}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Array {
		for i := range v.Len() {
			value := v.Index(i)
			if value.Kind() == reflect.Interface {
				value = value.Elem()
			}
			members = append(members, member{name: strconv.Itoa(i), value: value})
		}
		return members
	}
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag := stateTag(f)
		switch {
		case tag == "-":
		case f.Anonymous && tag == "":
			if embedded, ok := structUnder(v.Field(i)); ok {
				members = append(members, membersOf(embedded)...)
			}
		case f.IsExported() && stateOption(f) == "suffixed":
			for i, elements := 0, v.Field(i); i < elements.Len(); i++ {
				for _, m := range membersOf(elements.Index(i)) {
					m.name += elements.Index(i).FieldByName("Suffix").String()
					members = append(members, m)
				}
			}
		case f.IsExported() && stateOption(f) == "named":
			for i, elements := 0, v.Field(i); i < elements.Len(); i++ {
				n := elements.Index(i).Interface().(Named)
				members = append(members, member{n.Name, elements.Index(i).FieldByName("Tensor"), n.option()})
			}
		case f.IsExported():
			if tag == "" {
				tag = stateName(f.Name)
			}
			value := v.Field(i)
			if value.Kind() == reflect.Interface {
				value = value.Elem()
			}
			members = append(members, member{tag, value, stateOption(f)})
		}
	}
	return members
}

// stateTag returns the name in a field's tag. "" means no name, and "-" means a hidden field.
func stateTag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("state"), ",")
	return name
}

// stateOption returns the option in a field's tag: "buffer", "host", "suffixed", "named", or
// "" for no option.
func stateOption(f reflect.StructField) string {
	_, option, _ := strings.Cut(f.Tag.Get("state"), ",")
	return option
}

// structUnder follows interfaces and pointers from v. It reports whether they lead to a struct. A
// struct that embeds a pointer to its own type does not count, because it may embed itself.
func structUnder(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v, v.Kind() == reflect.Struct && !embedsItself(v.Type())
}

func embedsItself(t reflect.Type) bool {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && f.Type == reflect.PointerTo(t) {
			return true
		}
	}
	return false
}

// containerOf returns v as a Container. A struct that embeds a Container does not count as a
// Container, because State must also look at the struct's fields beside the embedded one.
func containerOf(v reflect.Value) (Container, bool) {
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Anonymous && (f.Type.Implements(containerType) || reflect.PointerTo(f.Type).Implements(containerType)) {
				return nil, false
			}
		}
		if v.CanAddr() {
			v = v.Addr()
		}
	}
	if !v.CanInterface() {
		return nil, false
	}
	c, ok := v.Interface().(Container)
	return c, ok
}

// stateName returns a field's name in lower case, with underscores between its words. A digit
// belongs to the word before the digit.
func stateName(field string) string {
	letters := []rune(field)
	var b strings.Builder
	for i, r := range letters {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
