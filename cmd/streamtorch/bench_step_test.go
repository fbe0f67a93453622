//go:build cgo

package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestBench_Step(t *testing.T) {
	code, stdout, stderr := try(t, "bench", "-seconds", "0.1", "-model", "mlp", "-batch", "4", "-device", "cpu")
	if want := `step of mlp, 32x32, batch 4, float32, cpu +[0-9.,]+  eager; [0-9.]+ ms a step, [1-9]\d* steps\n$`; code != 0 || stderr != "" || !regexp.MustCompile(want).MatchString(stdout) {
		t.Errorf("exit code %d, %q, standard output must match %s:\n%s", code, stderr, want, stdout)
	}
	for want, args := range map[string][]string{
		"resnet50":           {"-model", "resnet51"},
		"tpu":                {"-device", "tpu"},
		"-dtype int8":        {"-dtype", "int8"},
		"nothing to measure": {"-model", ""},
	} {
		args = append([]string{"bench", "-seconds", "0.1", "-device", "cpu"}, args...)
		if code, _, stderr := try(t, args...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %q, want 1 and %q", args, code, stderr, want)
		}
	}
}
