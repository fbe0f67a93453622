package text

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// Note [Kernels of a token]
//
// A step of one token reads all weights once, so the memory's speed bounds it. On CUDA it is a
// graph of five kernels a layer, each of which reads its weights at that speed:
//
//	norm, queries, keys and values       token_linear     csrc/kernels/token_linear_cuda.h
//	attention over pages                 token_attention  csrc/kernels/token_attention_cuda.h
//	output, added to the stream          token_linear
//	norm, gate and up, activation        token_linear
//	down, added to the stream            token_linear
//
// token_embedding comes before the first layer. token_linear with the head, and token_likeliest or
// token_drawn, come after the last. Penalties, biases, masks and ranks take LibTorch's
// operators. Each kernel asks for its weights while the kernel before still runs: Note
// [Programmatic edges] in csrc/kernels/edges.h. token_embedding has a full edge. Weights, page
// tables, the position and the keys of earlier tokens are older, so the kernels behind it read them
// early.
//
// A norm behind a product is left to the next product, which reads the whole stream anyway: see
// tokenStream.
//
// A layer with experts has token_route, which picks experts, and token_experts twice in place of
// the last two kernels. The first of them waits for the picks of token_route before it begins the
// second one, which therefore reads its experts early. With Options.DeviceMemory most experts lie
// in host memory: Note [Table of slots] in prefetcher/weights.

// KernelStats tells which kernels compute a step of one answer. Steps of several answers take
// others: Note [Kernels of rows].
type KernelStats struct {
	Own    bool   // those of Note [Kernels of a token], which read the weights at the memory's speed
	Reason string // why LibTorch's operators do, or ""

	// Search is how long Open has looked for the fastest sizes of these kernels. It is 0 if the
	// user's cache folder has the sizes, from an earlier Open of a model of these shapes on such a
	// card. It is 0 for models below 256 MB, below compute capability 9.0, and where the experts of
	// five tokens have no room in the slots.
	Search time.Duration
}

// KernelStats tells how the model computes the tokens of an answer. It does not wait.
func (m *Model) KernelStats() KernelStats {
	return KernelStats{Own: m.d.edge != "", Reason: m.d.notOwn, Search: m.searched}
}

// kernelChoice says which kernels a model on a device takes.
type kernelChoice struct {
	flash        bool   // prompts take LibTorch's flash attention
	promptKernel bool   // but up to mostCapturedPiece tokens take prompt_attention
	notOwn       string // why tokens do not take the kernels of a token, or ""
	ringed       bool   // the products of a token have the ring: Note [Search of sizes]
}

// kernels chooses the kernels of a model on a device.
func (c *decoderConfig) kernels(device cgotorch.Device, dtype cgotorch.DType, quantized bool) (kernelChoice, error) {
	if !device.IsCUDA() {
		return kernelChoice{notOwn: "the model is on the CPU"}, nil
	}
	capability, err := capabilityOf(device)
	if err != nil {
		return kernelChoice{}, err
	}
	k := kernelChoice{flash: capability >= 80 && c.flash(dtype), notOwn: c.notTokenKernels(capability, dtype, quantized)}
	k.promptKernel = k.flash && c.head%16 == 0 && c.heads/c.keyHeads <= 64 // as csrc/kernels/prompt_attention.cc has it
	k.ringed = k.notOwn == "" && capability >= 90
	return k, nil
}

// capabilityOf returns the compute capability of a CUDA device, such as 90 for 9.0.
func capabilityOf(device cgotorch.Device) (capability int32, err error) {
	err = inside.Core.Check("text", ct.DeviceCapability(inside.Core.Device(device), &capability))
	return capability, err
}

// The limits of the kernels, as csrc/kernels has them.
const mostNormed, mostColumns, mostHead, mostGroup = 8192, 32768, 256, 8

// expertsByKernels reports whether the kernels of a token take the experts.
func (c *decoderConfig) expertsByKernels() bool {
	const mostExperts, mostTop, mostInner = 1024, 16, 16384 // as in csrc/kernels
	const mostTogether = 32 << 10                           // elements of all picks' inner states, in shared memory
	e := c.experts
	together := e.top * ((e.inner + 1023) / 1024 * 1024)
	return e.count <= mostExperts && e.top <= mostTop && e.inner%8 == 0 && e.inner <= mostInner && together <= mostTogether && c.width%8 == 0 && c.width <= mostNormed
}

