package nn

import (
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// duplicate copies m. The copy has new tensors. Each module that holds tensors or has a field Eval
// is new in the copy. The copy shares everything else with m. If m holds no tensors and has no
// field Eval, `duplicate` returns m itself.
func (f *Fusion) duplicate(x *cgotorch.Exec, m Module) Module {
	d := duplication{x: x, f: f, of: m, made: map[place]reflect.Value{}}
	return d.value(reflect.ValueOf(m)).Interface().(Module)
}

type duplication struct {
	x    *cgotorch.Exec
	f    *Fusion
	of   Module
	made map[place]reflect.Value // the copy of each pointer's target, so that a target is copied once
}

// value returns a copy of v. It copies the tensors that State finds in v, and the modules that have
// a field Eval. The copy shares everything else with v.
func (d *duplication) value(v reflect.Value) reflect.Value {
	if !owns(v) {
		return v
	}
	if v.Type() == tensorType {
		return reflect.ValueOf(d.f.Copy(d.x, v.Interface().(*cgotorch.Tensor)))
	}
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		p := placeOf(v)
		if known, ok := d.made[p]; ok {
			return known
		}
		to := reflect.New(v.Type().Elem())
		out.Set(to.Convert(v.Type()))
		d.made[p] = out
		if v.Elem().Kind() == reflect.Struct {
			d.fields(to.Elem(), v.Elem())
		} else {
			to.Elem().Set(d.value(v.Elem()))
		}
	case reflect.Interface:
		out.Set(d.value(v.Elem()))
	case reflect.Struct:
		d.fields(out, v)
	case reflect.Slice:
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			out.Index(i).Set(d.value(v.Index(i)))
		}
	}
	return out
}

func (d *duplication) fields(to, from reflect.Value) {
	for i := range from.NumField() {
		f, value := from.Type().Field(i), from.Field(i)
		switch {
		case f.Anonymous && stateTag(f) == "" && value.Kind() == reflect.Struct:
			d.fields(to.Field(i), value)
		case !f.IsExported() && from.Type() == parallelType: // a Parallel's measurements are not copied: the copy measures again
		case !f.IsExported() && !value.IsZero():
			refuse(d.x, "nn.Fuse", "%T cannot be copied: the unexported field %s of %v holds something; let it be a nn.Fusible", d.of, f.Name, from.Type())
		case !f.IsExported():
		case stateTag(f) == "-":
			to.Field(i).Set(value)
		default:
			to.Field(i).Set(d.value(value))
		}
	}
}

// owns reports whether State finds a tensor in v, or SetTraining finds a field Eval in v.
func owns(v reflect.Value) bool {
	if v.Kind() == reflect.Interface {
		return owns(v.Elem())
	}
	if !holdsState(v) {
		return false
	}
	if v.Type() == tensorType {
		return true
	}
	found := false
	w := walker{path: map[any]int{}, visit: func(v reflect.Value, own []heldTensor) {
		_, moded := modeOf(v)
		found = found || moded || len(own) > 0
	}}
	w.module("", v)
	return found
}
