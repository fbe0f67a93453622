package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Load copies the tensors of files into m, as LoadSwitch does with a new model.
func (m *Switch) Load(x *cgotorch.Exec, paths ...string) error { return m.load(x, paths...) }

// StepUnderNoWaits runs the step after the conversation's tokens, which must be in the cache, and
// fails if the step would wait for the device.
func (c *Conversation) StepUnderNoWaits(o GenerateOptions) error {
	a, err := c.newAnswer(c.Tokens(), o)
	if err != nil {
		return err
	}
	c.m.lane.loaded = nil
	return c.enter(len(c.tokens), len(c.tokens)+1, func(x *cgotorch.Exec) error {
		l := c.m.lane
		for run := range 5 { // on CUDA each of two results has a step that allocates memory, and one that captures
			a.load(x, l, nil)
			if run == 4 {
				x = x.NoWaits()
			}
			l.layers(x, a.f, c.live(len(c.tokens)+1))
			if a.f.mask {
				l.sampleMasked(x, a.f)
			}
			cgotorch.Check(l.results.read(x).Close())
		}
		return nil
	})
}

// Edge makes the kernels of a token follow each other by an edge, on the CPU too. "" turns them
// off.
func (m *Model) Edge(name string) {
	m.d.edge = name
	for _, all := range []map[features]*cgotorch.Captured{m.lane.steps, m.lane.samples} {
		for f, step := range all {
			cgotorch.Check(step.Close())
			delete(all, f)
		}
	}
}

// Folder is that from which the model was opened, and DType that of its weights.
func (m *Model) Folder() string        { return m.folder }
func (m *Model) DType() cgotorch.DType { return m.d.dtype }

// Passes reports whether prompts copy experts from host memory layer by layer.
func (m *Model) Passes() bool { return m.d.room.passes }

// Fetch lets the host fetch the experts of some tokens, by their numbers.
func (m *Model) Fetch(token func(n int) bool) {
	n := 0
	m.d.byEngine = func(*cgotorch.Exec) bool {
		n++
		return token(n)
	}
}

// BudgetFor returns the DeviceMemory that has room for so many experts of each layer.
func (m *Model) BudgetFor(slots int) int64 {
	c, dtype := m.d.c, m.d.dtype
	each := c.eachExpert(dtype, m.quantize)
	return int64(c.dense(dtype, m.quantize) + float64(slots)*each + c.ahead(each) + c.cacheBytes(dtype, m.pages.all))
}

// WideExperts reports whether there is room for the numbers of a layer's experts.
func (m *Model) WideExperts() bool {
	for _, l := range m.d.layers {
		if l.experts != nil {
			return l.experts.wide
		}
	}
	return false
}

