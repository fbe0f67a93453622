// Package special has the functions of PyTorch's torch.special. They take an Exec first, and
// otherwise behave as the operators that are methods of [cgotorch.Exec].
//
// The functions work element by element, and integers give the default floating-point dtype. No
// function of this package waits for the device. Some functions are methods of Exec too, because
// PyTorch has them in both lists.
package special
