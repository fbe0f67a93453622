package text

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Note [Weights of 8 bits]
//
// With Options.Quantize the products of attention, of dense feed-forward layers and of the head
// have weights of 8 bits: int8, or fp8 (e4m3). Each row has a scale, which makes its largest weight
// the largest code. Embeddings, norms, biases, routers and experts stay as they are.
//
// A token's product multiplies the codes themselves: csrc/kernels/token_codes_cuda.h. It reads half
// the bytes, and rounds neither weights nor inputs to the model's dtype. A prompt's product first
// computes the weight in the model's dtype, in memory that is free again after it.

// codes are the weight of a product in 8 bits, or in 4: Note [Weights of 4 bits].
type codes struct {
	form          string           // int8, fp8, int4 or int4-128
	numbers       *cgotorch.Tensor // Int8, or Uint8 with the bits of e4m3, [rows, columns rounded up to 16]; or packed codes
	scale         *cgotorch.Tensor // Float32 [rows]; nil with packed codes
	rows, columns int
}

const float8 = cgotorch.DType(24) // float8_e4m3fn of LibTorch

// newCodes returns the codes of a weight [rows, columns] in a form, whose tensors the caller
// closes. It adds the squares of what the codes change, and those of the weights, to squares,
// Float64 [2].
func newCodes(x *cgotorch.Exec, form string, weight, squares *cgotorch.Tensor) *codes {
	rows, columns := int(weight.Shape()[0]), int(weight.Shape()[1])
	dtype := cgotorch.Int8
	if form == "fp8" {
		dtype = cgotorch.Uint8
	}
	c := &codes{form: form, rows: rows, columns: columns}
	if isInt4(form) {
		shape := packed4(form, rows, columns)
		c.numbers = x.Empty(cgotorch.Uint8, int64(shape[0]), int64(shape[1]))
	} else {
		c.numbers, c.scale = x.Zeros(dtype, int64(rows), int64((columns+15)/16*16)), x.Empty(cgotorch.Float32, int64(rows))
	}
	const together = 1 << 24 // elements, so that what is computed in float32 stays small
	step := max(1, together/columns)
	for at := 0; at < rows; at += step {
		x.Tidy(func() *cgotorch.Tensor {
			n := min(step, rows-at)
			c.encode(x, at, x.To(x.Narrow(weight, 0, at, n), cgotorch.Float32), squares)
			return nil
		})
	}
	x.Keep(c.numbers)
	if c.scale != nil {
		x.Keep(c.scale)
	}
	return c
}

// encode computes the codes of n rows from row `at` on, from their weights, Float32 [n, columns].
func (c *codes) encode(x *cgotorch.Exec, at int, weight, squares *cgotorch.Tensor) {
	n := int(weight.Shape()[0])
	if isInt4(c.form) {
		packed, numbers := encode4(x, c.form, weight)
		of := func(t *cgotorch.Tensor, rows int) *cgotorch.Tensor { return x.View(t, -1, int64(rows), t.Shape()[1]) } // by segments
		x.CopyInPlace(x.Narrow(of(c.numbers, c.rows), 1, at, n), of(packed, n))
		addSquares(x, squares, x.Sub(numbers, weight), weight)
		return
	}
	most := 127.0
	if c.form == "fp8" {
		most = 448
	}
	largest := x.AMax(x.Abs(weight), []int64{1}, cgotorch.ReduceOptions{KeepDim: true})
	scale := x.DivScalar(largest, most)
	scale = x.MaskedFill(scale, x.EqScalar(scale, 0), 1) // of a row of zeros
	scaled := x.Clamp(x.Div(weight, scale), -most, most)
	if c.numbers.DType() == cgotorch.Int8 {
		scaled = x.Round(scaled)
	}
	numbers := x.Narrow(x.Narrow(c.typed(x), 0, at, n), 1, 0, c.columns)
	x.CopyInPlace(numbers, scaled)
	x.CopyInPlace(x.Narrow(c.scale, 0, at, n), x.View(scale, -1))
	addSquares(x, squares, x.Sub(x.Mul(x.To(numbers, cgotorch.Float32), scale), weight), weight)
}

// addSquares adds the squares of what codes change, and those of the weights, to squares, Float64
// [2].
func addSquares(x *cgotorch.Exec, squares, changed, weight *cgotorch.Tensor) {
	for i, t := range []*cgotorch.Tensor{changed, weight} {
		x.AddInPlace(x.Select(squares, 0, i), x.Sum(x.Square(x.To(t, cgotorch.Float64))))
	}
}

