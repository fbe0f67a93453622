package main

import (
	"slices"
	"testing"
)

func TestBatchList(t *testing.T) {
	for text, want := range map[string]batchList{"": nil, "8": {8}, "1,8,32": {1, 8, 32}} {
		got := batchList{7}
		if err := got.Set(text); err != nil || !slices.Equal(got, want) || got.String() != text {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "65", "1,", "x"} {
		if err := new(batchList).Set(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestModelList(t *testing.T) {
	var got modelList
	if err := got.Set("swin_t,bert"); err != nil || !slices.Equal(got, modelList{"swin_t", "bert"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if err := got.Set("swin_t,gpt"); err == nil {
		t.Error("gpt: no error")
	}
}

// Packages are measured for batches of -batches alone.
func TestConfig_KindsOfFiles(t *testing.T) {
	c := &config{compile: true, batches: batchList{1, 8}, packages: batchList{8, 32}}
	kinds := c.kindsOfFiles()
	if !slices.Equal(kinds["compile"], []int{1, 8}) || !slices.Equal(kinds["package"], []int{8}) || !slices.Equal(kinds["export"], []int{0}) {
		t.Errorf("got %v", kinds)
	}
	if c.compile, c.packages = false, nil; len(c.kindsOfFiles()["compile"])+len(c.kindsOfFiles()["package"]) > 0 {
		t.Errorf("got %v", c.kindsOfFiles())
	}
}

func TestReason(t *testing.T) {
	for text, want := range map[string]string{
		"the peer has ended: EOF\n": "the peer has ended: EOF",
		"package: Traceback\n  File\nInductorError: CppCompileError: C++\nx.cpp:3:1: error: no\nx.h:1: warning: y\n": "InductorError: CppCompileError: C++; x.cpp:3:1: error: no",
	} {
		if got := reason(text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
