package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// patternReader reads a regular expression in Oniguruma's syntax, which is Ruby's.
type patternReader struct {
	text string
	at   int
}

// flags are those of (?im).
type flags struct {
	fold    bool // i: case does not count
	newline bool // m: the dot matches a newline
}

func (r *patternReader) more() bool { return r.at < len(r.text) }

// skip skips a text if it comes next.
func (r *patternReader) skip(text string) bool {
	if strings.HasPrefix(r.text[r.at:], text) {
		r.at += len(text)
		return true
	}
	return false
}

func (r *patternReader) rune() rune {
	c, width := utf8.DecodeRuneInString(r.text[r.at:])
	r.at += width
	return c
}

func (r *patternReader) unknown(from int) error {
	return fmt.Errorf("%.20q at byte %d of %.200q is not known", r.text[from:min(r.at+8, len(r.text))], from, r.text)
}

func (r *patternReader) either(f flags, depth int) (node, error) {
	if depth > deepestPattern {
		return node{}, fmt.Errorf("its groups are deeper than %d", deepestPattern)
	}
	all := node{kind: kindEither}
	for {
		part, err := r.sequence(f, depth)
		if err != nil {
			return all, err
		}
		all.parts = append(all.parts, part)
		if !r.skip("|") {
			break
		}
	}
	if len(all.parts) == 1 {
		return all.parts[0], nil
	}
	return all, nil
}

func (r *patternReader) sequence(f flags, depth int) (node, error) {
	var all node
	for r.more() && r.text[r.at] != '|' && r.text[r.at] != ')' {
		part, err := r.atom(f, depth)
		if err != nil {
			return all, err
		}
		if part, err = r.repeats(part); err != nil {
			return all, err
		}
		all.parts = append(all.parts, part)
	}
	if f.fold {
		return all, r.foldable(all)
	}
	return all, nil
}

// foldable refuses pairs of letters that are one character in another case, such as ss and ß.
func (r *patternReader) foldable(n node) error {
	text := ""
	for _, part := range n.parts {
		if part.kind == kindSet && len(part.set.ranges) > 0 && part.set.ranges[len(part.set.ranges)-1].high-part.set.ranges[0].low < 0x2200 {
			text += strings.ToLower(string(part.set.ranges[0].low))
		} else {
			text += " "
		}
	}
	for _, pair := range []string{"ss", "ff", "fi", "fl", "st"} {
		if strings.Contains(text, pair) {
			return fmt.Errorf("(?i) of %q is not known: it matches one character too", pair)
		}
	}
	return nil
}

// repeats reads what stands behind a part: *, +, ?, {2,3} and the like.
func (r *patternReader) repeats(part node) (node, error) {
	for r.more() {
		low, high, braces := 0, -1, false
		switch begin := r.at; {
		case r.skip("*"):
		case r.skip("+"):
			low = 1
		case r.skip("?"):
			high = 1
		case r.braces(&low, &high):
			braces = true
			if high >= 0 && low > high || max(low, high) > 1000 {
				return part, r.unknown(begin)
			}
		default:
			return part, nil
		}
		repeat := node{kind: kindRepeat, parts: []node{part}, min: low, max: high}
		switch {
		case braces && low == high: // {2}? means that the whole may be missing
		case r.skip("?"):
			repeat.mode = lazy
		case !braces && r.skip("+"):
			repeat.mode = possessive
		}
		part = repeat
	}
	return part, nil
}

// braces reads {2}, {2,}, {2,3} and {,3}. Other braces stand for themselves.
func (r *patternReader) braces(low, high *int) bool {
	inside, _, ok := strings.Cut(strings.TrimPrefix(r.text[r.at:], "{"), "}")
	if !ok || r.text[r.at] != '{' {
		return false
	}
	first, second, two := strings.Cut(inside, ",")
	number := func(text string, to *int) bool {
		n, err := strconv.ParseUint(text, 10, 24)
		*to = int(n)
		return err == nil
	}
	switch {
	case !two:
		ok = number(first, low)
		*high = *low
	case first == "":
		*low, ok = 0, number(second, high)
	case second == "":
		*high, ok = -1, number(first, low)
	default:
		ok = number(first, low) && number(second, high)
	}
	if !ok {
		*low, *high = 0, -1
		return false
	}
	r.at += len(inside) + 2
	return true
}

func (r *patternReader) literal(c rune, f flags) node {
	return r.set(newRuneSet(runeRange{c, c}), f)
}

func (r *patternReader) set(s *runeSet, f flags) node {
	if f.fold {
		s = s.fold()
	}
	return node{kind: kindSet, set: s}
}

func (r *patternReader) atom(f flags, depth int) (node, error) {
	begin := r.at
	switch c := r.rune(); c {
	case '(':
		return r.group(f, depth)
	case '[':
		s, err := r.class(f, depth)
		return node{kind: kindSet, set: s}, err
	case '.':
		if f.newline {
			return node{kind: kindSet, set: (&runeSet{}).negate()}, nil
		}
		return node{kind: kindSet, set: setOfRunes("\n").negate()}, nil
	case '^', '$':
		return node{kind: kindAssert, assert: byte(c)}, nil
	case '*', '+', '?':
		return node{}, r.unknown(begin)
	case '\\':
		if r.more() && strings.IndexByte("AzZbB", r.text[r.at]) >= 0 {
			r.at++
			return node{kind: kindAssert, assert: r.text[r.at-1]}, nil
		}
		s, isClass, err := r.escape(false)
		if isClass || err != nil {
			return node{kind: kindSet, set: s}, err
		}
		return r.set(s, f), nil
	default:
		return r.literal(c, f), nil
	}
}

func (r *patternReader) group(f flags, depth int) (node, error) {
	begin := r.at - 1
	n := node{kind: kindSequence}
	switch {
	case r.skip("?:"):
	case r.skip("?="):
		n = node{kind: kindLook}
	case r.skip("?!"):
		n = node{kind: kindLook, negative: true}
	case r.skip("?<="):
		n = node{kind: kindLook, behind: true}
	case r.skip("?<!"):
		n = node{kind: kindLook, behind: true, negative: true}
	case r.skip("?>"):
		n = node{kind: kindAtomic}
	case r.skip("?#"):
		_, rest, ok := strings.Cut(r.text[r.at:], ")")
		r.at = len(r.text) - len(rest)
		if !ok {
			return n, fmt.Errorf("%q has a ( too many", r.text)
		}
		return n, nil
	case r.skip("?"):
		closed, err := r.flags(&f, begin)
		if err != nil {
			return n, err
		}
		if closed { // they hold until the group around ends
			return r.either(f, depth+1)
		}
	}
	inside, err := r.either(f, depth+1)
	if err != nil {
		return n, err
	}
	if !r.skip(")") {
		return n, fmt.Errorf("%.200q has a ( too many", r.text)
	}
	n.parts = []node{inside}
	return n, nil
}

// flags reads such as i-m: or i). closed reports whether a parenthesis ends the flags.
func (r *patternReader) flags(f *flags, begin int) (closed bool, err error) {
	on := true
	for r.more() {
		switch c := r.rune(); c {
		case 'i':
			f.fold = on
		case 'm':
			f.newline = on
		case '-':
			on = false
		case ':', ')':
			return c == ')', nil
		default:
			return false, r.unknown(begin)
		}
	}
	return false, r.unknown(begin)
}
