package nn_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Convolutions with stride 2 of images with few channels have the results of Exec.Conv2d, with
// all options. Some of them take another way than all other convolutions.
func TestConv2d_Images(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			two, seven := nn.Square(2), nn.Square(7)
			for _, test := range []struct {
				in     int
				kernel nn.Size
				nn.Conv2dOptions
			}{
				{3, seven, nn.Conv2dOptions{Stride: two, Padding: nn.Square(3), NoBias: true}},
				{3, nn.Square(3), nn.Conv2dOptions{Stride: two, NoBias: true}},
				{3, seven, nn.Conv2dOptions{Stride: two, Padding: nn.Square(3)}},
				{3, seven, nn.Conv2dOptions{Stride: two, Padding: nn.Size{3, 2}, NoBias: true}},
				{3, nn.Size{3, 5}, nn.Conv2dOptions{Stride: two, Padding: nn.Square(1), NoBias: true}},
				{3, nn.Square(3), nn.Conv2dOptions{Stride: nn.Size{2, 1}, Padding: nn.Square(1), NoBias: true}},
				{3, nn.Square(3), nn.Conv2dOptions{Stride: two, Dilation: two, NoBias: true}},
				{4, nn.Square(3), nn.Conv2dOptions{Stride: two, Groups: 2, NoBias: true}},
				{5, nn.Square(3), nn.Conv2dOptions{Stride: two, NoBias: true}},
			} {
				m := nn.NewConv2d(x, test.in, 8, test.kernel, test.Conv2dOptions)
				t.Cleanup(func() { nn.Close(m) })
				in := x.Randn(cgotorch.Float32, 2, int64(test.in), 12, 13)
				ints := func(s, other nn.Size) []int64 {
					if s == (nn.Size{}) {
						s = other
					}
					return []int64{int64(s[0]), int64(s[1])}
				}
				want := x.Conv2d(in, m.Weight, m.Bias, cgotorch.Conv2dOptions{Stride: ints(m.Stride, nn.Square(1)),
					Padding: ints(m.Padding, nn.Size{}), Dilation: ints(m.Dilation, nn.Square(1)), Groups: m.Groups})
				if got := m.Forward(x, in); !x.Equal(got, want) {
					t.Errorf("%+v: another result", test)
				}
			}
			// The module adds a border that is not zeros by itself.
			m := nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{Stride: two, Padding: nn.Square(1), PaddingMode: "reflect", NoBias: true})
			t.Cleanup(func() { nn.Close(m) })
			in := x.Randn(cgotorch.Float32, 2, 3, 12, 13)
			want := x.Conv2d(x.Pad(in, []int64{1, 1, 1, 1}, cgotorch.PadOptions{Mode: "reflect"}), m.Weight, nil, cgotorch.Conv2dOptions{Stride: []int64{2, 2}})
			if got := m.Forward(x, in); !x.Equal(got, want) {
				t.Error("a mirrored border: another result")
			}
		})
	})
}
