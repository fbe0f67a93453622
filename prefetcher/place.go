package prefetcher

import (
	"encoding/json"
	"fmt"
)

// Note [Place of a loop]
//
// A source reads ahead of the loop over its batches, so only the prefetcher knows the place of the
// loop: the source's state after the last batch. In the body of the loop the place is in the epoch
// of the batch. At the last batch it is the end of that epoch, and a run that is resumed there
// first has an epoch without batches. After the last body the place is the start of the next
// epoch. A loop that was left early leaves its place where it was. Loaders tell the same places.
//
// So the place and the program's number of the epoch change together. Package checkpoint refuses to
// save another number.

// placed is a batch that knows the source's state after it, and the start of the epoch after it.
type placed interface {
	fmt.Stringer
	states() (after, next any)
}

func (b *Batch) states() (after, next any) { return statesOf(b.State) }

func (b *TensorBatch) states() (after, next any) { return statesOf(b.State) }

// statesOf returns nothing for the state that a source of the program has left zero.
func statesOf[S interface {
	comparable
	NextEpoch() S
}](s S) (after, next any) {
	var none S
	if s == none {
		return nil, nil
	}
	return s, s.NextEpoch()
}

// place is the place of a loop. See Note [Place of a loop].
type place struct {
	source any
	after  any // the state after the last batch; nil means the source's own
	next   any // the start of the next epoch; nil if it is not known
	// nextOf returns the start of the epoch after a state in JSON.
	nextOf func(text []byte) any
}

// placeIn returns the place at the beginning of a source. S is the type of its states.
func placeIn[S interface{ NextEpoch() S }](source any) place {
	return place{source: source, nextOf: func(text []byte) any {
		var s S
		if json.Unmarshal(text, &s) != nil {
			return nil
		}
		return s.NextEpoch()
	}}
}

// start notes where the source is before it reads an epoch ahead of the loop.
func (p *place) start() {
	text, err := p.own()
	if err != nil {
		p.after = p.next
		return
	}
	p.after, p.next = json.RawMessage(text), p.nextOf(text) // nothing was read, or the program has restored the source
}

// own returns the place that the source tells.
func (p *place) own() ([]byte, error) {
	source, ok := p.source.(json.Marshaler)
	if !ok {
		return nil, fmt.Errorf("prefetcher: the source, a %T, has no MarshalJSON, which tells its place: save the State of a batch", p.source)
	}
	return source.MarshalJSON()
}

// reach notes the batch that the loop gets now.
func (p *copier[B]) reach(batch B) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place.after, p.place.next = batch.states()
}

// ended notes the end of an epoch. An epoch without batches tells no next epoch, but then nothing
// was read ahead, so the source tells it.
func (p *copier[B]) ended(empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.place.after = p.place.next; empty {
		p.place.after = nil
	}
}

// MarshalJSON returns the place from which a resumed run continues: in the body of a loop the
// source's state after its batch, and after the whole loop the start of the next epoch. A
// checkpoint saves it as its Loader. MarshalJSON fails if the source has no such method, as
// loaders have.
func (p *copier[B]) MarshalJSON() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.place.after != nil {
		return json.Marshal(p.place.after)
	}
	return p.place.own()
}

// UnmarshalJSON restores the source to the state that MarshalJSON has returned. The next epoch
// starts there. It fails with the source's error.
func (p *copier[B]) UnmarshalJSON(text []byte) error {
	source, ok := p.place.source.(json.Unmarshaler)
	if !ok {
		return fmt.Errorf("prefetcher: the source, a %T, has no UnmarshalJSON, which restores its place: give the State of a batch to it", p.place.source)
	}
	if err := source.UnmarshalJSON(text); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place.after, p.place.next = nil, nil
	return nil
}
