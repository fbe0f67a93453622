//go:build !cgo || !linux || !(amd64 || arm64)

package ct

import "unsafe"

// The functions of the files *_cgo.go, for builds that can open no library.

func Call(x *Exec, op *Op, o *Operands) *Status { panic(absent) }

func OverflowTake(overflow *Overflow, resultWords []uint64, resultTensors []*Tensor) { panic(absent) }

func TensorFree(tensor *Tensor) { panic(absent) }

func StreamExternal(device Device, stream uintptr, out **Stream) *Status { return unready }

func OpSchema(op *Op, out *string) *Status { panic(absent) }

func OpSchemas(out *string) *Status { return unready }

func StoreGet(store *Store, key string) (value string, found bool, status *Status) { panic(absent) }

func CUDACount() (count int32, why string) { return 0, Ready().Error() }

func TensorFromHost(x Exec, data unsafe.Pointer, bytes int64, dtype int32, shape []int64, out **Tensor) *Status {
	panic(absent)
}

func TensorToHost(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status { panic(absent) }

func TensorCopyFrom(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status { panic(absent) }

func TensorCopyTo(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status { panic(absent) }

func CopiesFrom(x Exec, behind []uintptr, copies []HostCopy, began, done **Event) *Status {
	panic(absent)
}

func Recompute(x Exec, of Function, in, result *Tensor, out **Tensor) *Status { panic(absent) }

type Handle uintptr

func NewHandle(v any) Handle { panic(absent) }

func (h Handle) Value() any { panic(absent) }

func (h Handle) Delete() { panic(absent) }
