package ct

// Operands are the arguments of one [Call], and room for the results of the call. Operands must
// lie on the heap.
type Operands struct {
	Words         []uint64
	Tensors       []*Tensor
	Results       Results
	ResultWords   []uint64
	ResultTensors []*Tensor
	Overflow      *Overflow
}

// HostCopy is ct_host_copy, with its pointers as numbers.
type HostCopy struct{ Tensor, Data, Bytes uintptr }

// A Function stands for a ct_function. The token is the ct.Handle of a Function.
type Function interface {
	// Run returns 0 if the function succeeds, and otherwise the ct.Handle of its failure.
	Run(in *Tensor, out **Tensor) uint64
}

// Text returns the bytes of chars before the first zero byte, as a string.
func Text(chars []byte) string {
	for i, c := range chars {
		if c == 0 {
			return string(chars[:i])
		}
	}
	return string(chars)
}
