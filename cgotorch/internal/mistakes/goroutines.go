package mistakes

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// A goroutine is an entry of a dump of all goroutines.
type goroutine struct {
	state   string // such as "chan receive"
	started uint64 // the goroutine that started this goroutine
	place   string // file:line of the innermost frame of the program
}

// locked reports whether the goroutine waits for a lock.
func (g goroutine) locked() bool {
	switch g.state {
	case "sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock":
		return true
	}
	return false
}

// blocked reports whether the goroutine waits for other goroutines.
func (g goroutine) blocked() bool {
	switch g.state {
	case "chan receive", "chan send", "select", "semacquire", "sync.WaitGroup.Wait", "sync.Cond.Wait":
		return true
	}
	return g.locked()
}

// dump is the newest dump of all goroutines. Thousands of calls that wait for a slow Do share it,
// because a dump stops the world.
type dump struct {
	mu   sync.Mutex
	all  map[uint64]goroutine
	when time.Time
}

// recent returns a dump of at most this age.
func (d *dump) recent(age time.Duration) map[uint64]goroutine {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil || time.Since(d.when) > age {
		d.when = time.Now() // before the dump, which is therefore no older
		d.all = goroutines()
	}
	return d.all
}

// goroutines returns all goroutines by their numbers. It stops the world.
func goroutines() map[uint64]goroutine {
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			text = text[:n]
			break
		}
		if n >= 64<<20 {
			return nil // a part of the goroutines would show circles that there are not
		}
		text = make([]byte, 2*len(text))
	}
	all := map[uint64]goroutine{}
	for _, block := range strings.Split(string(text), "\n\n") {
		lines := strings.Split(block, "\n")
		id, state, ok := parseHead(lines[0])
		if !ok {
			continue
		}
		g := goroutine{state: strings.Clone(state)} // a substring would keep the whole text
		for i := 1; i < len(lines); i++ {
			if rest, ok := strings.CutPrefix(lines[i], "created by "); ok {
				if _, by, ok := strings.Cut(rest, " in goroutine "); ok {
					g.started, _ = strconv.ParseUint(by, 10, 64)
				}
				break
			}
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "\t") {
				if g.place == "" {
					g.place = strings.Clone(placeIn(lines[i], lines[i+1]))
				}
				i++
			}
		}
		all[id] = g
	}
	return all
}

// parseHead parses a line such as "goroutine 35 [chan receive, 2 minutes, locked to thread]:".
func parseHead(line string) (id uint64, state string, ok bool) {
	rest, ok := strings.CutPrefix(line, "goroutine ")
	if !ok {
		return 0, "", false
	}
	number, rest, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseUint(number, 10, 64)
	_, state, ok = strings.Cut(rest, "[")
	state, _, _ = strings.Cut(state, "]")
	state, _, _ = strings.Cut(state, ",")
	state, _, _ = strings.Cut(state, " (") // "(durable)", "(scan)", "(nil chan)"
	return id, state, ok && err == nil
}

// placeIn returns file:line of a frame of the program, and "" for a frame of this library or of
// Go's own packages that wait.
func placeIn(call, location string) string {
	if i := strings.LastIndexByte(call, '('); i > 0 {
		call = call[:i]
	}
	location = strings.TrimSpace(location)
	if i := strings.LastIndex(location, " +0x"); i > 0 {
		location = location[:i]
	}
	file := location
	if i := strings.LastIndexByte(file, ':'); i > 0 {
		file = file[:i]
	}
	if strings.HasPrefix(call, "sync.") || strings.HasPrefix(call, "internal/") || place.Own(runtime.Frame{Function: call, File: file}) {
		return ""
	}
	return location
}

// GoroutineID returns the number of the calling goroutine, as in a dump.
func GoroutineID() uint64 {
	text := make([]byte, 64)
	line, _, _ := bytes.Cut(text[:runtime.Stack(text, false)], []byte("\n"))
	id, _, _ := parseHead(string(line))
	return id
}
