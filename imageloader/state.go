package imageloader

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// State is a position in the sequence of batches. A program saves it with a checkpoint and gives
// it to [Loader.Restore]. It can be written as JSON, and compared. A loader of the same archive and
// options continues with exactly the batches that would have followed.
//
// A loader with another Options.Ranks continues with the images that are left of the epoch. All
// ranks restore the same State, that of a batch of rank 0. All ranks must have had the same number
// of batches. The new ranks divide the images that no rank has delivered yet. None is lost, and
// none comes again but the few that make the ranks equal, see Options.Ranks. This works several
// times in one epoch.
//
// BatchSize is that of one rank. So the program divides its global batch by the new number of
// ranks. For example, 8 ranks with a BatchSize of 32 become 4 ranks with a BatchSize of 64.
//
// With Options.Reading.MaxSkipRate the ranks may skip different numbers of images. The State of
// one rank then does not tell where the others are. The program gathers the States of all ranks,
// and all ranks restore the result of [JoinStates].
type State struct {
	Seed     uint64 `json:"seed"`
	Epoch    int    `json:"epoch"`    // number of the epoch, from 0
	Batch    int    `json:"batch"`    // batches of the epoch so far
	Position int    `json:"position"` // images of the rank so far, also skipped ones, since the number of ranks changed last
	Skipped  int    `json:"skipped"`  // unusable images of these
	Samples  int    `json:"samples"`  // images in the epoch, of all ranks; 0 when their number is not known

	Part uint32 `json:"part,omitempty"` // stands for Options.Labels.Only and Options.Limit; 0 without them

	// Ranks says how ranks have divided the epoch. "8@120 6" means that each of 8 ranks had 120
	// images, and that 6 ranks now divide the other images. "" means one rank. In a state of an
	// earlier version, "" means any number of ranks. Samples is then the number of images of one
	// rank.
	Ranks string `json:"ranks,omitempty"`
}

// NextEpoch returns the start of the next epoch. It fits any number of ranks.
func (s State) NextEpoch() State {
	return State{Seed: s.Seed, Epoch: s.Epoch + 1, Samples: s.Samples, Part: s.Part}
}

// JoinStates returns the state of all ranks together. states[r] is the State of the latest batch of
// rank r. If rank r had no batch yet, it is the State that rank r has restored. All ranks can
// restore the result, whatever their number is. A program needs JoinStates only with
// Options.Reading.MaxSkipRate.
//
// JoinStates fails with ErrInvalidState if a rank is missing, or if the states are of different
// epochs. It also fails if the ranks have had different numbers of images, unless
// Options.Ranks.EachOnce allows that.
func JoinStates(states []State) (State, error) {
	fail := func(format string, args ...any) (State, error) {
		return State{}, fmt.Errorf("imageloader: cannot join these states: "+format+": %w", append(args, ErrInvalidState)...)
	}
	if len(states) == 0 {
		return fail("there are none; give the State of each rank, in the order of the ranks")
	}
	all := make([][]division, len(states))
	newest := 0
	for i, s := range states {
		var err error
		if all[i], err = parseDivisions(s.Ranks); err != nil {
			return fail("state %d: %w", i, err)
		}
		if begun, latest := s.Position > 0, states[newest].Position > 0; len(all[i]) > len(all[newest]) || len(all[i]) == len(all[newest]) && begun && !latest {
			newest = i
		}
	}
	joined, divisions := states[newest], slices.Clone(all[newest])
	last := &divisions[len(divisions)-1]
	if len(divisions) == 1 && joined.Position == 0 && last.at == nil {
		return joined, nil // the start of an epoch
	}
	known := last.ranks == 1 || last.at != nil || !last.apart && joined.Skipped == 0
	if equal := !slices.ContainsFunc(states, func(s State) bool { return s != joined }); equal && known {
		return joined, nil // no rank had a batch yet
	}
	if len(states) != last.ranks {
		return fail("there are %d, of %d ranks; give the State of each rank, in the order of the ranks", len(states), last.ranks)
	}
	text := func(d []division) string {
		return textOf(append(slices.Clone(d[:len(d)-1]), division{ranks: last.ranks, sharing: last.sharing}))
	}
	at := make([]progress, len(states))
	for i, s := range states {
		d := all[i]
		own := d[len(d)-1]
		before := len(d) < len(divisions) || len(d) == 1 && s.Position == 0 && own.at == nil // nothing since the ranks were changed
		if s.Seed != joined.Seed || s.Epoch != joined.Epoch || s.Samples != joined.Samples && s.Samples != 0 || s.Part != joined.Part && s.Part != 0 ||
			!before && (!own.same(*last) || text(d) != text(divisions)) {
			return fail("states %d and %d are of different epochs, archives or options; give the States of one moment", newest, i)
		}
		switch {
		case before:
		case own.at != nil:
			at[i] = own.of(i)
		default:
			at[i] = progress{s.Position, s.Skipped}
		}
		if at[i].skipped < 0 || at[i].skipped > at[i].position {
			return fail("state %d has a value out of range: %+v", i, s)
		}
		if had := at[i].position - at[i].skipped; last.sharing != eachOnce && had != at[0].position-at[0].skipped {
			return fail("rank %d had %d images, and rank 0 had %d; give the States after the same number of batches", i, had, at[0].position-at[0].skipped)
		}
		joined.Batch = max(joined.Batch, s.Batch)
	}
	if last.ranks == 1 {
		return joined, nil
	}
	last.apart, last.at = false, at
	joined.Position, joined.Skipped, joined.Ranks = at[0].position, at[0].skipped, textOf(divisions)
	return joined, nil
}

