package images_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

func TestNormalize(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		mean, std := []float64{0.485, 0.456}, []float64{0.229, 0.224}
		pixels := cgotorch.FromSlice(x, []uint8{0, 1, 255, 128, 7, 77, 100, 200}, 2, 1, 2, 2)
		flips := cgotorch.FromSlice(x, []bool{false, true})
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64, cgotorch.BFloat16, cgotorch.Float16} {
			table := images.NormalizationTable(x, mean, std, dtype)
			out := x.Empty(dtype, 2, 2, 1, 2)
			images.Normalize(x, pixels, flips, table, out)
			// `normal` computes one value as torchvision does on the CPU.
			normal := func(p uint8, c int) float64 {
				if dtype == cgotorch.Float64 {
					return (float64(p)/255 - mean[c]) / std[c]
				}
				v := float32(p) / 255
				v -= float32(mean[c])
				v /= float32(std[c])
				return float64(v)
			}
			want := cgotorch.FromSlice(x, []float64{normal(0, 0), normal(255, 0), normal(1, 1), normal(128, 1),
				normal(100, 0), normal(7, 0), normal(200, 1), normal(77, 1)}, 2, 2, 1, 2)
			if dtype != cgotorch.Float64 {
				want = x.To(x.To(want, cgotorch.Float32), dtype)
			}
			if !x.Equal(out, want) {
				t.Errorf("%v: got %v, want %v", dtype, cgotorch.ToSlice[float64](x, x.To(out, cgotorch.Float64)), cgotorch.ToSlice[float64](x, x.To(want, cgotorch.Float64)))
			}
		}
	})
}

func TestNormalize_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for want, call := range map[string]func(x *cgotorch.Exec){
			"pixels must be contiguous uint8": func(x *cgotorch.Exec) {
				images.Normalize(x, x.Zeros(cgotorch.Float32, 1, 2, 2, 3), nil, x.Zeros(cgotorch.Float32, 3, 256), x.Empty(cgotorch.Float32, 1, 3, 2, 2))
			},
			"(Tensor pixels) cannot be None": func(x *cgotorch.Exec) {
				images.Normalize(x, nil, nil, x.Zeros(cgotorch.Float32, 3, 256), x.Empty(cgotorch.Float32, 1, 3, 2, 2))
			},
			"2 means and 1 standard deviations": func(x *cgotorch.Exec) { images.NormalizationTable(x, []float64{0, 0}, []float64{1}, cgotorch.Float32) },
		} {
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { call(x); return nil })
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
			if err != nil && !strings.Contains(err.Error(), "normalize_test.go") {
				t.Errorf("%v does not name this file", err)
			}
		}
	})
}

// Without a copy from the host the table has the same bits, and a function that makes it can be
// captured.
func TestNormalizationTable_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		mean, std := images.ImageNetMean[:], images.ImageNetStd[:]
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64, cgotorch.BFloat16} {
			table := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
				return []*cgotorch.Tensor{images.NormalizationTable(x, mean, std, dtype)}
			}
			f := cgotorch.NewCaptured(table, cgotorch.CapturedOptions{WarmUp: 1})
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				want := table(x)[0]
				for range 3 {
					if !x.Equal(f.Run(x)[0], want) || !x.Equal(images.NormalizedOnDevice(x, mean, std, dtype), want) {
						t.Errorf("%v differs", dtype)
					}
				}
			})
			if s := f.Stats(); d.IsCUDA() && s.Launches != 2 {
				t.Errorf("%+v", s)
			}
			must.Do(t, f.Close())
		}
	})
}

// Numbers that no channel can have are refused, with the cure for numbers of pixels 0 to 255.
func TestNormalizationTable_Refuses(t *testing.T) {
	torchtest.CheckLeaks(t)
	for want, numbers := range map[string][2][]float64{
		"a standard deviation is above 0":  {{0, 0}, {1, 0}},
		"deviation -1 of channel 0":        {{0}, {-1}},
		"deviation NaN of channel 0":       {{0}, {math.NaN()}},
		"divide numbers for pixels":        {{123.7}, {58.4}},
		"mean NaN":                         {{math.NaN()}, {1}},
		"deviation +Inf of channel 0":      {{0}, {math.Inf(1)}},
		"0 means and 0 standard deviation": {{}, {}},
		"2 means and 1 standard deviation": {{0, 0}, {1}},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			images.NormalizationTable(x, numbers[0], numbers[1], cgotorch.Float32)
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
	}
}
