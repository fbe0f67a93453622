//go:build cgo

package main

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
)

func TestBench_Loader(t *testing.T) {
	folder := files(t, map[string]string{"cat/a.png": "40x30", "cat/b.png": "8x8", "dog/a.png": "8x8", "dog/b.png": "no image"})
	args := []string{"bench", "-seconds", "0.1", "-batch", "2", "-size", "16", "-model", ""}
	bad := files(t, map[string]string{"cat/a.jpg": "no image"})
	code, stdout, stderr := try(t, append(args, folder)...)
	if want := `loader, 16x16, batch 2 +[0-9.,]+  bound by .* of \d+ cores; [1-9]\d* images.*, first batch after 0\.\d\d s\n$`; code != 0 || stderr != "" || !regexp.MustCompile(want).MatchString(stdout) {
		t.Errorf("exit code %d, %q, standard output must match %s:\n%s", code, stderr, want, stdout)
	}
	for want, more := range map[string][]string{
		"-seconds 0: above 0":   {"-seconds", "0", folder},
		"-batch, -size and":     {"-batch", "-1", folder},
		"no/such.tgz":           {"no/such.tgz"},
		"-split":                {"-split", "val", folder},
		"images are unusable":   {bad},
		"streamtorch bench [fl": {folder, folder},
	} {
		if code, _, stderr := try(t, append(args[:len(args):len(args)], more...)...); code == 0 || !strings.Contains(stderr, want) || len(stderr) > 1500 {
			t.Errorf("%q: exit code %d, %q, want %q", more, code, stderr, want)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("stopped"))
	var out, errs strings.Builder
	if code := run(ctx, append(args, folder), &out, &errs); code != 1 || !strings.Contains(errs.String(), "stopped") {
		t.Errorf("interrupted: exit code %d, %q", code, &errs)
	}
}

func TestPerSecond(t *testing.T) {
	for want, rate := range map[string]float64{"0.123": 0.1234, "99.9": 99.9, "100": 100.2, "1,235": 1234.6, "1,234,567": 1234567} {
		if got := perSecond(rate); got != want {
			t.Errorf("perSecond(%v) is %q, want %q", rate, got, want)
		}
	}
}
