package openai

import (
	"fmt"
	"strings"
)

// completionChoice is an answer in a response, or a part of it.
type completionChoice struct {
	Index    int             `json:"index"`
	Text     string          `json:"text"`
	LogProbs *listedLogProbs `json:"logprobs"`
	Reason   *string         `json:"finish_reason"`
}

// completion answers with what follows texts.
func (c *call) completion() error {
	if err := c.decodes(); err != nil {
		return err
	}
	in := c.in
	s := c.sampling()
	s.o.MaxTokens = 16 // of OpenAI
	in.count("max_tokens", &s.o.MaxTokens, 1, 1<<30)
	logProbs := in.count("logprobs", &s.o.Ranked, 0, 20)
	echo := false
	if in.truth("echo", &echo); echo && logProbs {
		in.refuse("echo", "probabilities of a prompt's tokens are not computed here: leave out echo or logprobs")
	}
	if best := s.answers; in.count("best_of", &best, 1, c.h.o.Choices) && best != s.answers {
		in.refuse("best_of", "it is done here for n alone: leave it out")
	}
	in.neutral("suffix", `""`)
	prompts, texts := c.prompts(echo)
	if err := in.done(); err != nil {
		return err
	}
	if n := len(prompts) * s.answers; n > c.h.o.Choices {
		return refuse("prompt", "%d prompts with n %d ask for %d answers, and a request has at most %d", len(prompts), s.answers, n, c.h.o.Choices)
	}
	var choices []*choice
	plain := &form{} // neither thoughts nor calls
	for i, ids := range prompts {
		if err := c.fits(fmt.Sprintf("prompt[%d]", i), ids); err != nil {
			return err
		}
		for k := range s.answers {
			one := &choice{index: len(choices), prompt: ids, o: s.o, parts: newParts(c.model.Decoder.Tokenizer, plain, s.stop, nil)}
			one.o.Seed += uint64(k)
			choices = append(choices, one)
		}
	}
	return c.complete(&s, choices, texts, logProbs)
}

// prompts takes the prompts. It returns their tokens, and with `echo` their texts.
func (c *call) prompts(echo bool) (prompts [][]int64, texts []string) {
	t := c.model.Decoder.Tokenizer
	list, err := c.inputs("prompt", c.h.o.Choices, int64(t.Size()))
	c.in.keep(err)
	c.in.keep(c.over())
	for _, one := range list {
		if one.ids == nil && c.in.err == nil {
			c.in.keep(c.reading("prompt", len(one.text), func() { one.ids = t.Encode(one.text) }))
		}
		if c.in.err != nil {
			break
		}
		prompts = append(prompts, one.ids)
		if echo && one.text == "" {
			one.text = t.Decode(one.ids)
		}
		if echo {
			texts = append(texts, one.text)
		}
	}
	return prompts, texts
}

// complete writes the answers, whole or as they come. `texts` stand before the answers.
func (c *call) complete(s *sampling, choices []*choice, texts []string, logProbs bool) error {
	r := response[completionChoice]{ID: newID("cmpl-"), Object: "text_completion", Created: c.began.Unix(), Model: c.model.Name}
	out := make([]completionChoice, len(choices))
	whole := make([]strings.Builder, len(choices))
	listed := make([]*listedLogProbs, len(choices))
	for i := range out {
		out[i].Index = i
		if texts != nil {
			whole[i].WriteString(texts[i/s.answers])
		}
		if logProbs {
			listed[i] = &listedLogProbs{}
		}
	}
	err := c.run(choices, func(g grown) error {
		text := ""
		for _, p := range g.parts {
			text += p.text
		}
		o := &out[g.index]
		if logProbs && g.token.Reason != "stop" {
			listed[g.index].add(c.model.Decoder.Tokenizer, g.token, text)
		}
		whole[g.index].WriteString(text)
		if g.ended {
			o.Reason = &g.reason
		}
		if !s.stream || text == "" && !g.ended && whole[g.index].Len() == 0 {
			return nil
		}
		o.Text, o.LogProbs = whole[g.index].String(), listed[g.index].drain()
		whole[g.index].Reset()
		r.Choices = []completionChoice{*o}
		return c.event(r)
	})
	if err != nil {
		return err
	}
	count := usageOf(choices, s.answers)
	if !s.stream {
		for i := range out {
			out[i].Text, out[i].LogProbs = whole[i].String(), listed[i].drain()
		}
		r.Choices, r.Usage = out, count
		return c.reply(r)
	}
	if s.usage {
		r.Choices, r.Usage = []completionChoice{}, count
		if err := c.event(r); err != nil {
			return err
		}
	}
	return c.line([]byte("[DONE]"))
}
