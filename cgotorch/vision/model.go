package vision

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Options are the options of all models; the zero value is torchvision's default for ImageNet, and He et al.'s for CIFAR-10
// with ResNet-20. A model passes over the options that are not said to be its own.
type Options struct {
	Classes  int // 0 means 1000, ResNet-20 and MLP: 10
	Channels int // of the images; 0 means 3

	// ResNet: each layer, MobileNetV2: the features, are so many segments whose activations backward computes again, as in
	// [nn.Sequential]; 0 means none
	Recompute int

	ZeroInitResidual bool // ResNet: each block begins as the identity
	PadShortcut      bool // ResNet-20: shortcuts without parameters (He et al.'s option A) instead of 1x1 convolutions

	Width float64 // MobileNetV2: factor of the number of channels; 0 means 1

	// probability: before the classifier of MobileNetV2 and GoogLeNet, where unset means 0.2, and of Inception-v3 and SqueezeNet, 0.5; MLP:
	// after each layer, unset means 0
	Dropout cgotorch.Opt[float64]

	// GoogLeNet and Inception-v3
	NoAux          bool                  // no auxiliary heads, which ForwardAux runs in training
	AuxDropout     cgotorch.Opt[float64] // GoogLeNet: probability in the heads, unset means 0.7
	TransformInput bool                  // images, normalised with [ImageNetMean] and [ImageNetStd], are normalised anew with 0.5 and 0.5, as torchvision's trained weights want them

	ImageSize nn.Size // MLP: height and width of the images; 0x0 means 32x32
	Hidden    []int   // MLP: widths of the hidden layers; nil means 512 and 256
}

// Names are the models that [New] makes, sorted; they are torchvision's where it has the model.
func Names() []string {
	return []string{"googlenet", "inception_v3", "mlp", "mobilenet_v2", "resnet101", "resnet18", "resnet20", "resnet34", "resnet50",
		"squeezenet1_0", "squeezenet1_1"}
}

// New makes a model by its name. An unknown name is an error that lists [Names]; options of which no model can be made make
// the Do fail, as in the constructors.
func New(x *cgotorch.Exec, name string, o Options) (nn.Module, error) {
	switch name {
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
	case "squeezenet1_0":
		return NewSqueezeNet1_0(x, o), nil
	case "squeezenet1_1":
		return NewSqueezeNet1_1(x, o), nil
	}
	return nil, fmt.Errorf("vision: no model is named %q; there are %s", name, strings.Join(Names(), ", "))
}
