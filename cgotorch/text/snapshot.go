package text

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

var hubID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)

// folderOf returns the folder that a path stands for: itself, or the snapshot of an id such as
// Qwen/Qwen3-8B in Hugging Face's cache. It downloads nothing.
func folderOf(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return path, nil
	case err == nil:
		return "", fmt.Errorf("text: %s is a file, want the folder of a model: %w", path, cgotorch.ErrInvalidArgument)
	case !hubID.MatchString(path):
		return "", fmt.Errorf("text: %w", err)
	}
	hub := hubCache()
	repository := filepath.Join(hub, "models--"+strings.ReplaceAll(path, "/", "--"))
	all := filepath.Join(repository, "snapshots")
	snapshots, _ := os.ReadDir(all)
	main := filepath.Join(repository, "refs", "main")
	if commit, err := os.ReadFile(main); err == nil {
		name := strings.TrimSpace(string(commit))
		if folder := filepath.Join(all, name); filepath.Dir(folder) == all && exists(folder) {
			return folder, nil
		}
		return "", fmt.Errorf("text: %s names the snapshot %.80q, which is not there: download it with `hf download %s`, or give the folder of another: %w", main, name, path, os.ErrNotExist)
	}
	switch {
	case len(snapshots) == 1:
		return filepath.Join(all, snapshots[0].Name()), nil
	case len(snapshots) > 1:
		return "", fmt.Errorf("text: %s has %d snapshots and no refs/main: give the folder of one of them: %w", repository, len(snapshots), cgotorch.ErrInvalidArgument)
	}
	return "", fmt.Errorf("text: %s is no folder, and %s has no model of this name: download it with `hf download %s`: %w", path, hub, path, os.ErrNotExist)
}

// hubCache returns the folder of Hugging Face's cache, as huggingface_hub finds it.
func hubCache() string {
	home, _ := os.UserHomeDir()
	folderIn := func(variable string) string {
		folder := os.Getenv(variable)
		if rest, ok := strings.CutPrefix(folder, "~/"); ok {
			return filepath.Join(home, rest)
		}
		return folder
	}
	if folder := folderIn("HF_HUB_CACHE"); folder != "" {
		return folder
	}
	if folder := folderIn("HF_HOME"); folder != "" {
		return filepath.Join(folder, "hub")
	}
	cache := folderIn("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "huggingface", "hub")
}
