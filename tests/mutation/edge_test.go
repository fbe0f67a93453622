package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

const root = "../.."

// What the table says stands in the tree.
func TestEdges(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range edges() {
		if seen[e.name] || !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(e.name) {
			t.Errorf("%q is no name, or that of two edges", e.name)
		}
		seen[e.name] = true
		if _, err := e.mutated(root); err != nil {
			t.Error(err)
		}
		if err := e.hasTest(root); err != nil {
			t.Error(err)
		}
		if e.isGoogleTest() && e.device != onGPU {
			t.Errorf("%s: GoogleTest runs in a bundle alone", e.name)
		}
		if e.orders == "" {
			t.Errorf("%s: it orders nothing", e.name)
		}
	}
}

func TestDocument_IsOfThisTable(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(root, documentPath))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != document(edges()) {
		t.Errorf("%s is of another table: run make mutations", documentPath)
	}
}
