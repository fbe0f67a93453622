package main

import (
	"errors"
	"strings"
	"testing"
)

func TestSeveralGPUs(t *testing.T) {
	if n, err := severalGPUs(2, nil); n != 2 || err != nil {
		t.Errorf("two GPUs: %d, %v", n, err)
	}
	if _, err := severalGPUs(1, nil); err == nil || strings.Contains(err.Error(), "%!") || !strings.Contains(err.Error(), "needs two") {
		t.Errorf("one GPU: %v", err)
	}
	lost := errors.New("no driver")
	if _, err := severalGPUs(0, lost); err != lost {
		t.Errorf("no GPU: %v, want %v", err, lost)
	}
}
