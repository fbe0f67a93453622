package cgotorch

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/filetest"
)

// A batch of make.py.
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
	dtypes := map[string]DType{"float32": Float32, "float64": Float64, "float16": Float16, "bfloat16": BFloat16}
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		for _, c := range cases {
			name := fmt.Sprintf("%s, erase %v, mixup %v, cutmix %v", c.DType, c.Erase, c.MixUp != nil, c.CutMix)
			err := DefaultStream(d).Do(func(x *Exec) error {
				pixels := FromSlice(x, mixPixels(), mixImages, mixHeight, mixWidth, mixChannels)
				labels := FromSlice(x, mixLabels)
				table := x.NormalizationTable([]float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}, dtypes[c.DType])
				var m ImageMix
				if c.Erase {
					m.Erased = FromSlice(x, []int32{2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 9, 3, 8, 10, 1, 1, 1, 1, 0, 5}, mixImages, 4)
					m.Fill = []float64{0, 1.5, -2.25}
				}
				if c.CutMix != nil {
					m.Mix, m.Left, m.Top, m.Right, m.Bottom = CutMix, c.CutMix[0], c.CutMix[1], c.CutMix[2], c.CutMix[3]
				}
				if c.MixUp != nil {
					m.Mix, m.Lambda = MixUp, *c.MixUp
					soft := x.Empty(Float32, mixImages, mixClasses)
					x.MixLabels(labels, soft, *c.MixUp)
					if got := ToSlice[float32](x, soft); !slices.Equal(got, c.Labels) {
						t.Errorf("lambda %v: labels %v, torchvision's are %v", *c.MixUp, got, c.Labels)
					}
				}
				for _, flip := range []bool{false, true} {
					for _, out := range []*Tensor{
						x.Empty(dtypes[c.DType], mixImages, mixChannels, mixHeight, mixWidth),
						x.Permute(x.Empty(dtypes[c.DType], mixImages, mixHeight, mixWidth, mixChannels), 0, 3, 1, 2),
					} {
						from, flips := pixels, (*Tensor)(nil)
						if flip { // pixels that are turned already are turned back
							from, flips = x.Flip(pixels, 2), x.OnesLike(x.To(labels, Bool))
						}
						x.MixImages(from, flips, table, out, m)
						if got := crc32.ChecksumIEEE(ToBytes(x, out)); got != c.CRC {
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

// Without a mix it is NormalizeImages.
func TestMixImages_OfNothing(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		err := DefaultStream(d).Do(func(x *Exec) error {
			pixels := FromSlice(x, mixPixels(), mixImages, mixHeight, mixWidth, mixChannels)
			flips := FromSlice(x, []bool{true, false, false, true, false})
			table := x.NormalizationTable([]float64{0.5, 0.4, 0.3}, []float64{0.2, 0.3, 0.4}, Float32)
			want, got := x.Empty(Float32, mixImages, mixChannels, mixHeight, mixWidth), x.Empty(Float32, mixImages, mixChannels, mixHeight, mixWidth)
			x.NormalizeImages(pixels, flips, table, want)
			x.MixImages(pixels, flips, table, got, ImageMix{})
			if !x.Equal(got, want) {
				t.Error("the images differ from NormalizeImages'")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// The loss of soft labels is the mean of those of both labels, with the shares as weights.
func TestMixLabels_CrossEntropy(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		const lambda = 0.3
		err := DefaultStream(d).Do(func(x *Exec) error {
			labels, before := FromSlice(x, mixLabels), x.Roll(FromSlice(x, mixLabels), []int64{1}, []int64{0})
			logits := x.Sin(x.Reshape(x.Arange(Float32, 0, mixImages*mixClasses, 1), mixImages, mixClasses))
			soft := x.Empty(Float32, mixImages, mixClasses)
			x.MixLabels(labels, soft, lambda)
			want := lambda*x.Item(x.CrossEntropy(logits, labels)) + (1-lambda)*x.Item(x.CrossEntropy(logits, before))
			if got := x.Item(x.CrossEntropy(logits, soft)); math.Abs(got-want) > 1e-5 {
				t.Errorf("loss %v, want %v", got, want)
			}
			logits.SetRequiresGrad(true)
			bf16 := x.Autocast(BFloat16)
			x.Backward(bf16.CrossEntropy(bf16.MatMul(logits, x.OnesLike(x.Empty(Float32, mixClasses, mixClasses))), soft))
			wrong := x.Empty(Float32, mixImages, mixClasses)
			x.MixLabels(FromSlice(x, []int64{-1, 7, 2, 1 << 40, 0}), wrong, 0.25)
			want5 := []float32{0.75, 0, 0, 0, 0, 0, 0}
			if got := ToSlice[float32](x, wrong); !slices.Equal(got[:7], want5) || !slices.Equal(got[7:14], make([]float32, 7)) {
				t.Errorf("labels that are no class: got %v", got)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestMix_Refuses(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		mix := func(x *Exec, m ImageMix) {
			x.MixImages(x.Zeros(Uint8, 2, 4, 5, 3), nil, x.Zeros(Float32, 3, 256), x.Empty(Float32, 2, 3, 4, 5), m)
		}
		for want, call := range map[string]func(x *Exec){
			"erased must be contiguous Int [2, 4]": func(x *Exec) { mix(x, ImageMix{Erased: x.Zeros(Int64, 2, 4)}) },
			"Fill has 2 values":                    func(x *Exec) { mix(x, ImageMix{Fill: []float64{1, 2}}) },
			"Fill has 5 values":                    func(x *Exec) { mix(x, ImageMix{Fill: make([]float64, 5)}) },
			"unknown kind of mix 3":                func(x *Exec) { mix(x, ImageMix{Mix: 3}) },
			"lambda must be from 0 to 1; got 1.5":  func(x *Exec) { mix(x, ImageMix{Mix: MixUp, Lambda: 1.5}) },
			"pixels must be contiguous uint8": func(x *Exec) {
				x.MixImages(x.Zeros(Int8, 2, 4, 5, 3), nil, x.Zeros(Float32, 3, 256), x.Empty(Float32, 2, 3, 4, 5), ImageMix{})
			},
			"labels must be contiguous Long [N]": func(x *Exec) { x.MixLabels(x.Zeros(Int32, 2), x.Zeros(Float32, 2, 3), 0.5) },
			"out must be contiguous Float [2":    func(x *Exec) { x.MixLabels(x.Zeros(Int64, 2), x.Zeros(Float32, 3, 3), 0.5) },
			"got nan":                            func(x *Exec) { x.MixLabels(x.Zeros(Int64, 2), x.Zeros(Float32, 2, 3), math.NaN()) },
			"the tensor is nil":                  func(x *Exec) { x.MixLabels(x.Zeros(Int64, 2), nil, 0.5) },
		} {
			err := DefaultStream(d).Do(func(x *Exec) error { call(x); return nil })
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "mix_test.go") {
				t.Errorf("got %v, want an error that says %q and where", err, want)
			}
		}
	})
}
