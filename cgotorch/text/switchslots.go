package text

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// Note [Slots of a Switch]
//
// With SwitchOptions.Slots the experts lie in a weights.Table, one for the encoder and one for the
// decoder. Up to 8 tokens of the decoder run one after another, each by a slot: token_route finds
// the slot of the expert that the router has chosen. Its input is then a row of the identity, so
// the largest score is that expert's. In bfloat16, token_experts multiplies and fills the slot: the
// host takes no part. In float32, or before compute capability 9.0, Table.Fetch fills the slot, and
// the host waits for the pick.
//
// More tokens, and those of the encoder, read the experts where they lie, in blocks: at most one
// expert for each token, and at most all of a layer twice. Where blocks would read more, the device
// gets a copy of all of a layer. A pass of the table always reads all of them, and takes memory for
// those of two layers: prompts of a Switch are short, and each token has one expert.

// slotTokens is the most tokens that run one after another.
const slotTokens = 8

// mostSlotExperts is the most experts of a layer that token_route takes on CUDA.
const mostSlotExperts = 1024

// heldExperts are the experts of the encoder's or the decoder's sparse layers, in a table.
type heldExperts struct {
	table   *weights.Table
	slots   bool             // tokens take slots
	kernels bool             // token_experts multiplies
	units   *cgotorch.Tensor // Float32 [experts, columns]: row i picks expert i
	arrived *cgotorch.Tensor // Int32 [1]: 0
	one     *cgotorch.Tensor // [1]: 1, as the share of a pick
	zeros   [2]*cgotorch.Tensor
	filled  []int // by layer: the version of the experts when its slots were filled
}

// newHeldExperts makes a table of `layers` sparse layers on x's device. slots is 0 if tokens do not
// take slots.
func newHeldExperts(x *cgotorch.Exec, c *SwitchConfig, dtype cgotorch.DType, layers, slots int) *heldExperts {
	const where = "text.LoadSwitch"
	h := &heldExperts{slots: slots > 0, kernels: dtype == cgotorch.BFloat16 && c.DModel%8 == 0 && c.DFF%8 == 0 && max(c.DModel, c.DFF) <= 16384, filled: make([]int, layers)}
	if x.Device().IsCUDA() {
		capability, err := capabilityOf(x.Device())
		cgotorch.Check(err)
		if capability < 80 || c.NumExperts > mostSlotExperts {
			refuse(x, where, "Slots is set for compute capability %d and %d experts, want at least 80, and at most %d", capability, c.NumExperts, mostSlotExperts)
		}
		h.kernels = h.kernels && capability >= 90
	}
	inner, width := int64(c.DFF), int64(c.DModel)
	var err error
	h.table, err = weights.NewTable(x, weights.TableOptions{Layers: layers, Experts: c.NumExperts, Matrices: [][2]int64{{inner, width}, {width, inner}}, DType: dtype, Slots: max(slots, 1)})
	if err != nil {
		x.Fail(where, err)
	}
	if !h.slots {
		return h
	}
	made := false
	defer func() {
		if !made {
			h.Close()
		}
	}()
	const f32 = cgotorch.Float32
	columns := int64(c.NumExperts+3) / 4 * 4 // as the kernel takes them
	h.units = x.Keep(x.Zeros(f32, int64(c.NumExperts), columns))
	x.CopyInPlace(x.Narrow(h.units, 1, 0, c.NumExperts), x.Eye(f32, c.NumExperts))
	h.arrived, h.one = x.Keep(x.Zeros(cgotorch.Int32, 1)), x.Keep(x.Ones(f32, 1))
	h.zeros = [2]*cgotorch.Tensor{x.Keep(x.Zeros(f32, inner)), x.Keep(x.Zeros(f32, width))}
	made = true
	return h
}

// bySlots runs one token after another. ids is Int64 [tokens].
func (h *heldExperts) bySlots(x *cgotorch.Exec, layer int, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	l := h.table.Layer(layer)
	x.EachLaunch(func(x *cgotorch.Exec) {
		if now := versionOf(l); h.filled[layer] != now {
			h.table.Forget(x)
			h.filled[layer] = now
		}
	})
	const unknown = -1
	now := versionOf(l)
	h.filled[layer] = unknown // if a token fails, the table may tell of experts that are not in slots
	var rows []*cgotorch.Tensor
	for i := range int(tokens.Shape()[0]) {
		rows = append(rows, x.Tidy(func() *cgotorch.Tensor {
			return h.token(x, layer, l, x.Narrow(tokens, 0, i, 1), x.Narrow(ids, 0, i, 1))
		}))
	}
	h.filled[layer] = now
	if len(rows) == 1 {
		return rows[0]
	}
	return x.Cat(rows, 0)
}

// versionOf counts the operators that have written experts of a layer.
func versionOf(l weights.TableLayer) (n int) {
	for _, matrices := range l.Experts {
		n += inside.Core.Version(matrices)
	}
	return n
}

// token maps `in` [1, d_model] to the same shape. id is Int64 [1].
func (h *heldExperts) token(x *cgotorch.Exec, layer int, l weights.TableLayer, in, id *cgotorch.Tensor) *cgotorch.Tensor {
	route := x.Call("streamtorch::token_route", x.IndexSelect(h.units, 0, id), h.units, nil, nil, 0.0, false, 1, true, h.arrived, "full", l.Places, l.Counts, l.LFU)
	picks := route[0].(*cgotorch.Tensor)
	if !h.kernels {
		h.table.Fetch(x, layer, picks, nil)
		slot := x.To(x.Select(picks, 1, 0), cgotorch.Int64)
		return oneByOne(x, l.Slots[0], l.Slots[1], in, slot)
	}
	product := func(in *cgotorch.Tensor, i int) *cgotorch.Tensor {
		return call(x, "streamtorch::token_experts", in, l.Experts[i], picks, l.Slots[i], h.one, nil, nil, 0.0, false, "add", h.zeros[i])
	}
	inner := x.To(x.ReLUInPlace(product(in, 0)), in.DType())
	return x.To(product(inner, 1), in.DType())
}

// Close frees the table. A nil heldExperts has none.
func (h *heldExperts) Close() error {
	if h == nil {
		return nil
	}
	var errs []error
	for _, t := range append(slices.Clone(h.zeros[:]), h.units, h.arrived, h.one) {
		errs = append(errs, t.Close())
	}
	return errors.Join(append(errs, h.table.Close())...)
}

// ExpertStats tells how often the experts of the decoder's tokens were in a slot, with
// [SwitchOptions].Slots. Else all counts are 0. The tokens of the encoder, and more than 8 at a
// time, read experts over the bus and are not counted. ExpertStats waits for the work of x's
// stream.
func (m *Switch) ExpertStats(x *cgotorch.Exec) (s weights.TableStats) {
	if m.Decoder.held != nil {
		s = m.Decoder.held.table.Stats(x)
	}
	if m.Encoder.held != nil {
		of := m.Encoder.held.table.Stats(x)
		s.HostBytes, s.DeviceBytes = s.HostBytes+of.HostBytes, s.DeviceBytes+of.DeviceBytes
	}
	return s
}

// Close frees the weights. With [SwitchOptions].Slots the work that uses the model must be done. A
// second Close does nothing.
func (m *Switch) Close() error {
	if m == nil {
		return nil
	}
	errs := []error{nn.Close(m), m.Encoder.held.Close(), m.Decoder.held.Close()}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("text: %w", err)
	}
	return nil
}
