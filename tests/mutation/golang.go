package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"strings"
)

func goSource(text string) (*source, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{text: text}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	for _, group := range file.Comments {
		for _, c := range group.List {
			s.comments = append(s.comments, comment{offset(c.Pos()), c.Text})
		}
	}
	s.statement = func(start int) (end int, function string, err error) {
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil || end > 0 || start < offset(n.Pos()) || start >= offset(n.End()) {
				return false
			}
			switch n := n.(type) {
			case *ast.FuncDecl:
				function = n.Name.Name
				if n.Recv != nil {
					function = strings.TrimPrefix(types.ExprString(n.Recv.List[0].Type), "*") + "." + function
				}
			case *ast.CompositeLit:
				for _, element := range n.Elts {
					if offset(element.Pos()) == start {
						end = offset(element.End())
						if after := strings.TrimLeft(text[end:], " \t\n"); strings.HasPrefix(after, ",") {
							end = len(text) - len(after) + 1
						}
					}
				}
			case ast.Stmt:
				if offset(n.Pos()) == start {
					end = offset(n.End())
				}
			}
			return true
		})
		if end == 0 {
			err = fmt.Errorf("no statement begins there")
		}
		return end, function, err
	}
	return s, nil
}

var (
	unusedVariable = regexp.MustCompile(`declared and not used: (\w+)`)
	unusedImport   = regexp.MustCompile(`("[^"]+") imported(?: as \w+)? and not used`)
)

// A mutant is a file without the statements of an edge. repaired returns the mutant without
// errors about unused variables and imports. Each variable gets a use at the offset `at`, where
// the removed statement was. Other errors of the compiler do not change the mutant.
func repaired(mutant string, at int, compiler string) string {
	for _, unused := range unusedVariable.FindAllStringSubmatch(compiler, -1) {
		mutant = mutant[:at] + "_ = " + unused[1] + "; " + mutant[at:]
	}
	for _, unused := range unusedImport.FindAllStringSubmatch(compiler, -1) {
		spec := regexp.MustCompile(`(?m)^(import |\t)(?:\w+ )?` + regexp.QuoteMeta(unused[1]) + `$`)
		mutant = spec.ReplaceAllString(mutant, "${1}_ "+unused[1])
	}
	return mutant
}
