// Package checkpoint saves a training run in one safetensors file, and continues a run from it.
//
//	c := checkpoint.Checkpoint{Model: model, Optimizer: opt, Epoch: epoch, Step: step}
//	err = checkpoint.Save(x, "run.safetensors", c)
//	...
//	info, err := checkpoint.Load(x, "run.safetensors", model, opt)
//
// # The file
//
// The model's parameters and buffers have their names in [nn.State], which are torchvision's. All
// other names have a slash. In Python a checkpoint is therefore a state dict for
//
//	state = safetensors.torch.load_file("run.safetensors")
//	model.load_state_dict({k: v for k, v in state.items() if "/" not in k})
//
// In turn, [LoadModel] loads a state dict that Python's safetensors has saved.
//
//	layer1.0.conv1.weight                    of the model
//	optimizer/exp_avg/layer1.0.conv1.weight  of the optimizer, under PyTorch's name
//	optimizer/master/layer1.0.conv1.weight   float32 copy of a parameter of 16 bits, if there is one
//	ema/layer1.0.conv1.weight                the average of a parameter
//	generator/cpu, generator/cuda            states of LibTorch's default generators, bytes
//	checkpoint/crc32c                        JSON: CRC-32C of each tensor's bytes, hexadecimal
//
// The metadata "streamtorch" is JSON with the fields of [Info]; "format" is "pt".
//
// A checkpoint is written beside the old file and then replaces it. The disk therefore holds it
// whole or not at all. A file that is cut short, or in which a bit has changed, is an error that
// names the file and the tensor. Files without checkpoint/crc32c, such as Python's, are not checked
// for changed bits.
package checkpoint
