package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
)

// A generator writes the files of one package.
type generator struct {
	prefix  string             // "ct"
	structs map[string][]field // the fields of each struct that has fields in Go, by its C name
	handles map[string]bool    // the structs without fields in Go
	table   []string           // the names of all functions

	types, entries, calls  text // the parts of NAME_gen.h
	shared, direct, absent text // the bodies of the three Go files
}

// text is a file that is being written.
type text struct{ bytes.Buffer }

func (t *text) printf(format string, args ...any) { fmt.Fprintf(&t.Buffer, format, args...) }

func newGenerator(prefix string) *generator {
	return &generator{prefix: prefix, structs: map[string][]field{}, handles: map[string]bool{}}
}

// declare writes a declaration into the files.
func (g *generator) declare(d declaration) error {
	if d.kind != function && d.kind != section {
		g.types.printf("%s%s\n", d.text, map[bool]string{true: "", false: ";"}[d.kind == constant])
	}
	switch d.kind {
	case section:
		for _, t := range []*text{&g.shared, &g.direct, &g.absent} {
			t.printf("\n// %s\n\n", d.name)
		}
	case constant:
		g.shared.printf("const %s = %s\n", g.constName(d.name), number(d.value))
	case enumeration:
		g.shared.printf("const (\n")
		for _, f := range d.fields {
			g.shared.printf("%s = %s\n", g.constName(f.name), number(f.ctype))
		}
		g.shared.printf(")\n\n")
	case handle:
		g.handle(d.name)
	case structure:
		if passedOn[d.name] {
			g.handle(d.name)
		} else if !byHand[d.name] {
			return g.structure(d)
		}
	case function:
		g.entry(d)
		if !byHand[d.name] {
			return g.function(d)
		}
	}
	return nil
}

// number returns a number of C as one of Go.
func number(c string) string {
	return strings.NewReplacer("UINT64_MAX", "math.MaxUint64", "UINT64_C(1)", "1").Replace(c)
}

func (g *generator) handle(name string) {
	g.handles[name] = true
	g.direct.printf("type %s = C.%s\n\n", g.goName(name), name)
	g.absent.printf("type %s struct{ _ byte }\n\n", g.goName(name))
}

func (g *generator) structure(d declaration) error {
	g.structs[d.name] = d.fields
	name := g.goName(d.name)
	g.shared.printf("type %s struct {\n", name)
	for _, f := range d.fields {
		t, err := g.goType(f.ctype)
		if err != nil {
			return err
		}
		g.shared.printf("%s %s%s\n", g.goName(f.name), f.array, t)
	}
	g.shared.printf("}\n\n")
	g.direct.printf("// The memory is C's.\nvar (\n_ [unsafe.Sizeof(%s{})]byte = [unsafe.Sizeof(C.%s{})]byte{}\n", name, d.name)
	for _, f := range d.fields {
		c := f.name
		if c == "type" {
			c = "_type"
		}
		g.direct.printf("_ [unsafe.Offsetof(%s{}.%s)]byte = [unsafe.Offsetof(C.%s{}.%s)]byte{}\n", name, g.goName(f.name), d.name, c)
	}
	g.direct.printf(")\n\n")
	return nil
}

// entry writes the entry of a function in C's table, and the static function that calls it.
func (g *generator) entry(d declaration) {
	g.table = append(g.table, d.name)
	var params, args []string
	for _, f := range d.fields {
		params = append(params, f.ctype+" "+f.name+f.array)
		args = append(args, f.name)
	}
	list := strings.Join(params, ", ")
	if list == "" {
		list = "void"
	}
	result := "return "
	if d.value == "void" {
		result = ""
	}
	g.entries.printf("  %s (*%s)(%s);\n", d.value, d.name, list)
	g.calls.printf("static inline %s %s(%s) { %s%s_table.%s(%s); }\n", d.value, d.name, list, result, g.prefix, d.name, strings.Join(args, ", "))
}

// unready returns the beginning of a function's body, for a process in which the library could not
// be opened. A function that gets a handle, or an exec, has none: nobody could make its argument.
func (g *generator) unready(d declaration, result string) string {
	if len(d.fields) == 1 && d.fields[0].name == "status" {
		value := map[string]string{"int32": "Internal", "string": "Ready().Error()", "uint64": "0", "": ""}[result]
		return fmt.Sprintf("if status == unready {\nreturn %s\n}\n", value)
	}
	for _, f := range d.fields {
		base, pointer := strings.CutSuffix(strings.TrimPrefix(f.ctype, "const "), "*")
		if pointer && g.handles[base] || base == g.prefix+"_exec" {
			return ""
		}
	}
	switch {
	case strings.HasSuffix(d.name, "_abi_version"):
		return ""
	case result == "":
		return "if Ready() != nil {\nreturn\n}\n"
	case d.value == g.prefix+"_status*":
		return "if Ready() != nil {\nreturn unready\n}\n"
	}
	zero := map[string]string{"string": `""`, "int32": "0", "int64": "0", "uint64": "0"}[result]
	if zero == "" {
		zero = "nil"
	}
	return fmt.Sprintf("if Ready() != nil {\nreturn %s\n}\n", zero)
}

