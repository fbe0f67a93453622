package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// model is a Switch Transformer whose experts are copied to the device when they are chosen.
type model struct {
	device cgotorch.Device
	stream *cgotorch.Stream
	tokens *tokenizer.Tokenizer
	net    *text.Switch // the transformer without its experts

	store   *weights.Store              // all experts, in memory of the host
	units   *weights.Cache[*text.Dense] // the slots on the device, and the experts in them
	encoder *weights.Experts[*text.Dense]
	decoder *weights.Experts[*text.Dense]

	cache  *text.Cache  // the state of the sequence that is being decoded
	pieces *text.Pieces // the decoder's step, cut at its sparse layers
}

// load makes the model from the files in c.folder. The caller closes the model.
func load(c config) (m *model, err error) {
	m = &model{device: c.device, stream: cgotorch.DefaultStream(c.device)}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if err := m.device.ResetPeakMemory(); err != nil {
		return m, err
	}
	if m.tokens, err = tokenizer.Open(filepath.Join(c.folder, "tokenizer.json")); err != nil {
		return m, err
	}
	err = m.stream.Do(func(x *cgotorch.Exec) (err error) {
		m.net, err = text.LoadSwitch(x, text.SwitchOptions{DType: c.dtype, NoExperts: true}, c.folder)
		return err
	})
	if err != nil {
		return m, err
	}
	if words, rows := m.tokens.Size(), m.net.Config.VocabSize; words > rows {
		return m, fmt.Errorf("%s: tokenizer.json has %d tokens, and the model of config.json knows %d", c.folder, words, rows)
	}
	experts := weights.StoreOptions{Units: regexp.MustCompile(`^.*\.expert_\d+`), DType: c.dtype}
	if m.store, err = weights.OpenStore([]string{c.folder}, experts); err != nil {
		return m, err
	}
	if err := m.attachExperts(c); err != nil {
		return m, err
	}
	return m, m.cutDecoder(c)
}

// attachExperts makes the slots for experts on the device. The encoder and the decoder share the
// slots.
func (m *model) attachExperts(c config) (err error) {
	encoder, decoder := m.net.Config.ExpertNames(false), m.net.Config.ExpertNames(true)
	o := weights.CacheOptions{Policy: c.policy, Slots: c.slots}
	if c.policy == weights.Resident {
		o.Slots = 0 // Resident has one slot for each expert
	} else if c.pinned > 0 {
		if len(decoder) == 0 || c.pinned > len(decoder[0]) {
			return fmt.Errorf("-pinned %d: a sparse layer has %d experts", c.pinned, m.net.Config.NumExperts)
		}
		o.Pinned = decoder[0][:c.pinned]
	}
	build := func(x *cgotorch.Exec, _ string) (*text.Dense, error) {
		return text.NewExpert(x, m.net.Config, c.dtype), nil
	}
	if m.units, err = weights.NewCache(m.store, m.device, build, o); err != nil {
		return err
	}
	if err := m.units.Check(); err != nil {
		return fmt.Errorf("%s: the experts do not fit config.json: %w", c.folder, err)
	}
	if m.encoder, err = weights.NewExperts(m.units, encoder, weights.ExpertsOptions{}); err != nil {
		return err
	}
	if m.decoder, err = weights.NewExperts(m.units, decoder, weights.ExpertsOptions{}); err != nil {
		return err
	}
	m.net.Encoder.Experts, m.net.Decoder.Experts = m.encoder, m.decoder
	return nil
}

// cutDecoder makes the decoder's cache, with room for the longest prompt. It then cuts the
// decoder's step at the sparse layers.
func (m *model) cutDecoder(c config) error {
	longest := 0
	for _, p := range c.prompts {
		longest = max(longest, len(m.tokens.Encode(p)))
	}
	if longest == 0 {
		return errors.New("an empty prompt has no token, not even one for its end, with this tokenizer.json")
	}
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		m.cache = m.net.NewCache(x, text.CacheOptions{Capacity: c.maxTokens, Source: longest})
		m.pieces = m.net.NewPieces(x, m.cache, c.gating)
		return nil
	})
	if err == nil && c.captured {
		err = m.pieces.Capture(m.stream)
	}
	return err
}

// close frees everything. An object that uses a second object is freed before the second object.
func (m *model) close() error {
	err := errors.Join(m.encoder.Close(), m.decoder.Close(), m.units.Close(), m.store.Close(), m.pieces.Close(), m.cache.Close())
	if m.net != nil {
		nn.Close(m.net)
	}
	return errors.Join(err, m.stream.Close())
}
