package data

import "fmt"

// State is a position in the sequence of batches of one rank. A program saves it with a checkpoint
// and gives it to [Loader.Restore]. It can be written as JSON. A loader of the same data and
// options continues with exactly the batches that would have followed.
type State struct {
	Seed     uint64 `json:"seed"`
	Epoch    int    `json:"epoch"`    // number of the epoch, from 0
	Batch    int    `json:"batch"`    // batches of the epoch so far
	Position int64  `json:"position"` // samples of this rank in the epoch so far
	Row      int64  `json:"row"`      // of a Stream: rows before the window, see Options.ShuffleBuffer
	Samples  int64  `json:"samples"`  // number of samples of a Dataset, 0 for a Stream
}

// NextEpoch returns the start of the next epoch.
func (s State) NextEpoch() State {
	return State{Seed: s.Seed, Epoch: s.Epoch + 1, Samples: s.Samples}
}

// check fails for a state that does not fit a loader. samples is 0 for a Stream.
func (s State) check(samples int64, o Options) error {
	share := (samples + int64(o.Ranks) - 1) / int64(o.Ranks)
	switch {
	case s.Epoch < 0 || s.Batch < 0 || s.Position < 0 || s.Row < 0 || s.Samples < 0 || s.Row%int64(o.Ranks) != 0 || s.Row/int64(o.Ranks) > s.Position:
		return fmt.Errorf("data: %+v has a value out of range; give the State of a batch: %w", s, ErrInvalidState)
	case samples != s.Samples:
		return fmt.Errorf("data: the state was saved from %d samples, and these are %d; restore with the data of the checkpoint: %w", s.Samples, samples, ErrInvalidState)
	case samples > 0 && (s.Position > share || s.Row != 0):
		return fmt.Errorf("data: the state's position is %d, in an epoch of %d samples: %w", s.Position, share, ErrInvalidState)
	}
	return nil
}
