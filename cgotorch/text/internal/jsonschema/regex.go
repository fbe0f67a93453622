package jsonschema

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

type reOp uint8

const (
	reSeq reOp = iota // parts, one after another
	reOr
	reSet
	reRepeat
	reBegin
	reEnd
)

// regex is a regular expression of ECMA-262.
type regex struct {
	op          reOp
	parts       []*regex
	set         []span
	least, most int // most is -1 for any number
}

// Sets of characters. Engines differ on white space, so a space is one for all of them, and a
// character that is no space is none for any of them. The same holds for the dot.
var (
	everything = []span{{0, 0xD7FF}, {0xE000, utf8.MaxRune}}
	digits     = []span{{'0', '9'}}
	wordSigns  = []span{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
	spaces     = []span{{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}}
	allSpaces  = []span{{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
		{0x3000, 0x3000}, {0xFEFF, 0xFEFF}}
	lineEnds = []span{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}
)

// without returns all characters that are not in a set.
func without(set []span) []span {
	set = slices.Clone(set)
	slices.SortFunc(set, func(a, b span) int { return int(a.lo - b.lo) })
	set = append(set, span{utf8.MaxRune + 1, utf8.MaxRune + 1})
	var out []span
	for _, whole := range everything {
		from := whole.lo
		for _, s := range set {
			if hi := min(s.lo-1, whole.hi); from <= hi {
				out = append(out, span{from, hi})
			}
			from = max(from, s.hi+1)
		}
	}
	return out
}

// regexReader reads a regular expression.
type regexReader struct {
	at    *location
	text  string
	depth int
}

func (r *regexReader) refuse(what string) *fault {
	return bad(r.at, "%s in the expression is refused", what)
}

func (r *regexReader) take(prefix string) bool {
	rest, ok := strings.CutPrefix(r.text, prefix)
	r.text = rest
	return ok
}

func (r *regexReader) next() rune {
	if r.text == "" {
		panic(bad(r.at, "the expression ends too early"))
	}
	c, width := utf8.DecodeRuneInString(r.text)
	r.text = r.text[width:]
	return c
}

// readRegex reads a whole expression.
func readRegex(at *location, text string) *regex {
	r := &regexReader{at: at, text: text}
	all := r.alternatives()
	if r.text != "" {
		panic(bad(at, "the expression has a ) too many"))
	}
	return all
}

func (r *regexReader) alternatives() *regex {
	if r.depth++; r.depth > deepest {
		panic(bad(r.at, "the expression is nested too deep"))
	}
	defer func() { r.depth-- }()
	or := &regex{op: reOr}
	for {
		seq := &regex{op: reSeq}
		for r.text != "" && r.text[0] != '|' && r.text[0] != ')' {
			seq.parts = append(seq.parts, r.repeated())
		}
		if or.parts = append(or.parts, seq); !r.take("|") {
			return or
		}
	}
}

// repeated reads an atom and what says how often it comes.
func (r *regexReader) repeated() *regex {
	atom := r.atom()
	again := &regex{op: reRepeat, parts: []*regex{atom}, most: -1}
	switch {
	case r.take("*"):
	case r.take("+"):
		again.least = 1
	case r.take("?"):
		again.most = 1
	case r.take("{"):
		inside, rest, ok := strings.Cut(r.text, "}")
		if !ok {
			panic(r.refuse("a { without a number"))
		}
		r.text = rest
		least, most, two := strings.Cut(inside, ",")
		again.least = r.times(least)
		switch {
		case !two:
			again.most = again.least
		case most != "":
			if again.most = r.times(most); again.most < again.least {
				panic(bad(r.at, "the expression has {%.20s}", inside))
			}
		}
	default:
		return atom
	}
	if atom.op == reBegin || atom.op == reEnd {
		panic(r.refuse("a repeated ^ or $"))
	}
	r.take("?") // a lazy match is a match
	if r.text != "" && strings.ContainsRune("*+?{", rune(r.text[0])) {
		panic(r.refuse("a repeated repetition"))
	}
	return again
}

func (r *regexReader) times(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n > 1000 || len(text) > 1 && text[0] == '0' { // {05} is literal for some engines
		panic(r.refuse("a count that is no number from 0 to 1000"))
	}
	return int(n)
}

func (r *regexReader) atom() *regex {
	switch c := r.next(); c {
	case '^':
		return &regex{op: reBegin}
	case '$':
		return &regex{op: reEnd}
	case '.':
		return &regex{op: reSet, set: without(lineEnds)}
	case '(':
		if r.take("?") && !r.take(":") {
			rest := r.text
			if name, behind, ok := strings.Cut(rest, ">"); ok && strings.HasPrefix(name, "<") && !strings.HasPrefix(name, "<=") && !strings.HasPrefix(name, "<!") {
				r.text = behind
			} else {
				panic(r.refuse("a look around or a flag"))
			}
		}
		group := r.alternatives()
		if !r.take(")") {
			panic(bad(r.at, "the expression lacks a )"))
		}
		return group
	case '[':
		return &regex{op: reSet, set: r.class()}
	case '\\':
		set, _ := r.escape(false)
		return &regex{op: reSet, set: set}
	case '*', '+', '?', '{', '}', ']':
		panic(r.refuse("a lone " + string(c)))
	default:
		return &regex{op: reSet, set: []span{{c, c}}}
	}
}

// class reads what stands behind a [.
func (r *regexReader) class() []span {
	negated := r.take("^")
	var set []span
	for !r.take("]") {
		lo, one := r.member(negated)
		if len(r.text) > 1 && r.text[0] == '-' && r.text[1] != ']' {
			r.text = r.text[1:]
			hi, other := r.member(negated)
			if !one || !other || lo[0].lo > hi[0].lo {
				panic(r.refuse("a range of what is no character"))
			}
			lo = []span{{lo[0].lo, hi[0].lo}}
		}
		set = append(set, lo...)
	}
	if negated {
		return without(set)
	}
	return without(without(set)) // no surrogates
}

func (r *regexReader) member(negated bool) (set []span, one bool) {
	c := r.next()
	switch {
	case c == '\\':
		return r.escape(negated)
	case c == '[' && r.text != "" && strings.ContainsRune(":.=", rune(r.text[0])):
		panic(r.refuse("a [ within brackets")) // other engines read a named class
	}
	return []span{{c, c}}, true
}

// escape reads what stands behind a backslash. one tells whether it is one character. In a set that
// is negated, larger sets are the careful ones.
func (r *regexReader) escape(negated bool) (set []span, one bool) {
	c := r.next()
	switch c {
	case 'd':
		return digits, false
	case 'D':
		return without(digits), false
	case 'w':
		return wordSigns, false
	case 'W':
		return without(wordSigns), false
	case 's', 'S':
		narrow, wide := spaces, allSpaces
		if negated {
			narrow, wide = wide, narrow
		}
		if c == 's' {
			return narrow, false
		}
		return without(wide), false
	}
	if at := strings.IndexRune("tnvfr", c); at >= 0 {
		c = rune("\t\n\v\f\r"[at])
		return []span{{c, c}}, true
	}
	switch {
	case c == 'x':
		c = r.hex(2)
	case c == 'u':
		if c = r.hex(4); c >= 0xD800 && c < 0xE000 {
			panic(r.refuse("half of a surrogate pair"))
		}
	case c == '0' && (r.text == "" || r.text[0] < '0' || r.text[0] > '9'):
		c = 0
	case c >= utf8.RuneSelf || !strings.ContainsRune(`^$\.*+?()[]{}|/-,:;=!<>@#%&~'"_ `+"`", c):
		panic(r.refuse("\\" + string(c)))
	}
	return []span{{c, c}}, true
}

func (r *regexReader) hex(length int) rune {
	if len(r.text) < length {
		panic(bad(r.at, "the expression ends too early"))
	}
	n, err := strconv.ParseUint(r.text[:length], 16, 32)
	if err != nil {
		panic(r.refuse("a damaged escape"))
	}
	r.text = r.text[length:]
	return rune(n)
}
