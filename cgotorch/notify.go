package cgotorch

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// alreadyDone returns a closed channel.
func alreadyDone() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// notifications counts the channels that are not closed yet. While there are open channels, one
// goroutine waits in the core for all their events. The core has one queue of notifications.
var notifications struct {
	sync.Mutex
	open int
}

// notify returns a channel that is closed when the event is done. If `known` is true, the stream
// checker learns from the closed channel that all work before the event is done. If `known` is
// false, the stream checker learns nothing.
func notify(event *ct.Event, known bool) (<-chan struct{}, error) {
	if known {
		var done int32
		if check("Event.Done", ct.EventQuery(event, &done)) != nil || done != 0 { // a lost device does no more work
			return alreadyDone(), nil
		}
	}
	n := &notifications
	n.Lock()
	defer n.Unlock()
	c := make(chan struct{})
	token := ct.NewHandle(c)
	if err := check("Event.Done", ct.EventNotify(event, uint64(token), cbool(known))); err != nil {
		token.Delete()
		return nil, err
	}
	if n.open++; n.open == 1 {
		go closeChannels()
	}
	return c, nil
}

func closeChannels() {
	var tokens [256]uint64
	n := &notifications
	for {
		count := ct.Notified((*uint64)(unsafe.Pointer(&tokens[0])), int32(len(tokens)))
		for _, token := range tokens[:count] {
			h := ct.Handle(token)
			close(h.Value().(chan struct{}))
			h.Delete()
		}
		n.Lock()
		n.open -= int(count)
		last := n.open == 0
		n.Unlock()
		if last {
			return
		}
		runtime.Gosched() // runs the receivers now, because the next call of Notified can block this processor
	}
}
