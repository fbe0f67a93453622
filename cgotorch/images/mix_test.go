package images_test

import (
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// These constants are the sizes of the batch in make.py.
const mixImages, mixHeight, mixWidth, mixChannels, mixClasses = 5, 9, 11, 3, 7

func mixPixels() []uint8 {
	pixels := make([]uint8, mixImages*mixHeight*mixWidth*mixChannels)
	for i := range pixels {
		pixels[i] = uint8(37*i + i/256)
	}
	return pixels
}

var mixLabels = []int64{3, 0, 6, 6, 1}

func TestMix_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		DType  string
		Erase  bool
		MixUp  *float64
		CutMix []int // left, top, right, bottom
		CRC    uint32
		Labels []float32
	}
	filetest.JSON(t, augmentFixtures+"mix.json", &cases)
	if len(cases) < 80 {
		t.Fatal(len(cases))
	}
	dtypes := map[string]cgotorch.DType{"float32": cgotorch.Float32, "float64": cgotorch.Float64, "float16": cgotorch.Float16, "bfloat16": cgotorch.BFloat16}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, c := range cases {
			name := fmt.Sprintf("%s, erase %v, mixup %v, cutmix %v", c.DType, c.Erase, c.MixUp != nil, c.CutMix)
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				pixels := cgotorch.FromSlice(x, mixPixels(), mixImages, mixHeight, mixWidth, mixChannels)
				labels := cgotorch.FromSlice(x, mixLabels)
				table := images.NormalizationTable(x, []float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}, dtypes[c.DType])
				var m images.MixOptions
				if c.Erase {
					m.Erased = cgotorch.FromSlice(x, []int32{2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 9, 3, 8, 10, 1, 1, 1, 1, 0, 5}, mixImages, 4)
					m.Fill = []float64{0, 1.5, -2.25}
				}
				if c.CutMix != nil {
					m.Kind, m.Left, m.Top, m.Right, m.Bottom = images.CutMix, c.CutMix[0], c.CutMix[1], c.CutMix[2], c.CutMix[3]
				}
				if c.MixUp != nil {
					m.Kind, m.Share = images.MixUp, *c.MixUp
					soft := x.Empty(cgotorch.Float32, mixImages, mixClasses)
					images.MixLabels(x, labels, soft, *c.MixUp)
					if got := cgotorch.ToSlice[float32](x, soft); !slices.Equal(got, c.Labels) {
						t.Errorf("lambda %v: labels %v, torchvision's are %v", *c.MixUp, got, c.Labels)
					}
				}
				for _, flip := range []bool{false, true} {
					for _, out := range []*cgotorch.Tensor{
						x.Empty(dtypes[c.DType], mixImages, mixChannels, mixHeight, mixWidth),
						x.Permute(x.Empty(dtypes[c.DType], mixImages, mixHeight, mixWidth, mixChannels), 0, 3, 1, 2),
					} {
						from, flips := pixels, (*cgotorch.Tensor)(nil)
						if flip { // the flip undoes x.Flip
							from, flips = x.Flip(pixels, 2), x.OnesLike(x.To(labels, cgotorch.Bool))
						}
						images.Mix(x, from, flips, table, out, m)
						if got := crc32.ChecksumIEEE(cgotorch.ToBytes(x, out)); got != c.CRC {
							t.Errorf("%s: CRC-32 %d, torchvision's is %d", name, got, c.CRC)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(name, err)
			}
		}
	})
}

// With zero MixOptions, Mix gives the result of Normalize.
func TestMixImages_OfNothing(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		pixels := cgotorch.FromSlice(x, mixPixels(), mixImages, mixHeight, mixWidth, mixChannels)
		flips := cgotorch.FromSlice(x, []bool{true, false, false, true, false})
		table := images.NormalizationTable(x, []float64{0.5, 0.4, 0.3}, []float64{0.2, 0.3, 0.4}, cgotorch.Float32)
		want, got := x.Empty(cgotorch.Float32, mixImages, mixChannels, mixHeight, mixWidth), x.Empty(cgotorch.Float32, mixImages, mixChannels, mixHeight, mixWidth)
		images.Normalize(x, pixels, flips, table, want)
		images.Mix(x, pixels, flips, table, got, images.MixOptions{})
		if !x.Equal(got, want) {
			t.Error("the images differ from Normalize's")
		}
	})
}

