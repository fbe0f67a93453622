package text

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// expertRoom is the room that experts have on the device.
type expertRoom struct {
	slots  int  // of each layer; 0 if all experts are there
	passes bool // there is room for all experts of the layers that a prompt runs through
	wide   bool // there is room for the numbers of a layer's experts of 4 bits, for prompts
}

// fits fails with [cgotorch.ErrOutOfMemory] if a model needs more memory than there is, or than
// deviceMemory, if that is not 0. It returns the room that is left for experts.
func (c *decoderConfig) fits(device cgotorch.Device, deviceMemory int64, dtype cgotorch.DType, pages int, quantize string) (room expertRoom, err error) {
	if deviceMemory < 0 {
		return room, fmt.Errorf("text: DeviceMemory is %d, want 0 or more bytes: %w", deviceMemory, cgotorch.ErrInvalidArgument)
	}
	memory, err := device.Memory()
	if err != nil {
		return room, err
	}
	const giga = 1e9
	each, cache := c.eachExpert(dtype, quantize), c.cacheBytes(dtype, pages) // each: one expert of each layer
	dense := c.dense(dtype, quantize)
	weights := dense + float64(c.experts.count)*each
	if budget := float64(deviceMemory); budget > 0 && weights+cache > budget {
		if each == 0 {
			return room, fmt.Errorf("text: DeviceMemory is %d bytes; the weights take %.0f as %v and the cache %.0f, and the model has no experts that host memory could hold: give %.0f or more, a smaller Context, or Quantize: %w",
				deviceMemory, weights, dtype, cache, math.Ceil(weights+cache), cgotorch.ErrOutOfMemory)
		}
		if room, err = c.roomIn(budget, dense, cache, each); err != nil {
			return room, err
		}
		weights = min(weights, budget-cache)
	}
	if free := float64(memory.Free); free > 0 && weights+cache > free {
		hint := ""
		if each > 0 {
			hint = ", or with a DeviceMemory below what is free, which leaves experts in host memory"
		}
		return room, fmt.Errorf("text: the weights take %.2f GB as %v and the cache takes %.2f GB, and %.2f GB of %v are free: open the model with a smaller Context or a narrower DType%s: %w",
			weights/giga, dtype, cache/giga, free/giga, device, hint, cgotorch.ErrOutOfMemory)
	}
	if hasCodes4(quantize) && deviceMemory == 0 && c.sparseLayers() > 0 {
		layer := c.eachExpert(dtype, "") * float64(c.experts.count) / float64(c.sparseLayers())
		room.wide = float64(memory.Free)-weights-cache >= 2*layer
	}
	return room, nil
}

// dense returns the bytes of all weights but the matrices of experts: those of [maker.decoder]. It
// is no integer, because a hostile config.json may ask for more than one holds.
func (c *decoderConfig) dense(dtype cgotorch.DType, quantize string) float64 {
	size, wide, width := float64(dtype.Size()), float64(max(dtype.Size(), 4)), float64(c.width)
	rows, heads := (c.heads+2*c.keyHeads)*c.head, c.heads*c.head
	norms := 0.
	for _, name := range []string{c.names.beforeMix, c.names.afterMix, c.names.beforeFeed, c.names.afterFeed} {
		if name != "" {
			norms += width
		}
	}
	switch c.headNorm {
	case eachHead:
		norms += float64(2 * c.head)
	case allHeads:
		norms += float64(heads + c.keyHeads*c.head)
	}
	layer := c.product(dtype, quantize, rows, c.width) + c.product(dtype, quantize, c.width, heads) + norms*wide +
		either(c.queryBias, float64(rows))*size + either(c.outBias, width)*size + either(c.sinks, float64(c.heads))*size
	feed := c.product(dtype, quantize, 2*c.inner, c.width) + c.product(dtype, quantize, c.width, c.inner) + either(c.innerBias, float64(2*c.inner+c.width))*size
	count, biased := float64(c.experts.count), c.names.expertDown != "" && !strings.Contains(c.names.expertDown, "%d")
	router := count*(width+either(c.experts.bias, 1))*wide + either(biased, count*float64(2*c.experts.inner+c.width))*size
	sparse, all := float64(c.sparseLayers()), float64(len(c.layers))
	n := float64(c.vocab)*width*size + width*wide + all*layer + sparse*router + (all-sparse)*feed
	if !c.tied || quantize != "" && quantize != mxfp4 { // the head has codes, also where the embedding is the head
		n += c.product(dtype, quantize, c.vocab, c.width)
	}
	return n
}

