package prefetcher

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// Options are the options of [New]. The zero value gives float32 images, channels last,
// normalised as torchvision's models expect them.
type Options struct {
	// Depth is the number of batches that are copied before their use, besides the batch in use, up to
	// 1024. 0 means 2. Each of these batches takes device memory for its pixels as uint8 and as DType.
	Depth int

	// DType is the dtype of the normalised images: Float32, BFloat16, Float16 or Float64. 0, which is
	// also the value of Uint8, means Float32.
	DType cgotorch.DType

	// Mean and Std have one number, or one for each channel, in units of full intensity. So they are at
	// most 1: divide numbers for pixels of 0 to 255 by 255. Std is above 0. A pixel p of 0 to 255
	// becomes (p/255 - Mean)/Std. For images of 3 channels, nil in both means the values of
	// ImageNet, which torchvision's models expect. Otherwise a nil Mean means 0, and a nil Std means
	// 1.
	Mean, Std []float64

	// Contiguous gives images in NCHW memory order. Without Contiguous, images are channels last.
	Contiguous bool

	// Classes is the number of classes. MixUp and CutMix need it, because they make labels float32
	// [N, Classes].
	Classes int

	// Augmentations change the images at random. Their fields are fields of Options too.
	Augmentations
}

// Augmentations are what happens to images on the device, at random. Crops and flips are options of
// the loader. The copy stream does the augmentations in the order of the fields, which is the order
// of torchvision's training recipe. The zero value of each field turns its augmentation off. The
// random choices for an image depend only on the image's key. The random choices for a whole batch
// depend only on the key of the batch's first image. See Note [Random choices].
type Augmentations struct {
	Pad                images.PadOptions // pixels added around each image, the same for all; batches have the padded size
	VerticalFlip       float64           // probability that an image is mirrored top to bottom
	TrivialAugmentWide bool              // one of 14 operations with one of 31 strengths, as torchvision's TrivialAugmentWide
	// AutoAugment is one of torchvision's policies: "imagenet", "cifar10" or "svhn". Each image gets
	// one of the policy's 25 pairs of operations, all equally likely. Each of the two operations has
	// its own probability and strength. "" means none. At most one of TrivialAugmentWide,
	// AutoAugment, RandAugment and AugMix is on.
	AutoAugment   string
	RandAugment   RandAugment
	AugMix        AugMix
	ColorJitter   ColorJitter   // ColorJitter, like VerticalFlip to AugMix and Grayscale, needs images of 1 or 3 channels
	Grayscale     float64       // probability that an image loses its colours
	GaussianBlur  GaussianBlur  // before normalising
	RandomErasing RandomErasing // after normalising
	MixUp         MixUp         // with both MixUp and CutMix each batch has one of the two, equally likely
	CutMix        CutMix

	// Fill is the colour that TrivialAugmentWide, AutoAugment, RandAugment and AugMix take from outside
	// an image: one level, or one for each channel. nil means torchvision's default, which is black.
	Fill []uint8
	// Bilinear makes TrivialAugmentWide, AutoAugment and RandAugment interpolate. Otherwise they take
	// the nearest pixel, as is torchvision's default. For AugMix see AugMix.Nearest.
	Bilinear bool
}

// Errors to test for with [errors.Is]. After Close that is [cgotorch.ErrClosed].
var (
	ErrInvalidOptions = errors.New("invalid options")
	ErrBusy           = errors.New("in use")
	ErrBatchOver      = errors.New("the batch was used after its loop body")
)

func (o Options) complete(s shape) (Options, error) {
	channels := s.channels
	refuse := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("prefetcher: Options."+format+": %w", append(args, ErrInvalidOptions)...)
	}
	if channels < 1 || channels > 4 {
		return o, fmt.Errorf("prefetcher: the source's images have %d channels; 1 to 4 can be normalised: %w", channels, ErrInvalidOptions)
	}
	var err error
	if o.Depth, err = checkDepth("Options.Depth", o.Depth); err != nil {
		return o, err
	}
	if o.DType == 0 {
		o.DType = cgotorch.Float32
	}
	if !o.DType.IsFloat() {
		return refuse("DType is %v; it must be a floating-point dtype", o.DType)
	}
	if o.Mean == nil && o.Std == nil && channels == 3 {
		o.Mean, o.Std = images.ImageNetMean[:], images.ImageNetStd[:]
	}
	if o.Mean, err = perChannel("Mean", o.Mean, 0, channels); err != nil {
		return o, err
	}
	if o.Std, err = perChannel("Std", o.Std, 1, channels); err != nil {
		return o, err
	}
	for i := range o.Mean {
		if why := images.CheckNormalization(o.Mean[i], o.Std[i]); why != "" {
			return refuse("Mean is %v and Std is %v: %s", o.Mean, o.Std, why)
		}
	}
	return o.completeAugmentations(s, refuse)
}

