// Package checkpoint saves a training run in one safetensors file and goes on from it.
//
//	err = checkpoint.Save(x, "run.safetensors", checkpoint.Checkpoint{Model: model, Optimizer: opt, Epoch: epoch, Step: step})
//	...
//	info, err := checkpoint.Load(x, "run.safetensors", model, opt)
//
// # The file
//
// The model's parameters and buffers have their names in [nn.State], which are torchvision's. All else has a slash in its
// name, so that in Python a checkpoint is a state dict for
//
//	model.load_state_dict({k: v for k, v in safetensors.torch.load_file("run.safetensors").items() if "/" not in k})
//
// and a state dict that Python's safetensors has saved is a file for [LoadModel].
//
//	layer1.0.conv1.weight                       of the model
//	optimizer/exp_avg/layer1.0.conv1.weight     what the optimizer remembers of a parameter, under PyTorch's name
//	optimizer/master/layer1.0.conv1.weight      its float32 copy of a parameter of 16 bits, if it keeps one
//	ema/layer1.0.conv1.weight                   the average of a parameter
//	generator/cpu, generator/cuda               states of LibTorch's default generators, bytes
//	checkpoint/crc32c                           JSON text: the CRC-32C of each tensor's bytes, in hexadecimal
//
// The metadata "streamtorch" is JSON with the fields of [Info]; "format" is "pt".
//
// A checkpoint is on the disk as a whole or not at all: it is written beside the old one, which it then replaces. A file that
// is cut short, or in which a bit has changed, is an error that names the file and the tensor. Files without
// checkpoint/crc32c, such as Python's, are not checked for changed bits.
package checkpoint
