package budget

import (
	"fmt"
	"slices"
)

// A Figure is a count of a tree, and for a short list what it counts.
type Figure struct {
	Name  string
	Count int
	What  []string
}

// Figures counts a tree.
func (t *Tree) Figures() ([]Figure, error) {
	root := t.packages[rootPackage]
	if root == nil {
		return nil, fmt.Errorf("budget: no package %s in %s", rootPackage, t.dir)
	}
	var all []Figure
	list := func(name string, what []string) { all = append(all, Figure{name, len(what), what}) }
	number := func(name string, count int) { all = append(all, Figure{name, count, nil}) }

	fields := newFieldCounter(root)
	for _, name := range []string{"scope", "Exec"} {
		object := root.types.Scope().Lookup(name)
		if object == nil {
			return nil, fmt.Errorf("budget: package %s has no type %s", rootPackage, name)
		}
		list("fields of "+name, fields.list(name, object.Type()))
	}
	writes := t.writes()
	var others, inits []string
	for _, p := range t.sorted() {
		if p != root {
			for _, name := range t.processWide(p, writes) {
				others = append(others, p.path+": "+name)
			}
		}
		inits = append(inits, t.inits(p)...)
	}
	list("variables of the root", t.processWide(root, writes))
	list("variables of other packages", others)
	list("init functions", inits)
	list("set from outside", t.holes(writes))

	var library names
	for _, p := range t.sorted() {
		if n := t.names(p); isLibrary(p.path) {
			library.byHand, library.all = library.byHand+n.byHand, library.all+n.all
		}
	}
	number("names of the root by hand", t.names(root).byHand)
	number("names of the root", t.names(root).all)
	number("names of the library by hand", library.byHand)
	number("names of the library", library.all)

	number("lines of the root", t.lines(isRoot))
	number("lines of the product", t.lines(inRooms(productRooms...)))
	number("lines of tests", t.lines(isTest))
	number("lines of bench", t.lines(isBench))
	number("lines of examples and cmd", t.lines(inRooms("examples", "cmd")))
	list("long files", t.longFiles())
	list("long functions", t.longFunctions())

	arrows := t.arrows(root)
	tied := knot(arrows)
	tiedLines := t.lines(func(f sourceFile) bool { return isRoot(f) && slices.Contains(tied, f.path[len(rootPackage)+1:]) })
	list("uses from core to features", upwards(arrows))
	list("files in the knot", tied)
	number("percent of the root in the knot", 100*tiedLines/max(1, t.lines(isRoot)))
	return all, nil
}
