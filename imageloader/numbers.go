package imageloader

import "sync"

// numbers has a number for each sample, 0 at first. It is safe for concurrent use.
type numbers struct {
	mu  sync.Mutex
	all []uint64
}

func (s *numbers) of(sample int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sample >= len(s.all) {
		return 0
	}
	return s.all[sample]
}

func (s *numbers) set(sample int, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sample >= len(s.all) {
		s.all = append(s.all, 0)
	}
	s.all[sample] = number
}
