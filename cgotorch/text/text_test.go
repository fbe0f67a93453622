package text_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
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
func do(t *testing.T, fn func(x *cgotorch.Exec) error) {
	t.Helper()
	if err := try(t, fn); err != nil {
		t.Fatal(err)
	}
}

// try is do for a function that may fail.
func try(t *testing.T, fn func(x *cgotorch.Exec) error) error {
	t.Helper()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	if err := stream.Do(func(*cgotorch.Exec) error { return nil }); err != nil {
		t.Fatal(err)
	}
	leaktest.Check(t, cgotorch.LiveHandles)
	return stream.Do(fn)
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

// tiny is the config of a model with a sparse block in encoder and decoder.
func tiny() text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.VocabSize, c.DModel, c.DKV, c.DFF, c.NumHeads, c.NumExperts = 11, 8, 4, 12, 2, 3
	c.NumLayers, c.NumDecoderLayers, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers = 2, 2, 1, 1
	return c
}

// switchBase128 returns the config of google/switch-base-128: 12 blocks each in encoder and
// decoder. Every second block has 128 experts.
func switchBase128() text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.DFF, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers, c.NumExperts = 3072, 6, 6, 128
	return c
}