// startFor returns the state from which a rank with the options o goes on. n is the number of
// images of all ranks, 0 while it is not known. startFor fails for a state that does not fit. The
// start of an epoch, as a program writes it, fits every part.
func (s State) startFor(o Options, n int) (State, error) {
	if s.Epoch < 0 || s.Batch < 0 || s.Position < 0 || s.Skipped < 0 || s.Samples < 0 || s.Samples > math.MaxInt32 || s.Skipped > s.Position {
		return s, fmt.Errorf("%+v has a value out of range; give the State of a batch", s)
	}
	if s.Part != o.part() && s != (State{Seed: s.Seed, Epoch: s.Epoch}) {
		return s, errors.New("it was saved with another Options.Labels.Only or Options.Limit")
	}
	s.Part = o.part()
	divisions, err := parseDivisions(s.Ranks)
	if err != nil {
		return s, err
	}
	own := o.division()
	if s.Ranks == "" && own.ranks > 1 && s.Samples != n { // perhaps a state of an earlier version
		old := own
		if old.sharing == eachOnce {
			old.sharing = evenly
		}
		if s.Samples == old.images(n, 0) {
			divisions, s.Samples = []division{old}, n
		}
	}
	if s.Samples != 0 && n != 0 && s.Samples != n {
		return s, fmt.Errorf("it was saved from an epoch of %d images, and this one has %d; take the archive and the options of the checkpoint", s.Samples, n)
	}
	s.Samples = max(s.Samples, n)
	past, last := divisions[:len(divisions)-1], divisions[len(divisions)-1]
	at := last.at
	if at == nil {
		at = []progress{{s.Position, s.Skipped}}
	}
	if len(past) == 0 && !slices.ContainsFunc(at, func(p progress) bool { return p.position > 0 }) { // the start of an epoch
		s.Position, s.Skipped, s.Ranks = 0, 0, textOf([]division{own})
		return s, nil
	}
	if s.Samples == 0 && (len(past) > 0 || last.ranks > 1) {
		return s, fmt.Errorf("its Samples is 0, and its Ranks is %.60q; give the State of a batch", s.Ranks)
	}
	if s.Samples == 0 {
		return s, nil
	}
	left, err := after(past, s.Samples)
	if err != nil {
		return s, fmt.Errorf("its Ranks is %.60q, and %w images; give the State of a batch", s.Ranks, err)
	}
	images := last.images(places(left), 0)
	for _, p := range at {
		if p.position-p.skipped > images || p.position > images && (last.ranks == 1 || last.sharing == eachOnce) {
			return s, fmt.Errorf("its position is %d, in an epoch of %d images", p.position, images)
		}
	}
	if !last.same(own) {
		if divisions, err = divide(divisions, at[0], own, s.Samples); err != nil {
			return s, err
		}
		s.Position, s.Skipped, s.Ranks = 0, 0, textOf(divisions)
		return s, nil
	}
	if last.at != nil {
		p := last.of(o.Ranks.Rank)
		s.Position, s.Skipped = p.position, p.skipped
		last.apart = last.apart || slices.ContainsFunc(at, func(p progress) bool { return p != at[0] })
	}
	own.apart = own.ranks > 1 && (own.apart || last.apart)
	s.Ranks = textOf(append(slices.Clone(past), own))
	return s, nil
}
