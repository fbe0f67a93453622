package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// readTexts reads the Markdown files under a folder, and makes questions and answers of the
// comments of the Go sources there. Of one file in sixteen all is held out.
func readTexts(root string) (learn, held []string, err error) {
	files := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, kind := entry.Name(), filepath.Ext(path)
		switch {
		case entry.IsDir() && path != root && (name == "build" || name == "testdata" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case entry.IsDir() || kind != ".go" && kind != ".md" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || strings.HasPrefix(string(source), "// Code generated") {
			return err
		}
		texts := []string{string(source) + end}
		if kind == ".go" {
			texts = questions(string(source))
		}
		if files++; files%16 == 8 {
			held = append(held, texts...)
		} else {
			learn = append(learn, texts...)
		}
		return nil
	})
	if err == nil && len(held) == 0 {
		err = fmt.Errorf("%s has %d Go sources and Markdown files: give -texts a folder with 8 or more", root, files)
	}
	return learn, held, err
}

// questions makes a chat of each documented declaration of a Go file.
func questions(source string) (chats []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil // a broken file has no questions
	}
	ask := func(question, name string, doc *ast.CommentGroup) {
		answer, _, _ := strings.Cut(doc.Text(), "\n\n")
		if answer = strings.Join(strings.Fields(answer), " "); answer != "" {
			question = strings.ReplaceAll(question, "X", file.Name.Name+"."+name)
			chats = append(chats, user+question+end+assistant+answer+end)
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				receiver, _, _ := strings.Cut(types.ExprString(d.Recv.List[0].Type), "[") // without type parameters
				name = strings.TrimPrefix(receiver, "*") + "." + name
			}
			ask("What does X do?", name, d.Doc)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					if s.Doc == nil {
						s.Doc = d.Doc
					}
					ask("What is X?", s.Name.Name, s.Doc)
				}
			}
		}
	}
	return chats
}
