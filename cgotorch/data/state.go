package data

import (
	"fmt"
	"math"
)

// State is a position in the sequence of batches of one rank. A program saves it with a checkpoint
// and gives it to [Loader.Restore]. It can be written as JSON, and compared. A loader of the same
// data and options continues with exactly the batches that would have followed.
//
// A loader with another Options.World continues with the samples that are left of the epoch. All
// ranks restore the same State, that of a batch of rank 0. All ranks must have had the same number
// of batches. None of the samples that are left is lost, and none that was delivered comes again,
// but the few that make the ranks equal, see Options.World. For a Stream, the ranks are made equal
// at the end of the window too, see Options.ShuffleBuffer. This works several times in one epoch.
//
// BatchSize is that of one rank. So the program divides its global batch by the new number of
// ranks. For example, 8 ranks with a BatchSize of 32 become 4 ranks with a BatchSize of 64.
type State struct {
	Seed     uint64 `json:"seed"`
	Epoch    int    `json:"epoch"`    // number of the epoch, from 0
	Batch    int    `json:"batch"`    // batches of the epoch so far
	Position int64  `json:"position"` // samples of this rank so far, after the number `Before`
	Row      int64  `json:"row"`      // of a Stream: rows before the window, see Options.ShuffleBuffer
	Samples  int64  `json:"samples"`  // number of samples of a Dataset, 0 for a Stream

	// Ranks is the number of ranks. 0 is that of the loader, as in a state of an earlier version. If
	// the number was another one before in the epoch, those ranks had the first `Before` samples.
	Ranks  int   `json:"ranks,omitempty"`
	Before int64 `json:"before,omitempty"`
	Window int64 `json:"window,omitempty"` // of a Stream: number of samples of the window
}

// NextEpoch returns the start of the next epoch. It fits any number of ranks.
func (s State) NextEpoch() State {
	return State{Seed: s.Seed, Epoch: s.Epoch + 1, Samples: s.Samples}
}

// inWindow returns the number of this rank's samples so far in the window of the state.
func (s State) inWindow() int64 {
	if s.Before >= s.Row {
		return s.Position
	}
	return s.Position - (s.Row-s.Before)/int64(s.Ranks)
}

// begun reports whether some samples of the window are over, so that the window must be the same
// again. Rows that come in their own order to one rank need no window.
func (s State) begun(o Options) bool {
	return s.Window > 0 && (s.Before > s.Row || s.inWindow() > 0) && (o.Shuffle || o.World > 1)
}

// startFor returns the state from which a rank with the options o goes on. samples is 0 for a
// Stream. startFor fails for a state that does not fit.
func (s State) startFor(o Options, samples int64) (State, error) {
	fail := func(format string, args ...any) (State, error) {
		return s, fmt.Errorf(format+": %w", append(args, ErrInvalidState)...)
	}
	saved := s
	if s.Ranks == 0 {
		s.Ranks = o.World
	}
	ranks := int64(s.Ranks)
	const most = math.MaxInt64 / 4
	const few = 1 << 20 // a window has at most some more samples than ShuffleBuffer
	if s.Epoch < 0 || s.Batch < 0 || s.Position < 0 || s.Row < 0 || s.Samples < 0 || ranks < 0 || ranks > math.MaxInt32 || s.Before < 0 || s.Window < 0 ||
		max(s.Position, s.Row, s.Before) > most || s.Window > math.MaxInt32 ||
		s.Row > s.Before && ((s.Row-s.Before)%ranks != 0 || s.inWindow() < 0) || samples == 0 && s.Before > s.Row && s.Before-s.Row >= s.Window ||
		samples == 0 && s.begun(o) && s.Window-few > int64(max(o.ShuffleBuffer, o.BatchSize)) {
		return fail("data: %+v has a value out of range; give the State of a batch", saved)
	}
	if samples != s.Samples {
		return fail("data: the state was saved from %d samples, and these are %d; restore with the data of the checkpoint", s.Samples, samples)
	}
	n, before := samples, s.Before // of a Dataset, of which the window is all
	if samples == 0 {
		n, before = s.Window, max(s.Before-s.Row, 0)
	}
	known := samples > 0 || s.Window > 0
	if share := (n - before + ranks - 1) / ranks; known && (before > n || s.inWindow() > share) || samples > 0 && s.Row != 0 {
		return fail("data: the state's position is %d, in an epoch of %d samples", s.Position, max(share, 0))
	}
	if s.Ranks == o.World {
		return s, nil
	}
	s.Ranks = o.World
	if s.Position == 0 && s.Before == 0 {
		s.Window = 0
		return s, nil
	}
	if !known {
		return fail("data: the state is of %d ranks and has no Window, so it cannot continue with %d; give the State of a batch, or begin its NextEpoch", saved.Ranks, o.World)
	}
	if samples == 0 && o.EachOnce {
		return fail("data: the state is of %d ranks, and Options.EachOnce cannot divide the rest of a Stream among %d; take %d ranks, or begin its NextEpoch", saved.Ranks, o.World, saved.Ranks)
	}
	had := min(before+saved.inWindow()*ranks, n)
	s.Position, s.Before = 0, s.Row+had
	if samples == 0 && (had == n || had == 0 || !o.Shuffle) {
		s.Row, s.Window = s.Before, 0
	}
	return s, nil
}
