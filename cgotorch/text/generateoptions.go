package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// GenerateOptions say how [Conversation.Generate] picks tokens, and when it ends. The zero value
// does what the folder's generation_config.json tells, and takes the likeliest token if the file
// tells nothing. So do options that drop no token.
type GenerateOptions struct {
	MaxTokens int  // largest number of tokens of the answer; 0 means what fits into Options.Context
	Greedy    bool // take the likeliest token, whatever the folder tells

	Temperature float64 // divides the logits before a token is drawn; 0 means the folder's, or 1
	TopK        int     // draw among so many of the likeliest, up to 1024; 0 means the folder's, or 50; -1 all
	TopP        float64 // draw among the likeliest tokens whose probabilities sum to this; 0 means the folder's, or 1
	MinP        float64 // drop tokens less likely than this share of the likeliest one; 0 means the folder's, or none

	// RepetitionPenalty divides positive logits, and multiplies negative ones, of tokens that the
	// conversation has. 0 means the folder's, or 1.
	RepetitionPenalty float64
	PresencePenalty   float64 // is subtracted from logits of tokens that the answer has
	FrequencyPenalty  float64 // is subtracted as often as the answer has the token

	Bias map[int64]float64 // is added to the logits of these tokens; -1e4 to 1e4
	// Mask is called before each token, with the answer so far. It sets allowed[id] for each token
	// that may come next; all are false at first. It runs while the device computes the logits.
	Mask func(answer []int64, allowed []bool)

	Seed      uint64   // of the draws; a draw depends on the seed and the token's position alone
	Stop      []string // the answer ends before the first of these texts
	IgnoreEnd bool     // go on behind the model's token for the end
	Ranked    int      // how many of the likeliest tokens each Token tells, up to 20

	// Caller and Priority say which request of a [Batcher] has its turn first. The highest Priority
	// goes first. Among equal ones goes the request whose Caller has the fewest answers under way,
	// and then the oldest. A Conversation does not use them.
	Caller   string
	Priority int
}

// Token is a token of an answer.
type Token struct {
	ID      int64
	Text    string  // what the answer's text grows by: whole characters, perhaps none
	LogProb float64 // natural logarithm of the model's own probability, before temperature, penalties and bounds
	Ranked  []Token // the likeliest tokens by ID and LogProb, the likeliest first
	// Reason is "" while the answer goes on. The last token has "stop" if the model ended the
	// answer, or if a text of Stop came. It has "length" if MaxTokens or Options.Context did not
	// allow more, or if a [Batcher] has no cache for more.
	Reason string
}

// generationConfig has the fields of generation_config.json that change an answer.
type generationConfig struct {
	DoSample    bool            `json:"do_sample"`
	Temperature *float64        `json:"temperature"`
	TopK        *int            `json:"top_k"` // 0 means all tokens
	TopP        *float64        `json:"top_p"`
	MinP        *float64        `json:"min_p"`
	Repetition  *float64        `json:"repetition_penalty"`
	EOS         json.RawMessage `json:"eos_token_id"`
}

// readGenerationConfig reads the generation_config.json of a folder, if there is one, and the
// tokens that end an answer.
func readGenerationConfig(folder string, eos []int64) (g generationConfig, ends []int64, err error) {
	path := filepath.Join(folder, "generation_config.json")
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return g, eos, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &g)
	}
	if err == nil {
		err = refuseForeign(data)
	}
	if err == nil {
		ends, err = tokenIDs(g.EOS)
	}
	if err == nil {
		_, err = GenerateOptions{}.filled(g)
	}
	if err != nil && !errors.Is(err, cgotorch.ErrInvalidArgument) {
		err = fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument)
	}
	if err != nil {
		return g, nil, fmt.Errorf("text: %s: %w", path, err)
	}
	if len(ends) == 0 {
		ends = eos
	}
	return g, ends, nil
}

// refuseForeign fails if a generation_config.json has a field that would change the answers in
// transformers, and that nothing here does.
func refuseForeign(data []byte) error {
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	for name, neutral := range map[string]any{
		"num_beams": 1.0, "no_repeat_ngram_size": 0.0, "encoder_no_repeat_ngram_size": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
		"guidance_scale": 1.0, "min_length": 0.0, "min_new_tokens": 0.0, "suppress_tokens": nil, "begin_suppress_tokens": nil, "bad_words_ids": nil,
		"forced_bos_token_id": nil, "forced_eos_token_id": nil, "sequence_bias": nil, "watermarking_config": nil, "penalty_alpha": 0.0, "dola_layers": nil,
		"top_h": nil, "encoder_repetition_penalty": 1.0, "exponential_decay_length_penalty": nil, "stop_strings": nil, "token_healing": false,
	} {
		value := fields[name]
		if list, ok := value.([]any); ok && len(list) == 0 {
			value = nil
		}
		if value != nil && value != neutral {
			return refused("%s is %v, which is not done here: take the field out if the answers may do without", name, value)
		}
	}
	return nil
}

