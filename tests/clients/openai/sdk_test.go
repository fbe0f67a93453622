// Package openai_test calls a running examples/serve with Go's clients of OpenAI's interface. The
// test in the folder above starts the server, and names its addresses in the environment.
package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"
)

// at returns an address of the server, or ends the test if there is none.
func at(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv("STREAMTORCH_" + name)
	if value == "" {
		t.Skipf("STREAMTORCH_%s names no server: go test ./tests/clients starts one", name)
	}
	return value
}

func dial(t testing.TB, o ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL("http://" + at(t, "SERVER") + "/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0)}, o...)...)
}

func get[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// hello is a chat of 12 tokens.
func hello() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be short."), openai.UserMessage("Where do streams end?")},
		MaxTokens: openai.Int(12), Seed: openai.Int(3),
	}
}

// bounded is a chat of more tokens. It draws no escapes and no space, so that a bounded answer ends
// although the weights are random.
func bounded() openai.ChatCompletionNewParams {
	p := hello()
	p.MaxTokens, p.LogitBias = openai.Int(200), map[string]int64{"92": -100, "32": -100, "9": -100, "10": -100, "13": -100}
	return p
}

var schema = map[string]any{
	"type": "object", "required": []string{"on", "room"}, "additionalProperties": false,
	"properties": map[string]any{"on": map[string]any{"type": "boolean"}, "room": map[string]any{"enum": []string{"hall", "attic"}}},
}

// light is what keeps to schema.
type light struct {
	On   *bool
	Room string
}

func checkLight(t *testing.T, text string) {
	t.Helper()
	var l light
	if err := json.Unmarshal([]byte(text), &l); err != nil || l.On == nil || l.Room != "hall" && l.Room != "attic" {
		t.Errorf("%q does not keep to the schema: %v", text, err)
	}
}

func TestSDK_Chat(t *testing.T) {
	c := dial(t)
	p := hello()
	p.N, p.Logprobs, p.TopLogprobs = openai.Int(2), openai.Bool(true), openai.Int(2)
	r := get(c.Chat.Completions.New(t.Context(), p))(t)
	one := r.Choices[0]
	if len(r.Choices) != 2 || one.Message.Content == "" || one.FinishReason != "length" || len(one.Logprobs.Content) != 12 || len(one.Logprobs.Content[0].TopLogprobs) != 2 {
		t.Fatalf("got %+v", r)
	}
	if !one.Message.JSON.Content.Valid() || one.Message.JSON.Refusal.Raw() != "null" || r.Usage.CompletionTokens != 24 || r.Model != "tiny" {
		t.Errorf("got %s", r.RawJSON())
	}
	p = hello()
	p.Stop.OfStringArray = []string{one.Message.Content[5:7]}
	cut := get(c.Chat.Completions.New(t.Context(), p))(t).Choices[0]
	if before, _, _ := strings.Cut(one.Message.Content, p.Stop.OfStringArray[0]); cut.FinishReason != "stop" || cut.Message.Content != before {
		t.Errorf("got %q, want %q", cut.Message.Content, before)
	}
}

func TestSDK_Stream(t *testing.T) {
	c := dial(t)
	whole := get(c.Chat.Completions.New(t.Context(), hello()))(t)
	p := hello()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(t.Context(), p)
	var sum openai.ChatCompletionAccumulator
	finished := false
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Fatalf("the accumulator refuses %s", stream.Current().RawJSON())
		}
		if _, ok := sum.JustFinishedContent(); ok {
			finished = true
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if sum.Choices[0].Message.Content != whole.Choices[0].Message.Content || sum.Usage.TotalTokens != whole.Usage.TotalTokens || !finished || sum.Choices[0].FinishReason != "length" {
		t.Errorf("streamed %+v, whole %+v", sum.ChatCompletion, whole)
	}
}

func TestSDK_Tools(t *testing.T) {
	c := dial(t)
	p := bounded()
	for _, name := range []string{"light", "heating"} {
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: name, Description: openai.String("A switch."), Strict: openai.Bool(true), Parameters: schema}))
	}
	for _, choice := range []openai.ChatCompletionToolChoiceOptionUnionParam{
		openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "heating"}), {OfAuto: openai.String("required")},
	} {
		p.ToolChoice = choice
		r := get(c.Chat.Completions.New(t.Context(), p))(t).Choices[0]
		if r.FinishReason != "tool_calls" || len(r.Message.ToolCalls) != 1 || r.Message.JSON.Content.Raw() != "null" {
			t.Fatalf("got %s", r.RawJSON())
		}
		call := r.Message.ToolCalls[0]
		checkLight(t, call.Function.Arguments)
		next := p
		next.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{}
		next.Messages = append(slices.Clone(p.Messages), r.Message.ToParam(), openai.ToolMessage("done", call.ID))
		if answer := get(c.Chat.Completions.New(t.Context(), next))(t); answer.Usage.PromptTokens < 100 {
			t.Errorf("the history is left out: %+v", answer.Usage)
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), p)
		var sum openai.ChatCompletionAccumulator
		for stream.Next() {
			sum.AddChunk(stream.Current())
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if got := sum.Choices[0].Message.ToolCalls[0].Function; got.Name != call.Function.Name || got.Arguments != call.Function.Arguments {
			t.Errorf("streamed %+v, whole %+v", got, call)
		}
	}
}

