package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalForm is a normal form of Unicode 9. Characters that came later have no decomposition, and
// keep their order. See Note [Versions of Unicode].
func normalForm(form norm.Form) normalizer {
	late := assignedSet("9.0.0").negate().prepare()
	whole := func(text string) string {
		if form.IsNormalString(text) && strings.IndexFunc(text, late.has) < 0 {
			return text
		}
		var b strings.Builder
		for text != "" {
			at := strings.IndexFunc(text, late.has)
			if at < 0 {
				at = len(text)
			}
			b.WriteString(normalized(form, text[:at]))
			_, width := utf8.DecodeRuneInString(text[at:])
			b.WriteString(text[at : at+width])
			text = text[at+width:]
		}
		return b.String()
	}
	return func(p piece) piece {
		text := whole(p.text)
		if p.zero == 0 || text == p.text {
			return piece{text, p.zero}
		}
		zero := len(whole(p.text[:p.zero]))
		composes := form == norm.NFC || form == norm.NFKC
		if _, width := utf8.DecodeRuneInString(text); composes && utf8.RuneCountInString(p.text[:p.zero]) == 1 {
			zero = max(zero, width) // a mark behind the first character may be a part of it now
		}
		return piece{text, min(zero, len(text))}
	}
}

// manyMarks is a number of marks in a row up to which package norm makes the normal form. Behind
// 30 marks it sets a U+034F, which the standard's normal forms do not have.
const manyMarks = 8

func normalized(form norm.Form, text string) string {
	marks := 0
	for at := range text {
		if marks++; form.PropertiesString(text[at:]).BoundaryBefore() {
			marks = 0
		}
		if marks > manyMarks {
			return longNormalized(form, text)
		}
	}
	return form.String(text)
}

// longNormalized makes a normal form of a text with any number of marks in a row.
func longNormalized(form norm.Form, text string) string {
	decomposed := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decomposed = norm.NFKD
	}
	type mark struct {
		r     rune
		class uint8
	}
	var all []mark
	for _, r := range text {
		for _, d := range decomposed.String(string(r)) {
			all = append(all, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(all); {
		end := i + 1
		for all[i].class != 0 && end < len(all) && all[end].class != 0 {
			end++
		}
		slices.SortStableFunc(all[i:end], func(a, b mark) int { return cmp.Compare(a.class, b.class) })
		i = end
	}
	if form == decomposed {
		var b strings.Builder
		for _, m := range all {
			b.WriteRune(m.r)
		}
		return b.String()
	}
	out, starter := []mark{}, -1 // where the character is with which marks compose
	for _, m := range all {
		if starter >= 0 {
			last := out[len(out)-1]
			adjacent := len(out)-1 == starter
			if adjacent || last.class != 0 && last.class < m.class {
				if both := []rune(norm.NFC.String(string([]rune{out[starter].r, m.r}))); len(both) == 1 {
					out[starter].r = both[0]
					continue
				}
			}
		}
		if m.class == 0 {
			starter = len(out)
		}
		out = append(out, m)
	}
	var b strings.Builder
	for _, m := range out {
		b.WriteRune(m.r)
	}
	return b.String()
}
