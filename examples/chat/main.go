// Chat talks with a language model that lies in a folder, as Hugging Face publishes models. The
// answer streams. Then the program tells how fast it came, and how near that is to the bound that
// the memory sets: each token reads all weights.
//
//	go run ./examples/chat -prompt "Why is the sky blue?" FOLDER  # one answer
//	go run ./examples/chat FOLDER                                 # in turns, from the terminal
//	go run ./examples/chat -train FOLDER                          # makes a small model first
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func main() {
	log.SetFlags(0)
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: chat [flags] FOLDER")
		flag.PrintDefaults()
	}
	prompt := flag.String("prompt", "", "answer this, and end; empty: read a line for each turn")
	system := flag.String("system", "", "message before the first turn that tells the model how to answer")
	temperature := flag.Float64("temperature", 0, "0: what the folder tells, or else the likeliest tokens")
	most := flag.Int("max", 0, "largest number of tokens of an answer; 0: what fits into the model's context")
	device := flag.String("device", "auto", "auto, cpu or cuda:N")
	train := flag.Bool("train", false, "train a small Llama first, and write it into FOLDER")
	texts := flag.String("texts", ".", "folder with Markdown files and Go sources, whose comments are read, to train on")
	limit := flag.Duration("time", 4*time.Minute, "how long to train")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	folder := flag.Arg(0)
	d, err := cgotorch.ParseDevice(*device)
	if err == nil && *train {
		err = trainModel(d, *texts, folder, *limit)
	}
	if err == nil && (*prompt != "" || !*train) {
		err = talk(d, folder, *prompt, *system, text.GenerateOptions{Temperature: *temperature, MaxTokens: *most, Seed: uint64(time.Now().UnixNano())})
	}
	if err != nil {
		log.Fatal(err)
	}
}

// talk answers one prompt, or the lines of the standard input.
func talk(device cgotorch.Device, folder, prompt, system string, o text.GenerateOptions) error {
	m, err := text.Open(device, folder, text.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if m.Tokenizer == nil {
		return fmt.Errorf("%s has no tokenizer.json: a model without tokens for texts cannot talk", folder)
	}
	c := &chat{device: device, model: m, conversation: m.NewConversation(), options: o}
	defer c.conversation.Close()
	if system != "" {
		c.messages = append(c.messages, tokenizer.Message{Role: "system", Content: system})
	}
	if prompt != "" {
		return c.answer(prompt)
	}
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Print("> "); lines.Scan(); fmt.Print("> ") {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			if err := c.answer(line); err != nil {
				return err
			}
		}
	}
	fmt.Println()
	return lines.Err()
}

// chat is what was said so far.
type chat struct {
	device       cgotorch.Device
	model        *text.Model
	conversation *text.Conversation // keeps the keys and values of earlier turns
	messages     []tokenizer.Message
	options      text.GenerateOptions
	bandwidth    float64 // of the device's memory, bytes a second
}

// answer writes the answer to a prompt while it comes. Ctrl-C ends the answer, not the program.
func (c *chat) answer(prompt string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ids, err := c.tokens(prompt)
	if err != nil {
		return err
	}
	c.options.Seed++ // two answers at the same positions draw other numbers
	var answer strings.Builder
	var first, last time.Time
	n, begin := 0, time.Now()
	for token, err := range c.conversation.Generate(ctx, ids, c.options) {
		if errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			return err
		}
		if n, last = n+1, time.Now(); n == 1 {
			first = last
		}
		fmt.Print(token.Text)
		answer.WriteString(token.Text)
	}
	fmt.Println()
	c.messages = append(c.messages, tokenizer.Message{Role: "assistant", Content: answer.String()})
	if n < 2 {
		return nil // there is no rate
	}
	return c.tell(n, len(ids), first.Sub(begin), last.Sub(first))
}

// tell prints how fast the n tokens of an answer came, and how near that is to the memory's bound.
func (c *chat) tell(n, prompt int, first, others time.Duration) (err error) {
	if c.bandwidth == 0 {
		if c.bandwidth, err = bandwidth(c.device); err != nil {
			return err
		}
	}
	rate := float64(n-1) / others.Seconds()
	bytes := float64(c.model.ReadBytes(prompt + n/2))
	fmt.Fprintf(os.Stderr, "%d tokens, the first after %v, the others at %.1f tokens/s: with %.1f MB a token, %.0f %% of the memory's %.1f GB/s\n",
		n, first.Round(100*time.Microsecond), rate, bytes/1e6, 100*bytes*rate/c.bandwidth, c.bandwidth/1e9)
	return nil
}

// tokens returns the tokens of all turns, the last of which is the prompt. If the folder has no
// chat template, they are those of the prompt alone, which the model completes.
func (c *chat) tokens(prompt string) ([]int64, error) {
	t := c.model.Tokenizer
	c.messages = append(c.messages, tokenizer.Message{Role: "user", Content: prompt})
	for {
		turns, err := t.Chat(c.messages, tokenizer.ChatOptions{})
		if errors.Is(err, tokenizer.ErrNoTemplate) {
			return t.Encode(prompt), nil
		}
		if err != nil {
			return nil, err
		}
		ids := t.EncodePart(turns) // the template has written the tokens around the text
		if len(ids) < c.model.Context()*3/4 || !c.forget() {
			return ids, nil
		}
	}
}

// forget leaves out the earliest question and its answer, and reports whether there was one.
func (c *chat) forget() bool {
	at := 0
	if c.messages[0].Role == "system" {
		at = 1
	}
	if len(c.messages) < at+3 {
		return false
	}
	c.messages = append(c.messages[:at], c.messages[at+2:]...)
	return true
}

// bandwidth returns how many bytes a second the device reads, measured on numbers that fit into no
// cache.
func bandwidth(device cgotorch.Device) (rate float64, err error) {
	const numbers = 128 << 20
	stream := cgotorch.DefaultStream(device)
	err = stream.Do(func(x *cgotorch.Exec) error {
		all := x.Ones(cgotorch.Float32, numbers)
		for range 3 {
			x.Item(x.Sum(all)) // waits for the device
			begin := time.Now()
			for range 4 {
				x.Sum(all)
			}
			x.Item(x.Sum(all))
			rate = max(rate, 5*4*numbers/time.Since(begin).Seconds()) // float32 has 4 bytes
		}
		return nil
	})
	return rate, err
}
