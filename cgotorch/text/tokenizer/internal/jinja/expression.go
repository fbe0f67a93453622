package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// tuple reads an expression, or several with commas between them.
func (p *parser) tuple() expression { return p.part(true) }

// part is tuple. Without conditions, "a if b" ends after a.
func (p *parser) part(conditions bool) expression {
	line := p.now().line
	var items []expression
	comma := false
	for k := p.now().kind; k != printEnd && k != tagEnd && !p.now().is(")"); k = p.now().kind {
		if conditions {
			items = append(items, p.expression())
		} else {
			items = append(items, p.either())
		}
		if !p.skip(",") {
			break
		}
		comma = true
	}
	if !comma && len(items) == 1 {
		return items[0]
	}
	if !comma {
		fail(line, "unexpected %s, want an expression", p.now())
	}
	return &listNode{line, items, tuple}
}

func (p *parser) expression() expression {
	p.nest()
	defer func() { p.depth-- }()
	n := p.either()
	for p.now().is("if") {
		c := &condition{line: p.next().line, then: n, test: p.either()}
		if p.skip("else") {
			c.otherwise = p.expression()
		}
		n = c
	}
	return n
}

func (p *parser) either() expression {
	n := p.both()
	for p.now().is("or") {
		n = &logic{p.next().line, true, n, p.both()}
	}
	return n
}

func (p *parser) both() expression {
	n := p.not()
	for p.now().is("and") {
		n = &logic{p.next().line, false, n, p.not()}
	}
	return n
}

func (p *parser) not() expression {
	if !p.now().is("not") {
		return p.comparison()
	}
	p.nest()
	defer func() { p.depth-- }()
	return &unary{p.next().line, "not", p.not()}
}

func (p *parser) comparison() expression {
	c := &comparison{line: p.now().line, first: p.sum()}
	for {
		switch t := p.now(); {
		case t.kind == operator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), t.is("in"):
			p.pos++
			c.ops = append(c.ops, t.text)
		case t.is("not") && p.after().is("in"):
			p.pos += 2
			c.ops = append(c.ops, "not in")
		case c.ops == nil:
			return c.first
		default:
			return c
		}
		c.rest = append(c.rest, p.sum())
	}
}

func (p *parser) sum() expression {
	n := p.concat()
	for p.now().is("+") || p.now().is("-") {
		t := p.next()
		n = &binary{t.line, t.text, n, p.concat()}
	}
	return n
}

func (p *parser) concat() expression {
	n := p.product()
	if !p.now().is("~") {
		return n
	}
	c := &concat{p.now().line, []expression{n}}
	for p.skip("~") {
		c.items = append(c.items, p.product())
	}
	return c
}

func (p *parser) product() expression {
	n := p.power()
	for t := p.now(); t.is("*") || t.is("/") || t.is("//") || t.is("%"); t = p.now() {
		p.pos++
		n = &binary{t.line, t.text, n, p.power()}
	}
	return n
}

func (p *parser) power() expression {
	n := p.unary(true)
	for p.now().is("**") {
		n = &binary{p.next().line, "**", n, p.unary(true)}
	}
	return n
}

func (p *parser) unary(filters bool) expression {
	p.nest()
	defer func() { p.depth-- }()
	var n expression
	if t := p.now(); t.is("-") || t.is("+") {
		p.pos++
		n = &unary{t.line, t.text, p.unary(false)}
	} else {
		n = p.primary()
	}
	n = p.postfix(n)
	for filters {
		switch t := p.now(); {
		case p.skip("|"):
			n = p.filter(n)
		case p.skip("is"):
			n = p.test(n, t.line)
		case t.is("("):
			n = &callNode{t.line, n, p.arguments()}
		default:
			return n
		}
	}
	return n
}

