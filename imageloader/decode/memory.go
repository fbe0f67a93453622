package decode

import "sync"

const defaultMemory = 512 << 20

// memory is a number of bytes that Decode calls share for the images that Go decodes.
// csrc/decode/memory.h is its counterpart for the threads. It hands out no memory, only the right
// to take it.
type memory struct {
	limit         int
	mu            sync.Mutex
	change        sync.Cond
	taken         int // above the limit only as one share
	asked, served int // takes
}

func newMemory(limit int) *memory {
	m := &memory{limit: limit}
	m.change.L = &m.mu
	return m
}

// take waits until that many bytes are free, and until all earlier callers are served. More than
// the limit is given when no other caller has a share. A caller that has a share must not ask for
// more.
func (m *memory) take(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	turn := m.asked
	m.asked++
	for turn != m.served || m.taken != 0 && bytes > m.limit-m.taken {
		m.change.Wait()
	}
	m.served++
	m.taken += bytes
	m.change.Broadcast()
}

func (m *memory) give(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= bytes
	m.change.Broadcast()
}