// notTokenKernels returns why the kernels of a token do not take a model, or "".
func (c *decoderConfig) notTokenKernels(capability int32, dtype cgotorch.DType, quantized bool) string {
	switch group := c.heads / c.keyHeads; {
	case capability < 80:
		return fmt.Sprintf("the compute capability of the device is %d, and 80 is needed", capability)
	case quantized && capability < 90:
		return fmt.Sprintf("the weights are quantised, the compute capability of the device is %d, and 90 is needed", capability)
	case dtype.Size() != 2:
		return fmt.Sprintf("the weights are %v, and bfloat16 or float16 is needed", dtype)
	case c.head%16 != 0 || c.head > mostHead:
		return fmt.Sprintf("a head has %d elements, and a multiple of 16 up to %d is needed", c.head, mostHead)
	case group > mostGroup:
		return fmt.Sprintf("%d heads of queries share a head of keys, and at most %d may", group, mostGroup)
	case c.width%8 != 0 || c.inner%8 != 0 || c.width > mostNormed || max(c.inner, c.heads*c.head) > mostColumns:
		return fmt.Sprintf("the widths are %d, %d and %d, and multiples of 8 up to %d and %d are needed", c.width, c.inner, c.heads*c.head, mostNormed, mostColumns)
	}
	return ""
}

// tokenStream is the residual stream of one token: sum + norm(late). A norm behind a layer is
// applied by the product that reads the stream next.
type tokenStream struct {
	sum  *cgotorch.Tensor // [1, width] in the wide dtype
	late *cgotorch.Tensor // the same, or nil
	norm *cgotorch.Tensor // the weight of late's norm
}

