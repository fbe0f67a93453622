package text

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// quantizedSource is a weight of a product that the files have in several tensors: Note [Quantised
// weights].
type quantizedSource struct {
	*quantization
	files         weightSet
	experts       int64 // of fp4Blocks
	rows, columns int64
	module        string   // the name in the files, without a suffix
	members       []member // the first has the codes
}

// member is a tensor of a quantised weight.
type member struct {
	suffix string
	kinds  []string  // its dtype is one of these
	shapes [][]int64 // its shape is one of these
	needed bool
}

const (
	packedShape, packedZeros, packedOrder = ".weight_shape", ".weight_zero_point", ".weight_g_idx"
	gptqZeros, gptqOrder                  = ".qzeros", ".g_idx"
)

// source returns the source of a tensor of this shape that has this name in the files, or nil if
// the files have it as it is, or not at all.
func (q *quantization) source(w weightSet, name string, shape []int64) *quantizedSource {
	s := &quantizedSource{quantization: q, files: w, module: name}
	switch module, isWeight := strings.CutSuffix(name, ".weight"); {
	case q.layout == fp4Blocks && len(shape) == 3:
		s.experts, s.columns, s.rows = shape[0], shape[1], shape[2]
	case q.layout != fp4Blocks && len(shape) == 2 && isWeight:
		s.rows, s.columns, s.module = shape[0], shape[1], module
	default:
		return nil
	}
	s.members = s.parts()
	info, ok := s.lookup(s.members[0].suffix)
	if !ok || dtypes[info.DType] != 0 {
		return nil
	}
	return s
}

// parts returns what the files have for the weight.
func (s *quantizedSource) parts() []member {
	groups, word := s.groups(), int64(32/max(s.bits, 1))
	words := func(n int64) int64 { return (n + word - 1) / word }
	one := func(sizes ...int64) [][]int64 { return [][]int64{sizes} }
	floats, packed, indices := []string{"F32", "F16", "BF16"}, []string{"I32"}, []string{"I32", "I64"}
	scales := member{s.scale, floats, one(s.rows, groups), true}
	switch {
	case s.layout == gptqWords || s.layout == awqWords:
		scales.shapes = one(groups, s.rows)
	case s.block[0] > 0:
		scales.shapes = one((s.rows-1)/int64(s.block[0])+1, (s.columns-1)/int64(s.block[1])+1)
	case groups == 1:
		scales.shapes = append(scales.shapes, []int64{1}, []int64{}, []int64{1, 1})
	}
	order := member{packedOrder, indices, one(s.columns), s.ordered}
	switch s.layout {
	case fp4Blocks:
		codes := []string{"U8"}
		return []member{{"_blocks", codes, one(s.experts, s.rows, groups, 16), true}, {s.scale, codes, one(s.experts, s.rows, groups), true}}
	case rowWords:
		all := []member{{".weight_packed", packed, one(s.rows, words(s.columns)), true}, scales, {packedShape, indices, one(2), true}, order}
		if !s.symmetric {
			all = append(all, member{packedZeros, packed, one(words(s.rows), groups), true})
		}
		return all
	case gptqWords, awqWords:
		shape := one(words(s.columns), s.rows)
		if s.layout == awqWords {
			shape = one(s.columns, words(s.rows))
		}
		order.suffix = gptqOrder
		all := []member{{".qweight", packed, shape, true}, scales, {gptqZeros, packed, one(groups, words(s.rows)), true}, order}
		return all[:map[layout]int{gptqWords: 4, awqWords: 3}[s.layout]]
	}
	return []member{{".weight", []string{s.kind}, one(s.rows, s.columns), true}, scales, order}
}

// groups returns the number of groups of columns.
func (s *quantizedSource) groups() int64 {
	if s.group == 0 {
		return 1
	}
	return max(1, s.columns/int64(s.group))
}

func (s *quantizedSource) lookup(suffix string) (info safetensors.Info, ok bool) {
	if f := s.files.of[s.module+suffix]; f != nil {
		return f.Lookup(s.module + suffix)
	}
	return info, false
}

// file is the file of the codes.
func (s *quantizedSource) file() string { return s.files.of[s.module+s.members[0].suffix].Name() }

