package safetensors

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	wholeFile = "model.safetensors"
	indexFile = "model.safetensors.index.json"
)

// Files returns the safetensors files that a path stands for:
//
//   - A folder, as Hugging Face's save_pretrained writes it, stands for the file model.safetensors
//     in it. If there is no such file, it stands for the shards that
//     model.safetensors.index.json names.
//   - An index file, whose name ends in .json, stands for its shards, in alphabetical order.
//   - Any other path stands for itself.
//
// It also returns the texts of an index's metadata, such as the notes of tied weights that its
// shards leave out. The map is nil without an index.
//
// Files fails with [ErrFormat] if the index file is damaged, or if it names files of other
// folders.
func Files(path string) (files []string, metadata map[string]string, err error) {
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		folder := path
		if path = filepath.Join(folder, wholeFile); exists(path) {
			return []string{path}, nil, nil
		}
		if path = filepath.Join(folder, indexFile); !exists(path) {
			return nil, nil, fmt.Errorf("safetensors: %s: there is neither %s nor %s: %w", folder, wholeFile, indexFile, fs.ErrNotExist)
		}
	} else if !strings.HasSuffix(path, ".json") {
		return []string{path}, nil, nil
	}
	if info, err = os.Stat(path); err == nil && (!info.Mode().IsRegular() || info.Size() > maxHeader) {
		return nil, nil, fmt.Errorf("safetensors: %s: no file, or one of %d bytes: an index has at most %d: %w", path, info.Size(), maxHeader, ErrFormat)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("safetensors: %w", err)
	}
	var index struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, nil, fmt.Errorf("safetensors: %s: no index of tensors to files: %w: %w", path, err, ErrFormat)
	}
	if len(index.WeightMap) == 0 {
		return nil, nil, fmt.Errorf("safetensors: %s: weight_map, of tensors to files, is empty: %w", path, ErrFormat)
	}
	shards := map[string]bool{}
	for name, shard := range index.WeightMap {
		if shard == "" || filepath.Base(shard) != shard {
			return nil, nil, fmt.Errorf("safetensors: %s: tensor %s is in %q, which is no file's name: %w", path, name, shard, ErrFormat)
		}
		shards[filepath.Join(filepath.Dir(path), shard)] = true
	}
	metadata = map[string]string{}
	for key, value := range index.Metadata {
		if text, ok := value.(string); ok {
			metadata[key] = text
		}
	}
	return slices.Sorted(maps.Keys(shards)), metadata, nil
}
