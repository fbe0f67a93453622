// Package ctd gives Go the functions, types and constants of the C headers cgotorch_decode.h and
// cgotorch_inflate.h in csrc/include, as cgotorch/internal/ct does for cgotorch.h.
package ctd

//go:generate go run ../ctgen -prefix ctd ../../csrc/include/cgotorch_decode.h ../../csrc/include/cgotorch_inflate.h
