package tokenizer

import (
	"strings"
	"unicode"
)

// escapedClass returns the class of \s, \W and the like. inside is whether it stands in brackets.
func escapedClass(c rune, inside bool) (*runeSet, bool) {
	var s *runeSet
	switch unicode.ToLower(c) {
	case 'd':
		s = category("Nd")
	case 's':
		s = setOf(unicode.White_Space)
	case 'w':
		if s = onigurumaWordSet(); !inside {
			s = s.union(latinDigits())
		}
	case 'h':
		s = setOfRunes("0123456789abcdefABCDEF")
	default:
		return nil, false
	}
	if unicode.IsUpper(c) {
		s = s.negate()
	}
	return s, true
}

func posixClass(name string) (*runeSet, bool) {
	switch name {
	case "alpha":
		return alphabeticSet(), true
	case "digit":
		return category("Nd"), true
	case "alnum":
		return alphabeticSet().union(category("Nd")), true
	case "space":
		return setOf(unicode.White_Space), true
	case "upper":
		return category("Lu").union(setOf(unicode.Other_Uppercase)), true
	case "lower":
		return category("Ll").union(setOf(unicode.Other_Lowercase)), true
	case "punct":
		return category("P", "S"), true
	case "word":
		return onigurumaWordSet(), true
	case "ascii":
		return newRuneSet(runeRange{0, 0x7f}), true
	}
	return nil, false
}

// propertyClass returns the class of \p{L}, \p{Han} and the like.
func propertyClass(name string) (*runeSet, bool) {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(s))
	}
	name = plain(name)
	if name == "punct" {
		return category("P"), true
	}
	if s, ok := posixClass(name); ok {
		return s, true
	}
	switch name {
	case "letter":
		name = "l"
	case "mark":
		name = "m"
	case "number":
		name = "n"
	case "punctuation":
		name = "p"
	case "symbol":
		name = "s"
	case "separator":
		name = "z"
	case "any":
		return (&runeSet{}).negate(), true
	case "cn", "unassigned":
		return category("Cn"), true
	case "alphabetic":
		return posixClass("alpha")
	}
	for known := range unicode.Categories {
		if plain(known) == name {
			return category(known), true
		}
	}
	for known, table := range unicode.Scripts {
		if plain(known) == name {
			return setOf(table).union(added15(known)), true
		}
	}
	return nil, false
}
