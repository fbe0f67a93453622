package checkpoint

import (
	"encoding/binary"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// floats are the bits of the file format's floats. A number is NaN or Inf if all bits of its
// exponent are set. It is Inf if no other bits are set, apart from the sign.
var floats = map[string]struct {
	bytes            int
	exponent, number uint64
}{
	"F64":  {8, 0x7ff << 52, 1<<52 - 1},
	"F32":  {4, 0xff << 23, 1<<23 - 1},
	"C64":  {4, 0xff << 23, 1<<23 - 1}, // two of F32
	"F16":  {2, 0x1f << 10, 1<<10 - 1},
	"BF16": {2, 0xff << 7, 1<<7 - 1},
}

// refuseNotFinite makes the reading of a tensor fail if the tensor has NaN, or has Inf and is no
// buffer of the model.
func refuseNotFinite(tensors []safetensors.Tensor, model any) {
	buffers := map[string]bool{}
	for _, n := range nn.State(model) {
		buffers[n.Name] = n.Buffer
	}
	for i := range tensors {
		t := &tensors[i]
		read := t.Read
		if _, float := floats[t.DType]; !float || read == nil {
			continue
		}
		t.Read = func() ([]byte, error) {
			data, err := read()
			if err != nil {
				return nil, err
			}
			nan, inf := countNotFinite(t.DType, data)
			if buffers[t.Name] {
				inf = 0
			}
			if nan+inf == 0 {
				return data, nil
			}
			return nil, fmt.Errorf("it has %d NaN and %d Inf: CGOTORCH_CHECK=finite in the environment names the operator that makes them; Checkpoint.NotFinite saves them: %w",
				nan, inf, cgotorch.ErrInvalidArgument)
		}
	}
}

// countNotFinite returns the numbers of NaN and of Inf in the elements of a tensor, in the bytes of
// the file.
func countNotFinite(dtype string, data []byte) (nan, inf int) {
	f := floats[dtype]
	count := func(bits uint64) {
		switch {
		case bits&f.exponent != f.exponent:
		case bits&f.number == 0:
			inf++
		default:
			nan++
		}
	}
	switch f.bytes {
	case 8:
		for ; len(data) >= 8; data = data[8:] {
			count(binary.LittleEndian.Uint64(data))
		}
	case 4:
		for ; len(data) >= 4; data = data[4:] {
			if bits := binary.LittleEndian.Uint32(data); bits&uint32(f.exponent) == uint32(f.exponent) {
				count(uint64(bits))
			}
		}
	case 2:
		for ; len(data) >= 2; data = data[2:] {
			count(uint64(binary.LittleEndian.Uint16(data)))
		}
	}
	return nan, inf
}
