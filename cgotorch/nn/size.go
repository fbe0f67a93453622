package nn

import "fmt"

// Size is a height and a width: of a kernel, a stride, a padding, a dilation or an image. The
// comment of each field of this type says what Size{0, 0} means there.
type Size [2]int

// Square returns a Size of equal height and width.
func Square(n int) Size { return Size{n, n} }

func (s Size) String() string { return fmt.Sprintf("%dx%d", s[0], s[1]) }

func (s Size) least() int { return min(s[0], s[1]) }

// Volume is a depth, a height and a width. The comment of each field of this type says what
// Volume{0, 0, 0} means there.
type Volume [3]int

// Cube returns a Volume of equal depth, height and width.
func Cube(n int) Volume { return Volume{n, n, n} }

func (v Volume) String() string { return fmt.Sprintf("%dx%dx%d", v[0], v[1], v[2]) }

// ints returns the numbers of a length, a Size or a Volume as a list.
func ints[T int | Size | Volume](of T) []int64 {
	switch of := any(of).(type) {
	case Size:
		return []int64{int64(of[0]), int64(of[1])}
	case Volume:
		return []int64{int64(of[0]), int64(of[1]), int64(of[2])}
	case int:
		return []int64{int64(of)}
	}
	return nil
}
