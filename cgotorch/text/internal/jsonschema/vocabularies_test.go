package jsonschema

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// byteTokens are the 256 bytes, and then the texts.
func byteTokens(texts ...string) (tokens [][]byte) {
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, s := range texts {
		tokens = append(tokens, []byte(s))
	}
	return tokens
}

// straddling are tokens that begin in one part of a value and end in another one.
var straddling = []string{`{"`, `"}`, `":`, `, "`, `","`, `":"`, `":{"`, `"},`, `"]`, `[[`, `]]`, `}}`, `],[`, `[]`, `{}`, `":[`, `, `, `: `, `true`, `tru`, `e,"`, `null}`, `12`, `0,`, `1}`,
	`e1`, `-1`, `.5`, `"a":`, `a":1`, `"a","a"`, `b"`, `"b":2,"b":3`, `{"a":1,"a"`, `\u`, `\u00`, `\"`, `\\`, `ab`, `abc`, `kind`, `":"f`, ` "`, ` {`, "\u00e4", "\u6d41", "\xf0\x9f", "\x98\x80", "\xe6\xb5", "\xe2\x82\xac\"",
	"  ", "\n", "\t", "aaaaaaaa", "2024-", "-0", "0.", "é\"", `xx", "`}

// pieces are tokens as of SentencePiece with byte fallback, without the bytes of high value.
func pieces() (tokens [][]byte) {
	for b := range 128 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, s := range []string{" {", " \"", "流", "ä", "€", "\xe6\xb5", "😀", ` "a"`, "äöü", "the", " the"} {
		tokens = append(tokens, []byte(s))
	}
	return tokens
}

// vocabularies are those with which the tests write values.
func vocabularies(t testing.TB) map[string]*Vocabulary {
	return map[string]*Vocabulary{
		"bytes":      must.Get(NewVocabulary(byteTokens()))(t),
		"straddling": must.Get(NewVocabulary(byteTokens(straddling...)))(t),
		"pieces":     must.Get(NewVocabulary(pieces()))(t),
	}
}

// large returns a vocabulary as large as that of Llama 3, with tokens as long.
func large(t testing.TB) *Vocabulary {
	r := rand.New(rand.NewPCG(1, 2))
	tokens := byteTokens(straddling...)
	seen := map[string]bool{}
	for _, b := range tokens {
		seen[string(b)] = true
	}
	const letters = "etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLU"
	for len(tokens) < 128_256 {
		var b []byte
		if r.IntN(2) == 0 {
			b = append(b, ' ')
		}
		for range 1 + min(r.IntN(8), r.IntN(14)) + r.IntN(4) {
			b = append(b, letters[min(r.IntN(len(letters)), r.IntN(len(letters)))])
		}
		switch r.IntN(40) {
		case 0:
			b = append(b, '"')
		case 1:
			b = append([]byte{'"'}, b...)
		case 2:
			b = append(b, `",`...)
		case 3:
			b = []byte(fmt.Sprint(r.IntN(1000)))
		case 4:
			b = []byte(string([]rune{rune(0x4e00 + r.IntN(0x5000)), rune(0x4e00 + r.IntN(0x100))}))
		case 5:
			b = slices.Repeat([]byte{' '}, 1+r.IntN(100))
		}
		if !seen[string(b)] {
			seen[string(b)], tokens = true, append(tokens, b)
		}
	}
	return must.Get(NewVocabulary(tokens))(t)
}
