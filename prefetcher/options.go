package prefetcher

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Options configures a [Prefetcher]. The zero value gives float32 images, channels last, normalised as torchvision's models
// want them.
type Options struct {
	// Depth is the number of batches that are copied ahead of the one in use; 0 means 2. Each holds device memory for one
	// batch, as uint8 and as DType.
	Depth int

	// DType is what the images are converted to: Float32, BFloat16, Float16 or Float64. 0, which is also Uint8, means
	// Float32.
	DType cgotorch.DType

	// Mean and Std, of one number or one a channel, in units of full intensity: a pixel p of 0 to 255 becomes
	// (p/255 - Mean)/Std. nil means, for 3 channels, those of ImageNet that torchvision's models expect, and for 1 channel
	// 0 and 1.
	Mean, Std []float64

	// Contiguous gives images in NCHW memory order instead of channels last.
	Contiguous bool
}

// Errors to test for with [errors.Is].
var (
	ErrInvalidOptions = errors.New("invalid options")
	ErrClosed         = errors.New("closed")
	ErrBusy           = errors.New("in use")
	ErrBatchOver      = errors.New("the batch was used after its loop body")
)

var (
	imageNetMean = []float64{0.485, 0.456, 0.406}
	imageNetStd  = []float64{0.229, 0.224, 0.225}
)

func (o Options) complete(channels int) (Options, error) {
	refuse := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("prefetcher: Options."+format+": %w", append(args, ErrInvalidOptions)...)
	}
	if channels < 1 || channels > 4 {
		return o, fmt.Errorf("prefetcher: the source's images have %d channels; 1 to 4 can be normalised: %w", channels, ErrInvalidOptions)
	}
	if o.Depth < 0 {
		return refuse("Depth is %d; it must not be negative", o.Depth)
	}
	if o.Depth == 0 {
		o.Depth = 2
	}
	if o.DType == 0 {
		o.DType = cgotorch.Float32
	}
	if !o.DType.IsFloat() {
		return refuse("DType is %v; it must be a floating-point dtype", o.DType)
	}
	if o.Mean == nil && o.Std == nil && channels == 3 {
		o.Mean, o.Std = imageNetMean, imageNetStd
	}
	var err error
	if o.Mean, err = perChannel("Mean", o.Mean, 0, channels); err != nil {
		return o, err
	}
	if o.Std, err = perChannel("Std", o.Std, 1, channels); err != nil {
		return o, err
	}
	for _, s := range o.Std {
		if !(s > 0) {
			return refuse("Std has %v; each must be above 0", s)
		}
	}
	return o, nil
}

func perChannel(name string, values []float64, zero float64, channels int) ([]float64, error) {
	switch {
	case len(values) == channels:
		return values, nil
	case len(values) == 0:
		values = []float64{zero}
	case len(values) > 1:
		return nil, fmt.Errorf("prefetcher: Options.%s has %d values for %d channels: %w", name, len(values), channels, ErrInvalidOptions)
	}
	all := make([]float64, channels)
	for i := range all {
		all[i] = values[0]
	}
	return all, nil
}
