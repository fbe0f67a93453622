// Package pth reads and writes the files of PyTorch's torch.save: state dicts in .pth and .pt
// files. It is plain Go and does not use any device.
//
// Such a file is a pickle, a program that builds Python objects. This package runs no code of the
// file. It builds numbers, texts, lists, dicts and tensors itself. Any other object becomes an
// [Object], which only names its class. So a file from a stranger can do no harm.
//
// It reads the zip files of PyTorch 1.6 and later, and the older form without zip. The tensors of
// nested dicts, of lists and of whole modules have names with points between the parts, such as
// "model.layer1.0.conv1.weight". A TorchScript archive and an exported program have another form,
// and [Open] says what to do with them.
package pth
