package text

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Note [Weights of 4 bits]
//
// With Options.Quantize "mxfp4" the matrices of experts have weights of 4 bits: codes e2m1, and a
// power of two for each 32 columns. gpt_oss is published so, and its codes stay as they are. Other
// experts get the codes nearest to their weights when they are loaded. All else keeps its dtype.
//
// A token's product multiplies the codes themselves: csrc/kernels/token_experts4_cuda.h. A prompt's
// product first computes the matrix of one expert in the model's dtype, in memory that is free
// again after it. The layout of a row is that of csrc/kernels/mxfp4.h.

// packedBytes returns the bytes of a row of so many columns, as csrc/kernels/mxfp4.h has it.
func packedBytes(columns int) int {
	const most = 3712
	segments := (columns + most - 1) / most
	width := ((columns+segments-1)/segments + 127) / 128 * 128
	return segments * ((width/2 + width/32 + 15) / 16 * 16)
}

// takesCodes4 fails if a model has no experts that may have weights of 4 bits.
func (c *decoderConfig) takesCodes4() error {
	if c.sparseLayers() == 0 || c.width%32 != 0 || c.experts.inner%32 != 0 {
		return fmt.Errorf("text: Quantize is mxfp4, which is for experts whose widths are multiples of 32, and the model has %d layers with experts, of widths %d and %d: open it with int8 or fp8, or without Quantize: %w",
			c.sparseLayers(), c.width, c.experts.inner, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// pack is what is to become packed codes: the matrix of one expert, or those of all of a layer.
type pack struct {
	to     *cgotorch.Tensor // of all experts, Uint8 [experts, rows, bytes]
	expert int
	one    *linear // the names and rows of the expert's matrix; nil for all experts

	name  string  // of the tensor with all experts
	shape []int64 // [experts, columns, rows]
}

// title names the pack in errors and draws.
func (p *pack) title() string {
	if p.one != nil {
		return p.one.names[0]
	}
	return p.name
}

// pack fills the packed codes of all experts: those of the files, those of drawn weights, or the
// nearest to the weights that `fill` gives tensors. It adds the squares of what the codes change,
// and those of the weights, to squares, Float64 [2]. It waits for the device.
func (d *decoder) pack(s *cgotorch.Stream, o Options, sources map[string]source, squares *cgotorch.Tensor, fill func([]nn.Named) error) error {
	for _, p := range d.packs {
		var err error
		switch src := sources[p.name]; {
		case o.RandomWeights != 0:
			err = s.Do(func(x *cgotorch.Exec) error { return p.draw(plain(x), o.RandomWeights, d.c.deviation) })
		case p.one == nil && src.quantized != nil:
			err = s.Do(func(x *cgotorch.Exec) error { return src.quantized.convert(plain(x), p.to) })
		default:
			err = d.packWide(s, p, squares, fill)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packWide fills the codes of weights that are loaded in the model's dtype first.
func (d *decoder) packWide(s *cgotorch.Stream, p *pack, squares *cgotorch.Tensor, fill func([]nn.Named) error) error {
	if p.one != nil {
		return d.widely(s, p.one, fill, func(x *cgotorch.Exec) error { return p.encode(x, p.expert, p.one.weight, squares) })
	}
	var all *cgotorch.Tensor
	err := s.Do(func(x *cgotorch.Exec) error {
		all = x.Keep(x.Empty(d.dtype, p.shape...))
		return nil
	})
	if err != nil {
		return err
	}
	defer all.Close()
	if err := fill([]nn.Named{{Name: p.name, Tensor: all}}); err != nil {
		return err
	}
	return s.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		for i := range int(p.shape[0]) {
			if err := p.encode(x, i, x.Transpose(x.Select(all, 0, i), 0, 1), squares); err != nil {
				return err
			}
		}
		return nil
	})
}

// encode gives an expert the codes nearest to a matrix [rows, columns]. It waits for the device.
func (p *pack) encode(x *cgotorch.Exec, expert int, matrix, squares *cgotorch.Tensor) (err error) {
	x.Tidy(func() *cgotorch.Tensor {
		weight := x.Contiguous(x.To(x.Detach(matrix), cgotorch.Float32), cgotorch.Contiguous)
		rows, columns := weight.Shape()[0], weight.Shape()[1]
		groups := x.View(weight, rows, columns/32, 32)
		largest := x.AMax(x.Abs(groups), []int64{2}, cgotorch.ReduceOptions{})
		if most := x.Item(x.Max(largest)); math.IsNaN(most) || math.IsInf(most, 0) {
			err = fmt.Errorf("text: tensor %s has a NaN or an Inf, which mxfp4 has no scale for: open it without Quantize: %w", p.title(), cgotorch.ErrInvalidArgument)
			return nil
		}
		exponents := x.Clamp(x.AddScalar(x.Floor(x.Log2(largest)), -2), -127, 127) // the largest code is 6, above 4
		scaled := x.Mul(groups, x.Unsqueeze(x.Exp2(x.Neg(exponents)), 2))
		halfway := cgotorch.FromSlice(x, []float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}, 7)
		magnitudes := call(x, "aten::bucketize.Tensor", x.Abs(scaled), halfway)
		codes := x.View(x.Add(magnitudes, x.MulScalar(x.To(x.LtScalar(scaled, 0), cgotorch.Int64), 8)), rows, columns/32, 16, 2)
		bytes := x.To(x.Add(x.Select(codes, 3, 0), x.MulScalar(x.Select(codes, 3, 1), 16)), cgotorch.Uint8)
		packed := x.Call1("streamtorch::mxfp4_pack", bytes, x.To(x.AddScalar(exponents, 127), cgotorch.Uint8))
		x.CopyInPlace(x.Select(p.to, 0, expert), packed)
		addSquares(x, squares, x.Sub(x.Call1("streamtorch::mxfp4_unpack", packed, columns, cgotorch.Float32), weight), weight)
		return nil
	})
	return err
}

// draw draws codes, each as likely, and scales that give the numbers about this deviation. They
// depend on the seed and on the pack's name alone.
func (p *pack) draw(x *cgotorch.Exec, seed uint64, deviation float64) error {
	const ofCodes = 2.9 // the deviation of codes that are equally likely
	return withSeed(seed, func() {
		seedBy(seed, p.title())
		first, count := p.expert, 1
		if p.one == nil {
			first, count = 0, int(p.shape[0])
		}
		scale := 127 + math.Round(math.Log2(deviation/ofCodes))
		for i := first; i < first+count; i++ {
			x.Tidy(func() *cgotorch.Tensor {
				to := x.Select(p.to, 0, i)
				rows, groups := to.Shape()[0], p.groups()
				codes := x.RandInt(cgotorch.Uint8, 0, 256, rows, groups, 16)
				return x.CopyInPlace(to, x.Call1("streamtorch::mxfp4_pack", codes, x.Full(cgotorch.Uint8, scale, rows, groups)))
			})
		}
	})
}

// groups returns how many scales a row has.
func (p *pack) groups() int64 {
	if p.one != nil {
		return int64(p.one.in) / 32
	}
	return p.shape[1] / 32
}
