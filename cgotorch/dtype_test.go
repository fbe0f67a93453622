package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestDType(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		name  string
		size  int
		float bool
	}{
		{Uint8, "uint8", 1, false}, {Int8, "int8", 1, false}, {Int16, "int16", 2, false}, {Int32, "int32", 4, false},
		{Int64, "int64", 8, false}, {Float16, "float16", 2, true}, {Float32, "float32", 4, true}, {Float64, "float64", 8, true},
		{Complex64, "complex64", 8, false}, {Complex128, "complex128", 16, false}, {Bool, "bool", 1, false},
		{BFloat16, "bfloat16", 2, true}, {Uint16, "uint16", 2, false}, {Uint32, "uint32", 4, false}, {Uint64, "uint64", 8, false},
	} {
		if c.dtype.String() != c.name || c.dtype.Size() != c.size || c.dtype.IsFloat() != c.float {
			t.Errorf("got %v, %d bytes, float %v; want %+v", c.dtype, c.dtype.Size(), c.dtype.IsFloat(), c)
		}
		if got, err := ParseDType(c.name); got != c.dtype || err != nil {
			t.Errorf("ParseDType(%q) is %v, %v", c.name, got, err)
		}
	}
	if got := DType(77); got.String() != "dtype(77)" || got.Size() != 0 || got.IsFloat() {
		t.Errorf("dtype 77 is %v of %d bytes", got, got.Size())
	}
	for _, name := range []string{"", "float", "Float32", "torch.float32", "dtype(77)"} {
		_, err := ParseDType(name)
		wantError(t, err, ErrInvalidArgument, "ParseDType", "no dtype is named")
	}
}

// A dtype may have no name in this package. Operators still accept and return tensors of this
// dtype, and these tensors can be printed.
func TestDType_WithoutAName(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		const complexHalf DType = 8
		got := x.To(x.Ones(Complex64, 2), complexHalf)
		if got.String() != "dtype(8)[2]" {
			t.Errorf("got %v", got)
		}
		torchtest.Equal(t, x, x.To(got, Complex64), []complex64{1, 1})
	})
}
