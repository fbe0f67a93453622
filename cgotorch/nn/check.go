package nn

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Check returns an error for each field or element of m in which [State] misses a tensor or a
// module. m is a pointer to a module. An optimizer does not change a missed tensor, and no file
// holds it.
//
// State misses maps, unexported fields, and embedded fields that are not structs. A field with
// the tag `state:"-"` is hidden on purpose, so Check skips it. Each error names the field and
// says what to change. Check looks at the present values, so call it when the module is complete.
// It cannot look into closures. Two fields of a struct with one tag are an error too. So is a
// Container, such as a [Sequential], that holds itself, because its Forward would not end. A module
// that is given or held as a struct, and not as a pointer to it, is an error where a function would
// change a copy. Check fails with [cgotorch.ErrInvalidArgument].
//
// [Load], [To], [Close] and package checkpoint call Check themselves.
func Check(m any) error {
	c := checker{module: m, known: map[place]bool{}, seen: map[place]bool{}}
	w := walker{path: map[any]int{}, visit: func(v reflect.Value, own []heldTensor) {
		if v.CanAddr() {
			c.known[placeOf(v.Addr())] = true
		}
		for _, s := range own {
			c.known[placeOf(reflect.ValueOf(s.Tensor))] = true
		}
	}}
	if err := w.walk(m); err != nil {
		return err
	}
	if w.cycle != "" {
		return fmt.Errorf("nn: %T holds itself or has no end: %s: take it out of its children: %w", m, w.cycle, cgotorch.ErrInvalidArgument)
	}
	if v := reflect.ValueOf(m); v.IsValid() {
		c.check("", v, packageOf(v.Type(), ""))
	}
	return errors.Join(c.lost...)
}

// checker looks for tensors and modules that [State] misses. It walks the same values as State,
// and looks into the fields that State skips.
type checker struct {
	module any
	known  map[place]bool // the tensors and modules that State finds
	seen   map[place]bool // the pointers that checker has followed
	lost   []error
}

// place is the target of a pointer. The type is part of it, because a struct and its first field
// have the same address.
type place struct {
	address unsafe.Pointer
	of      reflect.Type
	length  int // of a list
}

// placeOf returns the target of a pointer, a list or a map.
func placeOf(v reflect.Value) place {
	p := place{address: v.UnsafePointer(), of: v.Type().Elem()}
	if v.Kind() != reflect.Pointer {
		p.of, p.length = v.Type(), v.Len()
	}
	return p
}

func (c *checker) lose(name string, v reflect.Value, what, todo string) {
	if name == "" {
		name = "the module itself"
	}
	c.lost = append(c.lost, fmt.Errorf("nn: %T: %s, %s of type %v, holds tensors or modules that nn.State does not see: %s: %w",
		c.module, name, what, v.Type(), todo, cgotorch.ErrInvalidArgument))
}

// check looks for tensors and modules that State misses in v. `name` is the name of v. `within` is
// the path of the package that declares the struct around v. A struct of a package other than
// `within` is looked into only if it is a module.
func (c *checker) check(name string, v reflect.Value, within string) {
	v = c.follow(v)
	switch v.Kind() {
	case reflect.Map:
		if c.holds(v, within) {
			c.lose(name, v, "a map", "a map has no order, so use a slice, or a struct with a field for each")
		}
	case reflect.Slice, reflect.Array:
		if elementsMayHold(v.Type()) || v.Type().Elem().Kind() == reflect.Map {
			for i := range v.Len() {
				c.check(join(name, strconv.Itoa(i)), v.Index(i), within)
			}
		}
	case reflect.Struct:
		if !ownStruct(v.Type(), within) {
			return
		}
		if container, ok := containerOf(v); ok {
			for _, child := range container.Children() {
				c.check(join(name, child.Name), reflect.ValueOf(child.Module), packageOf(v.Type(), within))
			}
			return
		}
		c.fields(name, v, packageOf(v.Type(), within))
	}
}

