// Switch answers questions with a Switch Transformer. The experts lie in page-locked memory of
// the host. The device keeps those in slots that tokens have chosen last, and reads the others.
//
//	go run ./examples/switch  # the little model beside this file, on the CPU
//	go run ./examples/switch -device cuda -slots 2 "What is a slot?"
//	go run ./examples/switch -model switch-base-128 -device cuda -dtype bfloat16 \
//		-slots 64 -captured "A <extra_id_0> walks into a bar."
//
// You can copy this folder and change it. model.go makes the model, and generate.go generates
// text.
//
// -model is a folder from Hugging Face. It has config.json, tokenizer.json, and model.safetensors
// or shards with their index. The text goes to standard output token by token. The costs go to
// standard error. Ctrl-C ends the running answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// config holds the values of the flags.
type config struct {
	folder    string
	prompts   []string
	maxTokens int
	device    cgotorch.Device
	dtype     cgotorch.DType
	slots     int
	captured  bool
	trace     string
}

var dtypes = map[string]cgotorch.DType{"float32": cgotorch.Float32, "bfloat16": cgotorch.BFloat16}

// questions are asked if the command line has no prompt and the model is the little one. make.py
// has further questions that the little model can answer.
var questions = []string{"What is an expert?", "Where do the experts live?", "How is a copy hidden?", "Who are you?"}

func main() {
	c, err := parse()
	if err != nil {
		fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		received := (<-signals).(syscall.Signal)
		signal.Stop(signals) // a second Ctrl-C ends the program at once
		cancel(interrupted(received))
	}()
	err = run(ctx, c)
	var received interrupted
	if errors.As(err, &received) {
		os.Exit(128 + int(received)) // as shells count
	}
	if err != nil {
		fatal(err)
	}
}

// interrupted is the error of an answer that a signal has ended.
type interrupted syscall.Signal

func (s interrupted) Error() string { return "interrupted" }

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "switch:", err)
	os.Exit(1)
}

func parse() (c config, err error) {
	own := ownModel()
	flag.StringVar(&c.folder, "model", own, "folder with config.json, tokenizer.json and the weights")
	flag.Func("prompt", "text to answer; may be given several times, and the arguments are prompts, too", func(p string) error {
		c.prompts = append(c.prompts, p)
		return nil
	})
	flag.IntVar(&c.maxTokens, "max-tokens", 64, "tokens of an answer, at most")
	device := flag.String("device", "cpu", "auto, cpu, cuda or cuda:N")
	dtype := flag.String("dtype", "float32", "of all weights: "+names(dtypes)+"; the files' are converted")
	flag.IntVar(&c.slots, "slots", 4, "of each sparse layer of the decoder, so many experts have room on the device; with as many as a layer has, all experts are there")
	flag.BoolVar(&c.captured, "captured", false, "capture a step as a graph and launch that; on CUDA experts in slots need bfloat16 for it, and compute capability 9.0")
	flag.StringVar(&c.trace, "trace", "", "file for a trace of 60 tokens after the first 4, counted over all answers, which ui.perfetto.dev opens; on the CPU it has the tokens' marks alone")
	flag.Parse()

	c.prompts = append(c.prompts, flag.Args()...)
	if len(c.prompts) == 0 {
		if c.folder != own {
			return c, errors.New("there is nothing to answer: give -prompt, or prompts as arguments")
		}
		c.prompts = questions
	}
	for _, p := range flag.Args() {
		if strings.HasPrefix(p, "-") {
			return c, fmt.Errorf("%q comes behind a prompt: flags come first", p)
		}
	}
	if c.dtype, err = choose("-dtype", *dtype, dtypes); err != nil {
		return c, err
	}
	switch {
	case c.maxTokens < 1:
		return c, fmt.Errorf("-max-tokens %d: at least 1", c.maxTokens)
	case c.slots < 1:
		return c, fmt.Errorf("-slots %d: at least 1", c.slots)
	}
	if c.device, err = cgotorch.ParseDevice(*device); err != nil {
		return c, err
	}
	return c, c.device.Check()
}

func choose[T any](flag, name string, from map[string]T) (T, error) {
	v, ok := from[name]
	if !ok {
		return v, fmt.Errorf("%s %s: use %s", flag, name, names(from))
	}
	return v, nil
}

func names[T any](of map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(of)), ", ")
}

// ownModel returns the path of the little model. It is the folder `model` beside this source
// file. If that folder does not exist, it is the folder `model` beside the executable.
func ownModel() string {
	const name = "model"
	_, source, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(source), name)
	if _, err := os.Stat(path); err != nil {
		if own, err := os.Executable(); err == nil {
			return filepath.Join(filepath.Dir(own), name)
		}
	}
	return path
}

// run answers the prompts one after another, and prints the bill.
func run(ctx context.Context, c config) (err error) {
	say := func(text string) { fmt.Fprintln(os.Stderr, text) }
	tracer, err := trace.NewSteps(c.trace, trace.StepsOptions{From: 4, Count: 60, Log: say})
	if err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	defer tracer.Close()
	m, err := load(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	b, err := newBill(m)
	if err != nil {
		return err
	}
	for _, p := range c.prompts {
		fmt.Println(">", p)
		answer := printer{tokens: m.tokens}
		err = m.generate(ctx, m.tokens.Encode(p), c.maxTokens, tracer, answer.add)
		b.tokens += len(answer.ids)
		fmt.Println()
		if err != nil {
			break
		}
	}
	if err == nil || ctx.Err() != nil {
		err = errors.Join(err, tracer.Close(), b.print(os.Stderr))
	}
	return err
}
