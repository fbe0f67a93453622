// Package idx reads the files of MNIST, FashionMNIST and other data sets in the format idx. Files
// may be compressed by gzip. The package is plain Go and does not use any device.
//
//	set, err := idx.ReadMNIST("MNIST/raw", true) // the training images
//
// Source: http://yann.lecun.com/exdb/mnist/
package idx