// The loss of mixed labels is the weighted mean of the losses of the two labels. The weights are
// the shares.
func TestMixLabels_CrossEntropy(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const lambda = 0.3
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			labels, before := cgotorch.FromSlice(x, mixLabels), x.Roll(cgotorch.FromSlice(x, mixLabels), []int64{1}, []int64{0})
			logits := x.Sin(x.Reshape(x.Arange(cgotorch.Float32, 0, mixImages*mixClasses, 1), mixImages, mixClasses))
			soft := x.Empty(cgotorch.Float32, mixImages, mixClasses)
			images.MixLabels(x, labels, soft, lambda)
			want := lambda*x.Item(x.CrossEntropy(logits, labels)) + (1-lambda)*x.Item(x.CrossEntropy(logits, before))
			if got := x.Item(x.CrossEntropy(logits, soft)); math.Abs(got-want) > 1e-5 {
				t.Errorf("loss %v, want %v", got, want)
			}
			logits.SetRequiresGrad(true)
			bf16 := x.Autocast(cgotorch.BFloat16)
			x.Backward(bf16.CrossEntropy(bf16.MatMul(logits, x.OnesLike(x.Empty(cgotorch.Float32, mixClasses, mixClasses))), soft))
			wrong := x.Empty(cgotorch.Float32, mixImages, mixClasses)
			images.MixLabels(x, cgotorch.FromSlice(x, []int64{-1, 7, 2, 1 << 40, 0}), wrong, 0.25)
			want5 := []float32{0.75, 0, 0, 0, 0, 0, 0}
			if got := cgotorch.ToSlice[float32](x, wrong); !slices.Equal(got[:7], want5) || !slices.Equal(got[7:14], make([]float32, 7)) {
				t.Errorf("labels that are no class: got %v", got)
			}
		})
	})
}

func TestMix_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		mix := func(x *cgotorch.Exec, m images.MixOptions) {
			images.Mix(x, x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 3, 256), x.Empty(cgotorch.Float32, 2, 3, 4, 5), m)
		}
		for want, call := range map[string]func(x *cgotorch.Exec){
			"erased must be contiguous Int [2, 4]": func(x *cgotorch.Exec) { mix(x, images.MixOptions{Erased: x.Zeros(cgotorch.Int64, 2, 4)}) },
			"fill has 2 values":                    func(x *cgotorch.Exec) { mix(x, images.MixOptions{Fill: []float64{1, 2}}) },
			"fill has 5 values":                    func(x *cgotorch.Exec) { mix(x, images.MixOptions{Fill: make([]float64, 5)}) },
			"unknown kind of mix 3":                func(x *cgotorch.Exec) { mix(x, images.MixOptions{Kind: 3}) },
			"share must be from 0 to 1; got 1.5":   func(x *cgotorch.Exec) { mix(x, images.MixOptions{Kind: images.MixUp, Share: 1.5}) },
			"pixels must be contiguous uint8": func(x *cgotorch.Exec) {
				images.Mix(x, x.Zeros(cgotorch.Int8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 3, 256), x.Empty(cgotorch.Float32, 2, 3, 4, 5), images.MixOptions{})
			},
			"labels must be contiguous Long [N]": func(x *cgotorch.Exec) {
				images.MixLabels(x, x.Zeros(cgotorch.Int32, 2), x.Zeros(cgotorch.Float32, 2, 3), 0.5)
			},
			"out must be contiguous Float [2": func(x *cgotorch.Exec) {
				images.MixLabels(x, x.Zeros(cgotorch.Int64, 2), x.Zeros(cgotorch.Float32, 3, 3), 0.5)
			},
			"got nan": func(x *cgotorch.Exec) {
				images.MixLabels(x, x.Zeros(cgotorch.Int64, 2), x.Zeros(cgotorch.Float32, 2, 3), math.NaN())
			},
			"(Tensor out) cannot be None": func(x *cgotorch.Exec) { images.MixLabels(x, x.Zeros(cgotorch.Int64, 2), nil, 0.5) },
		} {
			torchtest.WantError(t, cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { call(x); return nil }), cgotorch.ErrInvalidArgument, want, "mix_test.go")
		}
	})
}
