package text

import (
	"fmt"
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
	files   weights
	shape   []int64          // [rows, columns]
	module  string           // the name in the files, without a suffix
	members map[string]bool  // the tensors of the files that belong to it
	order   *cgotorch.Tensor // Int64 [columns]: the group of each column, or nil if groups lie side by side
}

// source returns the source of a weight [rows, columns] whose module has this name in the files, or
// nil if the files have it as it is, or not at all.
func (q *quantization) source(w weights, module string, shape []int64) *quantizedSource {
	s := &quantizedSource{quantization: q, files: w, shape: shape, module: module, members: map[string]bool{}}
	codes := map[layout]string{rowCodes: ".weight", rowWords: ".weight_packed", gptqWords: ".qweight", awqWords: ".qweight"}[q.layout]
	f := w.of[module+codes]
	if f == nil {
		return nil
	}
	if info, _ := f.Lookup(module + codes); dtypes[info.DType] != 0 {
		return nil
	}
	for _, suffix := range []string{codes, q.scale, ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".qzeros", ".g_idx"} {
		if w.of[module+suffix] != nil {
			s.members[module+suffix] = true
		}
	}
	return s
}

// read copies a tensor of the files to the device. Its dtype and its shape must be among those given.
// F8_E4M3 becomes float32.
func (s *quantizedSource) read(x *cgotorch.Exec, suffix string, shapes [][]int64, kinds ...string) (*cgotorch.Tensor, error) {
	name := s.module + suffix
	f := s.files.of[name]
	if f == nil {
		return nil, fmt.Errorf("text: %s: tensor %s is missing: %w", s.files.names(), name, cgotorch.ErrInvalidArgument)
	}
	info, _ := f.Lookup(name)
	if !slices.Contains(kinds, info.DType) {
		return nil, s.fault(f, info, "want "+strings.Join(kinds, " or "))
	}
	if !slices.ContainsFunc(shapes, func(shape []int64) bool { return slices.Equal(shape, info.Shape) }) {
		return nil, s.fault(f, info, fmt.Sprintf("want the shape %v", shapes[0]))
	}
	data, err := f.Read(name)
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	if info.DType == "F8_E4M3" {
		return x.To(call(x, "aten::view.dtype", cgotorch.FromBytes(x, data, cgotorch.Uint8, info.Shape), float8), cgotorch.Float32), nil
	}
	return cgotorch.FromBytes(x, data, codeDTypes[info.DType], info.Shape), nil
}

var codeDTypes = map[string]cgotorch.DType{
	"F32": cgotorch.Float32, "F16": cgotorch.Float16, "BF16": cgotorch.BFloat16, "I8": cgotorch.Int8, "I32": cgotorch.Int32, "I64": cgotorch.Int64,
}

func (s *quantizedSource) fault(f *safetensors.File, info safetensors.Info, want string) error {
	return fmt.Errorf("text: %s: tensor %s is %s%v, %s: %w", f.Name(), info.Name, info.DType, info.Shape, want, cgotorch.ErrInvalidArgument)
}

// convert computes the weight, and copies it to the model's. It waits for the device.
func (s *quantizedSource) convert(x *cgotorch.Exec, to *cgotorch.Tensor) (err error) {
	x.Tidy(func() *cgotorch.Tensor {
		var codes, zeros, scales *cgotorch.Tensor // [rows, columns], and [rows or 1, groups] or blocks
		if codes, zeros, err = s.codes(x); err != nil {
			return nil
		}
		if scales, err = s.scales(x); err != nil {
			return nil
		}
		if zeros != nil {
			codes = x.Sub(codes, s.spread(x, zeros))
		}
		nn.Copy(x, to, x.Mul(codes, s.spread(x, scales)))
		return nil
	})
	return err
}

// sizes returns the sizes of the weight, and the number of its groups of columns.
func (s *quantizedSource) sizes() (rows, columns, groups int64, err error) {
	rows, columns, groups = s.shape[0], s.shape[1], 1
	if group := int64(s.group); group > 0 {
		if columns%group != 0 {
			return 0, 0, 0, fmt.Errorf("text: %s: tensor %s has %d columns, and that is no multiple of group_size, %d: %w", s.files.names(), s.module, columns, group, cgotorch.ErrInvalidArgument)
		}
		groups = columns / group
	}
	return rows, columns, groups, nil
}