// check compares the tensors of the files with what the weight needs.
func (s *quantizedSource) check() error {
	if s.group > 0 && s.columns%int64(s.group) != 0 {
		return fmt.Errorf("text: %s: tensor %s%s has %d columns, and that is no multiple of group_size, %d: %w", s.file(), s.module, s.members[0].suffix, s.columns, s.group, cgotorch.ErrInvalidArgument)
	}
	for _, m := range s.members {
		info, ok := s.lookup(m.suffix)
		switch {
		case !ok && m.suffix == s.scale && s.files.of[s.module+".weight_scale_inv"] != nil:
			return fmt.Errorf("text: %s: tensor %s.weight_scale_inv has scales of blocks, and quantization_config of config.json has no weight_block_size: %w", s.file(), s.module, cgotorch.ErrInvalidArgument)
		case !ok && m.needed:
			return fmt.Errorf("text: %s: tensor %s%s is missing: %w", s.file(), s.module, m.suffix, cgotorch.ErrInvalidArgument)
		case !ok:
		case !slices.Contains(m.kinds, info.DType):
			return fmt.Errorf("text: %s: tensor %s is %s%v, and quantization_config of config.json tells %s: %w", s.files.of[info.Name].Name(), info.Name, info.DType, info.Shape, strings.Join(m.kinds, " or "), cgotorch.ErrInvalidArgument)
		case !slices.ContainsFunc(m.shapes, func(shape []int64) bool { return slices.Equal(shape, info.Shape) }):
			return fmt.Errorf("text: %s: tensor %s is %s%v, and quantization_config of config.json tells the shape %v: %w", s.files.of[info.Name].Name(), info.Name, info.DType, info.Shape, m.shapes[0], cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

var codeDTypes = map[string]cgotorch.DType{
	"F32": cgotorch.Float32, "F16": cgotorch.Float16, "BF16": cgotorch.BFloat16, "I8": cgotorch.Int8, "I32": cgotorch.Int32, "I64": cgotorch.Int64, "F8_E4M3": cgotorch.Uint8, "U8": cgotorch.Uint8,
}

// read copies a tensor that was checked to the device. It returns nil if the files do not have it.
func (s *quantizedSource) read(x *cgotorch.Exec, suffix string) (*cgotorch.Tensor, error) {
	info, ok := s.lookup(suffix)
	if !ok {
		return nil, nil
	}
	data, err := s.files.of[info.Name].Read(info.Name)
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	t := cgotorch.FromBytes(x, data, codeDTypes[info.DType], info.Shape)
	if info.DType == "F8_E4M3" {
		t = call(x, "aten::view.dtype", t, float8)
	}
	return t, nil
}

// convert computes the weight, some rows at a time, and copies it to the model's. It waits for the
// device.
func (s *quantizedSource) convert(x *cgotorch.Exec, to *cgotorch.Tensor) (err error) {
	if s.layout == fp4Blocks {
		return s.convertExperts(x, to)
	}
	const together = 1 << 23 // elements
	x.Tidy(func() *cgotorch.Tensor {
		var codes, zeros, scales *cgotorch.Tensor
		if codes, err = s.read(x, s.members[0].suffix); err != nil {
			return nil
		}
		if zeros, err = s.zeros(x); err != nil {
			return nil
		}
		if scales, err = s.scales(x); err != nil {
			return nil
		}
		var of *cgotorch.Tensor
		if of, err = s.scaleOfColumn(x); err != nil {
			return nil
		}
		step := max(8, together/max(1, s.columns)/8*8)
		for at := int64(0); at < s.rows; at += step {
			x.Tidy(func() *cgotorch.Tensor {
				n := min(step, s.rows-at)
				values := s.codes(x, codes, at, n)
				if zeros != nil {
					values = x.Sub(values, x.IndexSelect(x.Narrow(zeros, 0, int(at), int(n)), 1, of))
				}
				nn.Copy(x, x.Narrow(to, 0, int(at), int(n)), x.Mul(values, s.scalesOf(x, scales, of, at, n)))
				return nil
			})
		}
		return nil
	})
	return err
}

// convertExperts computes the weights of all experts, one after another, and copies them to those
// of the model, [experts, columns, rows]. It waits for the device.
func (s *quantizedSource) convertExperts(x *cgotorch.Exec, to *cgotorch.Tensor) (err error) {
	x.Tidy(func() *cgotorch.Tensor {
		var codes, scales *cgotorch.Tensor
		if codes, err = s.read(x, s.members[0].suffix); err != nil {
			return nil
		}
		if scales, err = s.read(x, s.scale); err != nil {
			return nil
		}
		const nan = 255
		if x.Item(x.Max(scales)) == nan {
			err = fmt.Errorf("text: %s: tensor %s%s has a scale that is not a number: %w", s.file(), s.module, s.scale, cgotorch.ErrInvalidArgument)
			return nil
		}
		negative := float32(math.Copysign(0, -1))
		values := cgotorch.FromSlice(x, []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, negative, -0.5, -1, -1.5, -2, -3, -4, -6}, 16)
		for i := range int(s.experts) {
			x.Tidy(func() *cgotorch.Tensor {
				if to.DType() == cgotorch.Uint8 { // the codes stay
					one := x.View(x.Select(codes, 0, i), s.rows, -1, 16)
					return x.CopyInPlace(x.Select(to, 0, i), x.Call1("streamtorch::pack4", one, x.Select(scales, 0, i)))
				}
				bytes := x.To(x.Select(codes, 0, i), cgotorch.Int32)
				both := x.Stack([]*cgotorch.Tensor{x.BitwiseAndScalar(bytes, 15), call(x, "aten::bitwise_right_shift.Tensor_Scalar", bytes, 4)}, -1)
				weights := x.View(x.IndexSelect(values, 0, x.Reshape(both, -1)), s.rows, -1, int64(s.group))
				factors := x.Exp2(x.AddScalar(x.To(x.Select(scales, 0, i), cgotorch.Float32), -127))
				weights = x.View(x.Mul(weights, x.Unsqueeze(factors, 2)), s.rows, -1)
				nn.Copy(x, x.Transpose(x.Select(to, 0, i), 0, 1), weights)
				return nil
			})
		}
		return nil
	})
	return err
}

// codes returns the codes of n rows from row `at` on, Float32 [n, columns]. at is a multiple of 8.
func (s *quantizedSource) codes(x *cgotorch.Exec, all *cgotorch.Tensor, at, n int64) *cgotorch.Tensor {
	rows := func(t *cgotorch.Tensor, dim int) *cgotorch.Tensor { return x.Narrow(t, dim, int(at), int(n)) }
	columns := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 1, 0, int(s.columns)) }
	switch s.layout {
	case rowWords:
		codes := columns(x.Reshape(s.unpack(x, rows(all, 0)), n, -1))
		if s.symmetric {
			return x.AddScalar(codes, -float64(int64(1)<<(s.bits-1))) // what is added to signed codes in the files
		}
		return codes
	case gptqWords:
		return columns(x.Reshape(x.Permute(s.unpack(x, rows(all, 1)), 1, 0, 2), n, -1))
	case awqWords:
		words := x.Narrow(all, 1, int(at/8), int((n+7)/8))
		return x.Narrow(x.Transpose(x.Reshape(s.unpack(x, words), s.columns, -1), 0, 1), 0, 0, int(n))
	}
	return x.To(rows(all, 0), cgotorch.Float32)
}

// unpack splits words [a, b] into codes [a, b, n] in float32, the low bits first, or in the order
// of awq.
func (s *quantizedSource) unpack(x *cgotorch.Exec, words *cgotorch.Tensor) *cgotorch.Tensor {
	shifts := x.Arange(cgotorch.Int32, 0, 32, s.bits)
	if s.layout == awqWords {
		shifts = cgotorch.FromSlice(x, []int32{0, 16, 4, 20, 8, 24, 12, 28}, 8)
	}
	return x.To(x.BitwiseAndScalar(x.BitwiseRightShift(x.Unsqueeze(words, 2), shifts), 1<<s.bits-1), cgotorch.Float32)
}

// zeros returns the zeros, Float32 [rows, groups], or nil if codes are signed. It waits for the
// device.
func (s *quantizedSource) zeros(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
	groups := s.groups()
	switch {
	case s.layout == rowWords:
		if err := s.checkShape(x); err != nil || s.symmetric {
			return nil, err
		}
		zeros, err := s.read(x, packedZeros)
		if err != nil {
			return nil, err
		}
		return x.Narrow(x.Reshape(x.Permute(s.unpack(x, zeros), 0, 2, 1), -1, groups), 0, 0, int(s.rows)), nil
	case s.layout == rowCodes:
		return nil, nil
	}
	zeros, err := s.read(x, gptqZeros)
	if err != nil {
		return nil, err
	}
	zeros = x.Narrow(x.Transpose(x.Reshape(s.unpack(x, zeros), groups, -1), 0, 1), 0, 0, int(s.rows))
	if s.layout == awqWords {
		return zeros, nil
	}
	if err := s.checkZeros(x, zeros); err != nil {
		return nil, err
	}
	return x.AddScalar(zeros, s.zeroAbove), nil
}

// scales returns the scales in float32: [rows or 1, groups], or one for each block.
func (s *quantizedSource) scales(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
	scales, err := s.read(x, s.scale)
	if err != nil {
		return nil, err
	}
	if s.layout == gptqWords || s.layout == awqWords {
		scales = x.Transpose(scales, 0, 1)
	} else if len(scales.Shape()) < 2 {
		scales = x.View(scales, 1, 1)
	}
	return x.To(scales, cgotorch.Float32), nil
}

// scaleOfColumn returns the group or the block of each column, Int64 [columns]. It waits for the
// device.
func (s *quantizedSource) scaleOfColumn(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
	for _, m := range s.members {
		if m.suffix != packedOrder && m.suffix != gptqOrder {
			continue
		}
		if order, err := s.readOrder(x, m.suffix); err != nil || order != nil {
			return order, err
		}
	}
	together := s.columns / s.groups()
	if s.block[0] > 0 {
		together = int64(s.block[1])
	}
	return indices(x, 0, s.columns, together), nil
}

// indices returns the numbers from `at` up to at+n, each divided by `by` and rounded down.
func indices(x *cgotorch.Exec, at, n, by int64) *cgotorch.Tensor {
	all := make([]int64, n)
	for i := range all {
		all[i] = (at + int64(i)) / by
	}
	return cgotorch.FromSlice(x, all, n)
}

// scalesOf returns the scales of n rows from row `at` on, [n or 1, columns or 1].
func (s *quantizedSource) scalesOf(x *cgotorch.Exec, scales, of *cgotorch.Tensor, at, n int64) *cgotorch.Tensor {
	switch rows := scales.Shape()[0]; {
	case s.block[0] > 0:
		scales = x.IndexSelect(scales, 0, indices(x, at, n, int64(s.block[0])))
	case rows > 1:
		scales = x.Narrow(scales, 0, int(at), int(n))
	}
	if scales.Shape()[1] == 1 {
		return scales
	}
	return x.IndexSelect(scales, 1, of)
}

// checkZeros refuses two things: zeros of gptq that contradict `sym` of config.json, and the
// largest zero that can be stored, of which some programs make 0, and others the number above. It
// waits for the device.
func (s *quantizedSource) checkZeros(x *cgotorch.Exec, zeros *cgotorch.Tensor) error {
	least, most := x.Item(x.Min(zeros)), x.Item(x.Max(zeros))
	middle, largest := float64(int64(1)<<(s.bits-1)-int64(s.zeroAbove)), float64(int64(1)<<s.bits-1)
	switch {
	case s.symmetric && (least != middle || most != middle):
		return fmt.Errorf("text: %s: tensor %s%s has zeros from %v to %v, and sym with this checkpoint_format of config.json has %v: %w",
			s.file(), s.module, gptqZeros, least, most, middle, cgotorch.ErrInvalidArgument)
	case s.zeroAbove != 0 && most == largest:
		return fmt.Errorf("text: %s: tensor %s%s has the zero %v, whose meaning in the checkpoint_format gptq is not defined: get the model in gptq_v2, or in bfloat16: %w",
			s.file(), s.module, gptqZeros, most, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// checkShape compares the sizes that the files have besides. It waits for the device.
func (s *quantizedSource) checkShape(x *cgotorch.Exec) error {
	t, err := s.read(x, packedShape)
	if err != nil {
		return err
	}
	if got := cgotorch.ToSlice[int64](x, x.To(t, cgotorch.Int64)); got[0] != s.rows || got[1] != s.columns {
		return fmt.Errorf("text: %s: tensor %s%s is %v, and the model's weight is [%d %d]: %w", s.file(), s.module, packedShape, got, s.rows, s.columns, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// readOrder reads which group each column belongs to, Int64 [columns], or returns nil if the files
// leave it open. It waits for the device.
func (s *quantizedSource) readOrder(x *cgotorch.Exec, suffix string) (*cgotorch.Tensor, error) {
	t, err := s.read(x, suffix)
	if t == nil {
		return nil, err
	}
	order, groups := x.To(t, cgotorch.Int64), s.groups()
	for i, group := range cgotorch.ToSlice[int64](x, order) {
		if group == -1 && i == 0 {
			return nil, nil
		}
		if group < 0 || group >= groups {
			return nil, fmt.Errorf("text: %s: tensor %s%s puts column %d into group %d of %d: %w", s.file(), s.module, suffix, i, group, groups, cgotorch.ErrInvalidArgument)
		}
	}
	return order, nil
}
