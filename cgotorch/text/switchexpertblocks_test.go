package text

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The blocks have room for every token, however the tokens are spread over the experts. There are
// never more blocks than tokens.
func TestBlocks(t *testing.T) {
	for tokens := int64(1); tokens < 300; tokens++ {
		for _, experts := range []int64{1, 2, 7, 128} {
			size, count := blocks(tokens, experts)
			// In the worst case, each of `used` experts has one block for a single token, and all
			// other blocks are full.
			var most int64
			for used := int64(1); used <= min(tokens, experts); used++ {
				most = max(most, used+(tokens-used)/size)
			}
			if size < 1 || count < most || count > tokens {
				t.Errorf("%d tokens of %d experts: %d blocks of %d, want from %d to %d", tokens, experts, count, size, most, tokens)
			}
		}
	}
}

// For every limit on the copies of weights, inBlocks gives the results of the function `grouped`.
// inBlocks does not wait for the device.
func TestInBlocks_Limit(t *testing.T) {
	const width, inner = 8, 12
	for _, size := range []struct{ tokens, experts int64 }{{1, 4}, {5, 4}, {60, 4}, {100, 9}} {
		t.Run(fmt.Sprintf("tokens=%d/experts=%d", size.tokens, size.experts), func(t *testing.T) {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				wi, wo := x.Randn(cgotorch.Float32, size.experts, inner, width), x.Randn(cgotorch.Float32, size.experts, width, inner)
				tokens := x.Randn(cgotorch.Float32, size.tokens, width)
				for _, ids := range []*cgotorch.Tensor{
					x.RandInt(cgotorch.Int64, 0, int(size.experts), size.tokens), x.Full(cgotorch.Int64, size.experts-1, size.tokens), x.Zeros(cgotorch.Int64, size.tokens),
					x.Remainder(x.Arange(cgotorch.Int64, 0, size.tokens, nil), x.Full(cgotorch.Int64, size.experts)),
				} {
					want := grouped(x, wi, wo, tokens, ids)
					for _, limit := range []int64{1, 3 * 4 * width * inner, gatheredBytes} {
						got := inBlocks(x.NoWaits(), wi, wo, tokens, ids, limit)
						if apart := x.Item(x.Max(x.Abs(x.Sub(got, want)))); !(apart < 1e-5) {
							t.Errorf("limit %d: off by %v", limit, apart)
						}
					}
				}
			})
		})
	}
}
