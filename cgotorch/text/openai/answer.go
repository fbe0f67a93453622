package openai

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// sampling has the fields that chats and completions share.
type sampling struct {
	o       text.GenerateOptions
	stop    []string // of content; the Batcher does not look for it
	answers int      // to each prompt
	stream  bool
	usage   bool // a stream ends with the usage
}

// sampling takes the fields that say how tokens are drawn.
func (c *call) sampling() (s sampling) {
	in := c.in
	s.answers = 1
	in.count("n", &s.answers, 1, c.h.o.Choices)
	in.truth("stream", &s.stream)
	if o := in.object("stream_options"); o != nil {
		o.truth("include_usage", &s.usage)
		o.ignore("include_obfuscation", "continuous_usage_stats")
		in.within(o)
		if !s.stream {
			in.refuse("stream_options", "it needs stream: true")
		}
	}
	s.stop = in.texts("stop", 16)
	for _, stop := range s.stop {
		if stop == "" {
			in.refuse("stop", "it has an empty text")
		}
	}
	s.draw(in)
	in.number("presence_penalty", &s.o.PresencePenalty, -2, 2)
	in.number("frequency_penalty", &s.o.FrequencyPenalty, -2, 2)
	in.number("repetition_penalty", &s.o.RepetitionPenalty, 1e-3, 1e3)
	c.bias(&s.o, s.answers)
	in.truth("ignore_eos", &s.o.IgnoreEnd)
	in.count("priority", &s.o.Priority, math.MinInt32, math.MaxInt32)
	s.o.Caller = "address " + host(c.r.RemoteAddr)
	if user := ""; in.text("user", &user) && user != "" {
		s.o.Caller = "user " + user
	}
	in.ignore("metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
	in.neutral("store", "false")
	return s
}

// draw takes temperature, seed and the bounds of what is drawn. A zero of GenerateOptions stands
// for the folder's value. So a zero of the request becomes the smallest number that does the same.
func (s *sampling) draw(in *fields) {
	temperature := 1.0
	if in.number("temperature", &temperature, 0, 2) {
		s.o.Temperature = max(temperature, 1e-4)
		s.o.Greedy = temperature < 1e-4
	}
	if in.number("top_p", &s.o.TopP, 0, 1) {
		s.o.TopP = max(s.o.TopP, 1e-9)
	}
	if in.number("min_p", &s.o.MinP, 0, 1) {
		s.o.MinP = max(s.o.MinP, 1e-30)
	}
	if in.count("top_k", &s.o.TopK, -1, 1024) && s.o.TopK == 0 {
		s.o.TopK = -1
	}
	seed := int64(0)
	if !in.integer("seed", &seed, math.MinInt64, math.MaxInt64) {
		var random [8]byte
		_, _ = rand.Read(random[:]) // it never fails
		for _, b := range random {
			seed = seed<<8 | int64(b)
		}
	}
	s.o.Seed = uint64(seed)
}

// bias takes logit_bias, whose keys are tokens. Each answer has a copy.
func (c *call) bias(o *text.GenerateOptions, answers int) {
	biases := c.in.object("logit_bias")
	if biases == nil {
		return
	}
	if c.more(40 * int64(len(biases.all)) * int64(answers)); c.in.err != nil {
		return
	}
	o.Bias = make(map[int64]float64, len(biases.all))
	for _, name := range slices.Sorted(maps.Keys(biases.all)) {
		id, err := strconv.ParseInt(name, 10, 64)
		if err != nil || id < 0 || id >= int64(c.model.Decoder.Tokenizer.Size()) || strconv.FormatInt(id, 10) != name { // 05 would be 5 once more
			biases.refuse(name, "want the id of a token, 0 to %d", c.model.Decoder.Tokenizer.Size()-1)
		}
		bias := 0.0
		biases.number(name, &bias, -100, 100)
		o.Bias[id] = bias
	}
	c.in.within(biases)
}

// host returns a client's address without its port.
func host(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// response is a whole response, or an event of a stream. C is a choice of it.
type response[C any] struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []C    `json:"choices"`
	Usage   *usage `json:"usage,omitempty"`
}

// usageOf counts the tokens of choices. Each prompt has `answers` of them, one behind another.
func usageOf(choices []*choice, answers int) *usage {
	u := &usage{}
	for i, one := range choices {
		if i%answers == 0 {
			u.Prompt += len(one.prompt)
		}
		u.Completion += one.tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// choice is one answer while it comes.
type choice struct {
	index  int // over all prompts
	prompt []int64
	o      text.GenerateOptions
	parts  *parts
	tokens int
	held   []logProb // of a call that may become content
	reason string    // "" while it goes on
}

// grown is what a choice grows by with one token.
type grown struct {
	*choice
	token text.Token
	in    room // where the token is; inHeader for a mark
	parts []part
	ended bool
}

// run generates answers at the same time. It calls `each` for each token of any answer, one call
// after another. Its own errors are those of Batcher.Generate and of the request's context. The
// first error ends all answers. run returns when its goroutines have ended.
func (c *call) run(choices []*choice, each func(g grown) error) (err error) {
	ctx, stop := context.WithCancel(c.r.Context())
	type event struct {
		of    *choice
		token text.Token
		err   error
	}
	events := make(chan event)
	var group sync.WaitGroup
	defer func() {
		stop()
		group.Wait()
	}()
	left := len(choices)
	ends := make(map[*choice]context.CancelFunc, left)
	for _, one := range choices {
		within, end := context.WithCancel(ctx)
		ends[one] = end
		group.Add(1)
		go func() {
			defer group.Done()
			defer end()
			for token, err := range c.model.Batcher.Generate(within, one.prompt, one.o) {
				select {
				case events <- event{one, token, err}:
				case <-within.Done():
					return
				}
			}
		}()
	}
	for left > 0 {
		var e event
		select {
		case e = <-events:
		case <-c.r.Context().Done():
			return c.over()
		}
		if e.of.reason != "" {
			continue // a stop came before
		}
		if e.err != nil {
			return e.err
		}
		g := e.of.take(e.token)
		if err := each(g); err != nil {
			return err
		}
		if g.ended {
			ends[e.of]()
			left--
		}
	}
	return nil
}

// take adds a token to a choice, and returns what it grows by.
func (o *choice) take(token text.Token) grown {
	o.tokens++
	g := grown{choice: o, token: token}
	if token.Reason != "stop" { // the token of the end has no text
		g.parts = o.parts.add(token.ID)
	}
	if g.in = o.parts.room; o.parts.turned {
		g.in = inHeader
	}
	switch {
	case o.parts.stopped:
		o.reason = "stop"
	case token.Reason != "":
		o.parts.cut = token.Reason == "length"
		g.parts = append(g.parts, o.parts.end()...)
		o.reason = token.Reason
		if o.parts.stopped {
			o.reason = "stop"
		}
	}
	if o.reason == "stop" && o.parts.calls > 0 {
		o.reason = "tool_calls"
	}
	g.ended = o.reason != ""
	return g
}

// newID returns the id of an answer.
func newID(kind string) string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // it never fails
	return kind + hex.EncodeToString(random[:])
}
