//go:build cgo

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/must"
)

func TestDoctor(t *testing.T) {
	code, text, stderr := try(t, "doctor")
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, %q\n%s", code, stderr, text)
	}
	for _, want := range []string{"system", "cores", "libtorch_cpu.so", "a PNG, decoded         works", "a step on the CPU      works"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
}

// The loader alone is a whole installation. A decoder that is cut off is told, and does not end the
// process. The doctor is this test's program once more, where nothing is open yet.
func TestDoctor_LoaderAlone(t *testing.T) {
	if os.Getenv("STREAMTORCH_TEST_DOCTOR") != "" {
		os.Exit(run(context.Background(), []string{"doctor"}, os.Stdout, os.Stderr))
	}
	lib := t.TempDir()
	decoder := must.Get(os.ReadFile(filepath.Join("../../build/lib", library.DecoderFile)))(t)
	must.Do(t, os.WriteFile(filepath.Join(lib, library.ManifestFile), library.Manifest{Platform: library.Platform, Source: library.Source}.Text(), 0o644))
	for _, c := range []struct {
		bytes, code     int
		has, also, lack string
	}{
		{len(decoder), 0, "a PNG, decoded         works", "not installed: the loader alone is", "FAILS"},
		{len(decoder) / 2, 1, "a PNG, decoded         FAILS", "is cut off", "works"},
	} {
		must.Do(t, os.WriteFile(filepath.Join(lib, library.DecoderFile), decoder[:c.bytes], 0o644))
		cmd := exec.Command(must.Get(os.Executable())(t), "-test.run", "TestDoctor_LoaderAlone")
		cmd.Env = append(os.Environ(), "STREAMTORCH_TEST_DOCTOR=1", "STREAMTORCH_LIB="+lib)
		out, _ := cmd.Output()
		if text := string(out); cmd.ProcessState.ExitCode() != c.code || !strings.Contains(text, c.has) || !strings.Contains(text, c.also) || strings.Contains(text, c.lack) {
			t.Errorf("%d bytes: %v\n%s", c.bytes, cmd.ProcessState, text)
		}
	}
}
