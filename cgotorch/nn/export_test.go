package nn

// These names give the tests of package nn_test the convolution that [Fuse] makes.
type (
	FusedConv2d = fusedConv2d
	Activation  = activation
)

const (
	NoActivation  = noActivation
	ActivateReLU  = activateReLU
	ActivateReLU6 = activateReLU6
)

// CastOf gives the tests of package nn_test the tensor that a layer reads for a weight.
var CastOf = castOf
