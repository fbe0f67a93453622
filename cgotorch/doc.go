// Package cgotorch gives Go programs LibTorch, with the CUDA stream as an argument of every
// call.
//
// Work is enqueued only by a call that names its stream: one that takes an [Exec], a method of
// [Stream], or a method of an object that was given its stream when it was made. These calls
// return at once. The few calls that wait for the device say so in their doc comments.
//
// Few objects are of the last kind: an [Inference], a Prefetcher of package prefetcher, and a Cache
// of package prefetcher/weights with the objects made from it. Each has streams of its own.
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
// Inside [Stream.Do] an operator that fails does not return: it unwinds to Do, which returns
// the [*Error]. All other calls return errors in the ordinary way. An Exec panics with an
// *Error outside its Do and on another goroutine.
//
// # Lifetime
//
// Tensors made inside Do are freed when it returns. The exceptions are tensors handed out with
// [Exec.Keep], which the caller must Close. [Exec.Tidy] and [Tensor.Close] free earlier. Device
// memory never depends on the garbage collector.
package cgotorch
