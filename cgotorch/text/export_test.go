package text

import "github.com/streamtorch/streamtorch/cgotorch"

// Load copies the tensors of files into m, as LoadSwitch does with a new model.
func (m *Switch) Load(x *cgotorch.Exec, paths ...string) error { return m.load(x, paths...) }

// StepUnderNoWaits runs the step after the conversation's tokens, which must be in the cache, and
// fails if the step would wait for the device.
func (c *Conversation) StepUnderNoWaits(o GenerateOptions) error {
	a, err := c.newAnswer(c.Tokens(), o)
	if err != nil {
		return err
	}
	return c.do(func(x *cgotorch.Exec, l *lane) error {
		if err := c.grow(x, l, len(c.tokens), len(c.tokens)+1); err != nil {
			return err
		}
		l.load(x, c.tables)
		a.load(x, l)
		x = x.NoWaits()
		l.layers(x, a.f, c.live(len(c.tokens)+1))
		if a.f.mask {
			l.sampleMasked(x, a.f)
		}
		return x.ReadAsync(l.sampler.result).Close()
	})
}
