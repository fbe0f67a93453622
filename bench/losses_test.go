package main

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestSample_Distances(t *testing.T) {
	if got, want := (sample{1, 3, 5, 9}).means(2), (sample{2, 4, 7}); !slices.Equal(got, want) {
		t.Errorf("means: got %v, want %v", got, want)
	}
	if got, want := (sample{1, 3}).means(5), (sample{2}); !slices.Equal(got, want) {
		t.Errorf("means of few: got %v, want %v", got, want)
	}
	if got, want := (sample{3, 1, 7}).relative(sample{2, 2}), (sample{0.5, 0.5}); !slices.Equal(got, want) {
		t.Errorf("relative: got %v, want %v", got, want)
	}
	long, exact := make(sample, meanOf+1), make(sample, meanOf+1)
	long[0], exact[meanOf] = meanOf, 2*meanOf
	if got, want := long.distances(exact), (sample{1, 2}); !slices.Equal(got, want) {
		t.Errorf("distances: got %v, want %v", got, want)
	}
	if got := long.last(); got != 0 {
		t.Errorf("last: got %v, want 0", got)
	}
	if err := (sample{1, math.NaN()}).finite(); err == nil || !strings.Contains(err.Error(), "loss 2") {
		t.Errorf("finite: got %v", err)
	}
}

func TestTrained_Unequal(t *testing.T) {
	a := trained{losses: sample{1, 2, 3}}
	b := trained{losses: sample{1, 2.5, 4}}
	moved := trained{losses: sample{1, 2, 3}, state: [32]byte{1}}
	if n, err := a.unequal(a); n != 0 || err != nil {
		t.Errorf("equal runs: %d, %v", n, err)
	}
	if n, err := a.unequal(b); n != 2 || err == nil || !strings.Contains(err.Error(), "the first is loss 2 (2 and 2.5)") {
		t.Errorf("other losses: %d, %v", n, err)
	}
	if n, err := a.unequal(moved); n != 0 || err == nil || !strings.Contains(err.Error(), "weights") {
		t.Errorf("other weights: %d, %v", n, err)
	}
}

func TestDistance_Relative(t *testing.T) {
	var d distance
	d.add([][]float32{{3, 0}, {1}}, [][]float32{{3, 4}, {1}}) // |difference| 4 of |exact| 5, and 0 of 1
	d.add([][]float32{{0, 0}, {1}}, [][]float32{{0, 0}, {1}})
	if got, want := d.relative(), (sample{0.8, 0}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDrawOrder(t *testing.T) {
	indices, flips := drawOrder(5, 3, 4)
	if len(indices) != 12 || len(flips) != 12 {
		t.Fatalf("%d indices and %d flips, want 12", len(indices), len(flips))
	}
	for from := 0; from+5 <= len(indices); from += 5 {
		if got := slices.Sorted(slices.Values(indices[from : from+5])); !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
			t.Errorf("images %v from %d on, want each once", got, from)
		}
	}
	again, _ := drawOrder(5, 3, 4)
	if !slices.Equal(indices, again) {
		t.Error("a second order is not the same")
	}
}

func TestCountKernels(t *testing.T) {
	report := "bn1: two kernels\nlayer1.0.bn1: one kernel\nlayer1.0.bn2: one kernel\n"
	if got, want := countKernels(report), "norms: 1 two kernels, 2 one kernel"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
