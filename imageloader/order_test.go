package imageloader

import (
	"fmt"
	"slices"
	"testing"
)

// The random numbers must not change, because later versions continue from saved states.
func TestRandom_Fixed(t *testing.T) {
	got := fmt.Sprintf("%x %x %x", random(0, 0, forOrder, 0), random(1, 2, forKeys, 3), random(1<<63, 1000, forOrder, 1<<40))
	if want := "d9eef7f073d37c42 c05d562fb03cf199 f3a05616e242c953"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = fmt.Sprint(permutation(10, &draws{seed: 7, epoch: 3}, true))
	if want := "[8 5 6 2 1 0 7 4 9 3]"; got != want {
		t.Errorf("got order %s, want %s", got, want)
	}
}

func TestPermutation_Even(t *testing.T) {
	const n, rounds = 6, 12000
	var at [n][n]int
	for epoch := range rounds {
		for place, i := range permutation(n, &draws{seed: 1, epoch: epoch}, true) {
			at[i][place]++
		}
	}
	for i := range at {
		for place, times := range at[i] {
			if want := rounds / n; times < want*9/10 || times > want*11/10 {
				t.Errorf("number %d was at place %d %d times of %d, want about %d", i, place, times, rounds, want)
			}
		}
	}
}

func TestEpoch_Shuffle(t *testing.T) {
	for _, s := range sources(t, numbered(40)) {
		t.Run(s.name, func(t *testing.T) {
			o := options()
			o.Train = true
			s.change(&o)
			l := open(t, s.path, o)
			first, second := levels(t, l), levels(t, l)
			if slices.IsSorted(first) || slices.Equal(first, second) {
				t.Errorf("got orders %v and %v", first, second)
			}
			o.Seed = 1
			if other := levels(t, open(t, s.path, o)); slices.Equal(first, other) {
				t.Errorf("seeds 0 and 1 gave the same order %v", first)
			}
			for _, order := range [][]int{first, second} {
				slices.Sort(order)
				for i := range 40 {
					if order[i] != i {
						t.Fatalf("not each of 40 images came once: %v", order)
					}
				}
			}
			o.Train = false
			if order := levels(t, open(t, s.path, o)); len(order) != 40 || !slices.IsSorted(order) {
				t.Errorf("without Train: got order %v", order)
			}
		})
	}
}

// The batches are equal for every number of workers, and for all sources of one kind of order.
func TestEpoch_Deterministic(t *testing.T) {
	want := map[string][]string{}
	for _, s := range sources(t, numbered(40)) {
		t.Run(s.name, func(t *testing.T) {
			for _, workers := range []int{1, 2, 7} {
				o := trainOptions()
				o.Workers = workers
				s.change(&o)
				l := open(t, s.path, o)
				got := append(read(t, l), read(t, l)...)
				if want[s.order] == nil {
					want[s.order] = got
				}
				wantLines(t, fmt.Sprint(workers, " workers"), got, want[s.order])
			}
		})
	}
}
