// Package budget counts the things of a tree of this module: fields, variables, names and lines.
// Its counts go through structs, so that nesting does not make them smaller.
package budget

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Tree is a module's source files with their lines, and its Go packages with their types.
type Tree struct {
	dir, module string
	set         *token.FileSet
	files       []sourceFile
	generated   map[string]bool       // by path
	packages    map[string]*goPackage // by path below the module; tests/ is left out
	others      types.Importer        // packages of other modules
	missing     error                 // the first of them that cannot be imported
}

// A sourceFile is a file of code. Its path is relative to the tree.
type sourceFile struct {
	path            string
	lines           int
	generated, test bool
}

// A goPackage is a package without its tests.
type goPackage struct {
	path  string // below the module
	types *types.Package
	info  *types.Info
	files []*ast.File
}

var (
	code          = []string{".go", ".cc", ".c", ".h", ".py", ".sh"}
	generatedMark = regexp.MustCompile(`(?m)^(//|#) (Code g|G)enerated .*(DO NOT EDIT|edit)`)
	moduleLine    = regexp.MustCompile(`(?m)^module (\S+)$`)
	tests         = regexp.MustCompile(`^tests/|(^|/)testdata/|_test\.`)
)

// Load reads the tree at dir, which holds a go.mod. It runs `go list` for the types of packages of
// other modules, and fails if it cannot read one of them.
func Load(dir string) (*Tree, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	line := moduleLine.FindSubmatch(mod)
	if line == nil {
		return nil, fmt.Errorf("budget: %s/go.mod names no module", dir)
	}
	t := &Tree{dir: dir, module: string(line[1]), set: token.NewFileSet(), packages: map[string]*goPackage{}, generated: map[string]bool{}}
	if err := t.readFiles(); err != nil {
		return nil, err
	}
	if err := t.parse(); err != nil {
		return nil, err
	}
	if err := t.listOthers(); err != nil {
		return nil, err
	}
	for _, p := range t.sorted() {
		if _, err := t.Import(t.module + "/" + p.path); err != nil {
			return nil, err
		}
	}
	return t, t.missing
}

func (t *Tree) readFiles() error {
	return filepath.WalkDir(t.dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != t.dir && (base == "build" || base == "gpu-bundle" || base == "runs" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(code, path.Ext(base)) {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(t.dir, name)
		relative = filepath.ToSlash(relative)
		t.generated[relative] = generatedMark.Match(text)
		t.files = append(t.files, sourceFile{relative, bytes.Count(text, []byte("\n")), t.generated[relative], tests.MatchString(relative)})
		return err
	})
}

// parse reads the packages of the tree as `go build` without tags does.
func (t *Tree) parse() error {
	for _, f := range t.files {
		folder := path.Dir(f.path)
		if f.test || path.Ext(f.path) != ".go" || t.packages[folder] != nil {
			continue
		}
		found, err := build.ImportDir(filepath.Join(t.dir, folder), 0)
		if _, none := err.(*build.NoGoError); none {
			continue // all of its files have a tag
		}
		if err != nil {
			return err
		}
		p := &goPackage{path: folder}
		for _, name := range slices.Sorted(slices.Values(append(found.GoFiles, found.CgoFiles...))) {
			file, err := parser.ParseFile(t.set, path.Join(t.dir, folder, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			p.files = append(p.files, file)
		}
		t.packages[folder] = p
	}
	return nil
}

// listOthers makes the importer of the packages that do not belong to the module.
func (t *Tree) listOthers() error {
	imports := map[string]bool{}
	for _, p := range t.packages {
		for _, file := range p.files {
			for _, spec := range file.Imports {
				name := strings.Trim(spec.Path.Value, `"`)
				imports[name] = name != "C" && !strings.HasPrefix(name, t.module+"/")
			}
		}
	}
	maps.DeleteFunc(imports, func(_ string, other bool) bool { return !other })
	if len(imports) == 0 {
		return nil // go list without a name lists the folder
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, slices.Sorted(maps.Keys(imports))...)...)
	cmd.Dir, cmd.Stderr = t.dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("budget: go list in %s: %w", t.dir, err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	t.others = importer.ForCompiler(t.set, "gc", func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) })
	return nil
}

// Import returns the package with an import path. A package of the module is checked from its
// source, so each of its objects exists once. Types and constants of C are unknown, so errors of
// types are left to the compiler.
func (t *Tree) Import(name string) (*types.Package, error) {
	below, ours := strings.CutPrefix(name, t.module+"/")
	if !ours {
		imported, err := t.others.Import(name)
		if err != nil && t.missing == nil {
			t.missing = err
		}
		return imported, err
	}
	p := t.packages[below]
	if p == nil {
		return nil, fmt.Errorf("budget: no package %s in %s", name, t.dir)
	}
	if p.types == nil {
		p.check(name, t, t.set)
	}
	return p.types, nil
}

// check fills in the package's types.
func (p *goPackage) check(name string, imports types.Importer, set *token.FileSet) {
	p.info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	config := types.Config{Importer: imports, FakeImportC: true, Error: func(error) {}}
	p.types, _ = config.Check(name, set, p.files, p.info)
}

// ours reports whether p is a package of the module. p is nil for the type error.
func (t *Tree) ours(p *types.Package) bool {
	return p != nil && strings.HasPrefix(p.Path(), t.module+"/")
}

// typeOf returns the type of e. A type that comes from C is types.Typ[types.Invalid].
func (p *goPackage) typeOf(e ast.Expr) types.Type {
	if of := p.info.TypeOf(e); of != nil {
		return of
	}
	return types.Typ[types.Invalid]
}

func (t *Tree) sorted() []*goPackage {
	return slices.SortedFunc(maps.Values(t.packages), func(a, b *goPackage) int { return strings.Compare(a.path, b.path) })
}

// pathOf returns the file of a position, relative to the tree.
func (t *Tree) pathOf(pos token.Pos) string {
	relative, err := filepath.Rel(t.dir, t.set.Position(pos).Filename)
	if err != nil {
		return ""
	}
	return filepath.ToSlash(relative)
}

// byHand reports whether the position is in a file that no program has written.
func (t *Tree) byHand(pos token.Pos) bool { return !t.generated[t.pathOf(pos)] }
