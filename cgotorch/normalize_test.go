package cgotorch

import (
	"errors"
	"strings"
	"testing"
)

func TestNormalizeImages(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		err := DefaultStream(d).Do(func(x *Exec) error {
			mean, std := []float64{0.485, 0.456}, []float64{0.229, 0.224}
			pixels := FromSlice(x, []uint8{0, 1, 255, 128, 7, 77, 100, 200}, 2, 1, 2, 2)
			flips := FromSlice(x, []bool{false, true})
			for _, dtype := range []DType{Float32, Float64, BFloat16, Float16} {
				table := x.NormalizationTable(mean, std, dtype)
				out := x.Empty(dtype, 2, 2, 1, 2)
				x.NormalizeImages(pixels, flips, table, out)
				// As torchvision does it, on the CPU.
				normal := func(p uint8, c int) float64 {
					if dtype == Float64 {
						return (float64(p)/255 - mean[c]) / std[c]
					}
					v := float32(p) / 255
					v -= float32(mean[c])
					v /= float32(std[c])
					return float64(v)
				}
				want := FromSlice(x, []float64{normal(0, 0), normal(255, 0), normal(1, 1), normal(128, 1),
					normal(100, 0), normal(7, 0), normal(200, 1), normal(77, 1)}, 2, 2, 1, 2)
				if dtype != Float64 {
					want = x.To(x.To(want, Float32), dtype)
				}
				if !x.Equal(out, want) {
					t.Errorf("%v: got %v, want %v", dtype, ToSlice[float64](x, x.To(out, Float64)), ToSlice[float64](x, x.To(want, Float64)))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestNormalizeImages_Refuses(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		for want, call := range map[string]func(x *Exec){
			"pixels must be contiguous uint8": func(x *Exec) {
				x.NormalizeImages(x.Zeros(Float32, 1, 2, 2, 3), nil, x.Zeros(Float32, 3, 256), x.Empty(Float32, 1, 3, 2, 2))
			},
			"the tensor is nil": func(x *Exec) {
				x.NormalizeImages(nil, nil, x.Zeros(Float32, 3, 256), x.Empty(Float32, 1, 3, 2, 2))
			},
			"2 means and 1 standard deviations": func(x *Exec) { x.NormalizationTable([]float64{0, 0}, []float64{1}, Float32) },
		} {
			err := DefaultStream(d).Do(func(x *Exec) error { call(x); return nil })
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that says %q", err, want)
			}
			if err != nil && !strings.Contains(err.Error(), "normalize_test.go") {
				t.Errorf("%v does not name this file", err)
			}
		}
	})
}