// typed returns the codes in their own dtype.
func (c *codes) typed(x *cgotorch.Exec) *cgotorch.Tensor {
	if c.form == "fp8" {
		return call(x, "aten::view.dtype", c.numbers, float8)
	}
	return c.numbers
}

// weight computes the weight [rows, columns] in a dtype.
func (c *codes) weight(x *cgotorch.Exec, dtype cgotorch.DType) *cgotorch.Tensor {
	if isInt4(c.form) {
		return x.Call1("streamtorch::unpack4", c.numbers, c.columns, dtype, c.form)
	}
	numbers := x.Narrow(c.typed(x), 1, 0, c.columns)
	return x.MulInPlace(x.To(numbers, dtype), x.Unsqueeze(c.scale, 1))
}

// narrow gives weights the form of Options.Quantize. `fill` gives tensors the weights that the
// files or the seed tell. narrow returns the relative error of all: the root of the squares of what
// the codes change over those of the weights. It waits for the device.
func (d *decoder) narrow(s *cgotorch.Stream, o Options, sources map[string]source, fill func([]nn.Named) error) (float64, error) {
	var squares *cgotorch.Tensor
	if err := s.Do(func(x *cgotorch.Exec) error { squares = x.Keep(x.Zeros(cgotorch.Float64, 2)); return nil }); err != nil {
		return 0, err
	}
	defer squares.Close()
	err := d.pack(s, o, sources, squares, fill)
	if err == nil && o.Quantize != mxfp4 {
		err = d.quantize(s, o.Quantize, squares, fill)
	}
	if err != nil {
		return 0, err
	}
	var sums []float64
	if err := s.Do(func(x *cgotorch.Exec) error { sums = cgotorch.ToSlice[float64](x, squares); return nil }); err != nil {
		return 0, err
	}
	return math.Sqrt(sums[0] / max(sums[1], math.SmallestNonzeroFloat64)), nil
}

// quantize makes the weights of d.later, one product at a time, and replaces each by codes. It adds
// what changes to squares, as newCodes does.
func (d *decoder) quantize(s *cgotorch.Stream, form string, squares *cgotorch.Tensor, fill func([]nn.Named) error) error {
	for _, l := range d.later {
		if err := d.widely(s, l, fill, func(x *cgotorch.Exec) error { return d.encode(x, form, l, l.weight, squares) }); err != nil {
			return err
		}
	}
	if d.head.weight == d.embed { // the embedding stays
		if err := s.Do(func(x *cgotorch.Exec) error { return d.encode(plain(x), form, d.head, d.embed, squares) }); err != nil {
			return err
		}
		d.head.weight = nil
	}
	return nil
}

// widely makes the weight of a product in the model's dtype, lets `fill` give it its values, and
// calls `use` with them. The weight is gone when it returns. It waits for the device.
func (d *decoder) widely(s *cgotorch.Stream, l *linear, fill func([]nn.Named) error, use func(x *cgotorch.Exec) error) error {
	m := &maker{c: d.c, dtype: d.dtype}
	err := s.Do(func(x *cgotorch.Exec) error {
		m.x = plain(x)
		m.weights(l, d.dtype)
		for _, n := range m.named {
			x.Keep(n.Tensor)
		}
		x.Keep(l.weight)
		return nil
	})
	if err == nil {
		err = fill(m.named)
	}
	if err == nil {
		err = s.Do(func(x *cgotorch.Exec) error { return use(plain(x)) })
	}
	for _, n := range m.named {
		err = errors.Join(err, n.Tensor.Close())
	}
	err = errors.Join(err, l.weight.Close())
	l.weight, l.parts = nil, nil
	return err
}

// encode gives a product the codes of its weight. It waits for the device.
func (d *decoder) encode(x *cgotorch.Exec, form string, l *linear, weight, squares *cgotorch.Tensor) error {
	l.codes = newCodes(x, form, x.Detach(weight), squares)
	d.whole = append(d.whole, l.codes.numbers)
	if l.codes.scale != nil {
		d.whole = append(d.whole, l.codes.scale)
	}
	if sum := x.Item(x.Sum(squares)); math.IsNaN(sum) || math.IsInf(sum, 0) {
		name := strings.Join(l.names, ", ")
		if name == "" {
			name = d.Weights[0].Name
		}
		return fmt.Errorf("text: tensor %s has a NaN or an Inf as %v, which %s has no scale for: open it without Quantize, or with another DType if only that is too narrow: %w", name, d.dtype, form, cgotorch.ErrInvalidArgument)
	}
	return nil
}
