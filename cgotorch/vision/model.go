package vision

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Options are the options of all models. The zero value is torchvision's default for ImageNet, and
// He et al.'s for CIFAR-10 with ResNet-20. A model ignores the options that name other models.
type Options struct {
	Classes  int // 0 means 1000, and 10 for ResNet-20 and MLP
	Channels int // of the images; 0 means 3

	// ResNet and MobileNetV2: the number of segments of each layer (ResNet), or of the features
	// (MobileNetV2), that backward computes again. See [nn.Sequential]. 0 means none.
	Recompute int

	ZeroInitResidual bool // ResNet: each block begins as the identity
	PadShortcut      bool // ResNet-20: shortcuts without parameters (He et al.'s option A) instead of 1x1 convolutions

	Width float64 // MobileNetV2: factor of the number of channels; 0 means 1

	// Probability of dropout. MobileNetV2 and GoogLeNet: before the classifier; unset means 0.2.
	// Inception-v3 and SqueezeNet: before the classifier; unset means 0.5. MLP: after each layer; unset
	// means 0.
	Dropout cgotorch.Opt[float64]

	// GoogLeNet and Inception-v3.
	NoAux      bool                  // no auxiliary heads, which ForwardAux runs in training
	AuxDropout cgotorch.Opt[float64] // GoogLeNet: probability in the heads, unset means 0.7
	// TransformInput normalises images again with 0.5 and 0.5, as torchvision's trained weights need.
	// The images come normalised with [ImageNetMean] and [ImageNetStd].
	TransformInput bool

	ImageSize nn.Size // MLP: height and width of the images; 0x0 means 32x32
	Hidden    []int   // MLP: widths of the hidden layers; nil means 512 and 256
}

// Names returns the names that [New] accepts, sorted. They are torchvision's where it has the
// model.
func Names() []string {
	return []string{"googlenet", "inception_v3", "mlp", "mobilenet_v2", "resnet101", "resnet18", "resnet20", "resnet34", "resnet50",
		"squeezenet1_0", "squeezenet1_1"}
}

// New makes a model by its name. An unknown name is an error that lists [Names]. Options that no
// model can be made from make the Do fail, as in the constructors.
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
