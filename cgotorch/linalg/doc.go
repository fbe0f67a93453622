// Package linalg has the functions of PyTorch's torch.linalg. They take an Exec first, and
// otherwise behave as the operators that are methods of [cgotorch.Exec].
//
// The matrices are the last two dimensions of a tensor. All dimensions before them are a batch.
// Elements are floating point or complex.
//
// A function that can fail for the values of a matrix checks the result. On CUDA it therefore waits
// for the device, and its comment says so. Functions whose names end in Ex return the result of the
// check as a tensor instead, and do not wait.
package linalg
