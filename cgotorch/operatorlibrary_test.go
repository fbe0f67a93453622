package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A library that registers streamtest::scale, halves and fails. The C++ tests have more libraries.
func TestOpenOperators(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := torchtest.OperatorLibrary(t)
	for range 2 { // the second one does nothing
		must.Do(t, OpenOperators(path))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			in := FromSlice(x, []float32{1, -2, 3}, 3)
			torchtest.Equal(t, x, x.Call1("streamtest::scale", in, 3.0), []float32{3, -6, 9}, 3)
			torchtest.Equal(t, x, x.Call1("streamtest::scale", in), []float32{2, -4, 6}, 3)
			results := x.Call("streamtest::halves", in)
			torchtest.Equal(t, x, results[0].(*Tensor), []float32{0.5, -1, 1.5}, 3)
			if shape := results[1].([]int64); len(shape) != 1 || shape[0] != 3 {
				t.Errorf("the shape is %v", shape)
			}
			must.Do(t, in.SetRequiresGrad(true))
			x.Backward(x.Sum(x.Call1("streamtest::scale", in, 5.0)))
			torchtest.Equal(t, x, in.Grad(), []float32{5, 5, 5}, 3)
		})
		torchtest.WantError(t, torchtest.TryDo(t, d, func(x *Exec) { x.Call1("streamtest::fails", x.Zeros(Float32, 2, 2)) }),
			ErrInvalidArgument, "streamtest::fails wants one dimension, and got 2")
		torchtest.WantError(t, torchtest.TryDo(t, d, func(x *Exec) { x.Call1("streamtest::scale.out", x.Zeros(Float32, 2)) }),
			ErrNotFound, "it has streamtest::scale")
	})
	schemas, err := Schemas()
	if err != nil || !strings.Contains(schemas, "\nstreamtest::scale(Tensor self, float by=2.) -> Tensor\n") {
		t.Errorf("the schemas lack streamtest::scale: %v", err)
	}
	torchtest.WantError(t, OpenOperators(strings.Replace(path, "_operators", "_copy", 1)), ErrInvalidArgument, "streamtest is registered already")
}

func TestOpenOperators_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	text := filepath.Join(t.TempDir(), "text.so")
	must.Do(t, os.WriteFile(text, make([]byte, 10_000), 0o644))
	torchtest.WantError(t, OpenOperators(text), ErrInvalidArgument, text+": invalid ELF header; give a shared library for this machine", "operatorlibrary_test.go")
	torchtest.WantError(t, OpenOperators(filepath.Dir(text)), ErrInvalidArgument, "is no file: name the .so file")
	missing := OpenOperators("nothing.so")
	torchtest.WantError(t, missing, ErrInvalidArgument, "nothing.so: no such file")
	if !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", missing)
	}
	torchtest.WantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { x.Call1("unknown::scale", x.Zeros(Float32, 2)) }),
		ErrNotFound, "open the library that registers it with OpenOperators")
}
