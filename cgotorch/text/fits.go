package text

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// expertRoom is the room that experts have on the device.
type expertRoom struct {
	slots  int  // of each layer; 0 if all experts are there
	passes bool // there is room for all experts of the layers that a prompt runs through
}

// fits fails with [cgotorch.ErrOutOfMemory] if a model needs more memory than there is, or than
// `most`, if that is not 0. It returns the room that is left for experts.
func (c *decoderConfig) fits(device cgotorch.Device, most int64, dtype cgotorch.DType, pages int, quantize bool) (room expertRoom, err error) {
	if most < 0 {
		return room, fmt.Errorf("text: DeviceMemory is %d, want 0 or more bytes: %w", most, cgotorch.ErrInvalidArgument)
	}
	memory, err := device.Memory()
	if err != nil {
		return room, err
	}
	const giga = 1e9
	each, cache := c.eachExpert()*float64(dtype.Size()), float64(c.pageBytes(dtype))*float64(pages) // each: one expert of each layer
	weights, count := c.weights()*float64(dtype.Size()), float64(c.experts.count)
	if quantize {
		weights -= c.products() * float64(dtype.Size()-1)
		if c.tied {
			weights += float64(c.vocab) * float64(c.width) // the codes of the head
		}
	}
	if budget := float64(most); budget > 0 && weights+cache > budget {
		dense := weights - count*each
		if least := dense + cache + float64(c.experts.top)*each; each == 0 || least > budget {
			return room, fmt.Errorf("text: DeviceMemory is %.2f GB; the weights besides experts take %.2f GB, the cache %.2f GB, and slots for the experts of one token %.2f GB: give %.2f GB or more, or a smaller Context: %w",
				budget/giga, dense/giga, cache/giga, float64(c.experts.top)*each/giga, least/giga, cgotorch.ErrOutOfMemory)
		}
		left, passing := budget-dense-cache, 2*count*each/float64(c.sparseLayers())
		room.passes = passing <= left/3 && left-passing >= float64(c.experts.top)*each
		if !room.passes {
			passing = 0
		}
		room.slots = int((left - passing) / each)
		weights = dense + passing + float64(room.slots)*each
	}
	if free := float64(memory.Free); free > 0 && weights+cache > free {
		hint := ""
		if each > 0 {
			hint = ", or with less DeviceMemory, which leaves experts in host memory"
		}
		return room, fmt.Errorf("text: the weights take %.2f GB as %v and the cache takes %.2f GB, and %.2f GB of %v are free: open the model with a smaller Context or a narrower DType%s: %w",
			weights/giga, dtype, cache/giga, free/giga, device, hint, cgotorch.ErrOutOfMemory)
	}
	return room, nil
}

// eachExpert returns how many numbers the matrices of one expert of each layer have.
func (c *decoderConfig) eachExpert() float64 {
	return float64(c.sparseLayers()) * 3 * float64(c.experts.inner) * float64(c.width)
}

// sparseLayers returns how many layers have experts.
func (c *decoderConfig) sparseLayers() (n int) {
	for _, l := range c.layers {
		if l.sparse {
			n++
		}
	}
	return n
}

// table returns the options of a table of all layers' experts.
func (c *decoderConfig) table(dtype cgotorch.DType, room expertRoom) weights.TableOptions {
	inner, width := int64(c.experts.inner), int64(c.width)
	return weights.TableOptions{
		Layers: c.sparseLayers(), Experts: c.experts.count, Matrices: [][2]int64{{2 * inner, width}, {width, inner}}, DType: dtype, Slots: room.slots, Passes: room.passes,
	}
}

// weights returns about how many numbers the weights have, norms and biases left out. It is no
// integer, because a hostile config.json may ask for more than one holds.
func (c *decoderConfig) weights() float64 {
	routers := float64(c.sparseLayers()) * float64(c.experts.count) * float64(c.width)
	return c.products() + float64(c.vocab)*float64(c.width) + float64(c.experts.count)*c.eachExpert() + routers
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
