package data

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/internal/ring"
)

// buffers are the buffers of a loader's batches. See Note [Life of a buffer], in internal/ring.
type buffers = ring.Ring[struct{}]

// buffer is the memory of one batch.
type buffer = ring.Buffer[struct{}]

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newBuffers allocates `number` buffers of `bytes` bytes.
func newBuffers(number, bytes int) (*buffers, error) {
	if bytes > math.MaxInt/8/number {
		return nil, fmt.Errorf("data: %d buffers of %d bytes exceed any memory; lower Options.BatchSize: %w", number, bytes, ErrInvalidOptions)
	}
	r, err := ring.New(number, bytes, func([]byte) struct{} { return struct{}{} })
	if err != nil {
		return nil, fmt.Errorf("data: %d buffers need %d MiB; lower Options.BatchSize, Buffers or Pad.Length: %w", number, number*ring.Stride(bytes)>>20, err)
	}
	return r, nil
}