func (p *parser) primary() expression {
	t := p.next()
	switch t.kind {
	case name:
		switch t.text {
		case "true", "True":
			return constant{true}
		case "false", "False":
			return constant{false}
		case "none", "None":
			return constant{nil}
		}
		return &nameNode{t.line, t.text}
	case text:
		parts := []string{t.text}
		for p.now().kind == text {
			parts = append(parts, p.next().text)
		}
		return constant{strings.Join(parts, "")}
	case integer:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			fail(t.line, "the number %s is too large", t.text)
		}
		return constant{n}
	case float:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			fail(t.line, "the number %s is too large", t.text)
		}
		return constant{f}
	}
	switch {
	case t.is("("):
		if p.skip(")") {
			return &listNode{t.line, nil, tuple}
		}
		n := p.tuple()
		p.want(")")
		return n
	case t.is("["):
		return &listNode{t.line, p.items("]", p.expression), plainList}
	case t.is("{"):
		d := &dictNode{line: t.line}
		p.items("}", func() expression {
			d.keys = append(d.keys, p.expression())
			p.want(":")
			d.values = append(d.values, p.expression())
			return nil
		})
		return d
	}
	fail(t.line, "unexpected %s", t)
	return nil
}

// items reads up to an operator, with commas between the items.
func (p *parser) items(until string, item func() expression) []expression {
	var items []expression
	for !p.skip(until) {
		if items != nil {
			if p.want(","); p.skip(until) {
				break
			}
		}
		items = append(items, item())
	}
	return items
}

func (p *parser) postfix(n expression) expression {
	for {
		switch t := p.now(); {
		case p.skip("."):
			if p.now().kind == integer {
				n = &item{t.line, n, p.primary()}
			} else {
				n = &attribute{t.line, n, p.wantKind(name, "the name of an attribute").text}
			}
		case p.skip("["):
			n = p.subscript(t.line, n)
		case t.is("("):
			n = &callNode{t.line, n, p.arguments()}
		default:
			return n
		}
	}
}

func (p *parser) subscript(line int, of expression) expression {
	var parts [3]expression
	colons := 0
	for !p.skip("]") {
		switch {
		case p.skip(":"):
			if colons++; colons > 2 {
				fail(line, "a slice has at most two colons")
			}
		case parts[colons] != nil:
			p.want("]")
		default:
			parts[colons] = p.expression()
		}
	}
	if colons > 0 {
		return &slice{line, of, parts}
	}
	if parts[0] == nil {
		fail(line, "the index between [ and ] is missing")
	}
	return &item{line, of, parts[0]}
}

func (p *parser) arguments() argumentNodes {
	var a argumentNodes
	begin := p.want("(").line
	for first := true; !p.skip(")"); first = false {
		if !first {
			if p.want(","); p.skip(")") {
				break
			}
		}
		switch {
		case a.star == nil && a.stars == nil && p.skip("*"):
			a.star = p.expression()
		case a.stars == nil && p.skip("**"):
			a.stars = p.expression()
		case p.now().kind == name && p.after().is("="):
			a.names = append(a.names, p.next().text)
			p.pos++
			a.named = append(a.named, p.expression())
		case a.names != nil || a.star != nil || a.stars != nil:
			fail(begin, "an argument without name comes after one with a name, or after one with a star")
		default:
			a.items = append(a.items, p.expression())
		}
	}
	return a
}

func (p *parser) filter(of expression) expression {
	t := p.wantKind(name, "the name of a filter")
	n := &filterNode{line: t.line, of: of, name: t.text}
	if p.now().is("(") {
		n.arguments = p.arguments()
	}
	return n
}

func (p *parser) test(of expression, line int) expression {
	negated := p.skip("not")
	n := &testNode{line: line, of: of, name: p.wantKind(name, "the name of a test").text}
	switch t := p.now(); {
	case t.is("("):
		n.arguments = p.arguments()
	case t.is("is"):
		fail(t.line, "two tests follow each other")
	case t.is("else"), t.is("or"), t.is("and"):
	case t.kind == name || t.kind == text || t.kind == integer || t.kind == float || t.is("[") || t.is("{"):
		n.arguments.items = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &unary{line, "not", n}
	}
	return n
}
