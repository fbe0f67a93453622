package budget

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// A write is a place that may change a package's variable after its declaration.
type write struct {
	of       *types.Var
	place    ast.Expr      // the variable, or a part of it
	assigned bool          // false if the address is taken, or if a method or a function gets it
	by       *goPackage    // the package of the place
	inside   *ast.FuncDecl // nil in a declaration of a variable
	operands []ast.Expr    // the values that are written, if known
}

// atStart reports whether the write is part of the initialisation of the variable's package.
func (w write) atStart() bool {
	return w.by.types == w.of.Pkg() && w.inside != nil && w.inside.Recv == nil && w.inside.Name.Name == "init"
}

// A writeList knows every place of the module that may change a variable or a field.
type writeList struct {
	tree   *Tree
	all    []write
	fields map[*types.Var]bool // the fields that a place writes, through whatever
}

// writes returns every assignment to a package's variable or to a part of it, every &v, and every
// call of a method with a pointer receiver on it. Passing a variable on is a read, so a write to a
// map under another name is not seen.
func (t *Tree) writes() *writeList {
	l := &writeList{tree: t, fields: map[*types.Var]bool{}}
	for _, p := range t.sorted() {
		for _, file := range p.files {
			for _, decl := range file.Decls {
				inside, _ := decl.(*ast.FuncDecl)
				ast.Inspect(decl, func(n ast.Node) bool {
					p.places(n, func(place ast.Expr, assigned bool, operands ...ast.Expr) {
						l.note(p, place)
						if of := p.variable(place); of != nil {
							l.all = append(l.all, write{of, place, assigned, p, inside, operands})
						}
					})
					return true
				})
			}
		}
	}
	return l
}

// note notes the fields that a write of the place writes.
func (l *writeList) note(p *goPackage, place ast.Expr) {
	switch place := place.(type) {
	case *ast.SelectorExpr:
		if s := p.info.Selections[place]; s != nil && s.Kind() == types.FieldVal {
			l.fields[s.Obj().(*types.Var).Origin()] = true
			l.note(p, place.X)
		}
	case *ast.StarExpr:
		if of, ok := p.typeOf(place).Underlying().(*types.Struct); ok {
			for i := range of.NumFields() {
				l.fields[of.Field(i).Origin()] = true
			}
		}
	case *ast.ParenExpr:
		l.note(p, place.X)
	case *ast.IndexExpr:
		l.note(p, place.X)
	}
}

// unchanging reports whether t is a struct of the module of which no place writes a field.
func (l *writeList) unchanging(t types.Type) bool {
	of, ok := t.Underlying().(*types.Struct)
	if named, has := types.Unalias(t).(*types.Named); has {
		ok = ok && l.tree.ours(named.Obj().Pkg())
	}
	for i := 0; ok && i < of.NumFields(); i++ {
		f := of.Field(i)
		_, inner := f.Type().Underlying().(*types.Struct)
		ok = !l.fields[f.Origin()] && (!inner || l.unchanging(f.Type()))
	}
	return ok
}

// places calls visit for each place that the node itself writes, without the nodes below it.
// `assigned` is false if the address is taken, or if a method or a function gets it.
func (p *goPackage) places(n ast.Node, visit func(place ast.Expr, assigned bool, operands ...ast.Expr)) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for _, place := range n.Lhs {
			visit(place, true, n.Rhs...)
		}
	case *ast.IncDecStmt:
		visit(n.X, true)
	case *ast.RangeStmt:
		visit(n.Key, true)
		visit(n.Value, true)
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			visit(n.X, false)
		}
	case *ast.CallExpr:
		switch called := ast.Unparen(n.Fun).(type) {
		case *ast.Ident:
			if _, builtin := p.info.Uses[called].(*types.Builtin); builtin && slices.Contains([]string{"delete", "clear", "copy"}, called.Name) {
				visit(n.Args[0], false)
			}
		case *ast.SelectorExpr:
			if s := p.info.Selections[called]; s != nil && s.Kind() == types.MethodVal && takesAddress(s) {
				visit(called.X, false, n.Args...)
			}
		}
	}
}

// takesAddress reports whether a call of the method takes the address of its variable.
func takesAddress(s *types.Selection) bool {
	_, receiver := s.Obj().Type().(*types.Signature).Recv().Type().(*types.Pointer)
	_, variable := s.Recv().Underlying().(*types.Pointer)
	return receiver && !variable
}

// variable returns the package's variable that e is, or is a part of. It returns nil if there is
// none.
func (p *goPackage) variable(e ast.Expr) *types.Var {
	switch e := e.(type) {
	case *ast.Ident:
		v, ok := p.info.Uses[e].(*types.Var)
		if ok && !v.IsField() && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
			return v
		}
	case *ast.SelectorExpr:
		if v := p.variable(e.Sel); v != nil {
			return v
		}
		return p.variable(e.X)
	case *ast.IndexExpr:
		return p.variable(e.X)
	case *ast.StarExpr:
		return p.variable(e.X)
	case *ast.ParenExpr:
		return p.variable(e.X)
	case *ast.SliceExpr:
		return p.variable(e.X)
	}
	return nil
}
