package main

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
)

// parseSchemas reads a text with one schema on each line. It fails if two schemas have the same
// name.
func parseSchemas(path, text string) (map[string]*opschema.Schema, error) {
	schemas := make(map[string]*opschema.Schema)
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		s, err := opschema.Parse(line)
		if err != nil {
			return nil, fmt.Errorf("opgen: %s:%d: %w", path, i+1, err)
		}
		if schemas[s.Name] != nil {
			return nil, fmt.Errorf("opgen: %s:%d: a second schema of %s", path, i+1, s.Name)
		}
		schemas[s.Name] = s
	}
	return schemas, nil
}
