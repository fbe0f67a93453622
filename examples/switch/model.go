package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// model is a Switch Transformer whose experts lie in memory of the host. The device keeps some of
// them in slots.
type model struct {
	device cgotorch.Device
	stream *cgotorch.Stream
	tokens *tokenizer.Tokenizer
	net    *text.Switch
	cache  *text.Cache // the state of the sequence that is being decoded

	// With -captured, graph is a step that leaves its logits in `logits`.
	graph  *cgotorch.Graph
	logits *cgotorch.Tensor
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
		m.net, err = text.LoadSwitch(x, text.SwitchOptions{DType: c.dtype, Slots: c.slots}, c.folder)
		return err
	})
	if err != nil {
		return m, err
	}
	if words, rows := m.tokens.Size(), m.net.Config.VocabSize; words > rows {
		return m, fmt.Errorf("%s: tokenizer.json has %d tokens, and the model of config.json knows %d", c.folder, words, rows)
	}
	return m, m.prepare(c)
}

// prepare makes the decoder's cache, with room for the longest prompt. With -captured it then
// captures a step.
func (m *model) prepare(c config) error {
	longest := 0
	for _, p := range c.prompts {
		longest = max(longest, len(m.tokens.Encode(p)))
	}
	if longest == 0 {
		return errors.New("an empty prompt has no token, not even one for its end, with this tokenizer.json")
	}
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		m.cache = m.net.NewCache(x, text.CacheOptions{Capacity: c.maxTokens, Source: longest})
		m.logits = x.Keep(x.Zeros(c.dtype, 1, int64(m.net.Config.VocabSize)))
		return nil
	})
	if err == nil && c.captured {
		m.graph, err = m.stream.Capture(func(x *cgotorch.Exec) error {
			x.CopyInPlace(m.logits, m.net.Step(x, m.cache))
			return nil
		}, 1)
	}
	return err
}

// step returns the logits of the next token.
func (m *model) step(x *cgotorch.Exec) *cgotorch.Tensor {
	if m.graph == nil {
		return m.net.Step(x, m.cache)
	}
	x.Launch(m.graph)
	return m.logits
}

// close waits for the device and frees everything. An object that uses a second object is freed
// before the second object.
func (m *model) close() error {
	return errors.Join(m.stream.Synchronize(), m.graph.Close(), m.logits.Close(), m.cache.Close(), m.net.Close(), m.stream.Close())
}
