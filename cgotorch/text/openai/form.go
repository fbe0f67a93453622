package openai

import (
	"encoding/json"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// formKind is how a family of models writes calls of functions.
type formKind int

const (
	noCalls formKind = iota
	hermes           // <tool_call>{"name": …, "arguments": …}</tool_call>: Qwen and Hermes
	mistral          // [TOOL_CALLS][{"name": …, "arguments": …}], or [TOOL_CALLS]name[ARGS]{…}
	llama            // {"name": …, "parameters": …} as the whole answer
	harmony          // channels, of gpt-oss
)

// form is how a model divides its answers. The tokenizer's tokens tell it.
type form struct {
	kind  formKind
	marks map[int64]string // the names of tokens that divide answers
	ids   map[string]int64
}

const (
	thinkMark, thoughtMark                             = "<think>", "</think>"
	callMark, calledMark                               = "<tool_call>", "</tool_call>"
	callsMark, argumentsMark, callIDMark               = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
	pythonMark                                         = "<|python_tag|>"
	startMark, channelMark, messageMark, constrainMark = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
	endMark, functionMark, returnMark                  = "<|end|>", "<|call|>", "<|return|>"
)

// bracketThinking are the names of Mistral's marks of thoughts.
var bracketThinking = map[string]string{"[THINK]": thinkMark, "[/THINK]": thoughtMark}

// formOf finds the form of a tokenizer's model.
func formOf(t *tokenizer.Tokenizer) form {
	f := form{marks: map[int64]string{}, ids: map[string]int64{}}
	for _, mark := range []string{
		thinkMark, thoughtMark, callMark, calledMark, callsMark, argumentsMark, callIDMark, pythonMark,
		startMark, channelMark, messageMark, constrainMark, endMark, functionMark, returnMark, "[THINK]", "[/THINK]",
	} {
		if id, ok := idOf(t, mark); ok {
			if same := bracketThinking[mark]; same != "" {
				mark = same
			}
			f.marks[id], f.ids[mark] = mark, id
		}
	}
	has := func(marks ...string) bool {
		for _, mark := range marks {
			if _, ok := f.ids[mark]; !ok {
				return false
			}
		}
		return true
	}
	switch {
	case has(startMark, channelMark, messageMark, functionMark):
		f.kind = harmony
	case has(callMark, calledMark):
		f.kind = hermes
	case has(callsMark):
		f.kind = mistral
	case has(pythonMark):
		f.kind = llama
	}
	if f.kind != harmony { // elsewhere these mean other things
		for _, mark := range []string{startMark, channelMark, messageMark, constrainMark, endMark, functionMark, returnMark} {
			if id, ok := f.ids[mark]; ok {
				delete(f.marks, id)
				delete(f.ids, mark)
			}
		}
	}
	return f
}

// idOf returns the token of a name, if there is one of exactly this name.
func idOf(t *tokenizer.Tokenizer, name string) (int64, bool) {
	ids := t.EncodePart(name)
	if len(ids) != 1 {
		return 0, false
	}
	got, ok := t.Token(ids[0])
	return ids[0], ok && got == name
}

// thinks reports whether a mark begins thoughts.
func (f *form) thinks() bool {
	_, begins := f.ids[thinkMark]
	_, ends := f.ids[thoughtMark]
	return begins && ends
}

// functionCall is a call that a model makes.
type functionCall struct {
	name, arguments string // the arguments are a JSON object
}

// calledOf reads {"name": …, "arguments": …}, or "parameters" in its place.
func calledOf(raw json.RawMessage) (f functionCall, ok bool) {
	var call struct {
		Name                  string
		Arguments, Parameters json.RawMessage
	}
	if json.Unmarshal(raw, &call) != nil || call.Name == "" {
		return f, false
	}
	if call.Arguments == nil {
		call.Arguments = call.Parameters
	}
	if inner := ""; len(call.Arguments) > 0 && call.Arguments[0] == '"' && json.Unmarshal(call.Arguments, &inner) == nil {
		call.Arguments = json.RawMessage(inner)
	}
	return functionOf(call.Name, string(call.Arguments), true)
}

// functionOf checks that arguments are an object. Where there may be none, none are {}.
func functionOf(name, arguments string, none bool) (functionCall, bool) {
	if none && strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	var object map[string]json.RawMessage
	err := json.Unmarshal([]byte(arguments), &object)
	return functionCall{strings.TrimSpace(name), strings.TrimSpace(arguments)}, err == nil && object != nil
}

// callsOf reads objects, between which a semicolon may stand.
func callsOf(text string) (list []functionCall, ok bool) {
	for rest := text; ; {
		rest = strings.TrimLeft(rest, "; \t\r\n")
		if rest == "" {
			return list, len(list) > 0
		}
		in := json.NewDecoder(strings.NewReader(rest))
		var raw json.RawMessage
		if in.Decode(&raw) != nil {
			return nil, false
		}
		call, ok := calledOf(raw)
		if !ok {
			return nil, false
		}
		list, rest = append(list, call), rest[in.InputOffset():]
	}
}

// mistralCalls reads a list of calls, or name[ARGS]{…} behind each mark. With `none` there may be a
// name alone.
func mistralCalls(text string, none bool) (list []functionCall, ok bool) {
	if strings.HasPrefix(strings.TrimSpace(text), "[") && !strings.HasPrefix(strings.TrimSpace(text), callsMark) {
		var raws []json.RawMessage
		if json.Unmarshal([]byte(text), &raws) != nil {
			return nil, false
		}
		for _, raw := range raws {
			call, ok := calledOf(raw)
			if !ok {
				return nil, false
			}
			list = append(list, call)
		}
		return list, len(list) > 0
	}
	for _, one := range strings.Split(text, callsMark) {
		if strings.TrimSpace(one) == "" {
			continue
		}
		name, arguments, found := strings.Cut(one, argumentsMark)
		if at := strings.IndexByte(one, '{'); !found && at >= 0 {
			name, arguments = one[:at], one[at:]
		}
		name, _, _ = strings.Cut(name, callIDMark)
		call, ok := functionOf(name, arguments, none)
		if !ok || call.name == "" {
			return nil, false
		}
		list = append(list, call)
	}
	return list, len(list) > 0
}
