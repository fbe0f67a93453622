// Package checkpoint saves a training run in one safetensors file, and continues a run from it.
//
//	run := checkpoint.Checkpoint{Model: model, Optimizer: opt, Loader: ahead}
//	if again {
//		err = checkpoint.Resume(x, "run.safetensors", &run)
//	}
//	for run.Epoch < epochs {
//		for batch, err := range ahead.Epoch(ctx) {
//			... // a Save here continues with the next batch of this epoch
//		}
//		run.Epoch++ // the Loader's place is now the start of the next epoch too
//		err = checkpoint.Save(x, "run.safetensors", run)
//	}
//
// A run that is saved in the body of an epoch's last batch first has an epoch without batches when
// it is resumed. So the work that follows the loop, such as a test, is done then.
//
// # The file
//
// The model's parameters and buffers have the same names as in [nn.State], which torchvision uses
// too. All other names contain a slash. In Python a checkpoint is therefore loaded as a state
// dict:
//
//	state = safetensors.torch.load_file("run.safetensors")
//	model.load_state_dict({k: v for k, v in state.items() if "/" not in k})
//
// [LoadModel] also loads a state dict that Python's safetensors has saved. The names in a
// checkpoint are:
//
//	layer1.0.conv1.weight                    a parameter or buffer of the model
//	optimizer/exp_avg/layer1.0.conv1.weight  a tensor of the optimizer, with PyTorch's name
//	optimizer/master/layer1.0.conv1.weight   the master (float32) of a parameter of 16 bits
//	ema/layer1.0.conv1.weight                the average of a parameter
//	lbfgs/direction, lbfgs/y/0, lbfgs/s/0    vectors of an optim.LBFGS
//	generator/cpu, generator/cuda            states of LibTorch's default generators, as bytes
//	checkpoint/crc32c                        JSON: the CRC-32C of each tensor's bytes, hexadecimal
//
// The metadata "streamtorch" is JSON with the fields of [Info]. The metadata "format" is "pt".
//
// Save writes a checkpoint to a new file, which then replaces the old file. The disk therefore
// always holds a complete checkpoint. If a file is cut short or a bit has changed, loading fails
// with an error that names the file and the tensor. Files without checkpoint/crc32c, such as
// those of Python, are not checked for changed bits.
package checkpoint
