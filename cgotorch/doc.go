// Package cgotorch gives Go programs LibTorch, with the CUDA stream as an argument of every call.
//
// Work is enqueued only by a call that names its stream: one that takes an [Exec], a method of
// [Stream], or a method of an object that was given its stream when it was made. Calls return at
// once. Those that wait for the device say so.
//
// Objects of the last kind are few: an [Inference], a Prefetcher of package prefetcher, and a Cache
// of package prefetcher/weights with what is made from it. Each has streams of its own.
//
//	stream := cgotorch.DefaultStream(cgotorch.CPU)
//	err := stream.Do(func(x *cgotorch.Exec) error {
//		a := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
//		fmt.Println(cgotorch.ToSlice[float32](x, x.MatMul(a, a))) // waits
//		return nil
//	})
//
// # Errors
//
// Inside [Stream.Do] an operator that fails does not return. It unwinds to Do, which returns the
// [*Error]. Everything else returns errors in the ordinary way. Use of an Exec outside its Do, or
// on another goroutine, panics with an *Error.
//
// # Lifetime
//
// Tensors made inside Do are freed when it returns. [Exec.Keep] hands a tensor out, and the caller
// must Close it. [Exec.Tidy] and [Tensor.Close] free earlier. The garbage collector is never asked
// to free device memory.
package cgotorch
