package prefetcher

import (
	"encoding/json"
	"fmt"
)

// placed is a batch that knows the source's state after it.
type placed interface {
	fmt.Stringer
	states() (after, nextEpoch any)
}

func (b *Batch) states() (after, nextEpoch any) { return b.State, b.State.NextEpoch() }

func (b *TensorBatch) states() (after, nextEpoch any) { return b.State, b.State.NextEpoch() }

// MarshalJSON returns the source's state after the last batch that the loop got, or the start of
// the next epoch after a whole one. A checkpoint saves it as its Loader. It fails if the source has
// no such method, as loaders have.
func (p *copier[B]) MarshalJSON() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.place != nil {
		return json.Marshal(p.place)
	}
	source, ok := p.from.(json.Marshaler)
	if !ok {
		return nil, fmt.Errorf("prefetcher: the source, a %T, has no MarshalJSON, which tells its place: save the State of a batch", p.from)
	}
	return source.MarshalJSON()
}

// UnmarshalJSON restores the source to the state that MarshalJSON has returned. The next epoch
// starts there. It fails with the source's error.
func (p *copier[B]) UnmarshalJSON(text []byte) error {
	source, ok := p.from.(json.Unmarshaler)
	if !ok {
		return fmt.Errorf("prefetcher: the source, a %T, has no UnmarshalJSON, which restores its place: give the State of a batch to it", p.from)
	}
	if err := source.UnmarshalJSON(text); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place = nil
	return nil
}

// startPlace notes where the source is before it reads ahead of the loop. p.mu is held. An epoch
// after one that was left early keeps the place in that one until its first batch.
func (p *copier[B]) startPlace() {
	if source, ok := p.from.(json.Marshaler); ok {
		if text, err := source.MarshalJSON(); err == nil {
			p.place = json.RawMessage(text)
		}
	}
}

// reach notes the state after the batch that the loop gets now.
func (p *copier[B]) reach(state any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place = state
}
