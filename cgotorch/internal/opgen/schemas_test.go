package main

import (
	"strings"
	"testing"
)

func TestParseSchemas_Errors(t *testing.T) {
	const good = "a::b(int a) -> int\n"
	for text, want := range map[string]string{
		good + "\nbad": "opgen: s.txt:3: ",
		good + good:    "opgen: s.txt:2: a second schema of a::b",
	} {
		if _, err := parseSchemas("s.txt", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseSchemas(%q) = %v, want %q", text, err, want)
		}
	}
}