// FailToken runs the kernels of the first layers of a token, and fails then.
func (m *Model) FailToken() error {
	return m.stream.Do(func(x *cgotorch.Exec) error {
		x, l := plain(x), m.lane
		m.d.withSlots(x, func() {
			p, calls := l.tokenPass(x, slices.Repeat([]int{1}, len(l.spans))), 0
			attend := p.attend
			p.attend = func(layer int, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor {
				if calls++; calls == 3 {
					x.Fail("FailToken", cgotorch.ErrUnsupported)
				}
				return attend(layer, qkv, by)
			}
			m.d.token(x, p)
		})
		return nil
	})
}

// OwnStream is that on which the model runs.
func (m *Model) OwnStream() *cgotorch.Stream { return m.stream }

// Sizes, Ring and Search are those of Note [Search of sizes].
type (
	Sizes = sizes
	Ring  = ring
)

var (
	Packed4 = packed4

	Search     = search
	ErrNoGraph = errNoGraph
)

// Timed times a token with the operators' own choice, as a search does.
func (m *Model) Timed() error {
	_, err := m.timed(sizes{})
	return errors.Join(err, m.restart())
}

// TimedPages returns the pages of keys and of values that a timed token writes.
func (m *Model) TimedPages() (keys, values []int64) {
	cgotorch.Check(m.stream.Do(func(x *cgotorch.Exec) error {
		m.timedPages(x, true)
		for _, s := range m.lane.spans {
			last := x.Narrow(s.table, 2, m.timedBlocks()-1, 1)
			keys = append(keys, cgotorch.ToSlice[int64](x, x.Reshape(x.Select(last, 1, 0), -1))...)
			values = append(values, cgotorch.ToSlice[int64](x, x.Reshape(x.Select(last, 1, 1), -1))...)
		}
		return nil
	}))
	cgotorch.Check(m.restart())
	return keys, values
}

// PagesWritten reports whether pages 0 and 1 have numbers other than 0.
func (m *Model) PagesWritten() (found bool) {
	cgotorch.Check(m.stream.Do(func(x *cgotorch.Exec) error {
		found = x.Item(x.Sum(x.Abs(x.To(x.Narrow(m.pages.memory, 1, 0, 2), cgotorch.Float64)))) != 0
		return nil
	}))
	return found
}

// StoredSizes are sizes that lie in the user's cache folder.
type StoredSizes struct{ storedSizes }

func (s *StoredSizes) File() string { return s.file() }
func (s *StoredSizes) Read() bool   { return s.read() }
func (s *StoredSizes) Write()       { s.write() }

// KernelLimits are the limits of the kernels of a token, by their names in csrc/kernels.
var KernelLimits = map[string]int{"kMostNormed": mostNormed, "kMostColumns": mostColumns, "kMostHead": mostHead, "kMostGroup": mostGroup}

// FreePages returns how many pages of the cache nobody has.
func (m *Model) FreePages() int { return m.pages.left() }

// FailStep runs a step that fails behind the first token_route. m must have slots and bfloat16.
func (m *Switch) FailStep(x *cgotorch.Exec, c *Cache) {
	h := m.Decoder.held
	one := h.one
	h.one = nil
	defer func() { h.one = one }()
	m.Step(x, c)
}

// NewEarlyBatcher makes a Batcher that enqueues a step before it has read the tokens of the one
// before, on the CPU too. Its steps have padded rows.
func (m *Model) NewEarlyBatcher(o BatcherOptions) (*Batcher, error) {
	b, err := m.newBatcher(o, true)
	if err == nil {
		go b.loop()
	}
	return b, err
}

// Occupy takes places of the queue, as calls do whose texts become tokens.
func (e *Encoder) Occupy(calls int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.coming += calls
}

// Stream returns the stream of the batches.
func (e *Encoder) Stream() *cgotorch.Stream { return e.stream }

// Waiting returns how many calls wait for a batch.
func (e *Encoder) Waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting)
}

// Pack reports how many products have weights in oneDNN's order, and how many there are.
func (e *Encoder) Pack() (packed, all int) {
	for _, p := range e.weights.products {
		if p.packed != nil {
			packed++
		}
	}
	return packed, len(e.weights.products)
}

// Bucket is the number of the bias of a distance, as MPNet has it.
func Bucket(distance int) int64 { return bucket(distance, 32) }

// Captured returns how many batches were launched as a graph, and why others were not captured.
func (e *Encoder) Captured() (launches int, why string) {
	s := e.captured.Stats()
	return s.Launches, s.Why
}

// CapturePieces lets a Batcher pad and capture the pieces of prompts, or not. It reports whether it
// can: not with experts, nor by flash attention. No request has come yet.
func (b *Batcher) CapturePieces(on bool) bool {
	able := b.m.d.c.experts.top == 0 && (b.m.d.promptKernel || !b.m.d.flash)
	if able && len(b.b.lanes) > 1 {
		if err := b.b.tryBeside(b.m.stream); err != nil {
			panic(err)
		}
	}
	b.b.capturesPieces, b.b.takesPieces = on && able, on && able
	return able
}

// PieceStats tells how pieces of prompts were captured.
func (b *Batcher) PieceStats() cgotorch.CapturedStats { return b.b.pieces.Stats() }

// StepsBeside returns how many steps had a piece of a prompt beside.
func (b *Batcher) StepsBeside() (n int) {
	for _, c := range b.b.stepsWithPiece {
		s := c.Stats()
		n += s.Eager + s.Launches
	}
	return n
}
