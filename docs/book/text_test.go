package book

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func Example_chat() {
	ctx, device, folder := context.Background(), cgotorch.CPU, "testdata/chat"
	// cut: chat
	m, err := text.Open(device, folder, text.Options{RandomWeights: 1}) // without RandomWeights: the folder's weights
	cgotorch.Check(err)
	defer m.Close()
	talk := m.NewConversation()
	defer talk.Close()

	var messages []tokenizer.Message
	for _, question := range []string{"What is a stream?", "And an event?"} {
		messages = append(messages, tokenizer.Message{Role: "user", Content: question})
		var answer string
		var last text.Token
		for token, err := range talk.Chat(ctx, messages, tokenizer.ChatOptions{}, text.GenerateOptions{MaxTokens: 20}) {
			cgotorch.Check(err)
			answer += token.Text // a program prints it as it comes
			last = token
		}
		messages = append(messages, tokenizer.Message{Role: "assistant", Content: answer})
		fmt.Println("the answer ended for", last.Reason)
	}
	// end: chat

	// cut: draw
	options := text.GenerateOptions{
		Temperature: 0.8, TopP: 0.95, RepetitionPenalty: 1.1, Seed: 7,
		MaxTokens: 5, Stop: []string{"\n\n"},
		Mask: func(answer []int64, allowed []bool) { // digits alone
			for id := '0'; id <= '9'; id++ {
				allowed[m.Tokenizer.EncodePart(string(id))[0]] = true
			}
		},
	}
	var number string
	for token, err := range talk.Generate(ctx, m.Tokenizer.Encode("The year is "), options) {
		cgotorch.Check(err)
		number += token.Text
	}
	fmt.Println(len(number), "digits")
	// end: draw

	// Output:
	// the answer ended for length
	// the answer ended for length
	// 5 digits
}

func Example_batcher() {
	ctx, device, folder := context.Background(), cgotorch.CPU, "testdata/chat"
	// cut: batcher
	m, err := text.Open(device, folder, text.Options{CacheTokens: 4096, RandomWeights: 1}) // of all callers together
	cgotorch.Check(err)
	defer m.Close()
	batcher, err := m.NewBatcher(text.BatcherOptions{})
	cgotorch.Check(err)
	defer batcher.Close() // before the model

	system := tokenizer.Message{Role: "system", Content: "You answer questions about streams, events and graphs in one short sentence."}
	questions := []string{"What is a stream?", "And an event?", "Does a copy wait?", "Who frees a tensor?"}
	answers := make([]string, len(questions))
	var all sync.WaitGroup
	for i, question := range questions {
		all.Add(1)
		go func() { // a caller
			defer all.Done()
			messages := []tokenizer.Message{system, {Role: "user", Content: question}}
			for token, err := range batcher.Chat(ctx, messages, tokenizer.ChatOptions{}, text.GenerateOptions{MaxTokens: 20}) {
				cgotorch.Check(err)
				answers[i] += token.Text
			}
		}()
	}
	all.Wait()
	stats := batcher.Stats()
	fmt.Println(stats.Answers, "answers,", stats.Shared, "tokens of prompts were there,", stats.Prompts, "were computed")
	// end: batcher

	// Output:
	// 4 answers, 240 tokens of prompts were there, 186 were computed
}

func Example_batcherHandler() {
	m, err := text.Open(cgotorch.CPU, "testdata/chat", text.Options{RandomWeights: 1})
	cgotorch.Check(err)
	defer m.Close()
	batcher, err := m.NewBatcher(text.BatcherOptions{})
	cgotorch.Check(err)
	defer batcher.Close()
	// cut: handler
	handler := func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		messages := []tokenizer.Message{{Role: "user", Content: r.FormValue("question")}}
		options := text.GenerateOptions{MaxTokens: 20, Caller: user}
		for token, err := range batcher.Chat(r.Context(), messages, tokenizer.ChatOptions{}, options) {
			switch {
			case errors.Is(err, serve.ErrQueueFull):
				http.Error(w, "too many requests wait", http.StatusServiceUnavailable)
				return
			case err != nil: // also if the caller has left
				return
			}
			io.WriteString(w, token.Text)
			http.NewResponseController(w).Flush()
		}
	}
	// end: handler
	server := httptest.NewServer(http.HandlerFunc(handler))
	defer server.Close()
	response, err := http.PostForm(server.URL, url.Values{"question": {"What is a stream?"}})
	cgotorch.Check(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	cgotorch.Check(err)
	fmt.Println(response.Status, len(body) > 0)

	// Output:
	// 200 OK true
}

func Example_plan() {
	// cut: plan
	options := text.Options{Context: 512, RandomWeights: 1}
	budget, err := text.Plan("testdata/chat", 2<<20, options) // of a GPU: Memory().Free, less what passes need
	cgotorch.Check(err)
	fmt.Println(budget.Weights, "bytes of weights, and", budget.TokenBytes, "for each token of a conversation")
	fmt.Println(budget.Conversations(100), "conversations of 100 tokens, or", budget.Conversations(500), "of 500")
	options.CacheTokens = budget.CacheTokens // for Open
	// end: plan

	// Output:
	// 362496 bytes of weights, and 512 for each token of a conversation
	// 30 conversations of 100 tokens, or 6 of 500
}

func Example_trainText() {
	folder, err := os.MkdirTemp("", "model")
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	// cut: train
	m, err := text.Open(cgotorch.CPU, "testdata/chat", text.Options{RandomWeights: 1})
	cgotorch.Check(err)
	defer m.Close()
	opt, err := optim.NewAdamW(optim.AdamOptions{LR: 3e-3}, optim.Group{Params: nn.Parameters(m)})
	cgotorch.Check(err)
	defer opt.Close()
	ids := m.Tokenizer.Encode("A stream is an in-order queue of work on one device.")
	n := int64(len(ids)) - 1
	var loss float64
	for range 60 {
		cgotorch.Check(cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
			logits := m.Forward(x, cgotorch.FromSlice(x, ids[:n], 1, n)) // [1, n, vocabulary]
			next := x.CrossEntropy(x.View(logits, n, -1), cgotorch.FromSlice(x, ids[1:], n))
			opt.ZeroGrad()
			x.Backward(next)
			opt.Step(x)
			loss = x.Item(next)
			return nil
		}))
	}
	fmt.Println("it knows the sentence:", loss < 0.1)
	cgotorch.Check(cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) }))
	// end: train

	// Output:
	// it knows the sentence: true
}

func Example_textExperts() {
	// cut: experts
	m, err := text.Open(cgotorch.CPU, "testdata/mixture", text.Options{DeviceMemory: 900_000, RandomWeights: 1})
	cgotorch.Check(err)
	defer m.Close()
	stats, err := m.ExpertStats()
	cgotorch.Check(err)
	fmt.Printf("%d kB of experts in host memory, %d kB for them on the device\n", stats.HostBytes/1000, stats.DeviceBytes/1000)
	// end: experts

	// Output:
	// 786 kB of experts in host memory, 540 kB for them on the device
}
