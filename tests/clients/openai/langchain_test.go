package openai_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tmc/langchaingo/embeddings"
	"github.com/tmc/langchaingo/llms"
	langchain "github.com/tmc/langchaingo/llms/openai"
)

func chain(t testing.TB, o ...langchain.Option) *langchain.LLM {
	return get(langchain.New(append([]langchain.Option{langchain.WithBaseURL("http://" + at(t, "SERVER") + "/v1"), langchain.WithToken("none"), langchain.WithModel("tiny"), langchain.WithEmbeddingModel("vectors")}, o...)...))(t)
}

func TestLangChain_Chat(t *testing.T) {
	c := chain(t)
	messages := []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeSystem, "Be short."), llms.TextParts(llms.ChatMessageTypeHuman, "Where do streams end?")}
	whole := get(c.GenerateContent(t.Context(), messages, llms.WithMaxTokens(12), llms.WithSeed(3), llms.WithTemperature(0.7)))(t).Choices[0]
	var streamed strings.Builder
	last := get(c.GenerateContent(t.Context(), messages, llms.WithMaxTokens(12), llms.WithSeed(3), llms.WithTemperature(0.7), llms.WithStreamingFunc(func(_ context.Context, part []byte) error {
		streamed.Write(part)
		return nil
	})))(t).Choices[0]
	if whole.Content == "" || streamed.String() != whole.Content || last.Content != whole.Content || whole.StopReason != "length" {
		t.Errorf("streamed %q, whole %q %s", streamed.String(), whole.Content, whole.StopReason)
	}
	if whole.GenerationInfo["CompletionTokens"] != 12 || last.GenerationInfo["CompletionTokens"] != 12 {
		t.Errorf("the usage is %v and %v", whole.GenerationInfo, last.GenerationInfo)
	}
	if answer := get(llms.GenerateFromSinglePrompt(t.Context(), c, "a", llms.WithMaxTokens(3)))(t); answer == "" {
		t.Error("no answer")
	}
}

func TestLangChain_Tools(t *testing.T) {
	c := chain(t)
	tools := []llms.Tool{{Type: "function", Function: &llms.FunctionDefinition{Name: "go", Description: "Goes.", Strict: true, Parameters: map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}}}}
	messages := []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeHuman, "Go.")}
	made := get(c.GenerateContent(t.Context(), messages, llms.WithTools(tools), llms.WithToolChoice("required"), llms.WithMaxTokens(100)))(t).Choices[0]
	if len(made.ToolCalls) != 1 || made.ToolCalls[0].FunctionCall.Name != "go" {
		t.Fatalf("got %+v", made)
	}
	call := made.ToolCalls[0]
	messages = append(messages, llms.MessageContent{Role: llms.ChatMessageTypeAI, Parts: []llms.ContentPart{call}},
		llms.MessageContent{Role: llms.ChatMessageTypeTool, Parts: []llms.ContentPart{llms.ToolCallResponse{ToolCallID: call.ID, Name: "go", Content: "gone"}}})
	get(c.GenerateContent(t.Context(), messages, llms.WithTools(tools), llms.WithMaxTokens(5)))(t)
}

func TestLangChain_Format(t *testing.T) {
	c := chain(t, langchain.WithResponseFormat(&langchain.ResponseFormat{Type: "json_schema", JSONSchema: &langchain.ResponseFormatJSONSchema{
		Name: "light", Strict: true, Schema: &langchain.ResponseFormatJSONSchemaProperty{Type: "object", Required: []string{"on"}, Properties: map[string]*langchain.ResponseFormatJSONSchemaProperty{"on": {Type: "boolean"}}},
	}}))
	answer := get(llms.GenerateFromSinglePrompt(t.Context(), c, "a", llms.WithMaxTokens(200), llms.WithTemperature(1), llms.WithSeed(1)))(t)
	if !strings.HasPrefix(strings.TrimSpace(answer), "{") {
		t.Errorf("got %q", answer)
	}
}

func TestLangChain_Embeddings(t *testing.T) {
	e := get(embeddings.NewEmbedder(chain(t)))(t)
	if list := get(e.EmbedDocuments(t.Context(), []string{"a", "b c"}))(t); len(list) != 2 || len(list[0]) == 0 {
		t.Errorf("got %v", list)
	}
	if v := get(e.EmbedQuery(t.Context(), "a"))(t); len(v) == 0 {
		t.Error("no vector")
	}
}
