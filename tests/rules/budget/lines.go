package budget

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

const (
	longFile     = 400
	longFunction = 60
)

var productRooms = []string{"cgotorch", "csrc", "imageloader", "prefetcher", "internal"}

// lines counts the lines of the selected files. Generated files are left out.
func (t *Tree) lines(of func(f sourceFile) bool) int {
	sum := 0
	for _, f := range t.files {
		if !f.generated && of(f) {
			sum += f.lines
		}
	}
	return sum
}

// inRooms selects the files of some rooms that are no tests.
func inRooms(rooms ...string) func(f sourceFile) bool {
	return func(f sourceFile) bool {
		room, _, _ := strings.Cut(f.path, "/")
		return !f.test && slices.Contains(rooms, room)
	}
}

// isBench selects the measuring programs with their tests.
func isBench(f sourceFile) bool { return strings.HasPrefix(f.path, "bench/") }

// isTest selects the tests of everything else, with what they need.
func isTest(f sourceFile) bool { return f.test && !isBench(f) }

func isRoot(f sourceFile) bool {
	return !f.test && path.Dir(f.path) == rootPackage && path.Ext(f.path) == ".go"
}

func (t *Tree) longFiles() []string {
	var all []string
	for _, f := range t.files {
		if !f.generated && f.lines > longFile && inRooms(productRooms...)(f) {
			all = append(all, fmt.Sprintf("%s: %d", f.path, f.lines))
		}
	}
	return all
}

// longFunctions returns the functions of the tree, tests left out, that have too many lines.
func (t *Tree) longFunctions() []string {
	var all []string
	for _, p := range t.sorted() {
		for _, file := range p.files {
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || !t.byHand(f.Pos()) {
					continue
				}
				if lines := t.set.Position(f.End()).Line - t.set.Position(f.Pos()).Line + 1; lines > longFunction {
					all = append(all, fmt.Sprintf("%s: %s: %d", t.pathOf(f.Pos()), f.Name.Name, lines))
				}
			}
		}
	}
	return all
}
