package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// class reads a class behind its bracket, such as a-z&&[^aeiou]].
func (r *patternReader) class(f flags, depth int) (*runeSet, error) {
	if depth > deepestPattern {
		return nil, fmt.Errorf("its classes are deeper than %d", deepestPattern)
	}
	begin := r.at - 1
	negative := r.skip("^")
	whole := (&runeSet{}).negate() // what the parts before the last && have in common
	var ranges []runeRange         // of the parts behind it
	for first := true; ; first = false {
		switch {
		case !r.more():
			return nil, fmt.Errorf("%.20q at byte %d of %.200q has no end", r.text[begin:], begin, r.text)
		case !first && r.skip("]"):
			whole = whole.intersect(newRuneSet(ranges...))
			if f.fold {
				whole = whole.fold()
			}
			if negative {
				whole = whole.negate()
			}
			return whole, nil
		case r.skip("&&"):
			whole, ranges = whole.intersect(newRuneSet(ranges...)), nil
		default:
			part, err := r.classPart(depth)
			if err != nil {
				return nil, err
			}
			ranges = append(ranges, part.ranges...)
		}
	}
}

// classPart reads a character, a range, an escape or a class inside a class.
func (r *patternReader) classPart(depth int) (*runeSet, error) {
	begin := r.at
	if r.skip("[:") {
		if name, _, ok := strings.Cut(r.text[r.at:], ":]"); ok && len(name) < 12 {
			r.at += len(name) + 2
			name, negative := strings.CutPrefix(name, "^")
			s, ok := posixClass(name)
			if !ok {
				return nil, r.unknown(begin)
			}
			if negative {
				s = s.negate()
			}
			return s, nil
		}
		r.at = begin
	}
	if r.skip("[") {
		return r.class(flags{}, depth+1) // case counts until the whole class is there
	}
	low, isClass, err := r.classEnd()
	if err != nil || isClass {
		return low, err
	}
	rest := r.text[r.at:]
	if !strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "-]") || strings.HasPrefix(rest, "-[") {
		return low, nil
	}
	r.at++
	high, isClass, err := r.classEnd()
	if err != nil {
		return nil, err
	}
	ends := runeRange{low.ranges[0].low, high.ranges[0].low}
	if isClass || ends.low > ends.high {
		return nil, r.unknown(begin)
	}
	return newRuneSet(ends), nil
}

// classEnd reads an end of a range.
func (r *patternReader) classEnd() (s *runeSet, isClass bool, err error) {
	if !r.more() {
		return nil, false, r.unknown(r.at)
	}
	if r.skip(`\`) {
		return r.escape(true)
	}
	c := r.rune()
	return newRuneSet(runeRange{c, c}), false, nil
}

// escape reads what stands behind a backslash. inside is whether that is in brackets.
func (r *patternReader) escape(inside bool) (s *runeSet, isClass bool, err error) {
	begin := r.at - 1
	if !r.more() {
		return nil, false, r.unknown(begin)
	}
	c := r.rune()
	if s, ok := escapedClass(c, inside); ok {
		return s, true, nil
	}
	if i := strings.IndexRune("ntrfvae", c); i >= 0 {
		return setOfRunes("\n\t\r\f\v\a\x1b"[i : i+1]), false, nil
	}
	digits := ""
	switch c {
	case 'p', 'P':
		s, err := r.property(c == 'P', begin)
		return s, true, err
	case 'x':
		if r.skip("{") {
			inside, _, _ := strings.Cut(r.text[r.at:], "}")
			digits = inside
			r.at = min(r.at+len(inside)+1, len(r.text))
			break
		}
		digits = r.take(2)
	case 'u':
		digits = r.take(4)
	default:
		if c < 0x80 && (isASCIILetter(c) || '0' <= c && c <= '9') {
			return nil, false, r.unknown(begin)
		}
		return newRuneSet(runeRange{c, c}), false, nil
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n > unicode.MaxRune || c == 'x' && len(digits) == 2 && n >= 0x80 {
		return nil, false, r.unknown(begin)
	}
	return newRuneSet(runeRange{rune(n), rune(n)}), false, nil
}

func isASCIILetter(c rune) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// take reads `count` bytes, or fewer at the end.
func (r *patternReader) take(count int) string {
	begin := r.at
	r.at = min(r.at+count, len(r.text))
	return r.text[begin:r.at]
}

// property reads {L}, {^Han} and the like behind \p.
func (r *patternReader) property(negative bool, begin int) (*runeSet, error) {
	inside, _, ok := strings.Cut(r.text[r.at:], "}")
	if !ok || !r.skip("{") {
		return nil, r.unknown(begin)
	}
	r.at += len(inside)
	name, caret := strings.CutPrefix(inside[1:], "^")
	s, ok := propertyClass(name)
	if !ok {
		return nil, r.unknown(begin)
	}
	if negative != caret {
		s = s.negate()
	}
	return s, nil
}
