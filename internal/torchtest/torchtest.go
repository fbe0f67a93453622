// Package torchtest has what tests of LibTorch share: devices, streams, and checks of leaks and
// errors.
package torchtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
)

// Main runs the tests of a package with one thread of LibTorch. Packages are tested in parallel,
// so more threads than cores would mostly wait for each other. One thread also fixes the order of
// the terms in sums.
func Main(m *testing.M) {
	if err := cgotorch.SetThreads(1); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Without this check all tests of CUDA would be skipped where CUDA's libraries cannot be opened.
	if n, err := cgotorch.CUDACount(); n == 0 && os.Getenv("CGOTORCH_TEST_CUDA") != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Devices returns the CPU and, on a machine with a GPU, its first CUDA device.
func Devices() []cgotorch.Device {
	if n, _ := cgotorch.CUDACount(); n > 0 {
		return []cgotorch.Device{cgotorch.CPU, cgotorch.CUDA(0)}
	}
	return []cgotorch.Device{cgotorch.CPU}
}

// CUDA returns the first CUDA device. It skips the test on a machine without one.
func CUDA(t testing.TB) cgotorch.Device {
	t.Helper()
	if n, err := cgotorch.CUDACount(); n == 0 {
		t.Skip("no CUDA device: ", err)
	}
	return cgotorch.CUDA(0)
}

// Device returns the first CUDA device, and on a machine without a GPU the CPU.
func Device() cgotorch.Device {
	all := Devices()
	return all[len(all)-1]
}

// OnEachDevice runs test as a subtest on the CPU and on the first CUDA device, each with
// [CheckLeaks]. On a machine without a GPU it skips the second subtest.
func OnEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	t.Helper()
	ForEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		CheckLeaks(t)
		test(t, d)
	})
}

// ForEachDevice is [OnEachDevice] without CheckLeaks. Some tests start a thread of LibTorch that
// calls Go. This thread does not end with the test, and CheckLeaks would count it as a goroutine.
func ForEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	t.Helper()
	for _, d := range []cgotorch.Device{cgotorch.CPU, cgotorch.CUDA(0)} {
		t.Run(d.String(), func(t *testing.T) {
			if d.IsCUDA() {
				CUDA(t)
			}
			test(t, d)
		})
	}
}

// DoOnEachDevice is [Do] as a subtest on the CPU and on the first CUDA device.
func DoOnEachDevice(t *testing.T, body func(t *testing.T, x *cgotorch.Exec)) {
	t.Helper()
	ForEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		Do(t, d, func(x *cgotorch.Exec) { body(t, x) })
	})
}

// CheckLeaks fails the test if the test leaves handles or goroutines at its end. CheckLeaks
// closes the default streams before it counts.
func CheckLeaks(t testing.TB) {
	t.Helper()
	leaktest.Check(t, cgotorch.LiveHandles, func() {
		for _, d := range Devices() {
			must.Check(t, cgotorch.DefaultStream(d).Close())
		}
	})
}

// CheckStreams fails the test for each race that the stream checker finds until the test ends. A
// test calls CheckStreams before it adds cleanups. The checker then stops after these cleanups.
func CheckStreams(t testing.TB) {
	t.Helper()
	stop := must.Get(cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { t.Error(r) }))(t)
	t.Cleanup(stop)
}

// Deterministic makes LibTorch choose deterministic operators until the test ends. The setting is
// process-wide.
func Deterministic(t testing.TB) {
	t.Helper()
	t.Setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8") // LibTorch refuses deterministic cuBLAS without this variable
	must.Do(t, cgotorch.SetDeterministic(true))
	t.Cleanup(func() { cgotorch.SetDeterministic(false) })
}

// NoTF32 makes CUDA compute in full float32, and not in TF32, from here on. The setting is
// process-wide.
func NoTF32(t testing.TB) {
	t.Helper()
	must.Do(t, cgotorch.SetTF32(false))
}

// NewStream returns a new stream. A cleanup closes the stream at the end of the test.
func NewStream(t testing.TB, d cgotorch.Device) *cgotorch.Stream {
	t.Helper()
	s := must.Get(cgotorch.NewStream(d, cgotorch.StreamOptions{}))(t)
	t.Cleanup(func() { must.Check(t, s.Close()) })
	return s
}

// Body is the function that a Do runs. It returns an error or nothing.
type Body interface {
	func(x *cgotorch.Exec) | func(x *cgotorch.Exec) error
}

// Do runs body in a Do of a new stream, with [CheckLeaks]. It waits for the work and closes the
// stream. A failure ends the test. Tensors that were kept before Do must stay open until the test
// ends, because CheckLeaks counts them. A test that closes these tensors itself calls [DoOn].
func Do[B Body](t testing.TB, d cgotorch.Device, body B) {
	t.Helper()
	must.Do(t, TryDo(t, d, body))
}

