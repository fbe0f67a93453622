// Package cifar reads the files of CIFAR-10 and CIFAR-100, in the binary version and in the version
// for Python. The package is plain Go and does not use any device.
//
//	set, err := cifar.Read("cifar-10-batches-py", true) // the training images
//
// Source: https://www.cs.toronto.edu/~kriz/cifar.html
package cifar
