package cgotorch

import "sync"

// laters are the streams with calls that [Stream.Later] was given and that have not returned. Its lock guards each stream's own calls, too. It is one
// for the process because Device.Synchronize is of all streams.
var laters = newLaters()

type laterCalls struct {
	sync.Mutex
	fewer   *sync.Cond
	streams map[*Stream]bool
}

func newLaters() *laterCalls {
	l := &laterCalls{streams: map[*Stream]bool{}}
	l.fewer = sync.NewCond(l)
	return l
}

// later is what a stream has of them.
type later struct {
	calls           []func()
	given, returned int64 // since the stream was made
}

// Later runs fn on a goroutine of the stream's own, behind what Later was given before, and returns at once: for calls that enqueue work, such as
// [Stream.CopyFrom], while the caller has better things to do. Work that fn enqueues is part of what [Device.Synchronize] waits for, also where fn has
// yet to run; Close waits for fn, too. Other calls on the stream do not: until fn says so the caller does not know where its work
// stands. fn must not wait for the stream's Close or for the device. It fails with [ErrClosed]. A panic in fn ends the program.
func (s *Stream) Later(fn func()) error {
	if _, err := s.handle("Stream.Later"); err != nil {
		return err
	}
	laters.Lock()
	defer laters.Unlock()
	s.later.given++
	s.later.calls = append(s.later.calls, fn)
	if !laters.streams[s] {
		laters.streams[s] = true
		go s.runLater()
	}
	return nil
}

// runLater runs until there is nothing more to run.
func (s *Stream) runLater() {
	laters.Lock()
	defer laters.Unlock()
	defer func() {
		if len(s.later.calls) > 0 { // fn ended its goroutine
			go s.runLater()
			return
		}
		delete(laters.streams, s)
	}()
	for len(s.later.calls) > 0 {
		s.runFirst()
	}
}

// runFirst runs a call without the lock.
func (s *Stream) runFirst() {
	l := &s.later
	fn := l.calls[0]
	laters.Unlock()
	defer func() {
		laters.Lock()
		l.calls[0] = nil
		l.calls = l.calls[1:]
		l.returned++
		laters.fewer.Broadcast()
	}()
	fn()
}

// awaitLaters waits for what streams have been given so far.
func awaitLaters(of func(s *Stream) bool) {
	laters.Lock()
	defer laters.Unlock()
	upTo := map[*Stream]int64{}
	for s := range laters.streams {
		if of(s) {
			upTo[s] = s.later.given
		}
	}
	for s, given := range upTo {
		for s.later.returned < given {
			laters.fewer.Wait()
		}
	}
}

func (s *Stream) hasLaters() bool {
	laters.Lock()
	defer laters.Unlock()
	return laters.streams[s]
}