// TryDo is [Do] for a body that may fail. It returns the failure and does not end the test.
func TryDo[B Body](t testing.TB, d cgotorch.Device, body B) error {
	t.Helper()
	CheckLeaks(t)
	s := must.Get(cgotorch.NewStream(d, cgotorch.StreamOptions{}))(t)
	defer s.Close()
	return errors.Join(tryOn(s, body), s.Synchronize())
}

// DoOn runs body in a Do of a stream. A failure ends the test.
func DoOn[B Body](t testing.TB, s *cgotorch.Stream, body B) {
	t.Helper()
	must.Do(t, tryOn(s, body))
}

func tryOn[B Body](s *cgotorch.Stream, body B) error {
	switch body := any(body).(type) {
	case func(*cgotorch.Exec) error:
		return s.Do(body)
	case func(*cgotorch.Exec):
		return s.Do(func(x *cgotorch.Exec) error { body(x); return nil })
	}
	panic("torchtest: no body")
}

// WantError fails the test unless errors.Is(err, sentinel) is true, or err is any error if sentinel
// is nil. The text of err must also contain each text in `texts`.
func WantError(t testing.TB, err, sentinel error, texts ...string) {
	t.Helper()
	if err == nil || sentinel != nil && !errors.Is(err, sentinel) {
		t.Errorf("got error %v, want %v", err, sentinel)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got error %q, want %q in it", err, text)
		}
	}
}

// Equal fails the test unless `got` has the given shape and the elements of `want`. Without a
// shape argument, `got` must have one dimension or none.
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

// Sleep enqueues work that takes the time d and does nothing else. On CUDA the host does not
// wait. On the CPU the work runs at once, so the call takes d.
func Sleep(x *cgotorch.Exec, d time.Duration) {
	x.Call("streamtorch::sleep", d.Nanoseconds(), x.Device())
}

// OperatorLibrary returns the path of the library libtest_operators.so, which registers operators.
// In a test of `make versions` the library is of that version. It skips the test if the C++ tests
// are not built.
func OperatorLibrary(t testing.TB) string {
	t.Helper()
	path := "build/csrc/libtest_operators.so" // from the root of the repository
	if version := os.Getenv("CGOTORCH_LIBTORCH"); version != "" {
		path = filepath.Join("build/versions", version, "csrc/libtest_operators.so")
	}
	for up := "."; len(up) < 20; up += "/.." {
		if full, err := filepath.Abs(filepath.Join(up, path)); err == nil {
			if _, err := os.Stat(full); err == nil {
				return full
			}
		}
	}
	t.Skip(path, " is not there: `make tests-cc` builds it")
	return ""
}

// Python returns a Python that can import the module, such as torch: $PEER_PYTHON, or the one that
// bench/environment.sh has installed. It skips the test where there is none.
func Python(t testing.TB, module string) string {
	t.Helper()
	python := os.Getenv("PEER_PYTHON")
	if python == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip("no PEER_PYTHON: ", err)
		}
		whole, _ := filepath.Glob(filepath.Join(cache, "streamtorch", "peer-*", "whole"))
		if len(whole) == 0 {
			t.Skipf("no Python with %s: set PEER_PYTHON, or run bench/environment.sh", module)
		}
		python = filepath.Join(filepath.Dir(whole[0]), "bin", "python")
	}
	if err := exec.Command(python, "-c", "import "+module).Run(); err != nil {
		t.Skipf("%s has no %s: %v", python, module, err)
	}
	return python
}

// GoProgram builds a program outside of this module, with this module's requirements, and returns
// its path. The folder `root` is that of this module. The files belong to the module "made", by
// their names in it.
func GoProgram(t testing.TB, root string, files map[string][]byte) string {
	t.Helper()
	const self = "github.com/streamtorch/streamtorch"
	module := t.TempDir()
	write := func(name string, data []byte) {
		path := filepath.Join(module, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.Do(t, os.WriteFile(path, data, 0o666))
	}
	root = must.Get(filepath.Abs(root))(t)
	mod := must.Get(os.ReadFile(filepath.Join(root, "go.mod")))(t)
	sum := must.Get(os.ReadFile(filepath.Join(root, "go.sum")))(t)
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module made"))
	write("go.mod", fmt.Appendf(mod, "\nrequire %s v0.0.0\n\nreplace %s => %s\n", self, self, root))
	write("go.sum", sum)
	for name, data := range files {
		write(name, data)
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", "program", ".")
	build.Dir = module
	build.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(module, "program")
}
