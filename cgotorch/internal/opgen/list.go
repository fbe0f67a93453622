package main

import (
	"errors"
	"fmt"
	"go/token"
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// A list is the parsed operators.txt. The first lines of operators.txt describe the format.
type list struct {
	path    string
	entries []*entry
	fields  map[string]*fieldDoc // the key is "Field" or "FooOptions.Field"
}

// An entry of operators.txt asks for one method of Exec, or for one function of a package.
type entry struct {
	line       int
	pkg        string // the package of the function; "" for a method of Exec
	section    string // the title above the entry
	goName     string
	operator   string // such as aten::add.Tensor
	doc        string // the doc comment, without the Go name at its start
	positional []item
	structName string // name of the options struct, if the list gives a name
	options    []item
	fixed      []item
}

// An item names one argument of the schema and says how the argument appears in Go.
type item struct {
	argument string
	goName   string // "" means that the generator derives the name
	inverted bool   // !name: a bool that defaults to true; in Go it has the opposite meaning
	zero     bool   // ~name: 0 is no legal value, so in Go it means the default
	variadic bool   // name...: a variadic parameter
	all      bool   // *name: a list of dimensions; in Go an empty list means all of them
	fallback string // :literal, a default; it replaces the schema's default, if there is one
}

// A fieldDoc is the description of an options field.
type fieldDoc struct {
	line int
	text string
	used bool
}

// parseList reads the list. If the list has bad lines, the error names all of them.
func parseList(path, text string) (*list, error) {
	l := &list{path: path, fields: make(map[string]*fieldDoc)}
	var errs []error
	var pkg, section string
	var last *string // the text that an indented comment continues
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line, number := lines[i], i+1
		fail := func(err error) { errs = append(errs, fmt.Errorf("opgen: %s:%d: %w", path, number, err)) }
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
			last = nil
		case strings.HasPrefix(line, "## "):
			pkg, section, last = "", strings.TrimSpace(line[3:]), nil
			if name, title, ok := strings.Cut(section, ": "); ok && strings.HasPrefix(name, "package ") {
				pkg, section = strings.TrimPrefix(name, "package "), title
			}
		case strings.HasPrefix(line, "#"):
			last = nil
		case strings.HasPrefix(trimmed, "#"):
			if last == nil {
				fail(errors.New("an indented comment continues the doc of the line above, and there is none"))
				continue
			}
			*last = strings.TrimSpace(*last + " " + strings.TrimSpace(trimmed[1:]))
		case strings.HasPrefix(line, "@"):
			name, doc, _ := strings.Cut(line[1:], " ")
			if l.fields[name] != nil {
				fail(fmt.Errorf("%s is described at line %d already", name, l.fields[name].line))
				continue
			}
			field := &fieldDoc{line: number, text: strings.TrimSpace(doc)}
			if field.text == "" {
				fail(fmt.Errorf("%s has no description", name))
			}
			l.fields[name] = field
			last = &field.text
		default:
			for strings.Contains(line, "(") && !strings.Contains(mask(line), ")") && i+1 < len(lines) {
				i++ // the arguments continue on the next line
				line += lines[i]
			}
			e, err := parseEntry(line)
			if err != nil {
				fail(err)
				continue
			}
			e.line, e.pkg, e.section = number, pkg, section
			l.entries = append(l.entries, e)
			last = &e.doc
		}
	}
	return l, errors.Join(errs...)
}

