package data

import (
	"context"
	"encoding/json"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// When the number of ranks changes in the middle of an epoch, each sample comes once. A few come
// again, to make the ranks equal, or are left out with DropRest. Resumed ranks give the batches
// that would have followed.
func TestState_OtherRanks(t *testing.T) {
	torchtest.CheckLeaks(t)
	random := rand.New(rand.NewPCG(2, 4))
	for trial := range 25 {
		n := 1 + random.IntN(90)
		for name, set := range sources(t, n) {
			_, isStream := set.(Stream)
			o := Options{Shuffle: random.IntN(4) > 0, Seed: 1, ShuffleBuffer: 1 + random.IntN(30), DropRest: random.IntN(3) == 0}
			o.EachOnce = !isStream && !o.DropRest && random.IntN(2) == 0
			o.BufferBytes = []int{0, 200}[random.IntN(2)]
			state, story := State{Samples: int64(n)}, ""
			if isStream {
				state.Samples = 0
			}
			times := map[int64]int{}
			repeats, changes := 0, 0
			stages := 1 + random.IntN(4)
			before := 0
			for stage := range stages {
				if before = o.World; o.World == 0 || n > 10 {
					o.World = 1 + random.IntN(min(6, n))
				}
				o.BatchSize = 1 + random.IntN(4)
				batches := random.IntN(4)
				if stage == stages-1 {
					batches = math.MaxInt
				}
				if before != o.World {
					changes++
					repeats += o.World - 1
					if isStream {
						repeats += o.World - 1 // also at the end of the window
					}
				}
				story += fmt.Sprintf("%d ranks, %d batches of %d from %+v; ", o.World, batches, o.BatchSize, state)
				next := state
				var counts []int
				for o.Rank = range o.World {
					l := open(t, set, o)
					if err := l.Restore(state); err != nil {
						t.Fatalf("%s, %s: %v", name, story, err)
					}
					var lines []string
					var states []State
					count := 0
					for b, err := range l.Epoch(context.Background()) {
						if err != nil {
							t.Fatalf("%s, %s: %v", name, story, err)
						}
						if len(states) < batches {
							for _, id := range Values[int64](b.Column("id")) {
								times[id]++
								count++
							}
							states = append(states, b.State)
						}
						lines = append(lines, line(b))
						b.Release()
					}
					counts = append(counts, count)
					if o.Rank == 0 && len(states) > 0 {
						next = states[len(states)-1]
					}
					if len(states) > 0 {
						i := random.IntN(len(states))
						must.Do(t, l.Restore(states[i]))
						if rest, _, _ := readEpoch(t, l); !slices.Equal(rest, lines[i+1:]) {
							t.Fatalf("%s, %s: after batch %d of rank %d, %+v: got %v, want %v", name, story, i, o.Rank, states[i], rest, lines[i+1:])
						}
					}
					l.Close()
				}
				if !o.EachOnce && slices.Min(counts) != slices.Max(counts) {
					t.Fatalf("%s, %s: the ranks have %v samples", name, story, counts)
				}
				text, err := json.Marshal(next)
				if err != nil {
					t.Fatal(err)
				}
				state = State{}
				if err := json.Unmarshal(text, &state); err != nil || state != next {
					t.Fatalf("%s became %+v: %v", text, state, err)
				}
			}
			total := 0
			for _, n := range times {
				total += n
			}
			switch {
			case o.DropRest && (total != len(times) || total < n-repeats):
				t.Errorf("trial %d, %s, DropRest: %d deliveries of %d samples of %d, %s", trial, name, total, len(times), n, story)
			case !o.DropRest && len(times) != n, total > n+repeats, o.EachOnce && total != n:
				t.Errorf("trial %d, %s: %d deliveries of %d samples of %d, %d may repeat; %s", trial, name, total, len(times), n, repeats, story)
			}
		}
	}
}

// With EachOnce each sample of an epoch comes once over all ranks.
func TestOptions_EachOnce(t *testing.T) {
	for _, n := range []int{50, 3} {
		for name, set := range sources(t, n) {
			var all []int64
			for rank := range 4 {
				l := open(t, set, Options{BatchSize: 3, Shuffle: true, ShuffleBuffer: 10, World: 4, Rank: rank, EachOnce: true})
				_, ids, states := readEpoch(t, l)
				if b := l.Batches(); b >= 0 && b != len(states) {
					t.Errorf("%s: rank %d has %d batches, and Batches is %d", name, rank, len(states), b)
				}
				all = append(all, ids...)
			}
			slices.Sort(all)
			for i, id := range all {
				if id != int64(i) || len(all) != n {
					t.Fatalf("%s: %d samples, %v", name, n, all)
				}
			}
		}
	}
	_, err := NewLoader(numbered(t, 4), Options{EachOnce: true, DropLast: true})
	torchtest.WantError(t, err, ErrInvalidOptions, "EachOnce is set", "drop one")
}

// A state that no loader writes is refused, and the error says what to do.
func TestLoader_Restore_WrongRanks(t *testing.T) {
	table := numbered(t, 20)
	for _, test := range []struct {
		s      State
		stream bool
		want   string
	}{
		{State{Samples: 20, Position: 2, Ranks: -1}, false, "out of range; give the State of a batch"},
		{State{Samples: 20, Position: 2, Ranks: math.MaxInt}, false, "out of range"},
		{State{Samples: 20, Position: 2, Before: -1}, false, "out of range"},
		{State{Samples: 20, Position: math.MaxInt64, Ranks: 3}, false, "out of range"},
		{State{Samples: 19, Position: 2, Ranks: 3}, false, "saved from 19 samples, and these are 20; restore with the data of the checkpoint"},
		{State{Samples: 20, Position: 8, Ranks: 3}, false, "the state's position is 8, in an epoch of 7 samples"},
		{State{Samples: 20, Before: 21, Ranks: 3}, false, "the state's position is 0, in an epoch of 0 samples"},
		{State{Samples: 20, Position: 4, Before: 12, Ranks: 3}, false, "the state's position is 4, in an epoch of 3 samples"},
		{State{Position: 2, Window: -1, Ranks: 3}, true, "out of range"},
		{State{Position: 2, Window: math.MaxInt64, Ranks: 3}, true, "out of range"},
		{State{Position: 2, Before: 6, Window: 6, Ranks: 3}, true, "out of range"},
		{State{Position: 2, Before: 6, Window: math.MaxInt32, Ranks: 3}, true, "out of range"},
		{State{Position: 2, Row: 4, Window: 6, Ranks: 3}, true, "out of range"},
		{State{Position: 2, Row: 9, Window: 6, Ranks: 3}, true, "out of range"},
		{State{Position: 3, Window: 6, Ranks: 3}, true, "the state's position is 3, in an epoch of 2 samples"},
		{State{Position: 2, Ranks: 3}, true, "the state is of 3 ranks and has no Window, so it cannot continue with 2; give the State of a batch"},
	} {
		var err error
		o := Options{World: 2, Rank: 1, Shuffle: true}
		if test.stream {
			err = open(t, streamed{table, 2}, o).Restore(test.s)
		} else {
			err = open(t, table, o).Restore(test.s)
		}
		if err == nil {
			t.Errorf("%+v was accepted", test.s)
			continue
		}
		torchtest.WantError(t, err, ErrInvalidState, test.want)
	}
	l := open(t, streamed{table, 2}, Options{World: 2, Shuffle: true})
	must.Do(t, l.Restore(State{Position: 2, Before: 24, Window: 30, Ranks: 2}))
	for _, err := range l.Epoch(context.Background()) {
		torchtest.WantError(t, err, ErrInvalidState, "the state's window has 30 samples, and the data have 20 there")
	}
	l = open(t, streamed{table, 2}, Options{World: 2, EachOnce: true})
	torchtest.WantError(t, l.Restore(State{Position: 2, Window: 20, Ranks: 3}), ErrInvalidState, "take 3 ranks, or begin its NextEpoch")
}
