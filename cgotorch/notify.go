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

// notifications maps a token to a channel, for each channel that is not closed yet. While there
// are open channels, one goroutine waits in the core for all their events.
var notifications struct {
	sync.Mutex
	channels map[uint64]chan struct{}
	next     uint64
	running  bool
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
	if n.channels == nil {
		n.channels = map[uint64]chan struct{}{}
	}
	n.next++
	token, c := n.next, make(chan struct{})
	if err := check("Event.Done", ct.EventNotify(event, token, cbool(known))); err != nil {
		return nil, err
	}
	n.channels[token] = c
	if !n.running {
		n.running = true
		go closeChannels()
	}
	return c, nil
}

func closeChannels() {
	var tokens [256]uint64
	n := &notifications
	for {
		count := ct.Notified((*uint64)(unsafe.Pointer(&tokens[0])), int32(len(tokens)))
		n.Lock()
		for _, token := range tokens[:count] {
			close(n.channels[token])
			delete(n.channels, token)
		}
		if len(n.channels) == 0 {
			n.running = false
			n.Unlock()
			return
		}
		n.Unlock()
		runtime.Gosched() // runs the receivers now, because the next call of Notified can block this processor
	}
}
