// Package cgotorch gives Go programs LibTorch, with the CUDA stream as an argument of every call.
//
// Work is enqueued only by a call that names its stream. Such a call takes an [Exec] or a
// [Stream], is a method of Stream, or is a method of an object that was given its stream when it
// was made. These calls return at once. The few calls that wait for the device say so in their
// doc comments.
//
// These objects are given streams of their own when they are made:
//
//   - an [Inference], and a Batcher of package serve
//   - a Group of package distributed, for gradients
//   - a Prefetcher and a Tensors of package prefetcher, for copies
//   - a Cache of package prefetcher/weights, for copies, and a Table for its passes
//   - a JPEGDecoder of package images, on the threads of the pools that it serves
//   - a Model of package text, for answers and copies of tokens, those of its Batcher too
//
// Prefetcher, Cache and Batcher enqueue on goroutines of their own, perhaps after the call, in the
// order of the calls. Objects that are made from a Cache use the Cache's stream.
//
//	stream := cgotorch.DefaultStream(cgotorch.CPU)
//	err := stream.Do(func(x *cgotorch.Exec) error {
//		a := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
//		fmt.Println(x.MatMul(a, a)) // on a GPU, print x.Format(t), which waits
//		return nil
//	})
//
// A Do is for one step of a training or for one request. What a Do makes stays in memory until the
// Do ends. [DoEach] runs one Do for each batch of an epoch, and [DoValue] returns a Do's result.
//
// # Errors
//
// An operator that fails inside [Stream.Do] does not return. The failure unwinds to Do, and Do
// returns the [*Error]. All other calls return errors in the ordinary way. Inside a Do, [Must] and
// [Check] make such an error the Do's. An Exec that is used outside its Do, or on another
// goroutine, panics with an *Error.
//
// # Lifetime
//
// A tensor that is made inside Do is freed when Do returns, unless [Exec.Keep] hands the tensor
// out. The caller must close a kept tensor. [Exec.Tidy] and [Tensor.Close] free tensors earlier.
// Device memory never depends on the garbage collector.
package cgotorch
