package text

import (
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/stops"
)

// answerText makes the text of an answer, and finds where it stops.
type answerText struct {
	tokens tokenizer.Stream
	stops  stops.Finder
}

func newAnswerText(t *tokenizer.Tokenizer, stop []string) *answerText {
	return &answerText{tokens: tokenizer.Stream{Tokenizer: t}, stops: stops.Finder{Texts: stop}}
}

// add gives a token its Text and its Reason. `end` says that the token ends the answer by itself,
// and `last` that no token may follow it.
func (a *answerText) add(token *Token, end, last bool) {
	piece := ""
	if a.tokens.Tokenizer != nil {
		if !end {
			piece = a.tokens.Add(token.ID)
		}
		if end || last {
			piece += a.tokens.Flush()
		}
	}
	text, found := a.stops.Add(piece)
	switch {
	case found || end:
		token.Reason = "stop"
	case last:
		token.Reason = "length"
	}
	if token.Reason != "" {
		text += a.stops.Flush()
	}
	token.Text = text
}