// codes returns the codes in float32, [rows, columns], and the zeros, [rows, groups], or nil for
// none.
func (s *quantizedSource) codes(x *cgotorch.Exec) (codes, zeros *cgotorch.Tensor, err error) {
	rows, columns, groups, err := s.sizes()
	if err != nil {
		return nil, nil, err
	}
	word := int64(32 / max(s.bits, 1))
	words := func(n int64) int64 { return (n + word - 1) / word }
	var shape, zeroShape []int64
	switch s.layout {
	case rowCodes:
		codes, err = s.read(x, ".weight", [][]int64{{rows, columns}}, "F8_E4M3", "I8")
		if err == nil {
			codes = x.To(codes, cgotorch.Float32)
		}
		return codes, nil, err
	case rowWords:
		if err := s.checkShape(x, rows, columns); err != nil {
			return nil, nil, err
		}
		if err := s.readOrder(x, ".weight_g_idx", columns, groups); err != nil {
			return nil, nil, err
		}
		if codes, err = s.read(x, ".weight_packed", [][]int64{{rows, words(columns)}}, "I32"); err != nil {
			return nil, nil, err
		}
		codes = x.Narrow(x.Reshape(s.unpack(x, codes), rows, -1), 1, 0, int(columns))
		half := float64(int64(1) << (s.bits - 1)) // codes are signed, and stored with this added
		if s.symmetric {
			return x.AddScalar(codes, -half), nil, nil
		}
		if zeros, err = s.read(x, ".weight_zero_point", [][]int64{{words(rows), groups}}, "I32"); err != nil {
			return nil, nil, err
		}
		zeros = x.Reshape(x.Permute(s.unpack(x, zeros), 0, 2, 1), -1, groups)
		return codes, x.Narrow(zeros, 0, 0, int(rows)), nil
	case gptqWords:
		shape, zeroShape = []int64{words(columns), rows}, []int64{groups, words(rows)}
	case awqWords:
		shape, zeroShape = []int64{columns, words(rows)}, []int64{groups, words(rows)}
	}
	if codes, err = s.read(x, ".qweight", [][]int64{shape}, "I32"); err != nil {
		return nil, nil, err
	}
	if zeros, err = s.read(x, ".qzeros", [][]int64{zeroShape}, "I32"); err != nil {
		return nil, nil, err
	}
	codes, zeros = s.unpack(x, codes), s.unpack(x, zeros)
	if s.layout == gptqWords {
		if err := s.readOrder(x, ".g_idx", columns, groups); err != nil {
			return nil, nil, err
		}
		codes = x.Narrow(x.Reshape(x.Permute(codes, 1, 0, 2), rows, -1), 1, 0, int(columns))
	} else {
		order := cgotorch.FromSlice(x, []int64{0, 4, 1, 5, 2, 6, 3, 7}, 8) // where a word has each of its eight rows
		codes, zeros = x.IndexSelect(codes, 2, order), x.IndexSelect(zeros, 2, order)
		codes = x.Narrow(x.Transpose(x.Reshape(codes, columns, -1), 0, 1), 0, 0, int(rows))
	}
	zeros = x.Narrow(x.Transpose(x.Reshape(zeros, groups, -1), 0, 1), 0, 0, int(rows))
	if s.layout == gptqWords {
		if err := s.checkZeros(x, zeros); err != nil {
			return nil, nil, err
		}
		zeros = x.AddScalar(zeros, s.zeroAbove)
	}
	return codes, zeros, nil
}

