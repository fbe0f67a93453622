package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// generate answers a prompt, and takes the likeliest token each time. It calls say with each token
// at once, but not with the token that ends the answer.
func (m *model) generate(ctx context.Context, prompt []int64, most int, t *tracer, say func(token int64)) error {
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		encoded := m.net.Encode(x, cgotorch.FromSlice(x, prompt, 1, int64(len(prompt))), nil)
		m.net.Decoder.Start(x, m.cache, encoded, nil)
		return nil
	})
	if err != nil {
		return err
	}
	for range most {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		traced, err := t.begin()
		if err != nil {
			return err
		}
		var next *cgotorch.HostRead
		err = m.stream.Do(func(x *cgotorch.Exec) error { // a Do for each token: its end gives back the memory that the token used
			m.cache.Next(x, m.pieces.Step(x, m.decoder))
			next = x.ReadAsync(m.cache.Tokens)
			return nil
		})
		if err != nil {
			return err
		}
		token, err := next.Item() // waits for the device
		next.Close()
		if err != nil {
			return err
		}
		if err := traced(); err != nil {
			return err
		}
		if slices.Contains(m.net.Config.EOSTokenID, int(token)) {
			return nil
		}
		say(int64(token))
	}
	return nil
}

// printer prints an answer token by token.
type printer struct {
	tokens *tokenizer.Tokenizer
	ids    []int64
	said   string
}

func (p *printer) add(token int64) {
	p.ids = append(p.ids, token)
	// All tokens are decoded anew: a token's text depends on those before it, and a character may be
	// half there.
	text := strings.TrimRight(p.tokens.Decode(p.ids), "\uFFFD")
	if rest, ok := strings.CutPrefix(text, p.said); ok {
		fmt.Print(rest)
		p.said = text
	}
}
