//go:build cgo

package main

import (
	"strings"
	"testing"
)

func TestDoctor(t *testing.T) {
	code, text, stderr := try(t, "doctor")
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, %q\n%s", code, stderr, text)
	}
	for _, want := range []string{"system", "cores", "libtorch_cpu.so", "a step on the CPU      works"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
}