// checkZeros refuses zeros of gptq that tell another form than config.json, and the zero that has
// two meanings: of what is stored as the largest code, some programs make 0, and others the number
// above.
func (s *quantizedSource) checkZeros(x *cgotorch.Exec, zeros *cgotorch.Tensor) error {
	least, most := x.Item(x.Min(zeros)), x.Item(x.Max(zeros))
	middle, largest := float64(int64(1)<<(s.bits-1)-int64(s.zeroAbove)), float64(int64(1)<<s.bits-1)
	switch {
	case s.symmetric && (least != middle || most != middle):
		return fmt.Errorf("text: %s: tensor %s.qzeros has zeros from %v to %v, and sym with this checkpoint_format of config.json has %v: %w",
			s.files.names(), s.module, least, most, middle, cgotorch.ErrInvalidArgument)
	case s.zeroAbove != 0 && most == largest:
		return fmt.Errorf("text: %s: tensor %s.qzeros has the zero %v, whose meaning in the checkpoint_format gptq is not defined: get the model in gptq_v2, or in bfloat16: %w",
			s.files.names(), s.module, most, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// unpack splits words [a, b] into codes [a, b, n] in float32, the low bits first.
func (s *quantizedSource) unpack(x *cgotorch.Exec, words *cgotorch.Tensor) *cgotorch.Tensor {
	shifts := x.Arange(cgotorch.Int32, 0, 32, s.bits)
	return x.To(x.BitwiseAndScalar(x.BitwiseRightShift(x.Unsqueeze(words, 2), shifts), 1<<s.bits-1), cgotorch.Float32)
}

// scales returns the scales in float32: [rows or 1, groups], or one for each block.
func (s *quantizedSource) scales(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
	rows, columns, groups, err := s.sizes()
	if err != nil {
		return nil, err
	}
	shapes := [][]int64{{rows, groups}}
	switch {
	case s.layout == gptqWords || s.layout == awqWords:
		shapes = [][]int64{{groups, rows}}
	case s.block[0] > 0:
		r, c := int64(s.block[0]), int64(s.block[1])
		shapes = [][]int64{{(rows + r - 1) / r, (columns + c - 1) / c}}
	case groups == 1:
		shapes = append(shapes, []int64{1}, []int64{}, []int64{1, 1})
	}
	scales, err := s.read(x, s.scale, shapes, "F32", "F16", "BF16")
	if err != nil {
		return nil, err
	}
	if s.layout == gptqWords || s.layout == awqWords {
		scales = x.Transpose(scales, 0, 1)
	} else if len(scales.Shape()) < 2 {
		scales = x.View(scales, -1, 1)
	}
	return x.To(scales, cgotorch.Float32), nil
}

// spread repeats what rows and columns share: t [rows, groups] or blocks becomes [rows or 1,
// columns or 1].
func (s *quantizedSource) spread(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	rows, columns := int(s.shape[0]), int(s.shape[1])
	if s.block[0] > 0 {
		return x.Narrow(x.Narrow(x.RepeatInterleave(x.RepeatInterleave(t, s.block[0], 0), s.block[1], 1), 0, 0, rows), 1, 0, columns)
	}
	if s.order != nil && t.Shape()[1] > 1 {
		return x.IndexSelect(t, 1, s.order)
	}
	if groups := int(t.Shape()[1]); groups > 1 {
		return x.RepeatInterleave(t, columns/groups, 1)
	}
	return t
}

// checkShape compares the sizes that the files have besides.
func (s *quantizedSource) checkShape(x *cgotorch.Exec, rows, columns int64) error {
	t, err := s.read(x, ".weight_shape", [][]int64{{2}}, "I64", "I32")
	if err != nil {
		return err
	}
	if got := cgotorch.ToSlice[int64](x, x.To(t, cgotorch.Int64)); got[0] != rows || got[1] != columns {
		return fmt.Errorf("text: %s: tensor %s.weight_shape is %v, and the model's weight is [%d %d]: %w", s.files.names(), s.module, got, rows, columns, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// readOrder reads which group each column belongs to, if the files have it.
func (s *quantizedSource) readOrder(x *cgotorch.Exec, suffix string, columns, groups int64) error {
	name := s.module + suffix
	if s.files.of[name] == nil && !s.ordered {
		return nil
	}
	t, err := s.read(x, suffix, [][]int64{{columns}}, "I32", "I64")
	if err != nil {
		return err
	}
	order := x.To(t, cgotorch.Int64)
	side := true // the groups lie side by side
	for i, group := range cgotorch.ToSlice[int64](x, order) {
		if group == -1 && i == 0 {
			return nil // the files leave it open
		}
		if group < 0 || group >= groups {
			return fmt.Errorf("text: %s: tensor %s puts column %d into group %d of %d: %w", s.files.names(), name, i, group, groups, cgotorch.ErrInvalidArgument)
		}
		side = side && group == int64(i)/(columns/groups)
	}
	if !side {
		s.order = order
	}
	return nil
}
