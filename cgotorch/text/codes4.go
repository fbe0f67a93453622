package text

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Note [Weights of 4 bits]
//
// Each group of columns of a row has a scale, in one of three forms:
//
//	mxfp4     codes e2m1 and for each 32 columns a power of two. With Options.Quantize "mxfp4" the
//	          matrices of experts are so, and all else keeps its dtype. gpt_oss is published so,
//	          and its codes stay.
//	int4      codes from -8 to 7 and for each 32 columns a scale in bfloat16, by which the largest
//	          weight becomes -8. With "int4" experts and all products that int8 makes narrow are
//	          so.
//	int4-128  the same with groups of 128 columns, of which the last one of a row may have fewer
//
// Other weights get the nearest codes when they are loaded. A token's product multiplies the codes
// as integers: csrc/kernels/token_codes4_cuda.h. A prompt's product first computes the matrix, or
// that of one expert, in the model's dtype, in memory that is free again after it. The layout is
// that of csrc/kernels/codes4.h.
const mxfp4, int4, int4By128 = "mxfp4", "int4", "int4-128"

// isInt4 reports whether Options.Quantize gives products and experts weights of 4 bits.
func isInt4(quantize string) bool { return quantize == int4 || quantize == int4By128 }

// hasCodes4 reports whether Options.Quantize gives experts weights of 4 bits.
func hasCodes4(quantize string) bool { return quantize == mxfp4 || isInt4(quantize) }

// columnsOfScale returns how many columns have one scale.
func columnsOfScale(form string) int {
	if form == int4By128 {
		return 128
	}
	return 32
}

// packed4 returns the shape of the packed codes of a matrix, as csrc/kernels/codes4.h has it.
func packed4(form string, rows, columns int) [2]int {
	const most = 4096
	segments := (columns + most - 1) / most
	width := ((columns+segments-1)/segments + 127) / 128 * 128
	ofScale := 2
	if form == mxfp4 {
		ofScale = 1
	}
	bytes := width/2 + width/columnsOfScale(form)*ofScale
	if bytes = (bytes + 15) / 16 * 16; bytes%128 == 0 {
		bytes += 16
	}
	return [2]int{segments * rows, bytes}
}

// takesCodes4 fails if a model has no experts that may have weights of 4 bits in this form.
func (c *decoderConfig) takesCodes4(form string) error {
	if sparse := c.sparseLayers(); sparse == 0 && isInt4(form) || sparse > 0 && c.width%32 == 0 && c.experts.inner%32 == 0 {
		return nil
	}
	return fmt.Errorf("text: Quantize is %s, which is for experts whose widths are multiples of 32, and the model has %d layers with experts, of widths %d and %d: open it with int8 or fp8, or without Quantize: %w",
		form, c.sparseLayers(), c.width, c.experts.inner, cgotorch.ErrInvalidArgument)
}

// encode4 returns the packed codes nearest to a matrix, Float32 [rows, columns], and the numbers
// that they tell. The matrix has no NaN and no Inf.
func encode4(x *cgotorch.Exec, form string, matrix *cgotorch.Tensor) (packed, numbers *cgotorch.Tensor) {
	rows, columns := matrix.Shape()[0], int(matrix.Shape()[1])
	group := columnsOfScale(form)
	count := (columns + group - 1) / group
	padded := x.Contiguous(x.Pad(matrix, []int64{0, int64(group*count - columns)}, cgotorch.PadOptions{}), cgotorch.Contiguous)
	groups := x.View(padded, rows, int64(count), int64(group))
	var codes, scales *cgotorch.Tensor
	if form != mxfp4 {
		least, most := x.AMin(groups, []int64{2}, cgotorch.ReduceOptions{}), x.AMax(groups, []int64{2}, cgotorch.ReduceOptions{})
		largest := x.Where(x.Gt(x.Neg(least), most), least, most) // by its magnitude
		scales = x.To(x.MulScalar(largest, -1./8), cgotorch.BFloat16)
		by := x.To(scales, cgotorch.Float32)
		scaled := x.Div(groups, x.Unsqueeze(x.MaskedFill(by, x.EqScalar(by, 0), 1), 2)) // of a group of zeros
		codes = x.To(x.AddScalar(x.Clamp(x.Round(scaled), -8, 7), 8), cgotorch.Int64)
	} else {
		largest := x.AMax(x.Abs(groups), []int64{2}, cgotorch.ReduceOptions{})
		exponents := x.Clamp(x.AddScalar(x.Floor(x.Log2(largest)), -2), -127, 127) // the largest code is 6, above 4
		scaled := x.Mul(groups, x.Unsqueeze(x.Exp2(x.Neg(exponents)), 2))
		halfway := cgotorch.FromSlice(x, []float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}, 7)
		magnitudes := call(x, "aten::bucketize.Tensor", x.Abs(scaled), halfway)
		codes = x.Add(magnitudes, x.MulScalar(x.To(x.LtScalar(scaled, 0), cgotorch.Int64), 8))
		scales = x.To(x.AddScalar(exponents, 127), cgotorch.Uint8)
	}
	pairs := x.View(codes, rows, int64(count), int64(group/2), 2)
	bytes := x.To(x.Add(x.Select(pairs, 3, 0), x.MulScalar(x.Select(pairs, 3, 1), 16)), cgotorch.Uint8)
	packed = x.Call1("streamtorch::pack4", bytes, scales, form)
	return packed, x.Call1("streamtorch::unpack4", packed, columns, cgotorch.Float32, form)
}

