package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/internal/must"
)

// try runs the program and returns its exit code and output.
func try(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// Weights survive the way from a file of torch.save to safetensors and back.
func TestConvert(t *testing.T) {
	folder := t.TempDir()
	first, second := filepath.Join(folder, "a.safetensors"), filepath.Join(folder, "b.pth")
	if code, out, stderr := try(t, "convert", "-strip", "model.", "../../cgotorch/pth/testdata/checkpoint.pth", first); code != 0 || out != "8 tensors\n" {
		t.Fatal(code, out, stderr)
	}
	if code, _, stderr := try(t, "convert", first, second); code != 0 {
		t.Fatal(stderr)
	}
	want := must.Get(pth.OpenWeights("../../cgotorch/pth/testdata/state.pth"))(t)
	defer want.Close()
	got := must.Get(pth.OpenWeights(second))(t)
	defer got.Close()
	for _, info := range want.Tensors() {
		a, err := want.Read(info.Name)
		b, err2 := got.Read(info.Name)
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %v is %v (%v, %v)", info.Name, a, b, err, err2)
		}
	}
	onnx := filepath.Join(t.TempDir(), "a.onnx")
	must.Do(t, os.WriteFile(onnx, []byte("\x08\x08\x12\x07pytorch"), 0o600))
	for want, args := range map[string][]string{
		"no tensor has a name":    {"-strip", "x.", first, second},
		"must end with .safe":     {first, filepath.Join(folder, "c.bin")},
		"an ONNX model":           {onnx, second},
		"usage: streamtorch conv": {first},
	} {
		if code, _, stderr := try(t, append([]string{"convert"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d, %q, want %q", args, code, stderr, want)
		}
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 2 {
		t.Errorf("the folder has %v", entries)
	}
}
