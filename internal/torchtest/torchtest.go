// Package torchtest is the rig of tests that call LibTorch: devices, streams, leaks and errors.
package torchtest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
)

// Devices returns the CPU and, on a machine with a GPU, its first CUDA device.
func Devices() []cgotorch.Device {
	if n, _ := cgotorch.CUDACount(); n > 0 {
		return []cgotorch.Device{cgotorch.CPU, cgotorch.CUDA(0)}
	}
	return []cgotorch.Device{cgotorch.CPU}
}

// OnEachDevice runs test as a subtest on each of [Devices].
func OnEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	t.Helper()
	for _, d := range Devices() {
		t.Run(d.String(), func(t *testing.T) { test(t, d) })
	}
}

// CUDA returns the first CUDA device. It skips the test on a machine without one.
func CUDA(t testing.TB) cgotorch.Device {
	t.Helper()
	if n, err := cgotorch.CUDACount(); n == 0 {
		t.Skip(err)
	}
	return cgotorch.CUDA(0)
}

// CheckLeaks fails the test if handles or goroutines that it made are left when it ends. It closes default
// streams before it counts.
func CheckLeaks(t testing.TB) {
	t.Helper()
	leaktest.Check(t, cgotorch.LiveHandles, func() {
		for _, d := range Devices() {
			if err := cgotorch.DefaultStream(d).Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// NewStream returns a stream that the end of the test closes.
func NewStream(t testing.TB, d cgotorch.Device) *cgotorch.Stream {
	t.Helper()
	s, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Do runs fn in a Do of a new stream. A failure fails the test.
func Do(t testing.TB, d cgotorch.Device, fn func(x *cgotorch.Exec)) {
	t.Helper()
	if err := TryDo(t, d, fn); err != nil {
		t.Error(err)
	}
}

// TryDo runs fn in a Do of a new stream and returns its failure.
func TryDo(t testing.TB, d cgotorch.Device, fn func(x *cgotorch.Exec)) error {
	t.Helper()
	return NewStream(t, d).Do(func(x *cgotorch.Exec) error {
		fn(x)
		return nil
	})
}

// WantError fails the test unless err is a [*cgotorch.Error] with this sentinel and all the texts.
func WantError(t testing.TB, err error, sentinel error, texts ...string) {
	t.Helper()
	var e *cgotorch.Error
	switch {
	case err == nil:
		t.Errorf("no error, want %v", sentinel)
		return
	case !errors.As(err, &e):
		t.Errorf("%v is a %T, want a *cgotorch.Error", err, err)
		return
	case !errors.Is(err, sentinel):
		t.Errorf("%v is not %v", err, sentinel)
	}
	for _, text := range append(texts, "cgotorch: ") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q, want %q in it", err, text)
		}
	}
}

// Equal fails the test unless a tensor has this shape and these elements; no shape means one dimension.
func Equal[T cgotorch.Element](t testing.TB, x *cgotorch.Exec, got *cgotorch.Tensor, want []T, shape ...int64) {
	t.Helper()
	if len(shape) == 0 && got.Dim() > 0 {
		shape = []int64{int64(len(want))}
	}
	if !slices.Equal(got.Shape(), shape) {
		t.Errorf("shape %v, want %v", got.Shape(), shape)
	}
	if values := cgotorch.ToSlice[T](x, got); !slices.Equal(values, want) {
		t.Errorf("got %v, want %v", values, want)
	}
}

// Sleep enqueues work that takes d and does nothing else. The host does not wait, except on the CPU, where
// work runs at once.
func Sleep(x *cgotorch.Exec, d time.Duration) {
	x.Call("streamtorch::sleep", d.Nanoseconds(), x.Device())
}
