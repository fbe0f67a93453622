package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// find returns the path of the archive `name`. It looks in the folders of -data. The photographs
// can have a path of their own, -photographs.
func (c *config) find(name string) (string, error) {
	if c.photographs != "" && name == imagenet.archive {
		return c.photographs, nil
	}
	folders := c.data
	if folders == "" {
		folders = "examples/train/data:data"
		if own, err := os.Executable(); err == nil { // so gpu-bundle/bin/bench finds gpu-bundle/data
			folders += ":" + filepath.Join(filepath.Dir(own), "..", "data") + ":" + filepath.Join(filepath.Dir(own), "data")
		}
	}
	for _, folder := range strings.Split(folders, ":") {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is in none of %s; name its folder with -data", name, folders)
}