// function writes a function of Go.
func (g *generator) function(d declaration) error {
	var params, args, before, after []string
	for _, f := range d.fields {
		arg := paramName(f.name)
		t, err := g.goType(f.ctype)
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		params = append(params, arg+" "+t)
		switch {
		case t == "string":
			before = append(before, fmt.Sprintf("c%s := C.CString(%s)\ndefer C.free(unsafe.Pointer(c%s))\n", arg, arg, arg))
			args = append(args, "c"+arg)
		case strings.HasPrefix(f.ctype, g.prefix+"_") && strings.HasSuffix(f.ctype, "**") && !fillsArray[d.name]:
			// C gets the address of a local variable. With the address that the caller has passed, cgo would
			// look for Go pointers in the whole object around that address.
			before = append(before, fmt.Sprintf("h%s := *%s\n", arg, arg))
			after = append(after, fmt.Sprintf("*%s = h%s\n", arg, arg))
			args = append(args, "&h"+arg)
		default:
			args = append(args, g.toC(f.ctype, arg))
		}
	}
	result, err := "", error(nil)
	if d.value != "void" {
		if result, err = g.goType(d.value); err != nil {
			return err
		}
	}
	signature := fmt.Sprintf("func %s(%s) %s {\n", g.goName(d.name), strings.Join(params, ", "), result)
	call := g.toGo(d.value, result, fmt.Sprintf("C.%s(%s)", d.name, strings.Join(args, ", ")))
	unready := g.unready(d, result)
	g.absent.printf("%s%spanic(absent)\n}\n\n", signature, unready)
	g.direct.printf("%s%s%s", signature, unready, strings.Join(before, ""))
	switch {
	case result == "":
		g.direct.printf("%s\n%s}\n\n", call, strings.Join(after, ""))
	case len(after) > 0:
		g.direct.printf("status := %s\n%sreturn status\n}\n\n", call, strings.Join(after, ""))
	default:
		g.direct.printf("return %s\n}\n\n", call)
	}
	return nil
}

// files returns the files by their names.
func (g *generator) files() (map[string][]byte, error) {
	head := "// Code generated by ctgen from the headers in csrc/include; DO NOT EDIT.\n\n"
	files := map[string][]byte{
		g.prefix + "_gen.h": fmt.Appendf(nil, "%s#include <stddef.h>\n#include <stdint.h>\n\n%s\n"+
			"// The functions of the library. All are NULL until fill is called.\ntypedef struct {\n%s} %s_functions;\n\n"+
			"extern %s_functions %s_table __attribute__((visibility(\"hidden\")));\n\n%s",
			head, &g.types, &g.entries, g.prefix, g.prefix, g.prefix, &g.calls),
	}
	for name, code := range g.goFiles(head) {
		formatted, err := format.Source([]byte(code))
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, code)
		}
		files[g.prefix+name] = formatted
	}
	return files, nil
}

// goFiles returns the three files of Go by the ends of their names.
func (g *generator) goFiles(head string) map[string]string {
	imports := ""
	if strings.Contains(g.shared.String(), "math.") {
		imports = "import \"math\"\n\n"
	}
	return map[string]string{
		"_gen.go":     fmt.Sprintf("%spackage %s\n\n%s%s", head, g.prefix, imports, &g.shared),
		"_cgo_gen.go": g.cgoFile(head),
		"_nocgo_gen.go": fmt.Sprintf(`%s//go:build !cgo || !linux || !(amd64 || arm64)

package %s

import "unsafe"

const absent = "%s: a call without a library"

// unready is the status of a call in a build that cannot open the library.
var unready = new(Status)

// functions has no name, and fill is not called: package library opens no library in this build.
var functions [0]string

func fill(all []unsafe.Pointer) { panic(absent) }

%s`, head, g.prefix, g.prefix, &g.absent),
	}
}

// cgoFile returns the file that calls C.
func (g *generator) cgoFile(head string) string {
	var names text
	for _, name := range g.table {
		names.printf("%q,\n", name)
	}
	return fmt.Sprintf(`%s//go:build cgo && linux && (amd64 || arm64)

package %s

// #include <stdlib.h>
// #include <string.h>
// #include "%s_gen.h"
//
// %s_functions %s_table;
// static void fill(void** all) { memcpy(&%s_table, all, sizeof %s_table); }
import "C"

import "unsafe"

// functions names the entries of C's table, in their order.
var functions = [...]string{
%s}

// unready is the status of a call in a process that could not open the library.
var unready = (*Status)(C.calloc(1, 1))

// fill fills the table with the functions, which have the order of their names.
func fill(all []unsafe.Pointer) { C.fill(&all[0]) }

%s`, head, g.prefix, g.prefix, g.prefix, g.prefix, g.prefix, g.prefix, &names, &g.direct)
}
