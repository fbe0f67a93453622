package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind int

const (
	end kind = iota
	data
	printBegin // {{
	printEnd
	tagBegin // {%
	tagEnd
	name
	text
	integer
	float
	operator
)

// token is a part of a source. Of a text, `text` is what it means, and not how it is written.
type token struct {
	kind kind
	text string
	line int
}

// is reports whether t is an operator or a name.
func (t token) is(word string) bool { return (t.kind == operator || t.kind == name) && t.text == word }

func (t token) String() string {
	switch t.kind {
	case end:
		return "the end of the template"
	case printEnd, tagEnd:
		return "the end of the tag"
	}
	return strconv.Quote(t.text)
}

type lexer struct {
	source string
	pos    int
	line   int
	tokens []token
	starts bool // whether a line of the source starts at pos
}

// lex cuts a source into tokens. It strips white space as Jinja does with trim_blocks and
// lstrip_blocks.
func lex(source string) []token {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	l := &lexer{source: strings.TrimSuffix(source, "\n"), line: 1, starts: true}
	for l.pos < len(l.source) {
		l.next()
	}
	return append(l.tokens, token{kind: end, line: l.line})
}

// next reads the text up to a tag, and the tag.
func (l *lexer) next() {
	rest := l.source[l.pos:]
	i := 0
	for ; i < len(rest)-1; i++ {
		if rest[i] == '{' && strings.IndexByte("%{#", rest[i+1]) >= 0 {
			break
		}
	}
	if i >= len(rest)-1 {
		l.add(data, rest)
		l.advance(len(rest))
		return
	}
	sign := byte(0)
	begin := 2
	if i+2 < len(rest) && (rest[i+2] == '-' || rest[i+2] == '+') {
		sign, begin = rest[i+2], 3
	}
	l.add(data, l.strip(rest[:i], sign, rest[i+1] != '{'))
	l.advance(i + begin)
	switch {
	case rest[i+1] == '#':
		l.comment()
	case rest[i+1] == '{':
		l.add(printBegin, "{{")
		l.inside(printEnd, "}}")
	case l.raw():
	default:
		l.add(tagBegin, "{%")
		l.inside(tagEnd, "%}")
	}
}

