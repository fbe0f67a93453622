package nn

import "fmt"

// Size is a height and a width: of a kernel, a stride, a padding, a dilation or an image. The
// comment of each field of this type says what Size{0, 0} means there.
type Size [2]int

// Square returns a Size of equal height and width.
func Square(n int) Size { return Size{n, n} }

func (s Size) String() string { return fmt.Sprintf("%dx%d", s[0], s[1]) }

func (s Size) ints() []int64 { return []int64{int64(s[0]), int64(s[1])} }

// or returns s. If s is Size{0, 0}, it returns `other`.
func (s Size) or(other Size) Size {
	if s == (Size{}) {
		return other
	}
	return s
}

func (s Size) least() int { return min(s[0], s[1]) }

// Volume is a depth, a height and a width. The comment of each field of this type says what
// Volume{0, 0, 0} means there.
type Volume [3]int

// Cube returns a Volume of equal depth, height and width.
func Cube(n int) Volume { return Volume{n, n, n} }

func (v Volume) String() string { return fmt.Sprintf("%dx%dx%d", v[0], v[1], v[2]) }

func (v Volume) ints() []int64 { return []int64{int64(v[0]), int64(v[1]), int64(v[2])} }

// or returns v. If v is Volume{0, 0, 0}, it returns `other`.
func (v Volume) or(other Volume) Volume {
	if v == (Volume{}) {
		return other
	}
	return v
}

// length returns n as a list for a layer of one dimension. If n is 0, the list holds `other`.
func length(n, other int) []int64 {
	if n == 0 {
		n = other
	}
	return []int64{int64(n)}
}
