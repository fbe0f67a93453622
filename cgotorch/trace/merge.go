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

// merge makes one file of the traces of all ranks, and removes the others. Files that are not
// there, such as those on other machines, are left out.
func (s *Steps) merge() error {
	var all chromeFile
	for rank := range s.o.Ranks.World() {
		one, err := readChrome(s.pathOf(rank))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("trace: %s: %w", s.pathOf(rank), err)
		}
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
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(s.path+".new", text, 0o666)
	}
	if err == nil {
		err = os.Rename(s.path+".new", s.path)
	}
	if err != nil {
		os.Remove(s.path + ".new")
		return fmt.Errorf("trace: %w", err)
	}
	for rank := 1; rank < s.o.Ranks.World(); rank++ {
		if err := os.Remove(s.pathOf(rank)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
