package text_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The embedding of the token for padding gets no gradient, as in transformers.
func TestModel_Padding(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, strings.Replace(configs["llama"], "{", `{"pad_token_id": 3, `, 1), text.Options{Context: 64})
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
		x.Backward(x.Sum(m.Forward(x, cgotorch.FromSlice(x, []int64{1, 3, 2, 3}, 1, 4))))
		embedding := m.Weights[0].Tensor
		for token, want := range map[int]bool{1: true, 2: true, 3: false} {
			row := cgotorch.ToSlice[float32](x, x.Select(embedding.Grad(), 0, token))
			if got := slices.ContainsFunc(row, func(v float32) bool { return v != 0 }); got != want {
				t.Errorf("token %d has a gradient: %v, want %v", token, got, want)
			}
		}
		return nil
	}))
}
