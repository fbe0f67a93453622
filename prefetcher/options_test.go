package prefetcher

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestOptions_DTypeAndOrder(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
		for _, o := range []Options{{DType: cgotorch.BFloat16}, {DType: cgotorch.Float64, Contiguous: true}} {
			p := start(t, loader, d, o)
			eachBatch(t, p, cgotorch.DefaultStream(d), func(x *cgotorch.Exec, _ *Batch, images, _ *cgotorch.Tensor) {
				if images.DType() != o.DType {
					t.Errorf("images are %v, want %v", images.DType(), o.DType)
				}
				if got := images.Strides()[1] != 1; got != o.Contiguous {
					t.Errorf("strides %v, Contiguous is %v", images.Strides(), o.Contiguous)
				}
				got := x.Item(x.Select(x.Reshape(x.To(images, cgotorch.Float64), -1), 0, 0))
				want := (float64(pixel(0, 0, 0, 0))/255 - kernels.ImageNetMean[0]) / kernels.ImageNetStd[0]
				if math.Abs(got-want) > 0.01 {
					t.Errorf("%v: first pixel %v, want %v", o.DType, got, want)
				}
			})
			p.Close()
		}
	})
}

func TestOptions_Invalid(t *testing.T) {
	torchtest.CheckLeaks(t)
	loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
	for want, o := range map[string]Options{
		"Depth": {Depth: -1},
		"DType": {DType: cgotorch.Int64},
		"Mean":  {Mean: []float64{1, 2}},
		"Std":   {Std: []float64{1, 0, 1}},
	} {
		if _, err := New(loader, cgotorch.CPU, o); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error about %s", o, err, want)
		}
	}
	if _, err := (Options{}).complete(shape{channels: 5}); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "5 channels") {
		t.Errorf("images of 5 channels: %v", err)
	}
	if n, _ := cgotorch.CUDACount(); n == 0 {
		if _, err := New(loader, cgotorch.CUDA(0), Options{}); !errors.Is(err, cgotorch.ErrNoDevice) {
			t.Errorf("New on an absent device: %v", err)
		}
	}
}