// tokenPass is what a step of one token knows of the lane.
type tokenPass struct {
	token, position *cgotorch.Tensor // Int64 [1]
	arrived         *cgotorch.Tensor // Int32: zeros, before and after
	frequencies     []*cgotorch.Tensor
	// attend maps what the product of queries, keys and values gives to what the next product
	// takes.
	attend func(layer int, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor
}

// token maps one token to the logits of the next one, [1, vocab] in the wide dtype, by the kernels
// of a token.
func (d *decoder) token(x *cgotorch.Exec, p *tokenPass) *cgotorch.Tensor {
	scales := make([]float64, len(d.c.ropes))
	for i, r := range d.c.ropes {
		scales[i] = r.scale
	}
	parts := x.Call("streamtorch::token_embedding", d.embed, p.token, p.position, p.frequencies, scales, d.c.embedScale)[0].([]*cgotorch.Tensor)
	s := &tokenStream{sum: parts[0]}
	for i, l := range d.layers {
		by := rotation{cos: parts[1+2*l.rope], sin: parts[2+2*l.rope]}
		mixed := p.attend(i, d.tokenLinear(x, s, l.beforeMix, l.qkv, "float"), by)
		d.tokenAdd(x, s, mixed, l.out, l.afterMix)
		if l.experts != nil {
			d.tokenExperts(x, s, l, p.arrived)
			continue
		}
		d.tokenAdd(x, s, d.tokenLinear(x, s, l.beforeFeed, l.gateUp, d.c.activation), l.down, l.afterFeed)
	}
	return d.capped(x, d.tokenLinear(x, s, d.norm, d.head, "float"), d.c.logitCap)
}

// tokenLinear is a product of the normed stream. A nil norm is none.
func (d *decoder) tokenLinear(x *cgotorch.Exec, s *tokenStream, norm *cgotorch.Tensor, l *linear, epilogue string) *cgotorch.Tensor {
	var sum *cgotorch.Tensor
	if s.late != nil {
		sum = x.EmptyLike(s.sum)
	}
	out := d.tokenProduct(x, s.sum, l, norm, epilogue, nil, s.late, s.norm, sum)
	if sum != nil {
		*s = tokenStream{sum: sum}
	}
	return out
}

// tokenAdd adds a product of `in` to the stream, behind a norm if there is one.
func (d *decoder) tokenAdd(x *cgotorch.Exec, s *tokenStream, in *cgotorch.Tensor, l *linear, norm *cgotorch.Tensor) {
	if norm != nil {
		s.late, s.norm = d.tokenProduct(x, in, l, nil, "float", nil, nil, nil, nil), norm
		return
	}
	s.sum = d.tokenProduct(x, in, l, nil, "add", s.sum, nil, nil, nil)
}

// tokenProduct is the operator token_linear.
func (d *decoder) tokenProduct(x *cgotorch.Exec, in *cgotorch.Tensor, l *linear, norm *cgotorch.Tensor, epilogue string, residual, late, lateNorm, sum *cgotorch.Tensor) *cgotorch.Tensor {
	weight, of := l.weight, []any{nil, nil, nil}
	if l.codes != nil {
		weight, of = l.codes.typed(x), []any{l.codes.scale, d.dtype, nil}
		if isInt4(l.codes.form) {
			of[2] = l.codes.form
		}
	}
	args := []any{in, weight, l.bias, norm, d.c.eps, d.c.normOffset, epilogue, residual, late, lateNorm, sum, d.edge, l.ring.sizes()}
	return call(x, "streamtorch::token_linear", append(args, of...)...)
}

// tokenExperts adds what a layer's experts compute to the stream.
func (d *decoder) tokenExperts(x *cgotorch.Exec, s *tokenStream, l *decoderLayer, arrived *cgotorch.Tensor) {
	h := s.sum
	if e, c := l.experts, d.c; s.late == nil && l.afterFeed == nil && c.expertsByKernels() && (d.ringed || !x.Device().IsCUDA()) {
		held := weights.TableLayer{Slots: []*cgotorch.Tensor{nil, nil}}
		if e.held != nil {
			held = *e.held
		}
		var packed any
		form := mxfp4 // means nothing without codes
		if e.packed != 0 {
			packed, form = e.packed, e.form
		}
		route := x.Call("streamtorch::token_route", h, e.router.weight, e.router.bias, l.beforeFeed, c.eps, c.normOffset, c.experts.top,
			c.experts.softmaxOfTop || c.experts.normalize, arrived, d.edge, held.Places, held.Counts, held.LFU)
		picks, shares := route[0].(*cgotorch.Tensor), route[1].(*cgotorch.Tensor)
		if d.fetches {
			d.table.Fetch(x, e.number, picks, d.nextPicks(x, h, arrived, e.number))
		}
		behindPicks := d.edge
		if behindPicks == "early" {
			behindPicks = "wait" // so the product behind it may read them early
		}
		inner := call(x, "streamtorch::token_experts", h, e.gateUp, picks, held.Slots[0], nil, e.gateUpBias, l.beforeFeed, c.eps, c.normOffset, c.activation, nil, c.clampLimit, c.clampAlpha, behindPicks, e.gateUpRing.sizes(), packed, form)
		s.sum = call(x, "streamtorch::token_experts", inner, e.down, picks, held.Slots[1], shares, e.downBias, nil, 0.0, false, "add", h, 0.0, 0.0, d.edge, e.downRing.sizes(), packed, form)
		return
	}
	if s.late != nil {
		h = d.plus(x, h, d.normed(x, s.late, s.norm))
	}
	wide := d.normed(x, h, l.beforeFeed)
	out := l.experts.forward(x, d.as(x, wide, d.dtype), wide, false)
	*s = tokenStream{sum: d.plus(x, h, d.normed(x, out, l.afterFeed))}
}

// tokenPass returns what a step of the lane's token needs. It reads and writes the pages of the
// first `blocks` blocks of each table.
func (l *lane) tokenPass(x *cgotorch.Exec, blocks []int) *tokenPass {
	d := l.d
	tables, spanOf := make([]*cgotorch.Tensor, len(d.layers)), make([]*laneSpan, len(d.layers))
	for i, s := range l.spans {
		live := x.Narrow(s.table, 2, 0, blocks[i])
		for k, layer := range s.layers {
			spanOf[layer], tables[layer] = s, x.Select(live, 0, k)
		}
	}
	return &tokenPass{token: l.token, position: l.position, arrived: l.arrived, frequencies: l.frequencies, attend: func(i int, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor {
		layer, s := d.layers[i], spanOf[i]
		return call(x, "streamtorch::token_attention", qkv, layer.queryNorm, layer.keyNorm, d.c.eps, d.c.normOffset, by.cos, by.sin, l.position,
			l.pages.memory, tables[i], s.before, layer.sinks, d.c.heads, s.window, d.c.queryScale, d.c.scoreCap, l.arrived, d.edge)
	}}
}
