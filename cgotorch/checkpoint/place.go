package checkpoint

import (
	"encoding/json"
	"fmt"
)

// dataPlace is the part of a loader's place that tells its epoch. See Note [Place of a loop] of
// package prefetcher.
type dataPlace struct{ Epoch, Batch int }

// placeOf reads the place of a loader or prefetcher. It returns false for another value.
func placeOf(loader json.RawMessage) (p dataPlace, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(loader, &fields) != nil {
		return p, false
	}
	for _, name := range []string{"seed", "epoch", "batch", "position"} { // of the States of imageloader and data
		if fields[name] == nil {
			return p, false
		}
	}
	return p, json.Unmarshal(loader, &p) == nil
}

// fits fails if Epoch is not the epoch of the loader's place: the resumed run would lose an epoch,
// or train one too often. A program that counts no epochs may leave Epoch 0 in its loops over
// batches.
func (i *Info) fits() error {
	p, ok := placeOf(i.Loader)
	if !ok || i.Epoch == p.Epoch || i.Epoch == 0 && p.Batch > 0 {
		return nil
	}
	where, cure := fmt.Sprintf("the start of epoch %d", p.Epoch), "count epochs from 0 as the Loader does, and Restore a new loader to the epoch of the run"
	if p.Batch > 0 {
		where = fmt.Sprintf("in epoch %d, after %d batches", p.Epoch, p.Batch)
	}
	switch {
	case p.Batch == 0 && i.Epoch == p.Epoch-1:
		cure = fmt.Sprintf("after the loop over its batches epoch %d is over, so save with Epoch %d", i.Epoch, p.Epoch)
	case p.Batch > 0 && i.Epoch == p.Epoch+1:
		cure = fmt.Sprintf("in the loop over batches save with Epoch %d; after the loop save the loader or its prefetcher, or the State's NextEpoch", p.Epoch)
	}
	return fmt.Errorf("Epoch is %d, and the Loader's place is %s: %s", i.Epoch, where, cure)
}
