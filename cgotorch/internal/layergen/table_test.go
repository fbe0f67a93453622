package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRun_FileOfTheTable(t *testing.T) {
	table, err := os.ReadFile("../../nn/layers.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../nn/layers_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "layers.txt"), table, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(folder); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(folder, "layers_gen.go"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("layers_gen.go is not what layers.txt says: run go generate in cgotorch/nn")
	}
}

func TestParse_Mistakes(t *testing.T) {
	for _, table := range []string{
		"ReLU computes max(in, 0).",
		"ReLU computes max(in, 0).\n\tUnknown\n\t= x.ReLU(in)",
		"ReLU computes max(in, 0).\n\t?\n\t= x.ReLU(in)",
		"ReLU computes max(in, 0).\n\tif Fast: x.ReLU(in)\n\t= x.ReLU(in)",
	} {
		if entries, err := parse(table); err == nil {
			t.Errorf("%q: got %d entries, want an error", table, len(entries))
		}
	}
}