func (c *checker) fields(name string, v reflect.Value, within string) {
	tagged := map[string]int{}
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		tag := stateTag(f)
		if k, twice := tagged[tag]; twice && f.IsExported() && !sameTarget(v.Field(k), value) {
			c.lost = append(c.lost, fmt.Errorf("nn: %T: %s has the tag %q, which %s has too: their tensors would get the same names: change one of the tags: %w",
				c.module, join(name, f.Name), tag, join(name, v.Type().Field(k).Name), cgotorch.ErrInvalidArgument))
		}
		if tag != "" && tag != "-" && f.IsExported() {
			tagged[tag] = i
		}
		embedded := f.Anonymous && tag == ""
		inside, isStruct := structUnder(value)
		switch {
		case tag == "-":
		case embedded && isStruct && inside.Type() != tensorType.Elem():
			c.fields(name, inside, packageOf(inside.Type(), within))
		case embedded && c.holds(value, within):
			c.lose(join(name, f.Name), value, "an embedded field", `give the field a name, or the tag state:"-" if it is not the module's`)
		case embedded:
		case f.IsExported():
			c.check(join(name, f.Name), value, within)
		case c.holds(value, within):
			c.lose(join(name, f.Name), value, "an unexported field", `export it, or give it the tag state:"-" if it is not the module's`)
		}
	}
}

// sameTarget reports whether a or b is nil, or both lead to one module or tensor.
func sameTarget(a, b reflect.Value) bool {
	for _, v := range []*reflect.Value{&a, &b} {
		for v.Kind() == reflect.Interface {
			*v = v.Elem()
		}
		if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return true
		}
	}
	return a.Kind() == reflect.Pointer && b.Kind() == reflect.Pointer && a.UnsafePointer() == b.UnsafePointer()
}

// follow follows pointers and interfaces from v to a value that can hold tensors. It follows no
// pointer twice.
func (c *checker) follow(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.Type() == tensorType || v.IsNil() || v.Kind() == reflect.Pointer && !first(c.seen, v) {
			return reflect.Value{}
		}
		v = v.Elem()
	}
	return v
}

// first adds the pointer v to `seen`, and reports whether the pointer is new there.
func first(seen map[place]bool, v reflect.Value) bool {
	p := placeOf(v)
	known := seen[p]
	seen[p] = true
	return !known
}

// holds reports whether State misses something in v: a tensor, or a module with a field Eval. A
// tensor or module in v that State finds in some other place does not count as missed.
func (c *checker) holds(v reflect.Value, within string) bool {
	return search{c.known, map[place]bool{}}.holds(v, within)
}

type search struct{ known, seen map[place]bool }

func (s search) holds(v reflect.Value, within string) bool {
	if !v.IsValid() {
		return false
	}
	if v.Type() == tensorType {
		return !v.IsNil() && !s.known[placeOf(v)]
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && (v.Kind() == reflect.Interface || first(s.seen, v)) && s.holds(v.Elem(), within)
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() != reflect.Map && !elementsMayHold(v.Type()) || v.Kind() == reflect.Slice && !first(s.seen, v) {
			return false
		}
		for i := range v.Len() {
			if s.holds(v.Index(i), within) {
				return true
			}
		}
	case reflect.Map:
		if !first(s.seen, v) {
			return false
		}
		for _, key := range v.MapKeys() {
			if s.holds(v.MapIndex(key), within) {
				return true
			}
		}
	case reflect.Struct:
		if !ownStruct(v.Type(), within) {
			return false
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Name == "Eval" && f.Type.Kind() == reflect.Bool && isModule(v.Type()) && !s.walked(v) {
				return true
			}
			if stateTag(f) != "-" && s.holds(v.Field(i), packageOf(v.Type(), within)) {
				return true
			}
		}
	}
	return false
}

func (s search) walked(v reflect.Value) bool { return v.CanAddr() && s.known[placeOf(v.Addr())] }

var moduleType = reflect.TypeFor[Module]()

func isModule(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(moduleType) || p.Implements(containerType)
}

// ownStruct reports whether a struct that a module holds is likely a part of the module. An
// optimizer and a stream, for instance, are not parts of the module.
func ownStruct(t reflect.Type, within string) bool {
	return t.PkgPath() == "" || t.PkgPath() == within || t.PkgPath() == moduleType.PkgPath() || isModule(t)
}

// packageOf returns the path of the package that declares t or the elements of t. For a type
// without a package, such as []int, packageOf returns `within`.
func packageOf(t reflect.Type, within string) string {
	for t.PkgPath() == "" {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
		case reflect.Struct: // a struct without a name has the package of its unexported fields
			for i := range t.NumField() {
				if f := t.Field(i); f.PkgPath != "" {
					return f.PkgPath
				}
			}
			return within
		default:
			return within
		}
	}
	return t.PkgPath()
}

func join(name, field string) string {
	if name == "" || field == "" {
		return name + field
	}
	return name + "." + field
}