func (o Options) completeAugmentations(s shape, refuse func(format string, args ...any) (Options, error)) (Options, error) {
	channels, err := s.channels, o.Pad.Check(s.height, s.width, s.channels)
	if err != nil {
		return refuse("Pad: %v", err)
	}
	padded := o.padded(s)
	if o.RandAugment.Bins == 0 {
		o.RandAugment.Bins = 31
	}
	o.AugMix, o.GaussianBlur, o.RandomErasing = o.AugMix.complete(), o.GaussianBlur.complete(), o.RandomErasing.complete()
	alphas := func(a float64) bool { return a >= 0 && !math.IsInf(a, 0) }
	switch {
	case !o.ColorJitter.valid():
		return refuse("ColorJitter is %+v; its fields are 0 and up, and Hue at most 0.5", o.ColorJitter)
	case !(o.VerticalFlip >= 0 && o.VerticalFlip <= 1) || !(o.Grayscale >= 0 && o.Grayscale <= 1):
		return refuse("VerticalFlip is %v and Grayscale %v; they are probabilities from 0 to 1", o.VerticalFlip, o.Grayscale)
	case o.AutoAugment != "" && autoAugments[o.AutoAugment] == nil:
		return refuse("AutoAugment is %q; it must be imagenet, cifar10 or svhn", o.AutoAugment)
	case o.RandAugment.Operations < 0 || o.RandAugment.Operations > mostOperations:
		return refuse("RandAugment.Operations is %d; it must be from 0 to %d", o.RandAugment.Operations, mostOperations)
	case o.RandAugment.Bins < 2:
		return refuse("RandAugment.Bins is %d; it must be 2 or above", o.RandAugment.Bins)
	case o.RandAugment.Magnitude < 0 || o.RandAugment.Magnitude >= o.RandAugment.Bins:
		return refuse("RandAugment.Magnitude is %d; it must be from 0 to Bins-1, which is %d", o.RandAugment.Magnitude, o.RandAugment.Bins-1)
	case o.AugMix.Severity < 0 || o.AugMix.Severity > severities:
		return refuse("AugMix.Severity is %d; it must be from 0 to %d", o.AugMix.Severity, severities)
	case o.AugMix.Width < 1 || o.AugMix.Width > mostChains:
		return refuse("AugMix.Width is %d; it must be from 0 to %d", o.AugMix.Width, mostChains)
	case o.AugMix.Depth < 0 || o.AugMix.Depth > mostDepth:
		return refuse("AugMix.Depth is %d; it must be from 0 to %d", o.AugMix.Depth, mostDepth)
	case !(o.AugMix.Alpha > 0) || math.IsInf(o.AugMix.Alpha, 0):
		return refuse("AugMix.Alpha is %v; it must be 0 or above", o.AugMix.Alpha)
	case o.policies() > 1:
		return refuse("AutoAugment, RandAugment, AugMix and TrivialAugmentWide exclude each other; turn on one of them")
	case len(o.Fill) > 1 && len(o.Fill) != channels:
		return refuse("Fill has %d levels; it must have none, one, or %d, one for each channel", len(o.Fill), channels)
	case (o.stepsOf() > 0 || o.AugMix.on()) && channels != 1 && channels != 3:
		return refuse("VerticalFlip, TrivialAugmentWide, AutoAugment, RandAugment, AugMix, ColorJitter and Grayscale need images of 1 or 3 channels; the source's have %d", channels)
	case o.GaussianBlur.Kernel < 0 || o.GaussianBlur.Kernel > images.MaxBlur || o.GaussianBlur.on() && o.GaussianBlur.Kernel%2 == 0:
		return refuse("GaussianBlur.Kernel is %d; it must be 0, or odd and at most %d", o.GaussianBlur.Kernel, images.MaxBlur)
	case o.GaussianBlur.on() && o.GaussianBlur.Kernel/2 >= min(padded.height, padded.width):
		return refuse("GaussianBlur.Kernel is %d; half of it must be below the images' height %d and width %d", o.GaussianBlur.Kernel, padded.height, padded.width)
	case !o.GaussianBlur.valid():
		return refuse("GaussianBlur is %+v; its Probability is 0 to 1, and 0 < MinSigma <= MaxSigma", o.GaussianBlur)
	case o.RandomErasing.on() && !o.RandomErasing.valid():
		return refuse("RandomErasing is %+v; Probability and the scales are 0 to 1, the ratios above 0, and no least is above its greatest", o.RandomErasing)
	case !alphas(o.MixUp.Alpha):
		return refuse("MixUp.Alpha is %v; it must be 0 or above", o.MixUp.Alpha)
	case !alphas(o.CutMix.Alpha):
		return refuse("CutMix.Alpha is %v; it must be 0 or above", o.CutMix.Alpha)
	case o.mixes() && o.Classes < 1:
		return refuse("Classes is %d; MixUp and CutMix need the number of classes", o.Classes)
	}
	if o.RandomErasing.on() {
		if o.RandomErasing.Value, err = perChannel("RandomErasing.Value", o.RandomErasing.Value, 0, channels); err != nil {
			return o, err
		}
	}
	return o, nil
}

// padded returns the shape of a batch after Pad.
func (o Options) padded(s shape) shape {
	s.height, s.width = o.Pad.Size(s.height, s.width)
	return s
}

// policies returns how many of the four policies are on.
func (o Options) policies() int {
	n := 0
	for _, on := range []bool{o.TrivialAugmentWide, o.AutoAugment != "", o.RandAugment.Operations > 0, o.AugMix.on()} {
		if on {
			n++
		}
	}
	return n
}

func perChannel(name string, values []float64, zero float64, channels int) ([]float64, error) {
	switch {
	case len(values) == channels:
		return values, nil
	case len(values) == 0:
		values = []float64{zero}
	case len(values) > 1:
		return nil, fmt.Errorf("prefetcher: Options.%s has %d values for %d channels; give one for each channel: %w", name, len(values), channels, ErrInvalidOptions)
	}
	all := make([]float64, channels)
	for i := range all {
		all[i] = values[0]
	}
	return all, nil
}
