package budget

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// fixedTypes are types of other packages whose values nobody can change, by their documentation.
var fixedTypes = []string{"*regexp.Regexp", "*strings.Replacer", "*html/template.Template", "*text/template.Template",
	"*hash/crc32.Table", "*time.Location", "*github.com/prometheus/client_golang/prometheus.Desc",
	"reflect.Type", "encoding/binary.ByteOrder"}

// fixedCalls make values that nobody can change.
var fixedCalls = []string{"errors.New", "fmt.Errorf"}

// processWide returns the process-wide variables of a package, a name for each field. A variable
// is a constant, and does not count, if nothing writes it after the initialisation of its package
// and its value cannot change either. The value can change in a channel, behind a pointer or an
// interface, and in a function that a call has made, such as sync.OnceValue.
func (t *Tree) processWide(p *goPackage, writes *writeList) []string {
	written := map[*types.Var]bool{}
	for _, w := range writes.all {
		if !w.atStart() && (w.assigned || !writes.unchanging(w.by.typeOf(w.place))) {
			written[w.of] = true
		}
	}
	counter := newFieldCounter(p)
	var all []string
	for _, file := range p.files {
		for _, decl := range file.Decls {
			decl, ok := decl.(*ast.GenDecl)
			if !ok || decl.Tok != token.VAR || !t.byHand(decl.Pos()) {
				continue
			}
			for _, spec := range decl.Specs {
				spec := spec.(*ast.ValueSpec)
				for i, name := range spec.Names {
					var value ast.Expr
					if len(spec.Values) == len(spec.Names) {
						value = spec.Values[i]
					}
					v, ok := p.info.Defs[name].(*types.Var)
					if ok && name.Name != "_" && (written[v] || p.changes(v.Type(), value, writes)) {
						all = append(all, counter.list(v.Name(), v.Type())...)
					}
				}
			}
		}
	}
	return all
}

// changes reports whether a value of this type can change although nobody writes the variable.
func (p *goPackage) changes(of types.Type, value ast.Expr, writes *writeList) bool {
	if slices.Contains(fixedTypes, types.TypeString(of, nil)) {
		return false
	}
	switch underlying := of.Underlying().(type) {
	case *types.Pointer:
		return !writes.unchanging(underlying.Elem())
	case *types.Chan:
		return true
	case *types.Interface:
		return value != nil && !p.fixed(value)
	case *types.Signature:
		_, called := value.(*ast.CallExpr)
		return called
	}
	return false
}

// fixed reports whether an interface's value cannot change. It then is an error, another variable
// that counts itself, or no pointer.
func (p *goPackage) fixed(value ast.Expr) bool {
	if p.variable(value) != nil {
		return true
	}
	if call, ok := value.(*ast.CallExpr); ok {
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && p.info.Uses[s.Sel] != nil && p.info.Uses[s.Sel].Pkg() != nil {
			return slices.Contains(fixedCalls, p.info.Uses[s.Sel].Pkg().Path()+"."+s.Sel.Name)
		}
	}
	_, pointer := p.typeOf(value).Underlying().(*types.Pointer)
	_, unknown := p.typeOf(value).Underlying().(*types.Interface)
	return !pointer && !unknown
}

// inits returns the files of a package's init functions.
func (t *Tree) inits(p *goPackage) []string {
	var all []string
	for _, file := range p.files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && f.Name.Name == "init" && t.byHand(f.Pos()) {
				all = append(all, t.pathOf(f.Pos()))
			}
		}
	}
	return all
}
