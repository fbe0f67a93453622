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
	messages  []tokenizer.Message
	options   tokenizer.ChatOptions
	tools     []tool
	forced    string // "", "required" or "function"
	once      bool   // at most one call
	schema    json.RawMessage
	logProbs  bool
	reasoning string
}

// chatRequest reads the body.
func (c *call) chatRequest() (q chatRequest, err error) {
	in := c.in
	q.sampling = c.sampling()
	q.messages = c.messages()
	in.count("max_tokens", &q.o.MaxTokens, 1, 1<<30)
	in.count("max_completion_tokens", &q.o.MaxTokens, 1, 1<<30)
	if in.truth("logprobs", &q.logProbs); in.count("top_logprobs", &q.o.Ranked, 0, 20) && !q.logProbs && q.o.Ranked > 0 {
		in.refuse("top_logprobs", "it needs logprobs: true")
	}
	parallel := true
	in.truth("parallel_tool_calls", &parallel)
	q.once = !parallel
	q.options.Tools, q.tools, q.forced = c.tools()
	q.schema = c.schemaOf()
	if q.schema != nil && len(q.tools) > 0 {
		in.refuse("response_format", "a bounded answer cannot call functions: leave out tools, or set tool_choice to none")
	}
	in.into("chat_template_kwargs", "an object", &q.options.Variables)
	if in.choice("reasoning_effort", &q.reasoning, "minimal", "low", "medium", "high") {
		if c.model.form.kind != harmony {
			in.refuse("reasoning_effort", "the model %q does not read it; its template may read a variable of chat_template_kwargs", c.model.Name)
		}
		if q.options.Variables == nil {
			q.options.Variables = map[string]any{}
		}
		q.options.Variables["reasoning_effort"] = strings.Replace(q.reasoning, "minimal", "low", 1)
	}
	in.neutral("modalities", `["text"]`)
	in.ignore("prediction") // a guess at the answer, to be faster
	return q, in.done()
}

// prompt returns the text of a chat, and whether it has begun thoughts.
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
	own, found := strings.CutPrefix(prompt, before) // what the template has written alone
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

// tokensOf returns the tokens of a prompt, which the model has room for.
func (c *call) tokensOf(param, prompt string, encode func(string) []int64) ([]int64, error) {
	if err := c.over(); err != nil {
		return nil, err
	}
	ids := encode(prompt)
	return ids, c.fits(param, ids)
}

