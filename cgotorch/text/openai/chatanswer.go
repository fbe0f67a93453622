package openai

import "strings"

// chatMessage is a whole answer. Clients read the fields that are null, too.
type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // nil if there are calls alone
	Refusal   *string    `json:"refusal"` // always nil
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
}

// chatDelta is a part of an answer.
type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
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

// callOf returns a call with a new id. Templates of Mistral take ids of nine letters and digits
// alone.
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
	Delta    *chatDelta    `json:"delta,omitempty"`
	LogProbs *chatLogProbs `json:"logprobs"`
	Reason   *string       `json:"finish_reason"`
}

type chatResponse = response[chatChoice]

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

// logProbs returns those of tokens of the content. Those of a call wait until it is content or not.
func (a *chatAnswer) logProbs(g grown) (list []logProb) {
	if !a.q.logProbs {
		return nil
	}
	if g.token.Reason != "stop" {
		switch one := logProbOf(a.c.model.Decoder.Tokenizer, g.token); g.in {
		case inContent:
			list = []logProb{one}
		case inCall:
			g.held = append(g.held, one)
		}
	}
	for _, p := range g.parts {
		if p.room == inContent {
			list = append(g.held, list...)
		}
		if p.room != inThought {
			g.held = nil
		}
	}
	return list
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
			o.Reason = &g.reason
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
			if err := send(chatChoice{Index: g.index, Delta: &chatDelta{Role: "assistant", Content: new(string)}}); err != nil {
				return err
			}
		}
		list := a.logProbs(g)
		for _, p := range g.parts {
			o := chatChoice{Index: g.index, Delta: &chatDelta{}}
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
			if err := send(chatChoice{Index: g.index, Delta: &chatDelta{Content: new(string)}, LogProbs: &chatLogProbs{Content: list}}); err != nil {
				return err
			}
		}
		if !g.ended {
			return nil
		}
		return send(chatChoice{Index: g.index, Delta: &chatDelta{}, Reason: &g.reason})
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
