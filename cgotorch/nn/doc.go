// Package nn has modules, losses and initialisation. They have the meaning and the names that
// they have in PyTorch, and they draw the same random numbers.
//
// A module is a plain struct. Its exported fields are its parameters, buffers, options and
// children. A module registers nothing. Names in a state dict come from the fields: see [State].
// [Check] finds fields that State cannot see, such as maps.
//
//	type Net struct {
//		Conv1 *nn.Conv2d   // conv1.weight, conv1.bias
//		BN1   *nn.BatchNorm2d
//		FC    *nn.Linear
//	}
//
//	func (n *Net) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor { ... }
//
// A constructor that makes tensors takes an Exec, and its tensors outlive the Do. [Close] frees
// all tensors of a module and its children. Constructors draw the same numbers as torch.nn from
// LibTorch's generator, in the same order. After [cgotorch.Seed] the weights therefore equal
// PyTorch's weights after torch.manual_seed. If a constructor gets an invalid argument, such as 0
// channels, the Do fails. The error names the constructor and the argument.
//
// # Memory
//
// Forward returns a new handle, never the handle that it was given. A container closes each
// intermediate result when the last module that reads this result has been enqueued. A container
// never closes its own input. Peak memory therefore equals PyTorch's. A Forward that you write
// should do the same. Tensors that a Forward leaves open are freed when the Do returns.
//
// # Inference
//
// [Fuse] makes a model with fewer operators from a model in evaluation mode. A type of yours that
// implements [Fusible] tells Fuse how to fuse it.
package nn

//go:generate go run ../internal/layergen
