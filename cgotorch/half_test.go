package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Float32 converts every half and bfloat16 number as LibTorch does.
func TestHalf_ToFloat32_All(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		halves, bfloats := make([]Float16Bits, 1<<16), make([]BFloat16Bits, 1<<16)
		for i := range halves {
			halves[i], bfloats[i] = Float16Bits(i), BFloat16Bits(i)
		}
		wantHalves := ToSlice[float32](x, x.To(FromSlice(x, halves), Float32))
		wantBFloats := ToSlice[float32](x, x.To(FromSlice(x, bfloats), Float32))
		for i := range halves {
			if got, want := halves[i].Float32(), wantHalves[i]; !sameFloat(got, want) {
				t.Errorf("half %04x is %v, LibTorch says %v", i, got, want)
			}
			if got, want := bfloats[i].Float32(), wantBFloats[i]; !sameFloat(got, want) {
				t.Errorf("bfloat16 %04x is %v, LibTorch says %v", i, got, want)
			}
			if halves[i].Float32() == halves[i].Float32() && ToFloat16(halves[i].Float32()) != halves[i] {
				t.Errorf("half %04x comes back as %04x", i, ToFloat16(halves[i].Float32()))
			}
			if bfloats[i].Float32() == bfloats[i].Float32() && ToBFloat16(bfloats[i].Float32()) != bfloats[i] {
				t.Errorf("bfloat16 %04x comes back as %04x", i, ToBFloat16(bfloats[i].Float32()))
			}
		}
	})
}

// sameFloat reports whether a and b have the same bits, or are both NaN.
func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// ToFloat16 and ToBFloat16 round as LibTorch does. The test converts every half and bfloat16
// number, the float32 numbers next to it, and the float32 numbers half-way to its neighbours. It
// also converts random numbers.
func TestHalf_FromFloat32(t *testing.T) {
	torchtest.CheckLeaks(t)
	var values []float32
	for i := range 1 << 16 {
		for _, bits := range []uint32{math.Float32bits(Float16Bits(i).Float32()), uint32(i) << 16} {
			for _, beside := range []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001} {
				values = append(values, math.Float32frombits(bits+beside), math.Float32frombits(bits-beside))
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1 << 18 {
		values = append(values, math.Float32frombits(random.Uint32()), float32(math.Ldexp(random.Float64(), random.IntN(44)-28)))
	}
	torchtest.Do(t, CPU, func(x *Exec) {
		all := FromSlice(x, values)
		halves := ToSlice[Float16Bits](x, x.To(all, Float16))
		bfloats := ToSlice[BFloat16Bits](x, x.To(all, BFloat16))
		wrong := 0
		for i, v := range values {
			if got, want := ToFloat16(v), halves[i]; got != want && !(isNaN16(got) && isNaN16(want)) {
				wrong++
				t.Errorf("ToFloat16(%x) is %04x, LibTorch says %04x", math.Float32bits(v), got, want)
			}
			if got, want := ToBFloat16(v), bfloats[i]; got != want && !(v != v && got.Float32() != got.Float32() && want.Float32() != want.Float32()) {
				wrong++
				t.Errorf("ToBFloat16(%x) is %04x, LibTorch says %04x", math.Float32bits(v), got, want)
			}
			if wrong > 20 {
				t.FailNow()
			}
		}
	})
}

func isNaN16(v Float16Bits) bool { return v&0x7c00 == 0x7c00 && v&0x3ff != 0 }
