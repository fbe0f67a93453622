// Package opschema reads the schemas of operators, as LibTorch prints them.
package opschema

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Schema is the signature of one operator as LibTorch prints it.
type Schema struct {
	Text      string // the whole line of the schema
	Name      string // with namespace and overload, such as aten::add.Tensor
	Arguments []Argument
	Results   []Argument
}

// Argument is one argument or result of a schema.
type Argument struct {
	Name     string
	Kind     string // the type without alias annotations and list sizes, such as Tensor?[] or SymInt
	Shares   bool   // it may share memory with others that have an annotation: its type is Tensor(a)
	Writes   bool   // the operator changes the tensor: its type is Tensor(a!)
	Fallback string // the text of the default; "" if there is none
}

// Optional reports whether None is a value of the argument.
func (a Argument) Optional() bool { return strings.HasSuffix(a.Kind, "?") }

// Find returns the argument that is called `name`, or nil.
func (s *Schema) Find(name string) *Argument {
	if i := s.Place(name); i >= 0 {
		return &s.Arguments[i]
	}
	return nil
}

// Place returns the place of the argument that is called `name`, or -1.
func (s *Schema) Place(name string) int {
	return slices.IndexFunc(s.Arguments, func(a Argument) bool { return a.Name == name })
}

// Writes reports whether the operator changes an argument.
func (s *Schema) Writes() bool {
	return slices.ContainsFunc(s.Arguments, func(a Argument) bool { return a.Writes })
}

// Name returns the name of the operator in a line of schemas.
func Name(line string) string {
	name, _, _ := strings.Cut(line, "(")
	return name
}

// Parse reads a line such as
//
//	aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
func Parse(line string) (*Schema, error) {
	p := &parser{text: line}
	s := &Schema{Text: line}
	s.Name = p.takeWhile(func(r rune) bool { return r != '(' && r != ' ' })
	if !strings.Contains(s.Name, "::") {
		return nil, fmt.Errorf("schema %q: no namespace in the name", line)
	}
	p.expect("(")
	for p.err == nil && !p.accept(")") {
		switch {
		case p.accept("*"), p.accept("..."): // "*": keyword arguments follow; "...": any number of arguments
		default:
			s.Arguments = append(s.Arguments, p.argument())
		}
		if !p.accept(",") && !p.peek(")") {
			p.fail("want , or )")
		}
	}
	p.expect("->")
	s.Results = p.results()
	if p.skipSpace(); p.err == nil && p.at != len(p.text) {
		p.fail("unexpected text")
	}
	return s, p.err
}

// parser reads one line. It keeps the first failure, and reads nothing more after it.
type parser struct {
	text string
	at   int
	err  error
}

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = fmt.Errorf("schema %q: %s at column %d", p.text, what, p.at+1)
	}
}

func (p *parser) skipSpace() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

func (p *parser) peek(token string) bool {
	p.skipSpace()
	return p.err == nil && strings.HasPrefix(p.text[p.at:], token)
}

func (p *parser) accept(token string) bool {
	if !p.peek(token) {
		return false
	}
	p.at += len(token)
	return true
}

func (p *parser) expect(token string) {
	if !p.accept(token) {
		p.fail("want " + token)
	}
}

func (p *parser) takeWhile(keep func(rune) bool) string {
	p.skipSpace()
	start := p.at
	for p.err == nil && p.at < len(p.text) && keep(rune(p.text[p.at])) {
		p.at++
	}
	return p.text[start:p.at]
}

// IsWord reports whether a name may have this letter.
func IsWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// argument reads one argument, such as "Tensor(a!) self" or "int dim=-1".
func (p *parser) argument() Argument {
	a := p.result()
	if a.Name == "" {
		p.fail("want an argument's name")
	}
	if p.accept("=") {
		a.Fallback = p.literal()
	}
	return a
}

// results reads the results, such as "Tensor", "()" or "(Tensor values, Tensor indices)".
func (p *parser) results() []Argument {
	if p.accept("...") {
		return []Argument{{Kind: "..."}}
	}
	if !p.accept("(") {
		return []Argument{p.result()}
	}
	var results []Argument
	for p.err == nil && !p.accept(")") {
		results = append(results, p.result())
		if !p.accept(",") && !p.peek(")") {
			p.fail("want , or )")
		}
	}
	return results
}

// result reads a type and a name, such as "Tensor(a!) self". The name may be absent.
func (p *parser) result() (a Argument) {
	p.kind(&a)
	a.Name = p.takeWhile(IsWord)
	return a
}

// kind reads a type into a. A type is a name or a tuple, and then list marks, question marks and
// alias annotations in any order.
func (p *parser) kind(a *Argument) {
	if p.peek("(") {
		a.Kind = p.balanced() // a tuple
	} else {
		a.Kind = p.takeWhile(func(r rune) bool { return IsWord(r) || r == '.' })
		switch a.Kind {
		case "":
			p.fail("want a type")
		case "Dict", "Future", "Await", "RRef", "Union":
			a.Kind += p.balanced()
		}
	}
	for p.err == nil && p.at < len(p.text) {
		switch p.text[p.at] {
		case '(':
			a.Shares, a.Writes = true, strings.Contains(p.balanced(), "!") || a.Writes
		case '?':
			p.at++
			a.Kind += "?"
		case '[':
			p.at++
			p.takeWhile(unicode.IsDigit) // skips a list size, as in int[2]
			p.expect("]")
			a.Kind += "[]"
		default:
			return
		}
	}
}

// balanced reads from a bracket to its closing bracket.
func (p *parser) balanced() string {
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
func (p *parser) literal() string {
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
