// Package pth reads and writes the files of PyTorch's torch.save: state dicts in .pth and .pt
// files. [OpenWeights] opens safetensors files too. The package is plain Go and does not use any
// device.
//
// A file of torch.save is a pickle, a program that builds Python objects. This package runs no code
// of the file. It builds numbers, texts, lists, dicts and tensors itself. Any other object becomes
// an [Object], which only names its class. So a file from a stranger can do no harm. A file that
// calls os.system, or something like it, is refused.
//
// A tensor that is not plain, such as a quantized or a sparse one, does not keep the others from
// being read. It is listed, and [File.Read] of it says how to save it in Python.
//
// It reads the zip files of PyTorch 1.6 and later, and the older form without zip. The tensors of
// nested dicts, of lists and of whole modules have names with points between the parts, such as
// "model.layer1.0.conv1.weight". From a TorchScript archive it reads the weights, and not the
// program. For an exported program or an ONNX model, the error says how to get the weights.
package pth
