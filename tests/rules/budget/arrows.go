package budget

import (
	"path"
	"slices"
	"strings"
)

const rootPackage = "cgotorch"

// coreFiles are the files of the root package that run operators: a Do and what it needs. Its
// other files are features.
var coreFiles = []string{
	"abi.go", "call.go", "copy.go", "cure.go", "device.go", "do.go", "doc.go", "dtype.go", "error.go", "event.go", "exec.go", "format.go",
	"half.go", "hostread.go", "live.go", "must.go", "notify.go", "observer.go", "operator.go", "overload.go", "process.go", "scope.go", "slab.go", "stream.go", "tensor.go", "turn.go", "work.go", "worker.go",
}

// arrows says which other files of a package each file uses, and by which names. A file uses
// another one if it says a function, a type, a method, a field, a constant or a variable of it.
// Generated files are left out.
func (t *Tree) arrows(p *goPackage) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for name, object := range p.info.Uses {
		if object.Pkg() != p.types || !t.byHand(name.Pos()) || !t.byHand(object.Pos()) {
			continue
		}
		from, to := path.Base(t.pathOf(name.Pos())), path.Base(t.pathOf(object.Pos()))
		if from == to {
			continue
		}
		if all[from] == nil {
			all[from] = map[string][]string{}
		}
		if !slices.Contains(all[from][to], name.Name) {
			all[from][to] = append(all[from][to], name.Name)
		}
	}
	return all
}

// upwards returns the pairs of a core file and a feature that it uses.
func upwards(arrows map[string]map[string][]string) []string {
	var all []string
	for _, from := range coreFiles {
		for to, names := range arrows[from] {
			if !slices.Contains(coreFiles, to) {
				slices.Sort(names)
				all = append(all, from+" -> "+to+": "+strings.Join(names, " "))
			}
		}
	}
	slices.Sort(all)
	return all
}

// knot returns the largest set of files that all reach each other.
func knot(arrows map[string]map[string][]string) []string {
	reached := map[string]map[string]bool{}
	for from := range arrows {
		reached[from] = map[string]bool{}
		var visit func(file string)
		visit = func(file string) {
			for to := range arrows[file] {
				if !reached[from][to] {
					reached[from][to] = true
					visit(to)
				}
			}
		}
		visit(from)
	}
	var largest []string
	for from := range arrows {
		var circle []string
		for to := range reached[from] {
			if reached[to][from] {
				circle = append(circle, to)
			}
		}
		if len(circle) > len(largest) {
			largest = circle
		}
	}
	slices.Sort(largest)
	return largest
}