func TestSDK_ResponseFormat(t *testing.T) {
	c := dial(t)
	p := bounded()
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "light", Strict: openai.Bool(true), Schema: schema}}
	checkLight(t, get(c.Chat.Completions.New(t.Context(), p))(t).Choices[0].Message.Content)
	p = bounded()
	p.ResponseFormat.OfJSONObject, p.LogitBias = &shared.ResponseFormatJSONObjectParam{}, map[string]int64{"125": 100}
	if got := get(c.Chat.Completions.New(t.Context(), p))(t).Choices[0].Message.Content; got != "{}" {
		t.Errorf("got %q", got)
	}
}

func TestSDK_Completions(t *testing.T) {
	c := dial(t)
	ask := func(p openai.CompletionNewParams) *openai.Completion {
		p.Model, p.Seed, p.MaxTokens = "tiny", openai.Int(2), openai.Int(6)
		return get(c.Completions.New(t.Context(), p))(t)
	}
	one := ask(openai.CompletionNewParams{Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("abc")}}).Choices[0]
	for _, prompt := range []openai.CompletionNewParamsPromptUnion{{OfArrayOfStrings: []string{"abc"}}, {OfArrayOfTokens: []int64{97, 98, 99}}, {OfArrayOfTokenArrays: [][]int64{{97, 98, 99}}}} {
		if got := ask(openai.CompletionNewParams{Prompt: prompt, Echo: openai.Bool(true)}).Choices[0]; got.Text != "abc"+one.Text {
			t.Errorf("got %q, want %q", got.Text, "abc"+one.Text)
		}
	}
	if p := ask(openai.CompletionNewParams{Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("abc")}, Logprobs: openai.Int(2)}).Choices[0].Logprobs; len(p.Tokens) != 6 || len(p.TopLogprobs[0]) < 2 {
		t.Errorf("got %+v", p)
	}
}

func TestSDK_Embeddings(t *testing.T) {
	c := dial(t)
	for _, in := range []openai.EmbeddingNewParamsInputUnion{{OfString: openai.String("a b")}, {OfArrayOfStrings: []string{"a b", "c"}}, {OfArrayOfTokens: []int64{2, 5, 3}}} {
		r := get(c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "vectors", Input: in, Dimensions: openai.Int(4), EncodingFormat: "float"}))(t)
		if len(r.Data) == 0 || len(r.Data[0].Embedding) != 4 || r.Usage.PromptTokens == 0 {
			t.Errorf("got %s", r.RawJSON())
		}
	}
}

func TestSDK_Models(t *testing.T) {
	c := dial(t)
	page := get(c.Models.List(t.Context()))(t)
	if m := get(c.Models.Get(t.Context(), "tiny"))(t); len(page.Data) != 3 || m.ID != "tiny" || m.Created == 0 {
		t.Errorf("got %+v, %+v", page.Data, m)
	}
}

// failure checks the status, the field and the code of an error.
func failure(t *testing.T, err error, status int, field, code string) {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != status || e.Param != field || e.Code != code || e.Message == "" {
		t.Errorf("got %v, want %d, the field %q and the code %q", err, status, field, code)
	}
}

func TestSDK_Errors(t *testing.T) {
	c := dial(t)
	p := hello()
	p.Model = "none"
	_, err := c.Chat.Completions.New(t.Context(), p)
	failure(t, err, http.StatusNotFound, "model", "model_not_found")
	p = hello()
	p.Temperature = openai.Float(7)
	_, err = c.Chat.Completions.New(t.Context(), p)
	failure(t, err, http.StatusBadRequest, "temperature", "")
	guarded := dial(t, option.WithBaseURL("http://"+at(t, "GUARDED")+"/v1"))
	_, err = guarded.Models.List(t.Context())
	failure(t, err, http.StatusUnauthorized, "", "invalid_api_key")
}

// A request beyond those that an address may make is refused, and a client that tries again waits
// as long as the server says.
func TestSDK_TooMany(t *testing.T) {
	c := dial(t, option.WithBaseURL("http://"+at(t, "GUARDED")+"/v1"), option.WithAPIKey(at(t, "TOKEN")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		stream := c.Chat.Completions.NewStreaming(ctx, endless())
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
	}
	_, err := c.Models.List(t.Context())
	failure(t, err, http.StatusTooManyRequests, "", "rate_limit_exceeded")
	time.AfterFunc(300*time.Millisecond, cancel)
	began := time.Now()
	if _, err := c.Models.List(t.Context(), option.WithMaxRetries(3)); err != nil || time.Since(began) < 300*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// endless is a chat that goes on for seconds.
func endless() openai.ChatCompletionNewParams {
	p := hello()
	p.MaxTokens = param.NewOpt(int64(7000))
	p.SetExtraFields(map[string]any{"ignore_eos": true})
	return p
}

// The server ends a request after its time, and a client its own before.
func TestSDK_Timeouts(t *testing.T) {
	guarded := dial(t, option.WithBaseURL("http://"+at(t, "GUARDED")+"/v1"), option.WithAPIKey(at(t, "TOKEN")))
	_, err := guarded.Chat.Completions.New(t.Context(), endless())
	failure(t, err, http.StatusGatewayTimeout, "", "")
	stream := guarded.Chat.Completions.NewStreaming(t.Context(), endless())
	for stream.Next() {
	}
	if stream.Err() == nil {
		t.Error("a stream that is cut off has no error")
	}
	c := dial(t)
	if _, err := c.Chat.Completions.New(t.Context(), endless(), option.WithRequestTimeout(50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
