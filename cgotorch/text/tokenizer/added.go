package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is looked for in the text before the model sees the text.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // the token does not match beside a letter, a digit or an underscore
	LStrip     bool   `json:"lstrip"`      // the match includes the spaces before the token
	RStrip     bool   `json:"rstrip"`      // the match includes the spaces after the token
	Normalized bool   `json:"normalized"`  // the token is looked for in the normalized text, else in the original text
	Special    bool   `json:"special"`
}

// added holds tokens by their first byte. Tokens with the same first byte are sorted, the longest
// first.
type added [256][]addedToken

func newAdded(tokens []addedToken) *added {
	a := &added{}
	for _, t := range tokens {
		if t.Content != "" {
			a[t.Content[0]] = append(a[t.Content[0]], t)
		}
	}
	for _, list := range a {
		slices.SortStableFunc(list, func(x, y addedToken) int { return cmp.Compare(len(y.Content), len(x.Content)) })
	}
	return a
}

// span is a token in a text, or the text between two tokens.
type span struct {
	from, to int
	isToken  bool
	id       int64
}

// split cuts a text at the tokens. If several tokens begin at the same byte, `split` takes the
// longest.
func (a *added) split(text string) []span {
	var spans []span
	done := 0
	for at := 0; at < len(text); {
		list := a[text[at]]
		i := slices.IndexFunc(list, func(t addedToken) bool { return strings.HasPrefix(text[at:], t.Content) })
		if i < 0 {
			at++
			continue
		}
		t := list[i]
		from, to := at, at+len(t.Content)
		at = to
		if t.SingleWord && besideWord(text[:from], text[to:]) {
			continue
		}
		if t.LStrip {
			from = max(done, len(strings.TrimRightFunc(text[:from], unicode.IsSpace)))
		}
		if t.RStrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
			at = to
		}
		if done < from {
			spans = append(spans, span{from: done, to: from})
		}
		spans = append(spans, span{from, to, true, t.ID})
		done = to
	}
	if done < len(text) {
		spans = append(spans, span{from: done, to: len(text)})
	}
	return spans
}

// besideWord reports whether a token stands beside a character of a word. The text `before` ends
// where the token begins. The text `behind` begins where the token ends.
func besideWord(before, behind string) bool {
	last, _ := utf8.DecodeLastRuneInString(before)
	first, _ := utf8.DecodeRuneInString(behind)
	return before != "" && isWord(last) || behind != "" && isWord(first)
}

// isWord reports whether \w of Unicode's regular expressions matches r.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
