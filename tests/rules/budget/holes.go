package budget

import (
	"go/ast"
	"go/types"
	"slices"
)

// holes returns the variables, and the fields of variables, of function or interface type that
// another package sets. It may set them by an assignment, or by a call of an exported function
// that stores an argument.
func (t *Tree) holes(writes *writeList) []string {
	called := t.calledFromOutside()
	var all []string
	for _, w := range writes.all {
		if !t.ours(w.of.Pkg()) {
			continue // such as flag.Usage
		}
		outside := w.by.types != w.of.Pkg() && w.assigned
		if !outside && !(w.inside != nil && called[w.by.info.Defs[w.inside.Name]] && w.storesParameter()) {
			continue
		}
		name, of := types.ExprString(w.place), w.by.typeOf(w.place)
		if !outside {
			name = w.of.Pkg().Name() + "." + name
		}
		all = append(all, openFields(name, of)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// calledFromOutside returns the functions and methods that another package of the module names.
func (t *Tree) calledFromOutside() map[types.Object]bool {
	called := map[types.Object]bool{}
	for _, p := range t.packages {
		for _, object := range p.info.Uses {
			if f, ok := object.(*types.Func); ok && f.Pkg() != p.types {
				called[f.Origin()] = true
			}
		}
	}
	return called
}

// storesParameter reports whether the write stores a parameter of its function that is a function,
// an interface, or a struct of these.
func (w write) storesParameter() bool {
	signature := w.by.info.Defs[w.inside.Name].Type().(*types.Signature)
	stored := false
	for _, operand := range w.operands {
		ast.Inspect(operand, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			for i := range signature.Params().Len() {
				parameter := signature.Params().At(i)
				if ok && w.by.info.Uses[name] == parameter && len(openFields("", parameter.Type())) > 0 {
					stored = true
				}
			}
			return true
		})
	}
	return stored
}

// openFields returns the fields of function or interface type in a value of type t. A map or a
// slice of them is one.
func openFields(name string, t types.Type) []string {
	switch of := t.Underlying().(type) {
	case *types.Struct:
		var all []string
		for i := range of.NumFields() {
			f := of.Field(i)
			all = append(all, openFields(name+"."+f.Name(), f.Type())...)
		}
		return all
	case *types.Map:
		t = of.Elem()
	case *types.Slice:
		t = of.Elem()
	}
	switch t.Underlying().(type) {
	case *types.Signature, *types.Interface:
		return []string{name}
	}
	return nil
}
