package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/rangetable"
)

// Note [Versions of Unicode]
//
// Hugging Face's library is built of parts that know different versions of Unicode. Equal tokens
// need the same versions. Oniguruma, for regular expressions, has 16. Rust's own classes have 16
// and 17. The normal forms have 9, the punctuation and BERT's normalizer 8, and the scripts 9. Go
// 1.24 to 1.26 have 15. This file takes characters away that a version does not know, and adds
// those that Go does not know. The parity tests compare all characters with the library.

// since15 are characters that came after Unicode 15.0, by general category, property and script.
var since15 = []struct {
	class  string
	ranges []runeRange
}{
	{"Ll", []runeRange{{0x1c8a, 0x1c8a}, {0xa7cd, 0xa7cd}, {0xa7db, 0xa7db}, {0x10d70, 0x10d85}}},
	{"Lm", []runeRange{{0x10d4e, 0x10d4e}, {0x10d6f, 0x10d6f}, {0x16d40, 0x16d42}, {0x16d6b, 0x16d6c}}},
	{"Lo", []runeRange{{0x105c0, 0x105f3}, {0x10d4a, 0x10d4d}, {0x10d4f, 0x10d4f}, {0x10ec2, 0x10ec4},
		{0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
		{0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa}, {0x16100, 0x1611d},
		{0x16d43, 0x16d6a}, {0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d}}},
	{"Lu", []runeRange{{0x1c89, 0x1c89}, {0xa7cb, 0xa7cc}, {0xa7da, 0xa7da}, {0xa7dc, 0xa7dc}, {0x10d50, 0x10d65}}},
	{"Mc", []runeRange{{0x113b8, 0x113ba}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca},
		{0x113cc, 0x113cd}, {0x113cf, 0x113cf}, {0x1171e, 0x1171e}, {0x1612a, 0x1612c}}},
	{"Mn", []runeRange{{0x897, 0x897}, {0x10d69, 0x10d6d}, {0x10efc, 0x10efc}, {0x113bb, 0x113c0},
		{0x113ce, 0x113ce}, {0x113d0, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x11f5a, 0x11f5a},
		{0x1611e, 0x16129}, {0x1612d, 0x1612f}, {0x1e5ee, 0x1e5ef}}},
	{"Nd", []runeRange{{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
		{0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa}}},
	{"Pd", []runeRange{{0x10d6e, 0x10d6e}}},
	{"Po", []runeRange{{0x1b4e, 0x1b4f}, {0x1b7f, 0x1b7f}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8},
		{0x11be1, 0x11be1}, {0x16d6d, 0x16d6f}, {0x1e5ff, 0x1e5ff}}},
	{"Sm", []runeRange{{0x10d8e, 0x10d8f}}},
	{"So", []runeRange{{0x2427, 0x2429}, {0x2ffc, 0x2fff}, {0x31e4, 0x31e5}, {0x31ef, 0x31ef}, {0x1cc00, 0x1ccef},
		{0x1cd00, 0x1ceb3}, {0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa89, 0x1fa89}, {0x1fa8f, 0x1fa8f},
		{0x1fabe, 0x1fabe}, {0x1fac6, 0x1fac6}, {0x1fadc, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae9, 0x1fae9},
		{0x1fbcb, 0x1fbef}}},
	{"Alphabetic", []runeRange{{0x363, 0x36f}, {0x897, 0x897}, {0x1dd3, 0x1de6}, {0x10d69, 0x10d69}, {0x10efc, 0x10efc},
		{0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113cd},
		{0x1611e, 0x1612e}}},
	{"Arabic", []runeRange{{0x897, 0x897}, {0x10ec2, 0x10ec4}, {0x10efc, 0x10efc}}},
	{"Balinese", []runeRange{{0x1b4e, 0x1b4f}, {0x1b7f, 0x1b7f}}},
	{"Common", []runeRange{{0x2427, 0x2429}, {0x2ffc, 0x2fff}, {0x31e4, 0x31e5}, {0x31ef, 0x31ef}, {0x1cc00, 0x1ccf9},
		{0x1cd00, 0x1ceb3}, {0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa89, 0x1fa89}, {0x1fa8f, 0x1fa8f},
		{0x1fabe, 0x1fabe}, {0x1fac6, 0x1fac6}, {0x1fadc, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae9, 0x1fae9},
		{0x1fbcb, 0x1fbef}}},
	{"Cyrillic", []runeRange{{0x1c89, 0x1c8a}}},
	{"Egyptian_Hieroglyphs", []runeRange{{0x13460, 0x143fa}}},
	{"Han", []runeRange{{0x2ebf0, 0x2ee5d}}},
	{"Latin", []runeRange{{0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc}}},
	{"Myanmar", []runeRange{{0x116d0, 0x116e3}}},
}

