package imageloader

import "encoding/json"

// MarshalJSON returns the [State] from which a resumed run continues: in the body of a loop that of
// its batch, and after the whole loop the start of the next epoch. A checkpoint saves it as its
// Loader. If a prefetcher reads the epoch, only the prefetcher knows the place, and MarshalJSON
// fails with ErrBusy.
func (l *Loader) MarshalJSON() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beyond {
		return nil, l.fail("a prefetcher has read this loader ahead of its loop; save the prefetcher as the checkpoint's Loader", ErrBusy)
	}
	return json.Marshal(l.place)
}

// UnmarshalJSON calls [Loader.Restore] with the State that MarshalJSON has returned.
func (l *Loader) UnmarshalJSON(text []byte) error {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return l.fail("this is no State; give what MarshalJSON has returned: "+err.Error(), ErrInvalidState)
	}
	return l.Restore(s)
}

// reach notes the state after the batch that a loop gets now.
func (l *Loader) reach(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.place, l.beyond = s, l.pinned
}
