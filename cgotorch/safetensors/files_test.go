package safetensors

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFiles(t *testing.T) {
	folder, sharded := t.TempDir(), t.TempDir()
	whole, index := filepath.Join(folder, "model.safetensors"), filepath.Join(sharded, "model.safetensors.index.json")
	write := func(path, text string) {
		t.Helper()
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write(whole, "")
	write(index, `{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}`)
	shards := []string{filepath.Join(sharded, "1.safetensors"), filepath.Join(sharded, "2.safetensors")}
	for path, want := range map[string][]string{folder: {whole}, whole: {whole}, sharded: shards, index: shards, "none": {"none"}} {
		if got, _, err := Files(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", path, got, err, want)
		}
	}
	for text, want := range map[string]string{"{": "no index", `{"weight_map": {}}`: "empty", `{"weight_map": {"a": "../b"}}`: `"../b"`, `{"weight_map": {"a": ""}}`: "tensor a"} {
		write(index, text)
		if _, _, err := Files(sharded); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), index) {
			t.Errorf("%s: got %v, want ErrFormat with %q", text, err, want)
		}
	}
	if _, _, err := Files(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "model.safetensors.index.json") {
		t.Errorf("an empty folder: %v", err)
	}
}
