package imageloader

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/ring"
)

// buffers are the buffers of a loader's batches.
type buffers struct {
	*ring.Ring[arrays]
	layout layout
}

// buffer is the memory of one batch.
type buffer = ring.Buffer[arrays]

// arrays are slices of a buffer.
type arrays struct {
	images []byte
	labels []int64
	flips  []byte
}

// layout says where the images, labels and flips of a buffer lie. All three are aligned.
type layout struct {
	batch  int // images per buffer
	each   int // bytes per image
	labels int // offset of the labels
	flips  int // offset of the flips
	stride int // bytes per buffer
}

const (
	alignBytes   = 64                       // alignment of labels and flips
	maxRingBytes = int64(math.MaxInt64 / 4) // more than any memory, and small enough not to overflow
)

func newLayout(batch, each int) layout {
	l := layout{batch: batch, each: each}
	l.labels = roundUp(batch*each, alignBytes)
	l.flips = roundUp(l.labels+8*batch, alignBytes)
	l.stride = ring.Stride(l.flips + batch)
	return l
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newBuffers allocates `number` buffers. Each buffer is for a batch of up to `batch` images of
// `each` bytes.
func newBuffers(number, batch, each int) (*buffers, error) {
	if float64(number)*float64(batch)*float64(each+16) > float64(maxRingBytes) {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images of %d bytes exceed any memory; lower Options.BatchSize: %w",
			number, batch, each, ErrInvalidOptions)
	}
	l := newLayout(batch, each)
	r, err := ring.New(number, l.stride, l.arrays)
	if err != nil {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images need %d MiB; lower Options.BatchSize or Options.Buffers: %w",
			number, batch, number*l.stride>>20, err)
	}
	return &buffers{r, l}, nil
}

// arrays cuts the memory of a buffer.
func (l layout) arrays(memory []byte) arrays {
	return arrays{
		images: memory[: l.batch*l.each : l.batch*l.each],
		labels: unsafe.Slice((*int64)(unsafe.Pointer(&memory[l.labels])), l.batch),
		flips:  memory[l.flips : l.flips+l.batch : l.flips+l.batch],
	}
}
