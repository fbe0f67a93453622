package text_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// A Reproducible Batcher gives a caller the same answer alone and beside others.
func ExampleBatcher() {
	const folder = "../../docs/book/testdata/chat" // it has no weights
	m, err := text.Open(cgotorch.CPU, folder, text.Options{CacheTokens: 2048, RandomWeights: 1})
	cgotorch.Check(err)
	defer m.Close()
	batcher, err := m.NewBatcher(text.BatcherOptions{MaxBatch: 8, Reproducible: true})
	cgotorch.Check(err)
	defer batcher.Close()
	answer := func(question string) (all string) {
		o := text.GenerateOptions{MaxTokens: 12, Temperature: 1, Seed: 7, IgnoreEnd: true}
		for token, err := range batcher.Generate(context.Background(), m.Tokenizer.Encode(question), o) {
			cgotorch.Check(err)
			all += token.Text
		}
		return all
	}

	questions := []string{"What is a stream?", "And an event?", "Does a copy wait?", "Who frees a tensor?"}
	answers := make([]string, len(questions))
	var callers sync.WaitGroup
	for i, question := range questions {
		callers.Add(1)
		go func() {
			defer callers.Done()
			answers[i] = answer(question)
		}()
	}
	callers.Wait()
	stats := batcher.Stats()
	fmt.Println(stats.Answers, "answers of", stats.Tokens, "tokens")
	fmt.Println("the same alone:", answer(questions[0]) == answers[0])
	// Output:
	// 4 answers of 48 tokens
	// the same alone: true
}

// A mixture in less memory than its weights take: some experts of each layer stay in host memory.
func ExamplePlan() {
	const folder, memory = "../../docs/book/testdata/mixture", 900_000
	options := text.Options{CacheTokens: 512, RandomWeights: 1}
	budget, err := text.Plan(folder, memory, options)
	cgotorch.Check(err)
	if budget.Experts > 0 { // not all fit
		options.DeviceMemory = memory
	}
	options.CacheTokens = budget.CacheTokens
	m, err := text.Open(cgotorch.CPU, folder, options)
	cgotorch.Check(err)
	defer m.Close()
	weights, cache := m.Memory()
	fmt.Println(budget.Experts, "experts of each layer have a slot")
	fmt.Println(budget.Conversations(100), "conversations of 100 tokens fit")
	fmt.Println("weights as planned:", weights == budget.Weights, "and all in the bound:", weights+cache <= memory)
	// Output:
	// 9 experts of each layer have a slot
	// 4 conversations of 100 tokens fit
	// weights as planned: true and all in the bound: true
}

// Random weights answer with values that fit, too.
func ExampleModel_SchemaMask() {
	const folder = "../../docs/book/testdata/chat" // it has no weights
	m, err := text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 1})
	cgotorch.Check(err)
	defer m.Close()
	talk := m.NewConversation()
	defer talk.Close()
	schema, err := text.CompileSchema([]byte(`{
		"type": "object",
		"properties": {
			"wind": {"enum": ["north", "east", "south", "west"]},
			"knots": {"type": "integer", "minimum": 0, "maximum": 99}
		},
		"required": ["wind", "knots"]
	}`))
	cgotorch.Check(err)
	mask, err := m.SchemaMask(schema)
	cgotorch.Check(err)
	answer := ""
	for token, err := range talk.Generate(context.Background(), m.Tokenizer.Encode("How is the wind?"), text.GenerateOptions{Mask: mask, Temperature: 1, Seed: 1}) {
		cgotorch.Check(err)
		answer += token.Text
	}
	var weather struct {
		Wind  string
		Knots int
	}
	cgotorch.Check(json.Unmarshal([]byte(answer), &weather))
	fmt.Println(len(weather.Wind) >= 4, weather.Knots >= 0, weather.Knots <= 99)
	_, err = text.CompileSchema([]byte(`{"properties": {"age": {"not": {"const": 3}}}}`))
	fmt.Println(strings.Contains(err.Error(), "/properties/age/not: "), errors.Is(err, cgotorch.ErrInvalidArgument))
	// Output:
	// true true true
	// true true
}

func ExampleSwitch_Generate() {
	const folder = "../../examples/switch/model"
	tokens, err := tokenizer.Open(folder)
	cgotorch.Check(err)
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		m, err := text.LoadSwitch(x, text.SwitchOptions{}, folder)
		cgotorch.Check(err)
		defer nn.Close(m)
		question := tokens.Encode("What is an expert?")
		ids := cgotorch.FromSlice(x, question, 1, int64(len(question)))
		answers, err := m.Generate(context.Background(), x, ids, nil, text.SwitchGenerateOptions{})
		cgotorch.Check(err)
		fmt.Println(tokens.Decode(answers[0]))
		return nil
	}))
	// Output: An expert is a small network that sees only the tokens that are sent to it.
}

func ExampleEncoder_Rank() {
	const folder = "../../tests/parity/encoders/testdata/cross-bert" // a tiny model of random weights
	e, err := text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{})
	cgotorch.Check(err)
	defer e.Close()
	scores, err := e.Rank(context.Background(), "when does the tide turn?", []string{"A boat.", "The tide turns."})
	cgotorch.Check(err)
	fmt.Printf("%.3f", scores)
	// Output: [0.427 0.402]
}
