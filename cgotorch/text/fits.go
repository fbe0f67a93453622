package text

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// fits fails with [cgotorch.ErrOutOfMemory] if a model needs more memory than there is.
func (c *decoderConfig) fits(device cgotorch.Device, dtype cgotorch.DType, pages int, quantize bool) error {
	memory, err := device.Memory()
	if err != nil {
		return err
	}
	weights, cache := c.weights()*float64(dtype.Size()), float64(c.pageBytes(dtype))*float64(pages)
	if quantize {
		weights -= c.products() * float64(dtype.Size()-1)
		if c.tied {
			weights += float64(c.vocab) * float64(c.width) // the codes of the head
		}
	}
	if free := float64(memory.Free); free > 0 && weights+cache > free {
		const giga = 1e9
		return fmt.Errorf("text: the weights take %.2f GB as %v and the cache takes %.2f GB, and %.2f GB of %v are free: open the model with a smaller Context or a narrower DType: %w",
			weights/giga, dtype, cache/giga, free/giga, device, cgotorch.ErrOutOfMemory)
	}
	return nil
}

// weights returns about how many numbers the weights have, norms and biases left out. It is no
// integer, because a hostile config.json may ask for more than one holds.
func (c *decoderConfig) weights() float64 {
	n := c.products() + float64(c.vocab)*float64(c.width)
	for _, l := range c.layers {
		if l.sparse {
			n += float64(c.experts.count) * (3*float64(c.experts.inner) + 1) * float64(c.width)
		}
	}
	return n
}

// products returns how many of them are those of products that Options.Quantize makes narrow.
func (c *decoderConfig) products() (n float64) {
	width := float64(c.width)
	for _, l := range c.layers {
		n += 2 * float64(c.heads+c.keyHeads) * float64(c.head) * width
		if !l.sparse {
			n += 3 * float64(c.inner) * width
		}
	}
	if !c.tied {
		n += float64(c.vocab) * width
	}
	return n
}
