package main

import (
	"errors"
	"slices"
	"testing"
)

func TestInterleave_TakesTurns(t *testing.T) {
	var order []string
	count := 0.0
	record := func(name string) side {
		return func() (float64, error) { order = append(order, name); count++; return count, nil }
	}
	values, err := interleave(2, record("a"), record("b"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "a", "b", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if !slices.Equal(values[0], sample{3, 5}) || !slices.Equal(values[1], sample{4, 6}) {
		t.Errorf("values %v, want those of the second and third round", values)
	}
}

func TestInterleave_Fails(t *testing.T) {
	broken := errors.New("broken")
	if _, err := interleave(3, func() (float64, error) { return 0, broken }); err != broken {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestSample(t *testing.T) {
	for _, test := range []struct {
		sample         sample
		median, spread float64
	}{
		{sample{5}, 5, 0},
		{sample{1, 3}, 2, 0.25},
		{sample{9, 1, 5, 3, 7}, 5, 0.4},
	} {
		if got := test.sample.median(); got != test.median {
			t.Errorf("median of %v: got %v, want %v", []float64(test.sample), got, test.median)
		}
		if got := test.sample.spread(); got != test.spread {
			t.Errorf("spread of %v: got %v, want %v", []float64(test.sample), got, test.spread)
		}
	}
	if got, want := ratios(sample{2, 9}, sample{1, 3}), (sample{2, 3}); !slices.Equal(got, want) {
		t.Errorf("ratios: got %v, want %v", got, want)
	}
}
