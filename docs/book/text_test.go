package book

import (
	"context"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
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
	// 786 kB of experts in host memory, 442 kB for them on the device
}
