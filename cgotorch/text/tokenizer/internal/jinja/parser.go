package jinja

import "slices"

type parser struct {
	tokens []token
	pos    int
	depth  int // of nested statements and expressions
}

func (p *parser) now() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != end {
		p.pos++
	}
	return t
}

func (p *parser) after() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

// skip moves over an operator or a name, if it comes next.
func (p *parser) skip(word string) bool {
	if p.now().is(word) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) want(word string) token {
	if t := p.now(); !t.is(word) {
		fail(t.line, "unexpected %s, want %q", t, word)
	}
	return p.next()
}

func (p *parser) wantKind(k kind, what string) token {
	if t := p.now(); t.kind != k {
		fail(t.line, "unexpected %s, want %s", t, what)
	}
	return p.next()
}

// nest begins a nested part of the source. The caller takes 1 from depth at its end.
func (p *parser) nest() {
	if p.depth++; p.depth > maxNested {
		fail(p.now().line, "the template's text nests more than %d deep", maxNested)
	}
}

// statements reads up to a tag that begins with one of the words, and over this word. Without words
// it reads all.
func (p *parser) statements(until ...string) []statement {
	p.nest()
	defer func() { p.depth-- }()
	var body []statement
	for {
		switch t := p.next(); t.kind {
		case data:
			body = append(body, textNode(t.text))
		case printBegin:
			body = append(body, &printNode{t.line, p.tuple()})
			p.wantKind(printEnd, `"}}"`)
		case tagBegin:
			if slices.Contains(until, p.now().text) && p.now().kind == name {
				return body
			}
			body = append(body, p.statement())
		default:
			if until != nil {
				fail(t.line, "the template ends without %s", until[len(until)-1])
			}
			return body
		}
	}
}

// body reads statements up to a word, which ends a tag.
func (p *parser) body(until string) []statement {
	p.wantKind(tagEnd, `"%}"`)
	body := p.statements(until)
	p.next()
	p.wantKind(tagEnd, `"%}"`)
	return body
}

func (p *parser) statement() statement {
	t := p.wantKind(name, "the name of a tag")
	switch t.text {
	case "if":
		return p.branch(t.line)
	case "for":
		return p.loop(t.line)
	case "set":
		return p.set(t.line)
	case "macro":
		m := &macroNode{line: t.line, name: p.wantKind(name, "a name").text}
		m.parameters, m.defaults = p.signature()
		m.body = p.body("endmacro")
		return m
	case "call":
		m := &macroNode{line: t.line, name: "caller"}
		if p.now().is("(") {
			m.parameters, m.defaults = p.signature()
		}
		c, ok := p.expression().(*callNode)
		if !ok {
			fail(t.line, "call wants the call of a macro")
		}
		m.body = p.body("endcall")
		return &callBlock{c, m}
	case "filter":
		f := p.filter(nil)
		for p.skip("|") {
			f = p.filter(f)
		}
		return &filterBlock{t.line, f, p.body("endfilter")}
	case "with":
		w := &withNode{line: t.line}
		for p.now().kind != tagEnd {
			if w.targets != nil {
				p.want(",")
			}
			w.targets = append(w.targets, p.target(false))
			p.want("=")
			w.values = append(w.values, p.expression())
		}
		w.body = p.body("endwith")
		return w
	case "generation":
		return &withNode{line: t.line, body: p.body("endgeneration")}
	case "break", "continue":
		p.wantKind(tagEnd, `"%}"`)
		return jumpNode(map[string]signal{"break": breaks, "continue": continues}[t.text])
	case "include", "import", "from", "extends", "block":
		fail(t.line, "the tag %q is not supported: a chat template cannot use other templates", t.text)
	}
	fail(t.line, "unknown tag %q", t.text)
	return nil
}

func (p *parser) branch(line int) statement {
	first := &ifNode{line: line}
	for n := first; ; {
		n.test = p.part(false)
		p.wantKind(tagEnd, `"%}"`)
		n.then = p.statements("elif", "else", "endif")
		t := p.next()
		if t.text == "else" {
			n.otherwise = p.body("endif")
			return first
		}
		if t.text == "endif" {
			p.wantKind(tagEnd, `"%}"`)
			return first
		}
		elif := &ifNode{line: t.line}
		n.otherwise = []statement{elif}
		n = elif
	}
}

func (p *parser) loop(line int) statement {
	n := &forNode{line: line, target: p.target(false)}
	p.want("in")
	n.over = p.part(false)
	if p.skip("if") {
		n.test = p.expression()
	}
	if p.now().is("recursive") {
		fail(line, "a recursive loop is not supported")
	}
	p.wantKind(tagEnd, `"%}"`)
	n.body = p.statements("else", "endfor")
	if p.next().text == "else" {
		n.otherwise = p.body("endfor")
	} else {
		p.wantKind(tagEnd, `"%}"`)
	}
	return n
}

func (p *parser) set(line int) statement {
	target := p.target(true)
	if p.skip("=") {
		n := &setNode{line, target, p.tuple()}
		p.wantKind(tagEnd, `"%}"`)
		return n
	}
	n := &setBlock{line: line, target: target}
	for p.skip("|") {
		n.filter = p.filter(n.filter)
	}
	n.body = p.body("endset")
	return n
}

// target reads what is assigned to: a name, an attribute of a namespace, or several in a tuple.
func (p *parser) target(namespaces bool) expression {
	p.nest()
	defer func() { p.depth-- }()
	var items []expression
	comma := false
	for {
		t := p.now()
		switch {
		case p.skip("("):
			items = append(items, p.target(namespaces))
			p.want(")")
		case namespaces && p.after().is("."):
			p.pos += 2
			items = append(items, &attribute{t.line, &nameNode{t.line, t.text}, p.wantKind(name, "a name").text})
		default:
			items = append(items, &nameNode{t.line, p.wantKind(name, "a name to assign to").text})
		}
		if !p.skip(",") {
			break
		}
		if comma = true; p.now().is("in") || p.now().is("=") || p.now().is(")") {
			break
		}
	}
	if !comma {
		return items[0]
	}
	return &listNode{line: p.now().line, items: items, kind: tuple}
}

func (p *parser) signature() (names []string, defaults []expression) {
	p.want("(")
	for !p.skip(")") {
		if names != nil {
			p.want(",")
		}
		t := p.wantKind(name, "a parameter")
		names = append(names, t.text)
		if p.skip("=") {
			defaults = append(defaults, p.expression())
		} else if defaults != nil {
			fail(t.line, "the parameter %s has no default, and one before it has one", t.text)
		}
	}
	return names, defaults
}
