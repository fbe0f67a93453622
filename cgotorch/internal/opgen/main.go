// Opgen writes the typed operators of package cgotorch. It reads the list of operators and
// LibTorch's schemas. For each operator of the list it prints a method of Exec.
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
)

func main() {
	listPath := flag.String("list", "operators.txt", "the kept list of operators")
	schemaPath := flag.String("schemas", "internal/opgen/schemas.txt", "the schemas of the listed operators")
	outPath := flag.String("out", "operators_gen.go", "the file to write")
	dumpPath := flag.String("update", "", "first refresh -schemas from this dump of all schemas; - is standard input")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "opgen: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*listPath, *schemaPath, *outPath, *dumpPath); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	source, err := generate(list, schemaPath, string(schemas))
	if err != nil {
		return err
	}
	return writeIfChanged(outPath, source)
}

// The function `update` replaces the content of the schema file. From the lines of the dump it
// takes those that the list needs, and sorts them.
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