func either(has bool, n float64) float64 {
	if has {
		return n
	}
	return 0
}

// product returns the bytes of the weight of a product, in a form of Options.Quantize.
func (c *decoderConfig) product(dtype cgotorch.DType, form string, rows, columns int) float64 {
	switch form {
	case int4, int4By128:
		shape := packed4(form, rows, columns)
		return float64(shape[0]) * float64(shape[1])
	case "int8", "fp8":
		return float64(rows) * (float64((columns+15)/16*16) + 4)
	}
	return float64(rows) * float64(columns) * float64(dtype.Size())
}

// roomIn divides what the dense weights and the cache leave of a budget. `each` is the bytes of one
// expert in all layers. Passes get memory where that is at most a third of what is left.
func (c *decoderConfig) roomIn(budget, dense, cache, each float64) (room expertRoom, err error) {
	token := float64(c.experts.top) * each // the slots for the experts of one token
	left := budget - dense - cache - c.ahead(each)
	if left < token {
		ahead, cure := "", ""
		if c.ahead(each) > 0 {
			ahead, cure = fmt.Sprintf(", those that PredictExperts brings ahead %.0f", c.ahead(each)), ", or open it without PredictExperts"
		}
		return room, fmt.Errorf("text: DeviceMemory is %.0f bytes; the weights besides experts take %.0f, the cache %.0f%s, and slots for the experts of one token %.0f: give %.0f or more, or a smaller Context%s: %w",
			budget, dense, cache, ahead, token, math.Ceil(dense+cache+token+c.ahead(each)), cure, cgotorch.ErrOutOfMemory)
	}
	passing := c.passing(each)
	if room.passes = passing <= left/3 && left-passing >= token; room.passes {
		left -= passing
	}
	room.slots = min(int(left/each), c.experts.count)
	return room, nil
}

// passing returns the bytes of the experts of the layers that a prompt runs through.
func (c *decoderConfig) passing(each float64) float64 {
	return 2 * float64(c.experts.count) * each / float64(c.sparseLayers())
}

// predictsAny reports whether a layer's experts may come ahead: there is one before it.
func (c *decoderConfig) predictsAny() bool { return c.predicts && c.sparseLayers() > 1 }

// ahead returns the bytes of the experts that come before they are picked.
func (c *decoderConfig) ahead(each float64) float64 {
	if !c.predictsAny() {
		return 0
	}
	return float64(c.experts.top) * each / float64(c.sparseLayers())
}

// takesSlots fails if the kernels of a token do not take the model's experts. Only they use slots.
func (c *decoderConfig) takesSlots(k kernelChoice) error {
	reason := k.notOwn
	switch {
	case reason != "":
	case !k.ringed:
		reason = "for experts they need compute capability 9.0"
	case !c.expertsByKernels() || c.names.afterFeed != "" || c.names.afterMix != "":
		reason = fmt.Sprintf("they take up to 16 picks of 1024 experts of width 16384, together 32768, with no norm behind them, and the model has %d picks of %d experts of width %d", c.experts.top, c.experts.count, c.experts.inner)
	default:
		return nil
	}
	return fmt.Errorf("text: experts in host memory need the kernels of a token, and %s: open the model without DeviceMemory, or in bfloat16 if only its dtype is another: %w", reason, cgotorch.ErrInvalidArgument)
}

// eachExpert returns the bytes of the matrices of one expert of each layer, or 0 without experts.
func (c *decoderConfig) eachExpert(dtype cgotorch.DType, quantize string) float64 {
	if c.sparseLayers() == 0 {
		return 0
	}
	of, matrices := c.matrices(dtype, quantize)
	n := 0.
	for _, m := range matrices {
		n += float64(m[0]) * float64(m[1]) * float64(of.Size())
	}
	return n * float64(c.sparseLayers())
}

