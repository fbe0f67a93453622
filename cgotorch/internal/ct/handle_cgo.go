//go:build cgo && linux && (amd64 || arm64)

package ct

import "runtime/cgo"

// A Handle is a number that stands for a value of Go in C.
type Handle = cgo.Handle

// NewHandle returns a new Handle of v. The caller deletes it.
func NewHandle(v any) Handle { return cgo.NewHandle(v) }
