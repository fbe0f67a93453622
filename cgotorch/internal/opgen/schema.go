package main

import (
	"fmt"
	"strings"
	"unicode"
)

// A schema is the signature of one operator as LibTorch prints it.
type schema struct {
	text      string // the whole line of the schema
	name      string // with namespace and overload, such as aten::add.Tensor
	arguments []argument
	results   []argument
}

// An argument is one argument or result of a schema.
type argument struct {
	name     string
	kind     string // the type without alias annotations and list sizes, such as Tensor?[] or SymInt
	writes   bool   // the operator changes the tensor: its type is Tensor(a!)
	fallback string // the text of the default; "" if there is none
}

// optional reports whether None is a value of the argument.
func (a argument) optional() bool { return strings.HasSuffix(a.kind, "?") }

// find returns the argument that is called `name`, or nil.
func (s *schema) find(name string) *argument {
	for i := range s.arguments {
		if s.arguments[i].name == name {
			return &s.arguments[i]
		}
	}
	return nil
}

// schemaName returns the name of the operator in a line of schemas.
func schemaName(line string) string {
	name, _, _ := strings.Cut(line, "(")
	return name
}

// parseSchemas reads a text with one schema on each line. It fails if two schemas have the same
// name.
func parseSchemas(path, text string) (map[string]*schema, error) {
	schemas := make(map[string]*schema)
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		s, err := parseSchema(line)
		if err != nil {
			return nil, fmt.Errorf("opgen: %s:%d: %w", path, i+1, err)
		}
		if schemas[s.name] != nil {
			return nil, fmt.Errorf("opgen: %s:%d: a second schema of %s", path, i+1, s.name)
		}
		schemas[s.name] = s
	}
	return schemas, nil
}

// parseSchema reads a line such as
//
//	aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
func parseSchema(line string) (*schema, error) {
	p := &schemaParser{text: line}
	s := &schema{text: line}
	s.name = p.takeWhile(func(r rune) bool { return r != '(' && r != ' ' })
	if !strings.Contains(s.name, "::") {
		return nil, fmt.Errorf("schema %q: no namespace in the name", line)
	}
	p.expect("(")
	for p.err == nil && !p.accept(")") {
		switch {
		case p.accept("*"), p.accept("..."): // "*": keyword arguments follow; "...": any number of arguments
		default:
			s.arguments = append(s.arguments, p.argument())
		}
		if !p.accept(",") && !p.peek(")") {
			p.fail("want , or )")
		}
	}
	p.expect("->")
	s.results = p.results()
	if p.skipSpace(); p.err == nil && p.at != len(p.text) {
		p.fail("unexpected text")
	}
	return s, p.err
}

// A schemaParser reads one line. It keeps the first failure, and reads nothing more after it.
type schemaParser struct {
	text string
	at   int
	err  error
}

func (p *schemaParser) fail(what string) {
	if p.err == nil {
		p.err = fmt.Errorf("schema %q: %s at column %d", p.text, what, p.at+1)
	}
}

func (p *schemaParser) skipSpace() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

func (p *schemaParser) peek(token string) bool {
	p.skipSpace()
	return p.err == nil && strings.HasPrefix(p.text[p.at:], token)
}

func (p *schemaParser) accept(token string) bool {
	if !p.peek(token) {
		return false
	}
	p.at += len(token)
	return true
}

func (p *schemaParser) expect(token string) {
	if !p.accept(token) {
		p.fail("want " + token)
	}
}

func (p *schemaParser) takeWhile(keep func(rune) bool) string {
	p.skipSpace()
	start := p.at
	for p.err == nil && p.at < len(p.text) && keep(rune(p.text[p.at])) {
		p.at++
	}
	return p.text[start:p.at]
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// argument reads one argument, such as "Tensor(a!) self" or "int dim=-1".
func (p *schemaParser) argument() argument {
	var a argument
	a.kind, a.writes = p.kind()
	if a.name = p.takeWhile(isWord); a.name == "" {
		p.fail("want an argument's name")
	}
	if p.accept("=") {
		a.fallback = p.literal()
	}
	return a
}

// results reads the results, such as "Tensor", "()" or "(Tensor values, Tensor indices)".
func (p *schemaParser) results() []argument {
	if p.accept("...") {
		return []argument{{kind: "..."}}
	}
	if !p.accept("(") {
		kind, writes := p.kind()
		return []argument{{name: p.takeWhile(isWord), kind: kind, writes: writes}}
	}
	var results []argument
	for p.err == nil && !p.accept(")") {
		kind, writes := p.kind()
		results = append(results, argument{name: p.takeWhile(isWord), kind: kind, writes: writes})
		if !p.accept(",") && !p.peek(")") {
			p.fail("want , or )")
		}
	}
	return results
}

// kind reads a type. A type is a name or a tuple, and then list marks, question marks and alias
// annotations in any order.
func (p *schemaParser) kind() (kind string, writes bool) {
	if p.peek("(") {
		kind = p.balanced() // a tuple
	} else {
		kind = p.takeWhile(func(r rune) bool { return isWord(r) || r == '.' })
		switch kind {
		case "":
			p.fail("want a type")
		case "Dict", "Future", "Await", "RRef", "Union":
			kind += p.balanced()
		}
	}
	for p.err == nil && p.at < len(p.text) {
		switch p.text[p.at] {
		case '(':
			writes = strings.Contains(p.balanced(), "!") || writes
		case '?':
			p.at++
			kind += "?"
		case '[':
			p.at++
			p.takeWhile(unicode.IsDigit) // skips a list size, as in int[2]
			p.expect("]")
			kind += "[]"
		default:
			return kind, writes
		}
	}
	return kind, writes
}

// balanced reads from a bracket to its closing bracket.
func (p *schemaParser) balanced() string {
	p.skipSpace()
	start, depth := p.at, 0
	for ; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '(', '[':
			depth++
		case ')', ']':
			if depth--; depth == 0 {
				p.at++
				return p.text[start:p.at]
			}
		}
		if depth == 0 {
			break
		}
	}
	p.fail("want a closed bracket")
	return ""
}

// literal reads a default and returns its text. A default is None, True or False, a number (also a
// complex number), a list, or a quoted string.
func (p *schemaParser) literal() string {
	p.skipSpace()
	start := p.at
	switch {
	case p.at < len(p.text) && p.text[p.at] == '"':
		for p.at++; p.at < len(p.text) && p.text[p.at] != '"'; p.at++ {
			if p.text[p.at] == '\\' {
				p.at++
			}
		}
		if p.at >= len(p.text) {
			p.at = len(p.text)
			p.fail("want the end of the string")
			return ""
		}
		p.at++
		return p.text[start:p.at]
	case p.peek("["), p.peek("("):
		return p.balanced()
	}
	text := p.takeWhile(func(r rune) bool { return r != ',' && r != ')' && r != ' ' })
	if text == "" {
		p.fail("want a default")
	}
	return text
}
