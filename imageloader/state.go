package imageloader

import "fmt"

// State is a place in the sequence of batches, to be saved with a checkpoint and given to
// [Loader.Restore]. It can be written as JSON. A loader of the same archive and options continues
// from it with exactly the batches that would have followed.
type State struct {
	Seed     uint64 `json:"seed"`
	Epoch    int    `json:"epoch"`    // from 0
	Batch    int    `json:"batch"`    // batches of the epoch so far
	Position int    `json:"position"` // images of the epoch so far, including skipped images
	Skipped  int    `json:"skipped"`  // images of the epoch that were not usable so far
	Samples  int    `json:"samples"`  // images in the epoch, 0 when not known
}

// NextEpoch returns the start of the following epoch.
func (s State) NextEpoch() State {
	return State{Seed: s.Seed, Epoch: s.Epoch + 1, Samples: s.Samples}
}

// check fails for a state that is not of an epoch of that many samples. 0 stands for an unknown
// number. With ranks samples may be repeated.
func (s State) check(samples int, ranks bool) error {
	switch {
	case s.Epoch < 0 || s.Batch < 0 || s.Position < 0 || s.Skipped < 0 || s.Samples < 0 || s.Skipped > s.Position:
		return fmt.Errorf("%+v has a value out of range", s)
	case samples == 0:
		return nil
	case s.Samples != 0 && s.Samples != samples:
		return fmt.Errorf("it was saved from an epoch of %d images, and this one has %d", s.Samples, samples)
	case s.Position > samples && !ranks, s.Position-s.Skipped > samples:
		return fmt.Errorf("its position is %d, in an epoch of %d images", s.Position, samples)
	}
	return nil
}
