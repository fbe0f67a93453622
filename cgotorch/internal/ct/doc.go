// Package ct gives Go the functions, types and constants of the C header csrc/include/cgotorch.h.
// Of the library's packages that use LibTorch, only package ct says import "C". Each name is the
// name in the header without its prefix. Package ct adds nothing, so the comments of the header
// are its documentation.
//
// Handles are C pointers. A call returns a *[Status], which is nil for success. The caller must
// free the Status. In some calls a Go string or slice replaces a C pointer. The call does not
// read this string or slice after it has returned.
package ct

//go:generate go run ../../../internal/ctgen -prefix ct ../../../csrc/include/cgotorch.h
