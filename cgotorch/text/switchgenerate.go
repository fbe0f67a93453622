package text

import (
	"context"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// SwitchGenerateOptions are the options of [Switch.Generate]. The zero value decodes at most 128
// tokens with the model's own step.
type SwitchGenerateOptions struct {
	MaxNewTokens int // largest number of tokens of an answer, with the token that ends the answer; 0 means 128
	// Cache is the [Cache] to use. It must have been made for as many sequences as `ids` has, and
	// for at least MaxNewTokens tokens. Its Source must be at least the length of a row of `ids`.
	// If Cache is nil, Generate makes one.
	Cache *Cache

	// Step runs one step of the decoder, which reads the cache's Tokens. It returns the logits
	// [batch, vocab_size] of the tokens after these Tokens. nil means [Switch.Step]. A function of
	// the program can launch a captured step.
	Step func(x *cgotorch.Exec, c *Cache) *cgotorch.Tensor
}

// Generate returns the model's answers to `ids`, Int64 [batch, n]. It always takes the likeliest
// token as the next token. `mask` [batch, n] is 0 at padding. A nil `mask` means that there is no
// padding. Each answer ends with the first token that is in the config's eos_token_id, or after
// MaxNewTokens. An answer does not contain the decoder_start_token_id.
//
// Generate waits for the device. It reads each token while the device computes the next token.
// When all sequences have ended, Generate has enqueued the computation of one token more than
// needed.
//
// Generate fails with the cause of ctx when ctx ends. It fails with [cgotorch.ErrInvalidArgument]
// if o.Cache is too small, or was made for a different number of sequences than `ids` has.
func (m *Switch) Generate(ctx context.Context, x *cgotorch.Exec, ids, mask *cgotorch.Tensor, o SwitchGenerateOptions) ([][]int64, error) {
	const where = "Switch.Generate"
	x = plain(x)
	wantIDs(x, where, ids, mask)
	shape := ids.Shape()
	if o.MaxNewTokens == 0 {
		o.MaxNewTokens = 128
	}
	if o.MaxNewTokens < 1 {
		refuse(x, where, "MaxNewTokens is %d, want at least 1, or 0 for the default", o.MaxNewTokens)
	}
	if o.Step == nil {
		o.Step = m.Step
	}
	c := o.Cache
	if c == nil {
		c = m.NewCache(x, CacheOptions{Batch: int(shape[0]), Capacity: o.MaxNewTokens, Source: int(shape[1])})
		defer c.Close()
	}
	if c.o.Capacity < o.MaxNewTokens {
		refuse(x, where, "the cache was made for %d tokens, and MaxNewTokens is %d", c.o.Capacity, o.MaxNewTokens)
	}
	encoded := m.Encode(x, ids, mask)
	m.Decoder.Start(x, c, encoded, mask)
	encoded.Close()

	answers := &answers{rows: make([][]int64, shape[0]), ended: make([]bool, shape[0]), eos: m.Config.EOSTokenID}
	var late *cgotorch.HostRead
	defer func() { late.Close() }()
	for range o.MaxNewTokens {
		x.Tidy(func() *cgotorch.Tensor {
			c.Next(x, o.Step(x, c))
			return nil
		})
		read := late
		late = x.ReadAsync(c.Tokens)
		if read != nil {
			if err := answers.add(ctx, read); err != nil {
				return nil, err
			}
			if answers.complete() {
				return answers.rows, nil
			}
		}
	}
	if err := answers.add(ctx, late); err != nil {
		return nil, err
	}
	return answers.rows, nil
}

// answers holds the tokens of each sequence so far.
type answers struct {
	rows  [][]int64
	ended []bool
	eos   []int
}

// add waits until the argument `read` has the next token of each sequence, and appends the tokens.
// It closes `read`.
func (a *answers) add(ctx context.Context, read *cgotorch.HostRead) error {
	defer read.Close()
	select {
	case <-read.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	tokens, err := cgotorch.Elements[int64](read)
	if err != nil {
		return err
	}
	for i, token := range tokens {
		if !a.ended[i] {
			a.rows[i] = append(a.rows[i], token)
			a.ended[i] = slices.Contains(a.eos, int(token))
		}
	}
	return nil
}

func (a *answers) complete() bool { return !slices.Contains(a.ended, false) }
