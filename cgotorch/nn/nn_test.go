package nn_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
)

// More threads than cores would mostly wait for each other, in tests that run beside others.
func TestMain(m *testing.M) {
	if err := cgotorch.SetThreads(1); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// do runs fn in a Do on the CPU. The test fails if it ends with more handles than it began with.
func do(t *testing.T, fn func(x *cgotorch.Exec)) {
	t.Helper()
	if err := try(t, fn); err != nil {
		t.Fatal(err)
	}
}

// try is do for a function that may fail.
func try(t *testing.T, fn func(x *cgotorch.Exec)) error {
	t.Helper()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	if err := stream.Do(func(*cgotorch.Exec) error { return nil }); err != nil {
		t.Fatal(err)
	}
	leaktest.Check(t, cgotorch.LiveHandles)
	return stream.Do(func(x *cgotorch.Exec) error { fn(x); return nil })
}

// wantError fails unless err is an ErrInvalidArgument that holds every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("got error %v, want ErrInvalidArgument", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got error %q, want %q in it", err, part)
		}
	}
}

func values(x *cgotorch.Exec, t *cgotorch.Tensor) []float32 { return cgotorch.ToSlice[float32](x, t) }
