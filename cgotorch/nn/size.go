package nn

import "fmt"

// Size is a height and a width: of a kernel, a stride, a padding, a dilation or an image. The
// comment of each field of this type says what Size{0, 0} means there.
type Size [2]int

// Square returns a Size of equal height and width.
func Square(n int) Size { return Size{n, n} }

func (s Size) String() string { return fmt.Sprintf("%dx%d", s[0], s[1]) }

func (s Size) ints() []int64 { return []int64{int64(s[0]), int64(s[1])} }

// The method `or` returns s. If s is Size{0, 0}, it returns `other`.
func (s Size) or(other Size) Size {
	if s == (Size{}) {
		return other
	}
	return s
}

func (s Size) least() int { return min(s[0], s[1]) }
