// Package nn has modules, losses and initialisation with PyTorch's meaning, names and random draws.
//
// A module is a plain struct whose exported fields are its parameters, buffers, options and children; nothing is registered.
// Names in a state dict come from the fields: see [State]. [Check] finds fields that it cannot see, such as maps.
//
//	type Net struct {
//		Conv1 *nn.Conv2d   // conv1.weight, conv1.bias
//		BN1   *nn.BatchNorm2d
//		FC    *nn.Linear
//	}
//
//	func (n *Net) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor { ... }
//
// A constructor that makes tensors takes an Exec and keeps them; [Close] frees all tensors of a module and its children.
// Constructors draw from LibTorch's generator what torch.nn draws, in the same order, so that after [cgotorch.Seed] the
// weights equal PyTorch's after torch.manual_seed. A value that no module can be made of, such as 0 channels, makes the Do
// fail with an error that names the constructor and the argument.
//
// # Memory
//
// Forward returns a handle of its own, never its argument. A container closes each intermediate as soon as its last reader
// has been enqueued and never closes its own input: that is how peak memory equals PyTorch's. A Forward that you write should
// do the same; what it leaves open is freed when the Do returns.
//
// # Inference
//
// [Fuse] makes of a model in evaluation mode one of fewer operators; a model of yours takes part by implementing [Fusible].
package nn
