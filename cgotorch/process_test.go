package cgotorch_test

import (
	"bytes"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestSeed(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		draw := func() (values []float32) {
			torchtest.Do(t, d, func(x *Exec) { values = ToSlice[float32](x, x.Rand(Float32, 8)) })
			return values
		}
		seed := func(n uint64) {
			must.Do(t, Seed(n))
		}
		seed(7)
		first, second := draw(), draw()
		seed(7)
		if !slices.Equal(draw(), first) || !slices.Equal(draw(), second) {
			t.Error("equal seeds draw different numbers")
		}
		seed(8)
		if slices.Equal(draw(), first) || slices.Equal(first, second) {
			t.Error("different numbers are equal")
		}
	})
}

func TestGeneratorState(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		draw := func() (values []float32) {
			torchtest.Do(t, d, func(x *Exec) { values = ToSlice[float32](x, x.Randn(Float32, 5)) })
			return values
		}
		draw()
		state := Must(GeneratorState(d))
		want := draw()
		draw()
		must.Do(t, SetGeneratorState(d, state))
		if got := draw(); !slices.Equal(got, want) {
			t.Errorf("drew %v behind the restored state, want %v", got, want)
		}
		must.Do(t, SetGeneratorState(d, state))
		if again, err := GeneratorState(d); err != nil || !bytes.Equal(again, state) {
			t.Errorf("the state comes back as another: %v", err)
		}
		wantError(t, SetGeneratorState(d, nil), ErrInvalidArgument, "SetGeneratorState", "the state is empty")
		wantError(t, SetGeneratorState(d, state[1:]), ErrInvalidArgument, "SetGeneratorState")
	})
	_, err := GeneratorState(CUDA(99))
	wantError(t, err, ErrNoDevice, "GeneratorState")
}

func TestSwitches(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, set := range map[string]func(bool) error{
		"SetCuDNNBenchmark": SetCuDNNBenchmark, "SetTF32": SetTF32, "SetDeterministic": SetDeterministic,
	} {
		for _, on := range []bool{true, false} {
			if err := set(on); err != nil {
				t.Errorf("%s(%v): %v", name, on, err)
			}
			if got := Switch(ct.SwitchCuDNNBenchmark) != 0; name == "SetCuDNNBenchmark" && got != on {
				t.Errorf("it is %v after %s(%v)", got, name, on)
			}
		}
	}
}

func TestSetDeterministic(t *testing.T) {
	torchtest.CheckLeaks(t)
	must.Do(t, SetDeterministic(true))
	defer SetDeterministic(false)
	torchtest.Do(t, CPU, func(x *Exec) {
		if v := ToSlice[float32](x, x.Empty(Float32, 1))[0]; v == v {
			t.Errorf("fresh memory holds %v, want NaN in deterministic mode", v)
		}
	})
}

func TestSetThreads(t *testing.T) {
	torchtest.CheckLeaks(t)
	before := Threads()
	if before < 1 {
		t.Fatalf("%d threads", before)
	}
	for _, n := range []int{1, 2, before} {
		must.Do(t, SetThreads(n))
	}
	for _, n := range []int{0, -1, 1 << 40} {
		wantError(t, SetThreads(n), ErrInvalidArgument, "SetThreads", "an operator uses 1 to 1024 threads")
	}
}

// The version is of a release that internal/install/wheels.lock lists.
func TestLibTorchVersion(t *testing.T) {
	lock := Must(os.ReadFile("../internal/install/wheels.lock"))
	got := LibTorchVersion()
	release := regexp.MustCompile(`^\d+\.\d+\.`).FindString(got)
	if listed := regexp.MustCompile(`(?m)^version +` + regexp.QuoteMeta(release) + `\d`); release == "" || !listed.Match(lock) {
		t.Errorf("LibTorch is %q, which wheels.lock does not list", got)
	}
}
