package imageloader

import "context"

// begin starts the next epoch, or takes the epoch that was read ahead.
func (l *Loader) begin(ctx context.Context) (*epoch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, l.errClosed()
	}
	if l.current != nil {
		return nil, l.fail("another epoch is being read; leave its loop first", ErrBusy)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l.current = l.ahead; l.current == nil {
		l.current = l.start(l.startOf(l.next))
	}
	l.ahead = nil
	l.place, l.beyond = l.current.from, false
	l.next = l.current.from.NextEpoch()
	if l.current.assembled {
		l.ahead = l.start(l.startOf(l.next))
	}
	return l.current, nil
}

// startOf returns the state `from`, from which an epoch is to be read. If `from` lacks the number
// of samples and it is known now, startOf fills it in. It also fills in the part of the archive and
// the ranks.
func (l *Loader) startOf(from State) State {
	n := int(l.length.Load())
	from.Part = l.options.part()
	if n > 0 && from.Position == 0 && from.Ranks == "" {
		from.Samples = n // perhaps the index file was wrong, and the first epoch has made it again
	}
	start, err := from.startFor(l.options, n)
	if err != nil {
		return from // the number of samples is not that of the state: the epoch ends with this error
	}
	return start
}

// readAhead starts the epoch after e, when all batches of e are assembled. The first batches of
// the next epoch are then ready in time. readAhead does nothing without Train, because the
// program perhaps asks for no more epochs.
func (l *Loader) readAhead(e *epoch) {
	if !l.options.Train {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.assembled = true
	if l.closed || l.current != e || l.next != e.from.NextEpoch() {
		return
	}
	l.ahead = l.start(l.startOf(l.next))
}

// end waits until the goroutines of e have ended. If e was read to its end, the loader's place is
// the start of the next epoch. If e was left before, end also stops the next epoch and waits for
// it.
func (l *Loader) end(e *epoch) {
	l.stop(e, context.Canceled) //edge:loop-ends-pipeline TestEpoch_LeftEarly
	l.mu.Lock()
	l.current = nil
	ahead := l.ahead
	if e.whole {
		ahead, l.place = nil, l.startOf(l.next)
	} else {
		l.ahead = nil
	}
	l.mu.Unlock()
	if ahead != nil {
		l.stop(ahead, context.Canceled) //edge:early-leave-ends-read-ahead TestEpoch_LeftEarly
	}
}

// stop ends an epoch and waits for it. The epoch stays in l.running until its end, because Close
// waits for the epochs in l.running.
func (l *Loader) stop(e *epoch, cause error) {
	e.stop(cause)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, e)
}

// Restore makes the next epoch start at the state s, with the seed of s. It does not change an
// epoch that is being read. It fails with ErrInvalidState if the archive of s had a different
// number of images, or if Options.Labels.Only or Options.Limit was different. Options.Ranks may be
// different, see [State].
func (l *Loader) Restore(s State) error {
	ahead, err := l.restore(s)
	if ahead != nil {
		l.stop(ahead, context.Canceled)
	}
	return err
}

// restore makes the next epoch start at s. If an epoch was read ahead and starts at another
// state, restore returns the epoch that was read ahead. The caller stops that epoch.
func (l *Loader) restore(s State) (ahead *epoch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, l.errClosed()
	}
	start, err := s.startFor(l.options, int(l.length.Load()))
	if err != nil {
		return nil, l.fail("cannot continue from this state: "+err.Error(), ErrInvalidState)
	}
	if l.ahead != nil && l.ahead.from != s {
		ahead, l.ahead = l.ahead, nil
	}
	l.next, l.place, l.beyond = start, start, false
	return ahead, nil
}
