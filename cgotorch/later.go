package cgotorch

import "sync"

// laters are the calls that [Stream.Later] has been given and that have not returned, by device. Its lock guards each stream's own, too.
var laters = struct {
	sync.Mutex
	fewer *sync.Cond
	calls map[Device]int
}{calls: map[Device]int{}}

func init() { laters.fewer = sync.NewCond(&laters.Mutex) }

// Later runs fn on a goroutine of the stream's own, behind what Later was given before, and returns at once: for calls that enqueue work, such as
// [Stream.CopyFrom], while the caller has better things to do. Work that fn enqueues is part of what [Device.Synchronize] waits for, also where fn has
// yet to run; Close waits for fn, too. Other calls on the stream do not: until fn says so the caller does not know where its work
// stands. fn must not wait for the stream's Close or for the device. It fails with [ErrClosed].
func (s *Stream) Later(fn func()) error {
	if _, err := s.handle("Stream.Later"); err != nil {
		return err
	}
	laters.Lock()
	defer laters.Unlock()
	laters.calls[s.device]++
	s.later = append(s.later, fn)
	if len(s.later) == 1 {
		go s.runLater()
	}
	return nil
}

// runLater runs until there is nothing more to run.
func (s *Stream) runLater() {
	laters.Lock()
	defer laters.Unlock()
	for len(s.later) > 0 {
		fn := s.later[0]
		laters.Unlock()
		fn()
		laters.Lock()
		s.later[0] = nil
		s.later = s.later[1:]
		laters.calls[s.device]--
		laters.fewer.Broadcast()
	}
}

// awaitLaters waits until there are none.
func awaitLaters(some func() bool) {
	laters.Lock()
	defer laters.Unlock()
	for some() {
		laters.fewer.Wait()
	}
}
