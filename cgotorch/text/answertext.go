package text

import (
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// answerText makes the text of an answer, and finds where it stops.
type answerText struct {
	tokens tokenizer.Stream
	stop   []string
	held   string // text that may be the beginning of a text of stop
}

func newAnswerText(t *tokenizer.Tokenizer, stop []string) *answerText {
	return &answerText{tokens: tokenizer.Stream{Tokenizer: t}, stop: stop}
}

// add gives a token its Text and its Reason. `end` says that the token ends the answer by itself,
// and `last` that no token may follow it.
func (a *answerText) add(token *Token, end, last bool) {
	if a.tokens.Tokenizer != nil {
		if !end {
			a.held += a.tokens.Add(token.ID)
		}
		if end || last {
			a.held += a.tokens.Flush()
		}
	}
	first := len(a.held)
	for _, stop := range a.stop {
		if at := strings.Index(a.held, stop); at >= 0 {
			token.Reason, first = "stop", min(first, at)
		}
	}
	a.held = a.held[:first]
	if token.Reason == "" && end {
		token.Reason = "stop"
	}
	if token.Reason == "" && last {
		token.Reason = "length"
	}
	keep := 0
	if token.Reason == "" {
		keep = a.beginning()
	}
	token.Text, a.held = a.held[:len(a.held)-keep], a.held[len(a.held)-keep:]
}

// beginning returns the length of the longest end of the held text with which a text of stop
// begins.
func (a *answerText) beginning() (longest int) {
	for _, stop := range a.stop {
		for n := min(len(stop)-1, len(a.held)); n > longest; n-- {
			if strings.HasSuffix(a.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