// strip removes the white space at the end of a text that a tag follows.
func (l *lexer) strip(text string, sign byte, block bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !block {
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.starts) && strings.TrimFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// advance moves over n bytes.
func (l *lexer) advance(n int) {
	passed := l.source[l.pos : l.pos+n]
	l.line += strings.Count(passed, "\n")
	l.pos += n
	if n > 0 {
		l.starts = passed[n-1] == '\n'
	}
}

func (l *lexer) add(k kind, text string) {
	if k != data || text != "" {
		l.tokens = append(l.tokens, token{k, text, l.line})
	}
}

// close moves over the end of a tag that begins at pos, and over the white space that the end
// strips. It reports whether there is such an end.
func (l *lexer) close(mark string, trims bool) bool {
	rest := l.source[l.pos:]
	n := len(mark)
	switch {
	case strings.HasPrefix(rest, "-"+mark):
		n++
		n += len(rest[n:]) - len(strings.TrimLeftFunc(rest[n:], isSpace))
	case strings.HasPrefix(rest, "+"+mark) && trims:
		n++
	case !strings.HasPrefix(rest, mark):
		return false
	case trims && strings.HasPrefix(rest[n:], "\n"):
		n++
	}
	l.advance(n)
	return true
}

func (l *lexer) comment() {
	i := strings.Index(l.source[l.pos:], "#}")
	if i < 0 {
		fail(l.line, "a comment has no end, #}")
	}
	if i > 0 && strings.IndexByte("-+", l.source[l.pos+i-1]) >= 0 {
		i--
	}
	l.advance(i)
	l.close("#}", true)
}

// word moves over white space and a word. Without the word it moves nowhere.
func (l *lexer) word(word string) bool {
	rest := l.source[l.pos:]
	trimmed := strings.TrimLeftFunc(rest, isSpace)
	if !strings.HasPrefix(trimmed, word) {
		return false
	}
	trimmed = strings.TrimLeftFunc(trimmed[len(word):], isSpace)
	l.advance(len(rest) - len(trimmed))
	return true
}

// raw reads {% raw %}, whose beginning has been read, up to {% endraw %}.
func (l *lexer) raw() bool {
	before := *l
	if !l.word("raw") || !l.close("%}", false) {
		*l = before
		return false
	}
	from := l.pos
	for {
		i := strings.Index(l.source[l.pos:], "{%")
		if i < 0 {
			fail(before.line, "raw has no endraw")
		}
		l.advance(i)
		to := l.pos
		l.advance(2)
		sign := byte(0)
		if c := l.source[l.pos:]; c != "" && (c[0] == '-' || c[0] == '+') {
			sign = c[0]
			l.advance(1)
		}
		if l.word("endraw") && l.close("%}", true) {
			l.starts = false
			l.add(data, l.strip(l.source[from:to], sign, true))
			return true
		}
	}
}

// inside reads the tokens of a tag. An end mark inside of brackets is none.
func (l *lexer) inside(k kind, mark string) {
	begin := l.line
	var open []byte
	for {
		rest := l.source[l.pos:]
		trimmed := strings.TrimLeftFunc(rest, isSpace)
		l.advance(len(rest) - len(trimmed))
		if trimmed == "" {
			fail(begin, "a tag has no end, %s", mark)
		}
		if line := l.line; len(open) == 0 && l.close(mark, k == tagEnd) {
			l.tokens = append(l.tokens, token{k, mark, line})
			return
		}
		l.token(trimmed)
		if t := l.tokens[len(l.tokens)-1]; t.kind == operator {
			open = l.balance(open, t.text)
		}
	}
}

func (l *lexer) balance(open []byte, op string) []byte {
	switch op {
	case "(", "[", "{":
		return append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
	case ")", "]", "}":
		if len(open) == 0 || open[len(open)-1] != op[0] {
			fail(l.line, "unexpected %q", op)
		}
		return open[:len(open)-1]
	}
	return open
}

// token reads one token, with which `rest` begins.
func (l *lexer) token(rest string) {
	c, _ := utf8.DecodeRuneInString(rest)
	switch {
	case c == '\'' || c == '"':
		n := 1
		for ; n < len(rest) && rest[n] != byte(c); n++ {
			if rest[n] == '\\' {
				n++
			}
		}
		if n >= len(rest) {
			fail(l.line, "a text has no end, %c", c)
		}
		l.add(text, unescape(rest[1:n], l.line))
		l.advance(n + 1)
	case c >= '0' && c <= '9':
		k, n := number(rest, l.pos > 0 && l.source[l.pos-1] == '.')
		l.add(k, strings.ReplaceAll(rest[:n], "_", ""))
		l.advance(n)
	case c == '_' || unicode.IsLetter(c):
		n := len(rest) - len(strings.TrimLeftFunc(rest, func(c rune) bool {
			return c == '_' || unicode.In(c, unicode.L, unicode.N, unicode.Mn, unicode.Mc)
		}))
		l.add(name, rest[:n])
		l.advance(n)
	default:
		n := 1
		if len(rest) > 1 && strings.Contains("// ** == != >= <=", rest[:2]) && rest[1] != ' ' {
			n = 2
		} else if !strings.ContainsRune("+-/*%~[](){}><=.:|,", c) {
			fail(l.line, "unexpected %q", c)
		}
		l.add(operator, rest[:n])
		l.advance(n)
	}
}

// number returns the kind and the length of the number with which a text begins.
func number(text string, afterDot bool) (kind, int) {
	digits := func(i int) int {
		from := i
		for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == '_' && i > from) {
			i++
		}
		return i
	}
	k, n := integer, digits(0)
	if zeros := len(text[:n]) - len(strings.TrimLeft(text[:n], "0_")); zeros > 0 && zeros < n {
		n = zeros // Python has no 07
	}
	whole := digits(0)
	if afterDot {
		return k, n
	}
	if whole < len(text) && text[whole] == '.' {
		if m := digits(whole + 1); m > whole+1 {
			k, n, whole = float, m, m
		}
	}
	if whole < len(text) && (text[whole] == 'e' || text[whole] == 'E') {
		i := whole + 1
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		if m := digits(i); m > i {
			k, n = float, m
		}
	}
	return k, n
}

// unescape returns the meaning of a text that stands between quotes, as Python's unicode-escape
// gives it.
func unescape(s string, line int) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		c := s[i+1]
		s = s[i+2:]
		n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		if n > 0 {
			code, err := strconv.ParseUint(s[:min(n, len(s))], 16, 32)
			if err != nil || len(s) < n || code > unicode.MaxRune {
				fail(line, "\\%c in a text wants %d hexadecimal digits of a character", c, n)
			}
			b.WriteRune(rune(code))
			s = s[n:]
			continue
		}
		switch i := strings.IndexByte("abfnrtv\\'\"\n", c); {
		case i == 10:
		case i >= 0:
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[i])
		case c >= '0' && c <= '7' || c == 'N':
			fail(line, "\\%c in a text is not supported", c)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
}

// isSpace is Python's str.isspace.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }
