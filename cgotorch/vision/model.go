package vision

import (
	"fmt"
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

// Names returns the names that [New] accepts, sorted. They are torchvision's names if torchvision
// has the model.
func Names() []string {
	return []string{"efficientnet_b0", "googlenet", "inception_v3", "mlp", "mobilenet_v2", "resnet101", "resnet18", "resnet20", "resnet34",
		"resnet50", "resnext50_32x4d", "squeezenet1_0", "squeezenet1_1", "vit_b_16", "wide_resnet50_2"}
}

// New makes a model by its name. For an unknown name it returns an error that lists [Names].
// Invalid options make the Do fail, as in the constructors. The caller frees the model with
// [nn.Close].
func New(x *cgotorch.Exec, name string, o Options) (nn.Module, error) {
	switch name {
	case "efficientnet_b0":
		return NewEfficientNetB0(x, o), nil
	case "googlenet":
		return NewGoogLeNet(x, o), nil
	case "inception_v3":
		return NewInceptionV3(x, o), nil
	case "mlp":
		return NewMLP(x, o), nil
	case "mobilenet_v2":
		return NewMobileNetV2(x, o), nil
	case "resnet18":
		return NewResNet18(x, o), nil
	case "resnet20":
		return NewResNet20(x, o), nil
	case "resnet34":
		return NewResNet34(x, o), nil
	case "resnet50":
		return NewResNet50(x, o), nil
	case "resnet101":
		return NewResNet101(x, o), nil
	case "resnext50_32x4d":
		return NewResNeXt50(x, o), nil
	case "squeezenet1_0":
		return NewSqueezeNet1_0(x, o), nil
	case "squeezenet1_1":
		return NewSqueezeNet1_1(x, o), nil
	case "vit_b_16":
		return NewViTB16(x, o), nil
	case "wide_resnet50_2":
		return NewWideResNet50(x, o), nil
	}
	return nil, fmt.Errorf("vision: no model is named %q; there are %s", name, strings.Join(Names(), ", "))
}