// parseEntry reads "GoName(positional; options; fixed)  operator  # doc".
func parseEntry(line string) (*entry, error) {
	open := strings.IndexByte(line, '(')
	if open < 0 {
		return nil, errors.New("want GoName(arguments) operator # doc")
	}
	e := &entry{goName: line[:open]}
	if !token.IsIdentifier(e.goName) || !token.IsExported(e.goName) {
		return nil, fmt.Errorf("%q is not an exported Go name", e.goName)
	}
	length := strings.IndexByte(mask(line[open:]), ')')
	if length < 0 {
		return nil, fmt.Errorf("%s: no closing parenthesis", e.goName)
	}
	rest := line[open+length+1:]
	rest, e.doc, _ = strings.Cut(rest, "#")
	e.operator, e.doc = strings.TrimSpace(rest), strings.TrimSpace(e.doc)
	switch {
	case !strings.Contains(e.operator, "::") || strings.ContainsFunc(e.operator, unicode.IsSpace):
		return nil, fmt.Errorf("%s: %q is not the name of an operator, such as aten::add.Tensor", e.goName, e.operator)
	}
	groups := split(line[open+1:open+length], ';')
	if len(groups) > 3 {
		return nil, fmt.Errorf("%s: more than positional; options; fixed", e.goName)
	}
	groups = append(groups, "", "")
	var err error
	if e.positional, err = parseItems(groups[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", e.goName, err)
	}
	options := groups[1]
	if name, fields, ok := strings.Cut(options, "{"); ok && strings.HasSuffix(fields, "}") {
		e.structName, options = strings.TrimSpace(name), strings.TrimSuffix(fields, "}")
	}
	if e.options, err = parseItems(options); err != nil {
		return nil, fmt.Errorf("%s: %w", e.goName, err)
	}
	if e.fixed, err = parseItems(groups[2]); err != nil {
		return nil, fmt.Errorf("%s: %w", e.goName, err)
	}
	return e, e.check()
}

// check fails if an item has a mark, such as ! or ..., in a place where the mark has no meaning.
func (e *entry) check() error {
	for i, it := range e.positional {
		switch {
		case it.inverted, it.zero, it.fallback != "":
			return fmt.Errorf("%s: %s: marks and defaults are for options", e.goName, it.argument)
		case it.variadic && (i != len(e.positional)-1 || len(e.options) > 0):
			return fmt.Errorf("%s: %s...: only the last parameter can be variadic", e.goName, it.argument)
		}
	}
	for _, it := range e.options {
		if it.variadic {
			return fmt.Errorf("%s: %s...: an option cannot be variadic", e.goName, it.argument)
		}
		if it.all {
			return fmt.Errorf("%s: *%s: an option cannot stand for all dimensions", e.goName, it.argument)
		}
		if it.inverted && it.goName == "" {
			return fmt.Errorf("%s: !%s needs a name for the opposite: !%s=NoX", e.goName, it.argument, it.argument)
		}
	}
	for _, it := range e.fixed {
		if it.fallback == "" || it.inverted || it.zero || it.variadic || it.all || it.goName != "" {
			return fmt.Errorf("%s: a fixed argument is written name:value", e.goName)
		}
	}
	if e.structName != "" && (!token.IsIdentifier(e.structName) || !token.IsExported(e.structName)) {
		return fmt.Errorf("%s: %q is not an exported Go name", e.goName, e.structName)
	}
	return nil
}

// parseItems reads "name, !name=Opposite, ~name, *name, name..., name=Name:literal".
func parseItems(text string) ([]item, error) {
	var items []item
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for _, part := range split(text, ',') {
		var it item
		part = strings.TrimSpace(part)
		name, fallback, hasFallback := strings.Cut(part, ":")
		if it.fallback = strings.TrimSpace(fallback); hasFallback && it.fallback == "" {
			return nil, fmt.Errorf("%q: no value after the colon", part)
		}
		name, it.goName, _ = strings.Cut(name, "=")
		name, it.inverted = strings.CutPrefix(name, "!")
		name, it.zero = strings.CutPrefix(name, "~")
		name, it.all = strings.CutPrefix(name, "*")
		name, it.variadic = strings.CutSuffix(name, "...")
		if it.argument = name; name == "" || strings.ContainsFunc(name, func(r rune) bool { return !opschema.IsWord(r) }) {
			return nil, fmt.Errorf("%q is not an argument", part)
		}
		if it.goName != "" && !token.IsIdentifier(it.goName) {
			return nil, fmt.Errorf("%q: %q is not a Go name", part, it.goName)
		}
		items = append(items, it)
	}
	return items, nil
}

// split cuts text at every separator outside quotes.
func split(text string, separator byte) []string {
	var parts []string
	shown := mask(text)
	for {
		i := strings.IndexByte(shown, separator)
		if i < 0 {
			return append(parts, text)
		}
		parts = append(parts, text[:i])
		text, shown = text[i+1:], shown[i+1:]
	}
}

// mask returns text with blanks in place of quoted characters. A search in the result finds nothing
// inside quotes.
func mask(text string) string {
	masked := []byte(text)
	quoted := false
	for i, b := range masked {
		if b == '"' {
			quoted = !quoted
		} else if quoted {
			masked[i] = ' '
		}
	}
	return string(masked)
}
