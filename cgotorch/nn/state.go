package nn

import (
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
	Buffer bool // not a parameter: no optimizer changes it
}

// Child is a module under the name that its tensors' names begin with.
type Child struct {
	Name   string // "" means none: the module's tensors and children are named as if they were its parent's
	Module Module
}

// Container is implemented by modules that name their children themselves; their fields are not looked at.
type Container interface {
	Children() []Child
}

// State returns the parameters and buffers of m, a pointer to a module, in the order of PyTorch's state dict: for each module
// its own parameters, its own buffers, then its children, each in the order of declaration.
//
// Names come from the exported fields: Conv1 is conv1, RunningMean running_mean, FC fc. A field tag `state:"name"` gives
// another name, `state:"-"` hides the field, and the option in `state:",buffer"` makes a tensor a buffer. The fields of
// embedded structs count as the module's own. The elements of a slice or array are named 0, 1, …. Nil tensors and modules are
// passed over, and so are fields that are neither tensors, structs, modules, nor slices or arrays of them: a tensor in a map
// or an unexported field is neither saved nor trained. [Check] returns an error that names such a field; call it once for
// each kind of module that you write. A tensor that is held twice is listed twice.
func State(m any) []Named {
	var state []Named
	walk(m, func(_ reflect.Value, own []slot) {
		for _, s := range own {
			state = append(state, s.Named)
		}
	})
	return state
}

// NamedParameters returns the parameters of m in the order of [State], each tensor once.
func NamedParameters(m any) []Named {
	var parameters []Named
	seen := map[*cgotorch.Tensor]bool{}
	for _, n := range State(m) {
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

// CountParameters is the number of elements of all parameters of m.
func CountParameters(m any) int64 {
	var n int64
	for _, p := range Parameters(m) {
		n += p.Numel()
	}
	return n
}

var (
	tensorType    = reflect.TypeFor[*cgotorch.Tensor]()
	containerType = reflect.TypeFor[Container]()
)

// slot is where a module holds one of its tensors.
type slot struct {
	Named
	field reflect.Value
}

// walk calls visit for m and every module below it, parents first, with the module's struct (or list) and the tensors that
// are its own.
func walk(m any, visit func(v reflect.Value, own []slot)) {
	w := walker{visit: visit, path: map[any]bool{}}
	if v := reflect.ValueOf(m); holdsState(v) {
		w.module("", v)
	}
}

type walker struct {
	visit func(v reflect.Value, own []slot)
	path  map[any]bool // pointers from the root to here: a module that holds itself is walked once
}

// member is one tensor or child of a module.
type member struct {
	name   string
	value  reflect.Value
	buffer bool
}

func (w *walker) module(prefix string, v reflect.Value) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		if v.Kind() == reflect.Pointer {
			key := v.Interface()
			if w.path[key] {
				return
			}
			w.path[key] = true
			defer delete(w.path, key)
		}
		v = v.Elem()
	}
	var own, buffers []slot
	var children []member
	for _, m := range membersOf(v) {
		switch {
		case !holdsState(m.value):
		case m.value.Type() != tensorType:
			children = append(children, m)
		case m.buffer:
			buffers = append(buffers, slot{Named{prefix + m.name, m.value.Interface().(*cgotorch.Tensor), true}, m.value})
		default:
			own = append(own, slot{Named{prefix + m.name, m.value.Interface().(*cgotorch.Tensor), false}, m.value})
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
}

// holdsState reports whether a value is a tensor or something that may hold some.
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

// elementsMayHold reports whether the elements of a slice or array can be or hold tensors.
func elementsMayHold(list reflect.Type) bool {
	switch e := list.Elem(); e.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Struct:
		return true
	case reflect.Slice, reflect.Array:
		return elementsMayHold(e)
	}
	return false
}

// membersOf lists the children that a container names, the elements of a slice or array, or the exported fields of a struct.
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
		case f.IsExported():
			if tag == "" {
				tag = stateName(f.Name)
			}
			value := v.Field(i)
			if value.Kind() == reflect.Interface {
				value = value.Elem()
			}
			members = append(members, member{tag, value, isBuffer(f)})
		}
	}
	return members
}

// stateTag is the name that a field's tag gives it, "" for none and "-" for a hidden field.
func stateTag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("state"), ",")
	return name
}

func isBuffer(f reflect.StructField) bool {
	_, option, _ := strings.Cut(f.Tag.Get("state"), ",")
	return option == "buffer"
}

// structUnder follows interfaces and pointers to a struct.
func structUnder(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v, v.Kind() == reflect.Struct
}

// containerOf returns v as a Container, unless it is one only because it embeds one: then its other fields count too.
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

// stateName is a field's name in lower case, its words joined by underscores. A digit belongs to the word before it.
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
