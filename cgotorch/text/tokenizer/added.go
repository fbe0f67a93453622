package tokenizer

import (
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

// added finds tokens in a text.
type added struct {
	first  [256]bool // the bytes with which tokens begin
	names  *trie     // the index in `tokens` of each name
	tokens []addedToken
	words  *runeSet // the characters of words; nil if no token needs them
}

// newAdded returns what finds tokens. A token of which normalization leaves nothing is never found.
func newAdded(tokens []addedToken) (*added, error) {
	a := &added{names: newTrie(), tokens: tokens}
	for i, t := range tokens {
		if t.Content == "" {
			continue
		}
		if !a.names.add(t.Content, int64(i)) {
			return nil, bad("added_tokens", "id %d is %q when it is normalized, and so is another one; the library then "+
				"takes one by chance; set normalized to false", t.ID, t.Content)
		}
		a.first[t.Content[0]] = true
		if t.SingleWord && a.words == nil {
			a.words = wordSet().prepare()
		}
	}
	return a, nil
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
	for at := 0; at < len(text) && len(a.tokens) > 0; {
		if !a.first[text[at]] {
			at++
			continue
		}
		i, length := a.names.longest(text[at:])
		if length == 0 {
			at++
			continue
		}
		t := &a.tokens[i]
		from, to := at, at+length
		at = to
		if t.SingleWord && a.besideWord(text[:from], text[to:]) {
			continue
		}
		if t.LStrip {
			from = max(done, len(strings.TrimRightFunc(text[:from], unicode.IsSpace)))
		}
		if t.RStrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
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
func (a *added) besideWord(before, behind string) bool {
	last, _ := utf8.DecodeLastRuneInString(before)
	first, _ := utf8.DecodeRuneInString(behind)
	return before != "" && a.words.has(last) || behind != "" && a.words.has(first)
}
