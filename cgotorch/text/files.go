package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

const (
	wholeFile = "model.safetensors"
	indexFile = "model.safetensors.index.json"
)

// WeightFiles returns the safetensors files of a folder that save_pretrained has written: model.safetensors, or the shards that
// model.safetensors.index.json names, sorted. Its errors name the file.
func WeightFiles(folder string) ([]string, error) {
	whole := filepath.Join(folder, wholeFile)
	if _, err := os.Stat(whole); err == nil {
		return []string{whole}, nil
	}
	path := filepath.Join(folder, indexFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("text: %s: there is neither %s nor %s: %w", folder, wholeFile, indexFile, err)
	} else if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("text: %s: %w", path, err)
	}
	shards := map[string]bool{}
	for name, shard := range index.WeightMap {
		if shard == "" || filepath.Base(shard) != shard {
			return nil, fmt.Errorf("text: %s: tensor %s is in %q, which is no file's name: %w", path, name, shard, cgotorch.ErrInvalidArgument)
		}
		shards[filepath.Join(folder, shard)] = true
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("text: %s: weight_map is empty: %w", path, cgotorch.ErrInvalidArgument)
	}
	return slices.Sorted(maps.Keys(shards)), nil
}
