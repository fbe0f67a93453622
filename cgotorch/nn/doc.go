// Package nn has modules, losses and initialisation with PyTorch's meaning, names and random draws.
//
// A module is a plain struct. Its exported fields are its parameters, buffers, options and
// children; nothing is registered. Names in a state dict come from the fields: see [State]. [Check]
// finds fields that State cannot see, such as maps.
//
//	type Net struct {
//		Conv1 *nn.Conv2d   // conv1.weight, conv1.bias
//		BN1   *nn.BatchNorm2d
//		FC    *nn.Linear
//	}
//
//	func (n *Net) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor { ... }
//
// A constructor that makes tensors takes an Exec, and its tensors outlive the Do. [Close] frees all
// tensors of a module and its children. Constructors draw the same numbers as torch.nn from
// LibTorch's generator, in the same order. After [cgotorch.Seed] the weights therefore equal
// PyTorch's after torch.manual_seed. An argument that no module can be made from, such as 0
// channels, makes the Do fail. The error names the constructor and the argument.
//
// # Memory
//
// Forward returns a handle of its own, never its argument. A container closes each intermediate as
// soon as its last reader has been enqueued, and never closes its own input. Peak memory therefore
// equals PyTorch's. A Forward that you write should do the same; tensors that it leaves open are
// freed when the Do returns.
//
// # Inference
//
// [Fuse] makes a model with fewer operators from a model in evaluation mode. A model of yours takes
// part by implementing [Fusible].
package nn