// mostTopK is the largest TopK. Up to leastMinP no token is dropped.
const (
	mostTopK  = 1024
	leastMinP = 1e-30
)

// filled returns the options with the folder's values in place of zeros, and checks the numbers.
func (o GenerateOptions) filled(g generationConfig) (GenerateOptions, error) {
	if drops := o.TopK > 0 || 0 < o.TopP && o.TopP < 1 || o.MinP > leastMinP; o.Temperature == 0 && !drops && !g.DoSample {
		o.Greedy = true
	}
	if o.Greedy {
		g.Temperature, g.TopP = nil, nil // nothing is drawn, and files then have zeros
	}
	fill := func(value, folder *float64, otherwise float64) {
		if *value == 0 {
			*value = or(folder, otherwise)
		}
	}
	fill(&o.Temperature, g.Temperature, 1)
	fill(&o.TopP, g.TopP, 1)
	fill(&o.MinP, g.MinP, 0)
	fill(&o.RepetitionPenalty, g.Repetition, 1)
	if o.TopK == 0 {
		o.TopK = or(g.TopK, 50) // of transformers
	}
	if o.TopK == -1 {
		o.TopK = 0
	}
	number := func(name string, value, from, to float64) error {
		if !(value >= from && value <= to) || math.IsInf(value, 0) {
			return refused("%s is %v, want a number from %v to %v", name, value, from, to)
		}
		return nil
	}
	for _, err := range []error{
		number("MaxTokens", float64(o.MaxTokens), 0, 1<<30), number("Temperature", o.Temperature, 1e-4, 1e4), number("TopK", float64(o.TopK), 0, mostTopK),
		number("TopP", o.TopP, 1e-9, 1), number("MinP", o.MinP, 0, 1), number("RepetitionPenalty", o.RepetitionPenalty, 1e-3, 1e3),
		number("PresencePenalty", o.PresencePenalty, -1e3, 1e3), number("FrequencyPenalty", o.FrequencyPenalty, -1e3, 1e3), number("Ranked", float64(o.Ranked), 0, mostRanked),
	} {
		if err != nil {
			return o, err
		}
	}
	for _, bias := range o.Bias {
		if err := number("a Bias", bias, -1e4, 1e4); err != nil { // an infinite one would hide the others, and what Mask forbids
			return o, err
		}
	}
	for _, stop := range o.Stop {
		if stop == "" {
			return o, refused("Stop has an empty text")
		}
	}
	return o, nil
}

// fit fails if a model cannot do what the options say.
func (o *GenerateOptions) fit(m *Model) error {
	for id := range o.Bias {
		if id < 0 || id >= int64(m.d.c.vocab) {
			return refused("Bias has token %d, and the model has tokens 0 to %d", id, m.d.c.vocab-1)
		}
	}
	if len(o.Stop) > 0 && m.Tokenizer == nil {
		return refused("Stop needs a tokenizer, and %s has neither tokenizer.json nor tekken.json", m.folder)
	}
	return nil
}

// features returns what the options need of a step.
func (o *GenerateOptions) features(vocab int) features {
	f := features{
		draw: !o.Greedy, bias: len(o.Bias) > 0, mask: o.Mask != nil, ranked: o.Ranked > 0,
		penalties: o.RepetitionPenalty != 1 || o.PresencePenalty != 0 || o.FrequencyPenalty != 0,
	}
	if f.draw {
		f.filter = o.TopP < 1 || o.MinP > 0
		f.top = o.TopK > 0 && o.TopK < vocab
	}
	return f
}

// load writes the parameters of an answer.
func (s *sampler) load(x *cgotorch.Exec, o *GenerateOptions, f features, prompt, made []int64) {
	if f.draw {
		s.seedWith(x, o.Seed)
	}
	values := make([]float32, numbers)
	values[temperature], values[topP], values[minP], values[topK] = float32(o.Temperature), float32(o.TopP), float32(o.MinP), float32(o.TopK)
	switch {
	case o.Greedy:
		values[topK] = 1 // beside rows that are drawn
	case !f.top:
		values[topK] = 0 // also one that all tokens are among
	}
	if o.TopP >= 1 {
		values[topP] = 2 // a running sum may exceed 1 a little
	}
	values[repetition], values[presence], values[frequency] = float32(o.RepetitionPenalty), float32(o.PresencePenalty), float32(o.FrequencyPenalty)
	write(x, s.numbers, values)
	vocab := s.seen.Shape()[1]
	if f.penalties {
		seen, own := make([]float32, vocab), make([]float32, vocab)
		for _, id := range prompt {
			seen[id]++
		}
		for _, id := range made {
			seen[id]++
			own[id]++
		}
		write(x, s.seen, seen)
		write(x, s.made, own)
	}
	if f.bias {
		bias := make([]float32, vocab)
		for id, b := range o.Bias {
			bias[id] = float32(b)
		}
		write(x, s.bias, bias)
	}
}
