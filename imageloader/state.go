package imageloader

import (
	"errors"
	"fmt"
)

// State is a position in the sequence of batches. A program saves it with a checkpoint and gives
// it to [Loader.Restore]. It can be written as JSON. A loader of the same archive and options
// continues with exactly the batches that would have followed.
type State struct {
	Seed     uint64 `json:"seed"`
	Epoch    int    `json:"epoch"`    // number of the epoch, from 0
	Batch    int    `json:"batch"`    // batches of the epoch so far
	Position int    `json:"position"` // images of the epoch so far, including skipped images
	Skipped  int    `json:"skipped"`  // unusable images of the epoch so far
	Samples  int    `json:"samples"`  // images in the epoch, 0 when their number is not known

	Part uint32 `json:"part,omitempty"` // stands for Options.OnlyClasses and Options.Limit; 0 without them
}

// NextEpoch returns the start of the next epoch.
func (s State) NextEpoch() State {
	return State{Seed: s.Seed, Epoch: s.Epoch + 1, Samples: s.Samples, Part: s.Part}
}

// check fails for a state that does not fit an epoch of `samples` samples of a part of an archive.
// If `samples` is 0, the number is unknown. If `ranks` is true, an epoch may repeat samples. The
// start of an epoch, as a program writes it, fits every part.
func (s State) check(samples int, part uint32, ranks bool) error {
	switch {
	case s.Epoch < 0 || s.Batch < 0 || s.Position < 0 || s.Skipped < 0 || s.Samples < 0 || s.Skipped > s.Position:
		return fmt.Errorf("%+v has a value out of range", s)
	case s.Part != part && s != (State{Seed: s.Seed, Epoch: s.Epoch}):
		return errors.New("it was saved with another Options.OnlyClasses or Options.Limit")
	case samples == 0:
		return nil
	case s.Samples != 0 && s.Samples != samples:
		return fmt.Errorf("it was saved from an epoch of %d images, and this one has %d; take the archive and the options of the checkpoint", s.Samples, samples)
	case s.Position > samples && !ranks, s.Position-s.Skipped > samples:
		return fmt.Errorf("its position is %d, in an epoch of %d images", s.Position, samples)
	}
	return nil
}
