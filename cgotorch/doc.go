// Package cgotorch gives Go programs LibTorch, with the CUDA stream as an argument of every call.
//
// Work is enqueued only by a call that names its stream: one that takes an [Exec], or a method of [Stream]. All return at
// once; the few that wait for the device say so in their first sentence.
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
// Inside [Stream.Do] an operator that fails does not return: it unwinds to Do, which returns the [*Error]. Everything else
// returns errors in the ordinary way. Use of an Exec outside its Do, or on another goroutine, panics with an *Error.
//
// # Lifetime
//
// Tensors made inside Do are freed when it returns, except those handed out with [Exec.Keep], which the caller must Close.
// [Exec.Tidy] and [Tensor.Close] free earlier. The garbage collector is never asked to free device memory.
package cgotorch
