package cgotorch

import (
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/internal/library"
)

// UseLibraries is process-wide: it names the folder of the compiled libraries, or a folder that
// `streamtorch install -prefix` has filled. Only $STREAMTORCH_LIB comes before it. It fails if the
// path is not absolute or names no folder, and after a call that has looked for the libraries, also
// in vain. It also fails if another folder was named before, here or in package imageloader.
func UseLibraries(folder string) error {
	if err := library.Use(folder); err != nil {
		return &Error{Op: "UseLibraries", Kind: ErrInvalidArgument, Message: err.Error()}
	}
	return nil
}

// Seed is process-wide: it seeds LibTorch's default generator of every device. Dropout and random
// initialisation draw from these generators. Seed waits until captures of graphs have ended.
// Inside a capture it fails with [ErrNotCapturable].
func Seed(seed uint64) error { return check("Seed", ct.Seed(seed)) }

// GeneratorState is process-wide: it returns the state of a device's default generator, for a
// checkpoint. For a CUDA device it waits for captures, and fails inside a capture, as [Seed]
// does.
func GeneratorState(d Device) ([]byte, error) {
	state := make([]byte, 8192)
	size := int64(len(state))
	if err := check("GeneratorState", ct.GeneratorState(d.c(), unsafe.Pointer(&state[0]), &size)); err != nil {
		return nil, err
	}
	return state[:size], nil
}

// SetGeneratorState is process-wide: it restores a state that [GeneratorState] returned. For a
// CUDA device it waits for captures, and fails inside a capture, as [Seed] does.
func SetGeneratorState(d Device, state []byte) error {
	if len(state) == 0 {
		return &Error{Op: "SetGeneratorState", Kind: ErrInvalidArgument, Message: "the state is empty"}
	}
	return check("SetGeneratorState", ct.GeneratorSetState(d.c(), unsafe.Pointer(&state[0]), int64(len(state))))
}

// SetCuDNNBenchmark is process-wide: if `on` is true, cuDNN tries its convolution algorithms for
// each new shape and keeps the fastest. It is off at first.
func SetCuDNNBenchmark(on bool) error {
	return setSwitch("SetCuDNNBenchmark", ct.SwitchCuDNNBenchmark, on)
}

// SetTF32 is process-wide: if `on` is true, float32 matrix products and convolutions may round
// their inputs to 10 bits of fraction. At the start of the process, rounding is off for matrix
// products and on for convolutions.
func SetTF32(on bool) error { return setSwitch("SetTF32", ct.SwitchTF32, on) }

// SetDeterministic is process-wide: if `on` is true, operators use deterministic kernels. An
// operator that has no deterministic kernel then fails. It is off at first.
func SetDeterministic(on bool) error {
	return setSwitch("SetDeterministic", ct.SwitchDeterministic, on)
}

func setSwitch(op string, which int32, on bool) error {
	return check(op, ct.SwitchSet(which, cbool(on)))
}

// mostThreads is the largest number of threads for an operator. Each stream may have so many.
const mostThreads = 1024

// SetThreads is process-wide: an operator that begins later uses at most n threads on the CPU, 1 to
// 1024. For another n, SetThreads fails with [ErrInvalidArgument].
func SetThreads(n int) error {
	if n < 1 || n > mostThreads {
		return refuse("SetThreads", ErrInvalidArgument, "n is %d; an operator uses 1 to %d threads", n, mostThreads)
	}
	return check("SetThreads", ct.ThreadsSet(int32(n)))
}

// LibTorchVersion returns the version of LibTorch that this library was built with, such as
// "2.11.0".
func LibTorchVersion() string { return ct.LibtorchVersion() }
