package imageloader

import "sync"

// numbers is a set of numbers from 0 up. It takes a bit for each number up to the largest one. It
// is safe for concurrent use.
type numbers struct {
	mu    sync.Mutex
	words []uint64
}

func (s *numbers) has(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n/64 < len(s.words) && s.words[n/64]>>(n%64)&1 != 0
}

func (s *numbers) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n/64 >= len(s.words) {
		s.words = append(s.words, 0)
	}
	s.words[n/64] |= 1 << (n % 64)
}