// matrices returns the dtype of experts, and the rows and columns of their matrices: gate and up,
// and down.
func (c *decoderConfig) matrices(dtype cgotorch.DType, quantize string) (cgotorch.DType, [2][2]int) {
	inner, width := c.experts.inner, c.width
	if hasCodes4(quantize) {
		return cgotorch.Uint8, [2][2]int{packed4(quantize, 2*inner, width), packed4(quantize, width, inner)}
	}
	return dtype, [2][2]int{{2 * inner, width}, {width, inner}}
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
func (c *decoderConfig) table(dtype cgotorch.DType, quantize string, room expertRoom, policy weights.Policy) weights.TableOptions {
	o := weights.TableOptions{Layers: c.sparseLayers(), Experts: c.experts.count, Slots: room.slots, Passes: room.passes, Policy: policy}
	if c.predictsAny() {
		o.Ahead = c.experts.top
	}
	var matrices [2][2]int
	o.DType, matrices = c.matrices(dtype, quantize)
	for _, m := range matrices {
		o.Matrices = append(o.Matrices, [2]int64{int64(m[0]), int64(m[1])})
	}
	return o
}

// Memory returns the bytes that the model takes on its device: those of its weights, or of the
// slots and passes for them, and those of the cache of all conversations.
func (m *Model) Memory() (weights, cache int64) {
	for _, t := range m.d.whole {
		weights += t.Numel() * int64(t.DType().Size())
	}
	return weights + m.onDevice.Load(), m.pages.bytes()
}

// ExpertStats tells how often the experts of tokens were in a slot, where Options.DeviceMemory left
// them in host memory. Else all counts are 0. Prompts read experts over the bus, and are not
// counted. ExpertStats waits for the steps that are enqueued. Inside a Do of the model's stream it
// fails with [cgotorch.ErrMisuse].
func (m *Model) ExpertStats() (s weights.TableStats, err error) {
	if err := m.lane.take(m.stream); err != nil {
		return s, fmt.Errorf("text: ExpertStats: %w", err)
	}
	defer m.lane.mu.Unlock()
	if m.closed.Load() {
		return s, fmt.Errorf("text: the model: %w", cgotorch.ErrClosed)
	}
	if m.table == nil {
		return s, nil
	}
	err = m.stream.Do(func(x *cgotorch.Exec) error {
		s = m.table.Stats(x)
		return nil
	})
	return s, err
}

// SetDeviceMemory changes Options.DeviceMemory of a model whose experts lie in host memory: from
// the next token on, more or fewer of them are on the device. Answers that are being generated go
// on, with the same bits. The slots are empty at first. SetDeviceMemory waits for the steps that
// are enqueued. Inside a Do it fails with [cgotorch.ErrMisuse].
//
// It fails with [cgotorch.ErrOutOfMemory], and says how much is needed, if the bytes are too few,
// or if the device has less: then the model has the slots that it had. It fails with
// [cgotorch.ErrInvalidArgument] if all experts are on the device, because Open has put them there.
func (m *Model) SetDeviceMemory(bytes int64) error {
	l := m.lane
	if err := m.stream.Do(func(*cgotorch.Exec) error { return nil }); errors.Is(err, cgotorch.ErrMisuse) {
		return fmt.Errorf("text: SetDeviceMemory: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case m.closed.Load():
		return fmt.Errorf("text: the model: %w", cgotorch.ErrClosed)
	case m.table == nil:
		return fmt.Errorf("text: SetDeviceMemory: all experts are on the device: open the model with a DeviceMemory that leaves some in host memory: %w", cgotorch.ErrInvalidArgument)
	case bytes <= 0:
		return fmt.Errorf("text: DeviceMemory is %d, want more than 0 bytes: %w", bytes, cgotorch.ErrInvalidArgument)
	}
	c, dtype := m.d.c, m.d.dtype
	cache := c.cacheBytes(dtype, m.pages.all)
	room, err := c.roomIn(float64(bytes), c.dense(dtype, m.quantize), cache, c.eachExpert(dtype, m.quantize))
	if err == nil {
		err = m.stream.Synchronize()
	}
	if err == nil {
		err = l.forgetSteps()
	}
	for _, b := range m.batches {
		//edge:batch-steps-of-old-slots TestBatcher_SetDeviceMemory
		err = errors.Join(err, b.forgetSteps())
	}
	if err != nil {
		return err
	}
	if err = m.resize(room); err != nil {
		return errors.Join(fmt.Errorf("text: DeviceMemory of %d bytes: %w", bytes, err), m.resize(m.d.room))
	}
	return nil
}

// resize gives the experts this room on the device. It waits until the device has it.
func (m *Model) resize(room expertRoom) error {
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		if err := m.table.Resize(plain(x), room.slots, room.passes); err != nil {
			return err
		}
		for _, l := range m.d.layers {
			if l.experts != nil {
				*l.experts.held = m.table.Layer(l.experts.number)
			}
		}
		return nil
	})
	m.onDevice.Store(m.table.DeviceBytes())
	if err == nil {
		m.d.room = room
		err = m.stream.Synchronize()
	}
	return err
}
