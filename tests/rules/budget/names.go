package budget

import (
	"go/token"
	"go/types"
	"strings"
)

// names counts exported names: functions, types, methods of exported types, constants and
// variables. Fields, and the methods of interfaces, do not count.
type names struct{ byHand, all int }

// names counts the exported names of a package.
func (t *Tree) names(p *goPackage) names {
	var n names
	count := func(name string, pos token.Pos) {
		if token.IsExported(name) {
			n.all++
			if t.byHand(pos) {
				n.byHand++
			}
		}
	}
	scope := p.types.Scope()
	for _, name := range scope.Names() {
		object := scope.Lookup(name)
		count(name, object.Pos())
		if named, ok := object.Type().(*types.Named); ok && isType(object) && object.Exported() {
			for i := range named.NumMethods() {
				count(named.Method(i).Name(), named.Method(i).Pos())
			}
		}
	}
	return n
}

func isType(object types.Object) bool {
	name, ok := object.(*types.TypeName)
	return ok && !name.IsAlias()
}

// isLibrary reports whether programs may import a package. Its names are the library's.
func isLibrary(path string) bool {
	room, _, _ := strings.Cut(path, "/")
	return (room == "cgotorch" || room == "imageloader" || room == "prefetcher") && !strings.Contains(path, "/internal/")
}