// category returns the characters of general categories, such as L or Nd, in Unicode 16.
func category(names ...string) *runeSet {
	all := &runeSet{}
	for _, name := range names {
		if name == "C" || name == "Cn" { // Go's tables have no characters that are not assigned
			assigned := category("L", "M", "N", "P", "S", "Z")
			if name == "Cn" {
				assigned = assigned.union(category("Cc", "Cf", "Co"))
			}
			all = all.union(assigned.negate())
			continue
		}
		s := setOf(unicode.Categories[name])
		for _, more := range since15 {
			if len(more.class) == 2 && strings.HasPrefix(more.class, name) {
				s = s.union(newRuneSet(more.ranges...))
			}
		}
		if name == "Mn" {
			s = s.without(0x1171e)
		}
		all = all.union(s)
	}
	return all
}

// within keeps the characters that a version of Unicode knows.
func (s *runeSet) within(version string) *runeSet {
	return s.intersect(assignedSet(version))
}

func assignedSet(version string) *runeSet { return setOf(rangetable.Assigned(version)) }

func (s *runeSet) without(runes ...rune) *runeSet {
	return s.negate().union(setOfRunes(string(runes))).negate()
}

// alphabeticSet is the property Alphabetic.
func alphabeticSet() *runeSet {
	return category("L", "Nl").union(setOf(unicode.Other_Alphabetic), added15("Alphabetic"))
}

// added15 returns what came to a property or a script after Unicode 15.0.
func added15(class string) *runeSet {
	for _, more := range since15 {
		if more.class == class {
			return newRuneSet(more.ranges...)
		}
	}
	return &runeSet{}
}

// wordSet is \w of Rust's regular expressions.
func wordSet() *runeSet {
	return alphabeticSet().union(category("M", "Nd", "Pc"), setOf(unicode.Join_Control))
}

// onigurumaWordSet is the property Word of Oniguruma.
func onigurumaWordSet() *runeSet { return alphabeticSet().union(category("M", "Nd", "Pc")) }

// latinDigits are in Oniguruma's \w, but not in a class with \w.
func latinDigits() *runeSet { return setOfRunes("²³¹¼½¾") }

// numericSet is Rust's char::is_numeric.
func numericSet() *runeSet {
	return category("N").union(newRuneSet(runeRange{0x11de0, 0x11de9}, runeRange{0x16ff4, 0x16ff6}))
}

func punctuationSet() *runeSet {
	return category("P").union(setOfRunes("$+<=>^`|~")).within("8.0.0").union(setOfRunes("\u166d\U000111c9"))
}

// controlSet is what BERT's normalizer removes.
func controlSet() *runeSet {
	return setOf(unicode.Cc, unicode.Cf, unicode.Co).within("8.0.0").union(setOfRunes("\uFFFD")).without('\t', '\n', '\r')
}

// accentSet is what BERT's normalizer takes for accents.
func accentSet() *runeSet {
	return setOf(unicode.Mn).within("8.0.0").union(setOfRunes("\u1734")).without(0x1885, 0x1886, 0xa9bd, 0x111c9)
}

// markSet is what the normalizer StripAccents removes.
func markSet() *runeSet {
	return setOf(unicode.M).within("9.0.0").union(setOfRunes("\u1cf2\u1cf3")).without(0x111c9)
}

// toLower is Rust's char::to_lowercase.
func toLower(r rune) string {
	switch {
	case r == 'İ':
		return "i\u0307"
	case r == 0xa7cb:
		return "\u0264"
	case r == 0xa7dc:
		return "\u019b"
	case r == 0x1c89 || r == 0xa7cc || r == 0xa7ce || r == 0xa7d2 || r == 0xa7d4 || r == 0xa7da:
		r++
	case 0x10d50 <= r && r <= 0x10d65:
		r += 0x20
	case 0x16ea0 <= r && r <= 0x16eb8:
		r += 0x1b
	default:
		r = unicode.ToLower(r)
	}
	return string(r)
}

// scripts tells the scripts of characters.
type scripts struct {
	known *runeSet
	names []string
	sets  []*runeSet
}

func newScripts() *scripts {
	s := &scripts{known: assignedSet("9.0.0").prepare()}
	for name, table := range unicode.Scripts {
		s.names = append(s.names, name)
		s.sets = append(s.sets, setOf(table))
	}
	return s
}

// of returns the script of a character, or "" if it has none.
func (s *scripts) of(r rune) string {
	switch {
	case r == ' ' || !s.known.has(r):
		return ""
	case r == 0x30FC:
		return "Han"
	case r == 0x589 || r == 0x61c:
		return "Common"
	case r == 0x953 || r == 0x954:
		return "Devanagari"
	}
	for i, set := range s.sets {
		if !set.search(r) {
			continue
		}
		if name := s.names[i]; name != "Hiragana" && name != "Katakana" {
			return name
		}
		return "Han"
	}
	return ""
}