// pack is what is to become packed codes: the matrix of one expert, or those of all of a layer.
type pack struct {
	to     *cgotorch.Tensor // of all experts, Uint8 [experts, ..., bytes]
	form   string
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
		case p.one == nil && src.quantized != nil && p.form == mxfp4:
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
		weight := x.To(x.Detach(matrix), cgotorch.Float32)
		if most := x.Item(x.Max(x.Abs(weight))); math.IsNaN(most) || math.IsInf(most, 0) {
			err = fmt.Errorf("text: tensor %s has a NaN or an Inf, which %s has no scale for: open it without Quantize: %w", p.title(), p.form, cgotorch.ErrInvalidArgument)
			return nil
		}
		packed, numbers := encode4(x, p.form, weight)
		if far := x.Item(x.Max(x.Abs(x.Sub(numbers, weight)))); math.IsNaN(far) || math.IsInf(far, 0) {
			err = fmt.Errorf("text: tensor %s has numbers near the largest float32, which %s has no scale for: open it without Quantize: %w", p.title(), p.form, cgotorch.ErrInvalidArgument)
			return nil
		}
		x.CopyInPlace(x.Select(p.to, 0, expert), packed)
		addSquares(x, squares, x.Sub(numbers, weight), weight)
		return nil
	})
	return err
}

// draw draws codes, each as likely, and scales that give the numbers about this deviation. They
// depend on the seed and on the pack's name alone.
func (p *pack) draw(x *cgotorch.Exec, seed uint64, deviation float64) error {
	return withSeed(seed, func() {
		seedBy(seed, p.title())
		first, count := p.expert, 1
		if p.one == nil {
			first, count = 0, int(p.shape[0])
		}
		for i := first; i < first+count; i++ {
			x.Tidy(func() *cgotorch.Tensor {
				rows, groups := p.rows(), p.groups()
				codes := x.RandInt(cgotorch.Uint8, 0, 256, rows, groups, int64(columnsOfScale(p.form)/2))
				const ofFloats, ofInts = 2.9, 4.6 // the deviations of codes that are equally likely
				scales := x.Full(cgotorch.BFloat16, deviation/ofInts, rows, groups)
				if p.form == mxfp4 {
					scales = x.Full(cgotorch.Uint8, max(0, min(127+math.Round(math.Log2(deviation/ofFloats)), 254)), rows, groups)
				}
				return x.CopyInPlace(x.Select(p.to, 0, i), x.Call1("streamtorch::pack4", codes, scales, p.form))
			})
		}
	})
}

// rows returns how many rows a matrix has.
func (p *pack) rows() (n int64) {
	if p.one == nil {
		return p.shape[2]
	}
	for _, rows := range p.one.rows {
		n += int64(rows)
	}
	return n
}

// groups returns how many scales a row has.
func (p *pack) groups() int64 {
	group, columns := int64(columnsOfScale(p.form)), int64(0)
	if p.one != nil {
		columns = int64(p.one.in)
	} else {
		columns = p.shape[1]
	}
	return (columns + group - 1) / group
}
