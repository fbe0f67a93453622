// Opgen writes the typed operators of package cgotorch and of the packages linalg, fft and special
// in its folder. It reads the list of operators and LibTorch's schemas. For each operator of the
// list it prints a method of Exec, or a function of one of these packages. It also compares the
// list with the functions that PyTorch documents, and writes docs/operators.md. For package pt2 it
// writes pt2/gosource/operators.json.
//
// "make generate" runs opgen in folder cgotorch. With -update FILE, opgen first takes the schemas
// of the listed operators from FILE. FILE has all schemas of LibTorch, one on each line. If FILE
// is "-", opgen reads standard input.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	listPath := flag.String("list", "operators.txt", "the kept list of operators")
	schemaPath := flag.String("schemas", "internal/opgen/schemas.txt", "the schemas of the listed operators")
	outPath := flag.String("out", "operators_gen.go", "the file to write; a package's file has the same name in a folder beside it")
	tablePath := flag.String("documented", "internal/opgen/documented.txt", "the functions that PyTorch documents")
	pagePath := flag.String("page", "../docs/operators.md", "the page to write")
	describedPath := flag.String("described", "pt2/gosource/operators.json", "the file to write for package gosource")
	dumpPath := flag.String("update", "", "first refresh -schemas from this dump of all schemas; - is standard input")
	describeOnly := flag.Bool("describe", false, "write no file; print the typed operators as JSON")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "opgen: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if *describeOnly {
		if err := describe(*listPath, *schemaPath); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	err := run(*listPath, *schemaPath, *outPath, *dumpPath)
	if err == nil {
		err = writeDescriptions(*listPath, *schemaPath, *describedPath)
	}
	if err == nil {
		err = runPage(*listPath, *tablePath, *pagePath)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runPage checks that each documented operator is in the list, and writes the page on operators.
func runPage(listPath, tablePath, pagePath string) error {
	page, err := makePage(listPath, tablePath)
	if err != nil {
		return err
	}
	return writeIfChanged(pagePath, page)
}

func makePage(listPath, tablePath string) ([]byte, error) {
	text, err := os.ReadFile(listPath)
	if err != nil {
		return nil, fmt.Errorf("opgen: %w", err)
	}
	list, err := parseList(listPath, string(text))
	if err != nil {
		return nil, err
	}
	if text, err = os.ReadFile(tablePath); err != nil {
		return nil, fmt.Errorf("opgen: %w", err)
	}
	table, err := parseTable(tablePath, string(text))
	if err != nil {
		return nil, err
	}
	if err := table.check(list); err != nil {
		return nil, err
	}
	return page(list, table), nil
}

func run(listPath, schemaPath, outPath, dumpPath string) error {
	text, err := os.ReadFile(listPath)
	if err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	list, err := parseList(listPath, string(text))
	if err != nil {
		return err
	}
	if dumpPath != "" {
		if err := update(list, dumpPath, schemaPath); err != nil {
			return err
		}
	}
	schemas, err := os.ReadFile(schemaPath)
	if err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	sources, err := generate(list, schemaPath, string(schemas))
	if err != nil {
		return err
	}
	for pkg, source := range sources {
		path := filepath.Join(filepath.Dir(outPath), pkg, filepath.Base(outPath))
		if err := writeIfChanged(path, source); err != nil {
			return err
		}
	}
	if len(sources) == 1 {
		return nil
	}
	table, err := testTable(list)
	if err != nil {
		return err
	}
	return writeIfChanged(strings.TrimSuffix(outPath, ".go")+"_test.go", table)
}

// update replaces the content of the schema file. From the lines of the dump it takes those that
// the list needs, and sorts them.
func update(list *list, dumpPath, schemaPath string) error {
	var dump []byte
	var err error
	if dumpPath == "-" {
		dump, err = io.ReadAll(os.Stdin)
	} else {
		dump, err = os.ReadFile(dumpPath)
	}
	if err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	kept, err := keepSchemas(list, dumpPath, string(dump))
	if err != nil {
		return err
	}
	return writeIfChanged(schemaPath, []byte(kept))
}

// writeIfChanged writes the file if its content changes. An unchanged file keeps its time, so
// that it does not start a build.
func writeIfChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	return nil
}
