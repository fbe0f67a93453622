package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// generate answers a prompt. `most` is the largest number of tokens in the answer. Each step
// takes the likeliest token. generate waits for each token and then calls the function `say` with
// it. It does not call `say` for the token that ends the answer.
func (m *model) generate(ctx context.Context, prompt []int64, most int, tracer *trace.Steps, say func(token int64)) error {
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		encoded := m.net.Encode(x, cgotorch.FromSlice(x, prompt, 1, int64(len(prompt))), nil)
		m.net.Decoder.Start(x, m.cache, encoded, nil)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range most {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var token int64
		err := tracer.Do(fmt.Sprint("token ", i), func() error {
			return m.stream.Do(func(x *cgotorch.Exec) error { // one Do for each token, because the end of a Do frees the token's memory
				m.cache.Next(x, m.step(x))
				token = int64(x.Item(m.cache.Tokens)) // waits for the device
				return nil
			})
		})
		if err != nil {
			return err
		}
		if slices.Contains(m.net.Config.EOSTokenID, int(token)) {
			return nil
		}
		say(token)
	}
	return nil
}

// printer prints an answer while it is generated.
type printer struct {
	tokens *tokenizer.Tokenizer
	ids    []int64
	said   string
}

func (p *printer) add(token int64) {
	p.ids = append(p.ids, token)
	// The printer decodes all tokens each time, because the text of a token depends on the tokens
	// before it. A character may also consist of several tokens.
	text := strings.TrimRight(p.tokens.Decode(p.ids), "\uFFFD")
	if rest, ok := strings.CutPrefix(text, p.said); ok {
		fmt.Print(rest)
		p.said = text
	}
}
