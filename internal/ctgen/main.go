// Program ctgen writes the calls of a C library from its headers. For each declaration it writes a
// Go function, type or constant. "go generate" runs ctgen in cgotorch/internal/ct and in
// internal/ctd.
//
// Nothing is linked. Each function of C is called through a table, which is filled when the library
// is opened. ctgen writes four files:
//
//	NAME_gen.h         the types of C, the table, and a static function for each entry
//	NAME_gen.go        constants, and the structs that Go and C share
//	NAME_cgo_gen.go    the functions, for Linux with cgo
//	NAME_nocgo_gen.go  the same functions for other builds, in which no library can be opened
//
// Some declarations cannot be translated mechanically. Their names are in byHand, and their Go
// code is written by hand in the other files of the package.
package main

import (
	"flag"
	"fmt"
	"os"
)

// byHand names the declarations whose Go code is written by hand. They are calls that must hide
// pointers from cgo, functions that C calls, and calls whose results must be freed.
var byHand = map[string]bool{
	"ct_call": true, "ct_overflow_take": true, "ct_function": true, "ct_recompute": true,
	"ct_tensor_from_host": true, "ct_tensor_to_host": true, "ct_tensor_copy_from": true, "ct_tensor_copy_to": true, "ct_copies_from": true,
	"ct_host_copy": true, "ct_tensor_free": true, "ct_stream_external": true, "ct_op_schema": true, "ct_op_schemas": true, "ct_cuda_count": true, "ct_text_free": true, "ct_store_get": true,
}

// fillsArray names the functions that write an array of handles.
var fillsArray = map[string]bool{"ct_gradients": true, "ct_compiled_run": true}

// passedOn names the structs that Go only passes on, by their pointers.
var passedOn = map[string]bool{"ctd_frame": true, "ctd_device": true}

func main() {
	prefix := flag.String("prefix", "ct", "the beginning of all names of the headers, and the name of the package")
	flag.Parse()
	files, err := generate(*prefix, flag.Args())
	for name, code := range files {
		if err == nil {
			err = os.WriteFile(name, code, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ctgen:", err)
		os.Exit(1)
	}
}

// generate returns the files for the headers, by their names.
func generate(prefix string, headers []string) (map[string][]byte, error) {
	g := newGenerator(prefix)
	for _, header := range headers {
		text, err := os.ReadFile(header)
		if err != nil {
			return nil, err
		}
		declarations, err := read(prefix, string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", header, err)
		}
		for _, d := range declarations {
			if err := g.declare(d); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", header, d.name, err)
			}
		}
	}
	return g.files()
}
