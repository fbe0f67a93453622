package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// chatRequest is what a chat asks for.
type chatRequest struct {
	sampling
	messages []tokenizer.Message
	options  tokenizer.ChatOptions
	tools    []tool
	forced   bool            // each answer calls one of tools
	once     bool            // at most one call
	schema   json.RawMessage // of response_format; nil if answers are free
	logProbs bool
}

// chatRequest reads the body.
func (c *call) chatRequest() (q chatRequest, err error) {
	in := c.in
	q.sampling = c.sampling()
	q.messages = c.messages()
	in.count("max_tokens", &q.o.MaxTokens, 1, 1<<30)
	if most := q.o.MaxTokens; in.count("max_completion_tokens", &q.o.MaxTokens, 1, 1<<30) && most != 0 && most != q.o.MaxTokens {
		in.refuse("max_completion_tokens", "is %d, and max_tokens is %d: send one of them", q.o.MaxTokens, most)
	}
	if in.truth("logprobs", &q.logProbs); in.count("top_logprobs", &q.o.Ranked, 0, 20) && !q.logProbs && q.o.Ranked > 0 {
		in.refuse("top_logprobs", "it needs logprobs: true")
	}
	parallel := true
	in.truth("parallel_tool_calls", &parallel)
	q.once = !parallel
	q.options.Tools, q.tools, q.forced = c.tools()
	q.schema = c.responseFormat()
	if q.schema != nil && len(q.tools) > 0 {
		in.refuse("response_format", "a bounded answer cannot call functions: leave out tools, or set tool_choice to none")
	}
	if q.o.IgnoreEnd && (q.schema != nil || q.forced) {
		in.refuse("ignore_eos", "an answer that is bounded ends behind its value: leave it out")
	}
	c.variables(&q)
	if effort := ""; in.choice("reasoning_effort", &effort, "minimal", "low", "medium", "high") {
		if c.model.form.kind != harmony {
			in.refuse("reasoning_effort", "the model %q does not read it; its template may read a variable of chat_template_kwargs", c.model.Name)
		}
		if q.options.Variables == nil {
			q.options.Variables = map[string]any{}
		}
		q.options.Variables["reasoning_effort"] = strings.Replace(effort, "minimal", "low", 1)
	}
	in.neutral("modalities", `["text"]`)
	in.neutral("verbosity", `"medium"`)
	in.ignore("prediction") // a guess at the answer, to be faster
	return q, in.done()
}

// variables takes those of the template. Their JSON stays as it is, so that no digit is lost.
func (c *call) variables(q *chatRequest) {
	const field = "chat_template_kwargs"
	var all map[string]json.RawMessage
	raw := c.in.all[field]
	if c.weigh(raw); c.in.err != nil || !c.in.into(field, "an object", &all) {
		return
	}
	if _, err := newFields(field, raw); err != nil { // one may be there twice
		c.in.keep(err)
		return
	}
	q.options.Variables = map[string]any{}
	for name, value := range all {
		q.options.Variables[name] = value
	}
	for _, name := range []string{"messages", "tools", "add_generation_prompt"} {
		if all[name] != nil {
			c.in.refuse(field+"."+name, "the request's own fields tell it: leave it out")
		}
	}
}

// prompt returns the text of a chat, and whether that text has begun thoughts. It changes
// q.messages if the template reads arguments of calls as texts only.
func (c *call) prompt(q *chatRequest) (prompt string, opened bool, err error) {
	t := c.model.Decoder.Tokenizer
	prompt, err = t.Chat(q.messages, q.options)
	if err != nil {
		if other, changed := textArguments(q.messages); changed { // as DeepSeek's template wants them
			if again, failed := t.Chat(other, q.options); failed == nil {
				q.messages, prompt, err = other, again, nil
			}
		}
	}
	switch {
	case errors.Is(err, tokenizer.ErrNoTemplate):
		return "", false, refuse("messages", "the model %q has no chat template: ask /v1/completions", c.model.Name)
	case errors.Is(err, tokenizer.ErrFormat):
		return "", false, &refusal{status: http.StatusInternalServerError, text: err.Error()}
	case err != nil:
		return "", false, refuse("messages", "%v", err)
	}
	if !c.model.form.thinks() {
		return prompt, false, nil
	}
	bare := q.options
	bare.NoPrompt = true
	before, err := t.Chat(q.messages, bare)
	own, found := strings.CutPrefix(prompt, before) // the template's own end, behind all messages
	if err != nil || !found {
		return prompt, false, nil
	}
	for mark, same := range bracketThinking {
		own = strings.ReplaceAll(own, mark, same)
	}
	return prompt, strings.LastIndex(own, thinkMark) > strings.LastIndex(own, thoughtMark), nil
}

