package text_test

import (
	"context"
	"errors"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A step does not overwrite a result that is still copied to the host, also if nobody reads it.
func TestConversation_ResultsTakeTurns(t *testing.T) {
	torchtest.CheckStreams(t)
	torchtest.CheckLeaks(t)
	m := must.Get(text.Open(torchtest.Device(), savedModel(t, quantizedLlama+"}"), text.Options{DType: cgotorch.Float32}))(t)
	defer m.Close()
	c := m.NewConversation()
	defer c.Close()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		o := text.GenerateOptions{MaxTokens: 4, IgnoreEnd: true, Mask: func(_ []int64, allowed []bool) {
			cancel() // the answer ends when its first token is on its way
			for i := range allowed {
				allowed[i] = true
			}
		}}
		for _, err := range c.Generate(ctx, []int64{1, 2, 3}, o) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	}
	tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 6, IgnoreEnd: true})
}
