package torchzip

import "math"

// mostElements is the most elements of a tensor or of its storage. Their bytes fit in 64 bits.
const mostElements = math.MaxInt64 / 16

// Reach returns the number of elements of a tensor and, if it has elements, the place of the last
// one in its storage. ok is false for numbers that cannot be.
func Reach(shape, strides []int64, offset int64) (last, count int64, ok bool) {
	count = 1
	for i, n := range shape {
		if n < 0 || strides[i] < 0 || n > 0 && count > mostElements/n {
			return 0, 0, false
		}
		count *= n
	}
	if offset < 0 || offset > mostElements {
		return 0, 0, false
	}
	last = offset
	for i, n := range shape {
		if count == 0 || n == 1 {
			continue
		}
		if strides[i] > (mostElements-last)/(n-1) {
			return 0, 0, false
		}
		last += (n - 1) * strides[i]
	}
	return last, count, true
}

// RowMajor returns the elements of a tensor in row-major order, each of `size` bytes. `from` begins
// with the first element.
func RowMajor(from []byte, size int64, shape, strides []int64) []byte {
	count := int64(1)
	for _, n := range shape {
		count *= n
	}
	to := make([]byte, 0, count*size)
	index := make([]int64, len(shape))
	for range count {
		at := int64(0)
		for d, i := range index {
			at += i * strides[d]
		}
		to = append(to, from[at*size:(at+1)*size]...)
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
	}
	return to
}
