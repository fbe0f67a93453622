package budget

import "go/types"

// A fieldCounter counts the fields of the types of one package through structs.
//
//   - A struct of the package counts its fields, also inside an array, embedded or without a name.
//   - A pointer to a struct of the package counts the struct's fields if nothing else owns one: the
//     struct's name is unexported, and one field or variable of the package alone names it.
//   - All else counts as one: types of other packages, mutexes, maps, slices, interfaces,
//     functions, and pointers to what several own.
//   - An atomic.Pointer is a pointer. A field called _ and a struct without fields count as none.
type fieldCounter struct {
	of     *types.Package
	owners map[*types.TypeName]int // fields and variables of the package that name the struct
}

func newFieldCounter(p *goPackage) fieldCounter {
	c := fieldCounter{p.types, map[*types.TypeName]int{}}
	for _, object := range p.info.Defs {
		v, ok := object.(*types.Var)
		if ok && (v.IsField() || v.Parent() == p.types.Scope()) {
			for name := range namesIn(v.Type()) {
				c.owners[name]++
			}
		}
	}
	return c
}

// namesIn returns the type names that t says, directly or in a pointer, a slice or a map.
func namesIn(t types.Type) map[*types.TypeName]bool {
	names := map[*types.TypeName]bool{}
	var see func(t types.Type)
	see = func(t types.Type) {
		switch t := types.Unalias(t).(type) {
		case *types.Named:
			names[t.Obj()] = true
			for i := range t.TypeArgs().Len() {
				see(t.TypeArgs().At(i))
			}
		case *types.Map:
			see(t.Key())
			see(t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			see(t.Elem())
		}
	}
	see(t)
	return names
}

// list returns the names of the fields that a value of type t counts. A value that is no struct
// has one name, `name`.
func (c fieldCounter) list(name string, t types.Type) []string { return c.through(name, t, nil) }

func (c fieldCounter) through(name string, t types.Type, inside []types.Type) []string {
	for _, outer := range inside {
		if types.Identical(outer, t) {
			return []string{name} // a pointer back to what holds it
		}
	}
	inside = append(inside, t)
	switch t := types.Unalias(t).(type) {
	case *types.Array:
		return c.through(name, t.Elem(), inside)
	case *types.Struct:
		var all []string
		for i := range t.NumFields() {
			if f := t.Field(i); f.Name() != "_" {
				all = append(all, c.through(name+"."+f.Name(), f.Type(), inside)...)
			}
		}
		return all
	case *types.Pointer:
		if named, ok := types.Unalias(t.Elem()).(*types.Named); ok && c.solelyOwned(named) {
			return c.through(name, named, inside)
		}
	case *types.Named:
		if isAtomicPointer(t) {
			return c.through(name, types.NewPointer(t.TypeArgs().At(0)), inside)
		}
		if _, isStruct := t.Underlying().(*types.Struct); isStruct && t.Obj().Pkg() == c.of {
			return c.through(name, t.Underlying(), inside)
		}
	}
	return []string{name}
}

func (c fieldCounter) solelyOwned(t *types.Named) bool {
	_, isStruct := t.Underlying().(*types.Struct)
	return isStruct && t.Obj().Pkg() == c.of && !t.Obj().Exported() && c.owners[t.Origin().Obj()] == 1
}

func isAtomicPointer(t *types.Named) bool {
	return t.Obj().Name() == "Pointer" && t.Obj().Pkg() != nil && t.Obj().Pkg().Path() == "sync/atomic"
}
