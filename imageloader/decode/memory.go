package decode

import "sync"

const defaultMemory = 512 << 20

// memory counts bytes for the images that Go decodes. All calls of Decode share one count. The type
// allocates nothing: a caller only gets the right to take bytes. csrc/decode/memory.h does the same
// for the threads of the pool.
type memory struct {
	limit         int
	mu            sync.Mutex
	change        sync.Cond
	taken         int // at most `limit`, unless a single caller has taken more
	asked, served int // calls of the function `take` so far, and how many of them were served
}

func newMemory(limit int) *memory {
	m := &memory{limit: limit}
	m.change.L = &m.mu
	return m
}

// take waits until `bytes` bytes are free and all earlier callers are served. A caller that wants
// more than the limit is served when no other caller has bytes. A caller that still has bytes
// must not call the function `take` again.
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