// fits fails for a prompt that leaves no room for an answer.
func (c *call) fits(param string, ids []int64) error {
	if most := c.model.Decoder.Context(); len(ids) >= most {
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

// chatChoices makes the answers of a chat, before they are computed.
func (c *call) chatChoices(q *chatRequest) (choices []*choice, err error) {
	prompt, opened, err := c.prompt(q)
	if err != nil {
		return nil, err
	}
	var forced forcedCall
	mask := func() (func([]int64, []bool), error) { return nil, nil }
	switch {
	case q.forced != "":
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
	ids, err := c.tokensOf("messages", prompt, c.model.Decoder.Tokenizer.EncodePart)
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
		p.once = q.once
		if opened && q.forced == "" {
			p.room, p.trim = inThought, true
		}
		if q.forced != "" {
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

// chatMessage is an answer, or a part of it.
type chatMessage struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
	Refusal   *string    `json:"refusal,omitempty"`
}

// chatCall is a call of a function in an answer.
type chatCall struct {
	Index    *int   `json:"index,omitempty"` // in a stream
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// callOf returns a call. Templates of Mistral take ids of nine letters and digits alone.
func callOf(kind formKind, call functionCall) (out chatCall) {
	out.ID, out.Type = newID("call_"), "function"
	if kind == mistral {
		out.ID = newID("")[:9]
	}
	out.Function.Name, out.Function.Arguments = call.name, call.arguments
	return out
}

// chatLogProbs are those of the tokens of an answer's content.
type chatLogProbs struct {
	Content []logProb `json:"content"`
	Refusal *string   `json:"refusal"`
}

// chatChoice is an answer in a response.
type chatChoice struct {
	Index    int           `json:"index"`
	Message  *chatMessage  `json:"message,omitempty"`
	Delta    *chatMessage  `json:"delta,omitempty"`
	LogProbs *chatLogProbs `json:"logprobs"`
	Reason   *string       `json:"finish_reason"`
}

// chatResponse is a response, or an event of a stream.
type chatResponse struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

// chatAnswer writes the answers to a chat.
type chatAnswer struct {
	c       *call
	q       *chatRequest
	id      string
	created int64
}

func (a *chatAnswer) response(object string, choices ...chatChoice) chatResponse {
	if choices == nil {
		choices = []chatChoice{}
	}
	return chatResponse{ID: a.id, Object: object, Created: a.created, Model: a.c.model.Name, Choices: choices}
}

// usageOf counts the tokens of answers to one or several prompts.
func usageOf(choices []*choice, answers int) *usage {
	u := &usage{}
	for i, one := range choices {
		if i%answers == 0 {
			u.Prompt += len(one.prompt)
		}
		u.Completion += one.tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// logProbs returns those of a token of the content.
func (a *chatAnswer) logProbs(g grown) []logProb {
	if !a.q.logProbs || g.in != inContent || g.token.Reason == "stop" {
		return nil
	}
	return []logProb{logProbOf(a.c.model.Decoder.Tokenizer, g.token)}
}

// whole writes the answers when all have ended.
func (a *chatAnswer) whole(choices []*choice) error {
	out := make([]chatChoice, len(choices))
	texts := make([]strings.Builder, len(choices))
	thoughts := make([]strings.Builder, len(choices))
	for i := range out {
		out[i] = chatChoice{Index: i, Message: &chatMessage{Role: "assistant"}}
		if a.q.logProbs {
			out[i].LogProbs = &chatLogProbs{Content: []logProb{}}
		}
	}
	err := a.c.run(choices, func(g grown) error {
		o := &out[g.index]
		for _, p := range g.parts {
			switch p.room {
			case inContent:
				texts[g.index].WriteString(p.text)
			case inThought:
				thoughts[g.index].WriteString(p.text)
			case inCall:
				o.Message.ToolCalls = append(o.Message.ToolCalls, callOf(a.c.model.form.kind, p.call))
			}
		}
		if a.q.logProbs {
			o.LogProbs.Content = append(o.LogProbs.Content, a.logProbs(g)...)
		}
		if g.ended {
			reason := g.reason
			o.Reason = &reason
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range out {
		if text := texts[i].String(); text != "" || len(out[i].Message.ToolCalls) == 0 {
			out[i].Message.Content = &text
		}
		out[i].Message.Reasoning = thoughts[i].String()
	}
	r := a.response("chat.completion", out...)
	r.Usage = usageOf(choices, len(choices))
	return a.c.reply(r)
}

// stream writes the answers as they come.
func (a *chatAnswer) stream(choices []*choice) error {
	const object = "chat.completion.chunk"
	calls := make([]int, len(choices))
	begun := make([]bool, len(choices))
	send := func(o chatChoice) error { return a.c.event(a.response(object, o)) }
	err := a.c.run(choices, func(g grown) error {
		if !begun[g.index] { // not before, so that a request that fails at once has a status
			begun[g.index] = true
			if err := send(chatChoice{Index: g.index, Delta: &chatMessage{Role: "assistant", Content: new(string)}}); err != nil {
				return err
			}
		}
		list := a.logProbs(g)
		for _, p := range g.parts {
			o := chatChoice{Index: g.index, Delta: &chatMessage{}}
			switch p.room {
			case inContent:
				o.Delta.Content = &p.text
			case inThought:
				o.Delta.Reasoning = p.text
			case inCall:
				call, index := callOf(a.c.model.form.kind, p.call), calls[g.index]
				call.Index = &index
				calls[g.index]++
				o.Delta.ToolCalls = []chatCall{call}
			}
			if list != nil {
				o.LogProbs, list = &chatLogProbs{Content: list}, nil
			}
			if err := send(o); err != nil {
				return err
			}
		}
		if list != nil { // the token's text is still to come
			if err := send(chatChoice{Index: g.index, Delta: &chatMessage{Content: new(string)}, LogProbs: &chatLogProbs{Content: list}}); err != nil {
				return err
			}
		}
		if !g.ended {
			return nil
		}
		reason := g.reason
		return send(chatChoice{Index: g.index, Delta: &chatMessage{}, Reason: &reason})
	})
	if err == nil && a.q.usage {
		r := a.response(object)
		r.Usage = usageOf(choices, len(choices))
		err = a.c.event(r)
	}
	if err != nil {
		return err
	}
	return a.c.line([]byte("[DONE]"))
}
