package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// chromeFile is a file of [Records.WriteChrome].
type chromeFile struct {
	Unit   string           `json:"displayTimeUnit"`
	Events []map[string]any `json:"traceEvents"`
}

// Merge makes one file of the traces of several ranks. paths[r] is that of rank r. The first one
// becomes the file of all, and Merge removes the others. Files that are not there, such as those on
// other machines, are left out. Merge fails if none is there.
func Merge(paths []string) error {
	var all chromeFile
	found := false
	for rank, path := range paths {
		one, err := readChrome(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("trace: %s: %w", path, err)
		}
		found = true
		all.Unit = one.Unit
		for _, e := range one.Events {
			if process, ok := e["pid"].(float64); ok {
				e["pid"] = process + float64(1000*rank)
			}
			if arguments, ok := e["args"].(map[string]any); ok && e["name"] == "process_name" {
				arguments["name"] = fmt.Sprintf("rank %d: %v", rank, arguments["name"])
			}
			all.Events = append(all.Events, e)
		}
	}
	if !found {
		return fmt.Errorf("trace: none of the %d files to merge is there: give the paths that the ranks have written: %w", len(paths), fs.ErrNotExist)
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(paths[0]+".new", text, 0o666)
	}
	if err == nil {
		err = os.Rename(paths[0]+".new", paths[0])
	}
	if err != nil {
		os.Remove(paths[0] + ".new")
		return fmt.Errorf("trace: %w", err)
	}
	for _, path := range paths[1:] {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}

func readChrome(path string) (f chromeFile, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	return f, err
}
