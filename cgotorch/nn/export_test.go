package nn

// The convolution that [Fuse] makes, for the tests of package nn_test.
type (
	FusedConv2d = fusedConv2d
	Activation  = activation
)

const (
	NoActivation  = noActivation
	ActivateReLU  = activateReLU
	ActivateReLU6 = activateReLU6
)
