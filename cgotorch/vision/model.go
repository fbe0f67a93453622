package vision

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Options are the options of all models. The zero value gives torchvision's defaults for
// ImageNet. For ResNet-20 it gives the defaults of He et al. for CIFAR-10. If the comment of an
// option names models, all other models ignore this option.
type Options struct {
	Classes  int // number of classes; 0 means 1000, or 10 for ResNet-20 and MLP
	Channels int // number of channels of the images; 0 means 3

	// Recompute is for ResNet, MobileNetV2, EfficientNet and ViT. It is the number of segments that
	// backward computes again. Each layer of a ResNet has this number of segments. So do the features
	// of MobileNetV2 and EfficientNet, and the list of ViT's blocks. 0 means none. See
	// [nn.Sequential].
	Recompute int

	ZeroInitResidual bool // for ResNet: each block begins as the identity
	PadShortcut      bool // for ResNet-20: shortcuts are not 1x1 convolutions and have no parameters (option A of He et al.)

	Width float64 // for MobileNetV2: factor of the number of channels; 0 means 1

	// Dropout is the probability of dropout. MobileNetV2, EfficientNet and GoogLeNet drop before the
	// classifier; unset means 0.2. Inception-v3 and SqueezeNet drop before the classifier; unset means
	// 0.5. MLP and ViT drop after each layer; unset means 0.
	Dropout cgotorch.Opt[float64]
	// StochasticDepth is for EfficientNet. In training, block i of n blocks leaves its body out with
	// a probability of StochasticDepth*i/n. Blocks are counted from 0. Blocks without a shortcut
	// always keep their body. Unset means 0.2.
	StochasticDepth cgotorch.Opt[float64]

	// These options are for GoogLeNet and Inception-v3.
	NoAux      bool                  // no auxiliary heads; otherwise ForwardAux runs them in training
	AuxDropout cgotorch.Opt[float64] // for GoogLeNet: probability of dropout in the heads; unset means 0.7
	// TransformInput is for images that are normalised with [ImageNetMean] and [ImageNetStd]. The
	// model changes them to images that are normalised with a mean of 0.5 and a standard deviation of
	// 0.5. torchvision's trained weights need this.
	TransformInput bool

	ImageSize nn.Size // for MLP and ViT: height and width of the images; 0x0 means 32x32, and 224x224 for ViT
	Hidden    []int   // for MLP: widths of the hidden layers; nil means 512 and 256
}

// models returns a function for each model. A comment has the number of parameters with
// torchvision's options.
func models() map[string]func(x *cgotorch.Exec, where string, o Options) nn.Module {
	return map[string]func(x *cgotorch.Exec, where string, o Options) nn.Module{
		"efficientnet_b0": newEfficientNetB0, // 5,288,548
		"googlenet":       newGoogLeNet,      // 13,004,888, or 6,624,904 with NoAux
		"inception_v3":    newInceptionV3,    // 27,161,264, or 23,834,568 with NoAux
		"mlp":             func(x *cgotorch.Exec, _ string, o Options) nn.Module { return NewMLP(x, o) },
		"mobilenet_v2":    newMobileNetV2,                                                 // 3,504,872
		"resnet18":        basicResNet([4]int{2, 2, 2, 2}),                                // 11,689,512
		"resnet20":        newResNet20,                                                    // 272,474, or 269,722 with PadShortcut
		"resnet34":        basicResNet([4]int{3, 4, 6, 3}),                                // 21,797,672
		"resnet50":        bottleneckResNet(BottleneckForm{}),                             // 25,557,032
		"resnet101":       bottleneckResNet(BottleneckForm{Depths: [4]int{3, 4, 23, 3}}),  // 44,549,160
		"resnext50_32x4d": bottleneckResNet(BottleneckForm{Groups: 32, WidthPerGroup: 4}), // 25,028,904; Xie et al., 2017
		"squeezenet1_0":   squeezeNet(96, 7, []int{16, 16, 32, 0, 32, 48, 48, 64, 0, 64}), // 1,248,424
		"squeezenet1_1":   squeezeNet(64, 3, []int{16, 16, 0, 32, 32, 0, 48, 48, 64, 64}), // 1,235,496
		"vit_b_16":        newViTB16,                                                      // 86,567,656 for images of 224x224
		"wide_resnet50_2": bottleneckResNet(BottleneckForm{WidthPerGroup: 128}),           // 68,883,240; Zagoruyko and Komodakis, 2016
	}
}

// Names returns the names that [New] accepts, sorted. They are torchvision's names if torchvision
// has the model.
func Names() []string { return slices.Sorted(maps.Keys(models())) }

// New makes a model by its name: a *[ResNet], *[ViT] and so on. For an unknown name it returns an
// error that lists [Names]. Invalid options make the Do fail with [cgotorch.ErrInvalidArgument].
// The caller frees the model with [nn.Close].
func New(x *cgotorch.Exec, name string, o Options) (nn.Module, error) {
	model, ok := models()[name]
	if !ok {
		return nil, fmt.Errorf("vision: no model is named %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return model(x, "vision."+name, o), nil
}
