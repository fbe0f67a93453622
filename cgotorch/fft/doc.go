// Package fft has the discrete Fourier transforms of PyTorch's torch.fft. They take an Exec first,
// and otherwise behave as the operators that are methods of [cgotorch.Exec].
//
// No function of this package waits for the device.
package fft
