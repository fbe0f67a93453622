package text

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// staging is page-locked memory out of which numbers are copied to the device, time after time.
type staging struct {
	slab *cgotorch.HostSlab // nil before the first time
	copy *cgotorch.Event    // of the last copy, or nil
}

// next returns the memory, which has room for n numbers, for the next copy. n is the same each
// time. It waits until the last copy is done, and is called outside a Do.
func (s *staging) next(stream *cgotorch.Stream, n int) (numbers []int64, err error) {
	if s.slab == nil {
		if s.slab, err = cgotorch.NewHostSlab(stream.Device(), 8*n); err != nil {
			return nil, err
		}
	}
	if s.copy != nil {
		if err := s.slab.Await(s.copy); err != nil {
			return nil, err
		}
		s.copy.Close()
		s.copy = nil
	}
	s.slab.Touch(true)
	return cgotorch.View[int64](s.slab)[:n], nil
}

func (s *staging) close() error { return errors.Join(s.slab.Close(), s.copy.Close()) }
