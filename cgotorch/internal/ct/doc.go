// Package ct is the C header csrc/include/cgotorch.h in Go. It alone, above LibTorch's half of
// csrc, says import "C". It adds nothing: every name is the header's without its prefix, and
// the header holds the contract.
//
// Handles are C pointers. A call returns a *[Status], nil for success, which the caller frees.
// A Go string or slice in place of a pointer is read before return.
package ct

//go:generate go run ../ctgen