// textArguments returns messages whose calls have arguments as texts.
func textArguments(messages []tokenizer.Message) (other []tokenizer.Message, changed bool) {
	other = slices.Clone(messages)
	for i, m := range other {
		var calls []toolCall
		if m.ToolCalls == nil || json.Unmarshal(m.ToolCalls, &calls) != nil {
			continue
		}
		for k := range calls {
			calls[k].Function.Arguments, _ = json.Marshal(string(calls[k].Function.Arguments)) // a text always has JSON
		}
		other[i].ToolCalls, _ = json.Marshal(calls)
		changed = true
	}
	return other, changed
}

// fits fails for a prompt without tokens, and for one that leaves no room for an answer.
func (c *call) fits(param string, ids []int64) error {
	if len(ids) == 0 {
		return refuse(param, "it has no tokens: want a text")
	}
	if most := c.model.Batcher.Context(); len(ids) >= most {
		return &refusal{param: param, code: "context_length_exceeded", text: fmt.Sprintf("it has %d tokens, and the model takes %d, with the answer", len(ids), most)}
	}
	return nil
}

// chat answers messages.
func (c *call) chat() error {
	if err := c.decodes(); err != nil {
		return err
	}
	q, err := c.chatRequest()
	if err != nil {
		return err
	}
	choices, err := c.chatChoices(&q)
	if err != nil {
		return err
	}
	a := &chatAnswer{c: c, q: &q, id: newID("chatcmpl-"), created: c.began.Unix()}
	if q.stream {
		return a.stream(choices)
	}
	return a.whole(choices)
}

// chatChoices returns the answers of a chat, of which nothing is computed yet.
func (c *call) chatChoices(q *chatRequest) (choices []*choice, err error) {
	prompt, opened, err := c.prompt(q)
	if err != nil {
		return nil, err
	}
	var forced forcedCall
	mask := func() (func([]int64, []bool), error) { return nil, nil }
	switch {
	case q.forced:
		if forced, err = c.force(q.tools, opened); err != nil {
			return nil, err
		}
		prompt += forced.begin
		schema, err := compile("tools", forced.schema)
		if err != nil {
			return nil, err
		}
		mask = func() (func([]int64, []bool), error) { return c.mask(schema, func([]int64) int { return 0 }) }
	case q.schema != nil:
		schema, err := compile("response_format.json_schema.schema", q.schema)
		if err != nil {
			return nil, err
		}
		mask = func() (func([]int64, []bool), error) { return c.behindThoughts(schema, opened) }
	}
	var ids []int64
	err = c.reading("messages", len(prompt), func() { ids = c.model.Decoder.Tokenizer.EncodePart(prompt) })
	if err == nil {
		err = c.fits("messages", ids)
	}
	if err != nil {
		return nil, err
	}
	var tools map[string]bool
	for _, t := range q.tools {
		if tools == nil {
			tools = map[string]bool{}
		}
		tools[t.name] = true
	}
	for i := range q.answers {
		p := newParts(c.model.Decoder.Tokenizer, &c.model.form, q.stop, tools)
		p.once, p.bound = q.once, q.schema != nil
		if opened && !q.forced {
			p.room, p.trim = inThought, true
		}
		if q.forced {
			p.force(forced.name)
		}
		one := &choice{index: i, prompt: ids, o: q.o, parts: p}
		one.o.Seed += uint64(i)
		if one.o.Mask, err = mask(); err != nil {
			return nil, err
		}
		choices = append(choices, one)
	}
	return choices, nil
}
