package openai

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// told writes parts: content as it is, thoughts in (), and calls in {}.
func told(list []part) string {
	var content, out strings.Builder
	last := room(-1)
	for _, p := range list {
		if p.room != last || p.room == inCall {
			fmt.Fprint(&out, map[room]string{inContent: "C:", inThought: "T:", inCall: "F:"}[p.room])
		}
		last = p.room
		fmt.Fprint(&out, p.text, p.call.name, p.call.arguments)
	}
	content.WriteString(out.String())
	return content.String()
}

// The parts of each family's answers are found, and what cannot be read stays content.
func TestParts(t *testing.T) {
	qwen := []string{"<think>", "</think>", "<tool_call>", "</tool_call>"}
	gpt := []string{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"}
	for _, c := range []struct {
		marks  []string
		answer string
		want   string
		free   bool // no tools
	}{
		{qwen, "plain text", "C:plain text", false},
		{qwen, "<think>\nwell\n</think>\n\nyes", "T:well\nC:yes", false},
		{qwen, "well <think> no", "C:well <think> no", false},
		{qwen, "<think>endless", "T:endless", false},
		{qwen, "a</think>b", "C:a</think>b", false},
		{qwen, "<think>a<tool_call>b</think>c", "T:a<tool_call>bC:c", false},
		{qwen, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", `F:f{"a": 1}`, false},
		{qwen, "first <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>\n", `C:first F:f{}F:g{}`, false},
		{qwen, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>", `F:f{"a": 2}`, false},
		{qwen, "<tool_call>{\"name\": \"unknown\"}</tool_call>x", `C:<tool_call>{"name": "unknown"}</tool_call>x`, false},
		{qwen, "<tool_call>broken</tool_call>", `C:<tool_call>broken</tool_call>`, false},
		{qwen, "<tool_call>{\"name\": \"f\"}", `F:f{}`, false},
		{qwen, "<tool_call>{\"name\": \"f\"}</tool_call>", `C:<tool_call>{"name": "f"}</tool_call>`, true},
		{[]string{"[TOOL_CALLS]", "[ARGS]"}, `[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]`, `F:f{"a": 1}F:g{}`, false},
		{[]string{"[TOOL_CALLS]", "[ARGS]"}, `[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}`, `F:f{"a": 1}F:g{}`, false},
		{[]string{"[TOOL_CALLS]"}, `[TOOL_CALLS]f{"a": "};"}`, `F:f{"a": "};"}`, false},
		{[]string{"[TOOL_CALLS]", "[THINK]", "[/THINK]"}, `[THINK]hm[/THINK]yes`, `T:hmC:yes`, false},
		{[]string{"<|python_tag|>"}, `{"name": "f", "parameters": {"a": "}; {"}}; {"name": "g", "parameters": {}}`, `F:f{"a": "}; {"}F:g{}`, false},
		{[]string{"<|python_tag|>"}, ` {"a": 1}`, `C: {"a": 1}`, false},
		{[]string{"<|python_tag|>"}, `{"name": "f", "parameters": {}}`, `C:{"name": "f", "parameters": {}}`, true},
		{[]string{"<|python_tag|>"}, `<|python_tag|>{"name": "f"}`, `F:f{}`, false},
		{gpt, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>", "T:hmC:yes", false},
		{gpt, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>", `T:hmF:f{"a": 1}`, false},
		{gpt, " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", `F:f{"a": 1}`, false},
		{gpt, "<|channel|>commentary<|message|>I look<|end|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{}<|call|>", `C:I lookF:g{}`, false},
		{gpt, "<|channel|>commentary to=functions.h<|message|>{}<|call|>", `T:{}`, false},
		{gpt, "<|channel|>commentary to=functions.f<|message|>{<|call|>", `C:{`, false},
		{gpt, "well<|end|><|start|>assistant<|channel|>final<|message|>yes", "T:wellC:yes", false},
		{gpt, "well<|start|>assistant<|channel|>final<|message|>yes", "T:wellC:yes", false},
		{gpt, "<|channel|>final yes<|return|>", "T:<|channel|>final yes", false},
		{gpt, "<|channel|>analy", `T:<|channel|>analy`, false},
	} {
		tok := tokenizerOf(t, c.marks...)
		f := formOf(tok)
		tools := map[string]bool{"f": true, "g": true}
		if c.free {
			tools = nil
		}
		p := newParts(tok, &f, nil, tools)
		var list []part
		for _, id := range tok.EncodePart(c.answer) {
			list = append(list, p.add(id)...)
		}
		list = append(list, p.end()...)
		if got := told(list); got != c.want {
			t.Errorf("%q: got %q, want %q", c.answer, got, c.want)
		}
	}
}

// A call that is cut before its arguments is none: the model has not said that there are none.
func TestParts_Cut(t *testing.T) {
	gpt := []string{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"}
	for _, c := range []struct {
		marks                []string
		answer, ended, early string
	}{
		{[]string{"[TOOL_CALLS]", "[ARGS]"}, "[TOOL_CALLS]f", "F:f{}", "C:f"},
		{[]string{"[TOOL_CALLS]", "[ARGS]"}, "[TOOL_CALLS]f[ARGS]", "F:f{}", "C:f[ARGS]"},
		{gpt, "<|channel|>commentary to=functions.f<|message|>", "F:f{}", ""},
	} {
		tok := tokenizerOf(t, c.marks...)
		f := formOf(tok)
		for cut, want := range map[bool]string{false: c.ended, true: c.early} {
			p := newParts(tok, &f, nil, map[string]bool{"f": true})
			var list []part
			for _, id := range tok.EncodePart(c.answer) {
				list = append(list, p.add(id)...)
			}
			p.cut = cut
			if got := told(append(list, p.end()...)); got != want {
				t.Errorf("%q, cut %v: got %q, want %q", c.answer, cut, got, want)
			}
		}
	}
	tok := tokenizerOf(t, "<tool_call>", "</tool_call>")
	f := formOf(tok)
	p := newParts(tok, &f, nil, map[string]bool{"f": true})
	p.force("f")
	if p.cut = true; told(append(p.add(' '), p.end()...)) != "F:f " || p.stopped {
		t.Error("a forced call that is cut before its arguments is told as whole")
	}
}

// Random answers of marks and letters lose nothing but marks and the space between parts.
func TestParts_Random(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, marks := range [][]string{
		{"<think>", "</think>", "<tool_call>", "</tool_call>"}, {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}, {"<|python_tag|>"},
		{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"},
	} {
		tok := tokenizerOf(t, marks...)
		f := formOf(tok)
		pieces := append([]string{"a", "b", "{}", `{"name": "f", "arguments": {}}`, "f", "é", "final", "analysis", "commentary to=functions.f"}, marks...)
		for range 3000 {
			p := newParts(tok, &f, nil, map[string]bool{"f": true})
			var answer string
			for range r.IntN(12) {
				answer += pieces[r.IntN(len(pieces))]
			}
			var list []part
			for _, id := range tok.EncodePart(answer) {
				list = append(list, p.add(id)...)
			}
			list = append(list, p.end()...)
			got := told(list)
			if f.kind != harmony && strings.Count(answer, "é") != strings.Count(got, "é") {
				t.Fatalf("%q became %q", answer, got)
			}
			if p.room == inCall {
				t.Fatalf("%q ends in a call", answer)
			}
		}
	}
}
