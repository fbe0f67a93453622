package imageloader

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// trainOptions returns options with which a loader makes every random choice.
func trainOptions() Options {
	return Options{
		Train: true, BatchSize: 3, Crop: Crop{Channels: 1, Transform: decode.RandomCrop{Height: 4, Width: 4, Padding: 2, PaddingMode: "reflect"}}, Seed: 5,
	}
}

// A new loader is restored to the state of every batch of three epochs. It then gives the same
// batches as the first loader gave after that batch.
func TestLoader_Restore_EveryBatch(t *testing.T) {
	for _, s := range sources(t, damaged(numbered(20), 4, 11, 12)) {
		t.Run(s.name, func(t *testing.T) {
			o := trainOptions()
			o.Reading.MaxSkipRate = 0.2
			s.change(&o)
			l := open(t, s.path, o)
			lines, states := readStates(t, l, 3)
			if len(lines) != 18 {
				t.Fatalf("got %d batches, want 18", len(lines))
			}
			for i, state := range states {
				text := must.Get(json.Marshal(state))(t)
				var saved State
				must.Do(t, json.Unmarshal(text, &saved))
				o.Seed = 99 // only the state's seed counts
				wantRest(t, fmt.Sprintf("after batch %d, state %s", i, text), s.path, o, saved, 3, lines[i+1:])
			}
		})
	}
}

func TestLoader_Restore_SameLoader(t *testing.T) {
	for _, s := range sources(t, numbered(20)) {
		o := trainOptions()
		s.change(&o)
		l := open(t, s.path, o)
		var state State
		for batch, err := range l.Epoch(context.Background()) {
			must.Do(t, err)
			state = batch.State
			batch.Release()
			if batch.Index == 2 {
				break
			}
		}
		abandoned := read(t, l) // the next epoch
		must.Do(t, l.Restore(state))
		if rest := read(t, l); len(rest) != 4 {
			t.Errorf("%s: got %d batches after the third of 7, want 4", s.name, len(rest))
		}
		wantLines(t, s.name+": epoch 1 after Restore", read(t, l), abandoned)
	}
}

func TestState_NextEpoch(t *testing.T) {
	o := trainOptions()
	path := sources(t, numbered(20))[1].path
	l := open(t, path, o)
	var last State
	for batch := range batchesOf(t, l) {
		last = batch.State
	}
	want := State{Seed: 5, Epoch: 0, Batch: 7, Position: 20, Samples: 20}
	if last != want {
		t.Errorf("after the last batch: got %+v, want %+v", last, want)
	}
	second := read(t, l)
	must.Do(t, l.Restore(last))
	if rest := read(t, l); len(rest) != 0 {
		t.Errorf("after the last batch: got %v", rest)
	}
	wantLines(t, "after the empty rest", read(t, l), second)
	must.Do(t, l.Restore(last.NextEpoch()))
	wantLines(t, "NextEpoch", read(t, l), second)
}

func TestLoader_Restore_WrongState(t *testing.T) {
	l := open(t, sources(t, numbered(20))[1].path, options())
	for _, s := range []State{
		{Epoch: -1}, {Batch: -1}, {Position: -1}, {Skipped: -1}, {Skipped: 2, Position: 1}, {Position: 21}, {Samples: 19}, {Samples: -1},
	} {
		err := l.Restore(s)
		wantError(t, err, ErrInvalidState)
	}
	if got := len(read(t, l)); got != 5 {
		t.Errorf("after refused states: got %d batches, want 5", got)
	}
}

// damaged makes the images with the given numbers unreadable.
func damaged(members []member, which ...int) []member {
	for _, i := range which {
		members[i].body = []byte(fmt.Sprintf("not a picture %d", i))
	}
	return members
}

// The state of another archive is found while one rank streams an archive without an index.
func TestLoader_Restore_OtherArchive_Streamed(t *testing.T) {
	o := options()
	o.Train, o.Reading.ShuffleBuffer, o.Labels.Classes, o.BatchSize = true, 500, []string{"a", "b", "c"}, 4
	l := open(t, write(t, "a.tgz", gzipOf(tarOf(numbered(20)))), o)
	err := l.Restore(State{Samples: 24, Position: 4, Batch: 1})
	for batch, failed := range l.Epoch(context.Background()) {
		if failed != nil {
			err = failed
			break
		}
		batch.Release()
	}
	wantError(t, err, ErrInvalidState, "it was saved from an epoch of 24 images, and this one has 20")
}
