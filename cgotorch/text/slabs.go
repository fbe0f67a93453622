package text

import (
	"cmp"
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slabs keeps page-locked host memory that is not in use.
type slabs struct{ free []*cgotorch.HostSlab }

// mostSlabs is how many of them are kept.
const mostSlabs = 4

// take returns at least n bytes.
func (s *slabs) take(device cgotorch.Device, n int) (*cgotorch.HostSlab, error) {
	for i, slab := range s.free {
		if len(slab.Bytes()) >= n {
			s.free = slices.Delete(s.free, i, i+1)
			return slab, nil
		}
	}
	return cgotorch.NewHostSlab(device, n)
}

// give takes a slab back. The device has done all work with it, or the stream's later work follows
// that.
func (s *slabs) give(slab *cgotorch.HostSlab) error {
	s.free = append(s.free, slab)
	if len(s.free) <= mostSlabs {
		return nil
	}
	slices.SortFunc(s.free, func(a, b *cgotorch.HostSlab) int { return cmp.Compare(len(b.Bytes()), len(a.Bytes())) })
	least := s.free[mostSlabs]
	s.free = s.free[:mostSlabs]
	return least.Close()
}

func (s *slabs) close() error {
	var errs []error
	for _, slab := range s.free {
		errs = append(errs, slab.Close())
	}
	return errors.Join(errs...)
}
