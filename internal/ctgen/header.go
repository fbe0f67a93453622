package main

import (
	"fmt"
	"regexp"
	"strings"
)

// A kind says what a declaration declares.
type kind int

const (
	section kind = iota
	constant
	enumeration // without a name
	handle      // a struct without fields
	structure
	function
)

// A declaration is one statement of a header.
type declaration struct {
	kind   kind
	name   string
	text   string  // the statement in C, without comments
	value  string  // of a constant, or the result's type of a function
	fields []field // of a structure, of an enumeration, or the parameters of a function
}

// A field is one field of a struct, one parameter of a function, or one name of an enumeration with
// its value as the type.
type field struct{ name, ctype, array string }

var (
	sectionPattern  = regexp.MustCompile(`/\* ---- (.*?) -+ \*/`)
	commentPattern  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	handlePattern   = regexp.MustCompile(`^typedef struct (\w+) \w+$`)
	structPattern   = regexp.MustCompile(`(?s)^typedef struct (\w+) \{(.*)\} \w+$`)
	enumPattern     = regexp.MustCompile(`(?s)^enum \{(.*)\}$`)
	definePattern   = regexp.MustCompile(`^#define (\w+) (.+)$`)
	functionPattern = regexp.MustCompile(`(?s)^(.*?[ *])(\w+)\((.*)\)$`)
	fieldPattern    = regexp.MustCompile(`^(.*?[ *])(\w+)(\[\d+\])?$`)
)

// read returns the declarations of a header, which lie between its pragmas of visibility.
func read(prefix, header string) ([]declaration, error) {
	begin, end := strings.Index(header, "#pragma GCC visibility push"), strings.Index(header, "#pragma GCC visibility pop")
	if begin < 0 || end < begin {
		return nil, fmt.Errorf("the header has no part between the pragmas of visibility")
	}
	var all []declaration
	for _, s := range statements(prefix, header[begin:end]) {
		d, err := parse(s)
		if err != nil {
			return nil, err
		}
		if d.text != "" {
			all = append(all, d)
		}
	}
	return all, nil
}

// statements returns the statements of a part of a header, without comments. Where a section
// begins, it also returns "section NAME".
func statements(prefix, part string) []string {
	part = sectionPattern.ReplaceAllString(part, ";section $1;")
	part = commentPattern.ReplaceAllString(part, " ")
	part = strings.ReplaceAll(part, " "+strings.ToUpper(prefix)+"_NOEXCEPT", "")
	var all []string
	var b strings.Builder
	depth := 0
	take := func() {
		if s := strings.Join(strings.Fields(b.String()), " "); s != "" {
			all = append(all, s)
		}
		b.Reset()
	}
	for line := range strings.Lines(part) {
		if strings.HasPrefix(line, "#") {
			take()
			b.WriteString(line)
			take()
			continue
		}
		for _, r := range line {
			switch r {
			case '{':
				depth++
			case '}':
				depth--
			}
			if r == ';' && depth == 0 {
				take()
			} else {
				b.WriteRune(r)
			}
		}
	}
	take()
	return all
}

// parse returns the declaration of a statement, and none for a pragma.
func parse(s string) (d declaration, err error) {
	d.text = s
	if name, ok := strings.CutPrefix(s, "section "); ok {
		d.kind, d.name = section, name
		return d, nil
	}
	if m := definePattern.FindStringSubmatch(s); m != nil {
		d.kind, d.name, d.value = constant, m[1], m[2]
		return d, nil
	}
	if strings.HasPrefix(s, "#") {
		return declaration{}, nil
	}
	if m := handlePattern.FindStringSubmatch(s); m != nil {
		d.kind, d.name = handle, m[1]
		return d, nil
	}
	if m := enumPattern.FindStringSubmatch(s); m != nil {
		d.kind = enumeration
		for _, entry := range strings.Split(m[1], ",") {
			name, value, ok := strings.Cut(strings.TrimSpace(entry), " = ")
			if !ok && name != "" {
				return d, fmt.Errorf("%s has no value", name)
			}
			if ok {
				d.fields = append(d.fields, field{name: name, ctype: value})
			}
		}
		return d, nil
	}
	if m := structPattern.FindStringSubmatch(s); m != nil {
		d.kind, d.name = structure, m[1]
		if !byHand[d.name] && !passedOn[d.name] {
			d.fields, err = structFields(m[2])
		}
		return d, err
	}
	if m := functionPattern.FindStringSubmatch(s); m != nil {
		d.kind, d.name, d.value = function, m[2], strings.TrimSpace(m[1])
		d.fields, err = parameters(m[3])
		return d, err
	}
	return d, fmt.Errorf("the header says %q, which is no declaration that ctgen knows", s)
}

func structFields(body string) (fields []field, err error) {
	for _, statement := range strings.Split(body, ";") {
		ctype := ""
		for i, part := range strings.Split(strings.TrimSpace(statement), ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			if i > 0 {
				part = ctype + " " + part
			}
			f, err := parseField(part)
			if err != nil {
				return nil, err
			}
			ctype = f.ctype
			fields = append(fields, f)
		}
	}
	return fields, nil
}

func parameters(list string) (fields []field, err error) {
	for _, p := range strings.Split(list, ",") {
		if p = strings.TrimSpace(p); p == "void" || p == "" {
			continue
		}
		f, err := parseField(p)
		if err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
	return fields, nil
}

func parseField(text string) (field, error) {
	m := fieldPattern.FindStringSubmatch(text)
	if m == nil {
		return field{}, fmt.Errorf("%q is no field and no parameter", text)
	}
	return field{m[2], strings.TrimSpace(m[1]), m[3]}, nil
}
