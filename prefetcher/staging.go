package prefetcher

import (
	"slices"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

// staging is page-locked memory of a slot's own. Parts of a host batch go through it that lie in no
// memory of the source's Pinner. A copy from there to a CUDA device would wait.
type staging struct {
	device cgotorch.Device
	slab   *cgotorch.HostSlab // nil until it is needed
	used   int                // bytes
}

// origin is the host memory that a batch is copied from.
type origin struct {
	slab   *cgotorch.HostSlab // of the images
	images []byte
	labels []int64
	flips  []bool // nil where no image is flipped
	staged int64  // bytes of them that lie in the staging
}

const stagingAlign = 64

// stage returns the memory that a batch is copied from, and copies parts of the batch into the
// staging where that is needed. It then waits until the last copy from the staging is done. The
// event last is behind that copy, and nil where there was none.
func (s *staging) stage(host *imageloader.HostBatch, p *pinner, last *cgotorch.Event) (origin, error) {
	o := origin{slab: slabOf(p, host.Images), images: host.Images, labels: host.Labels}
	if slices.Contains(host.Flip, true) {
		o.flips = host.Flip
	}
	need := needs(p, o.images) + needs(p, o.labels) + needs(p, o.flips)
	if need == 0 {
		return o, nil
	}
	if err := s.reserve(need, last); err != nil {
		return o, err
	}
	o.images, o.labels, o.flips = staged(s, p, o.images), staged(s, p, o.labels), staged(s, p, o.flips)
	if o.slab == nil {
		o.slab = s.slab
	}
	o.staged = int64(s.used)
	return o, nil
}

// reserve makes room for so many bytes.
func (s *staging) reserve(bytes int, last *cgotorch.Event) error {
	if s.slab != nil && last != nil {
		if err := s.slab.Await(last); err != nil { //edge:staging-behind-copy TestEpoch_Staged checked
			return err
		}
	}
	if s.slab != nil && len(s.slab.Bytes()) < bytes {
		s.slab.Close()
		s.slab = nil
	}
	if s.slab == nil {
		slab, err := cgotorch.NewHostSlab(bytes)
		if err != nil {
			return err
		}
		if err := pinFor(s.device, slab); err != nil {
			return err
		}
		s.slab = slab
	}
	s.slab.HostWrites() //edge:staging-is-a-write TestStaging_RefilledUnderACopy checked
	s.used = 0
	return nil
}

// close waits until the last copy from the memory is done, and frees the memory.
func (s *staging) close(last *cgotorch.Event) {
	if s.slab == nil {
		return
	}
	if last != nil {
		_ = s.slab.Await(last) //edge:staging-outlives-copies TestEpoch_Staged checked
	}
	s.slab.Close() //edge:staging-freed TestEpoch_Staged
	s.slab = nil
}

// needs is how many bytes of staging a part of a batch takes.
func needs[T cgotorch.Element](p *pinner, part []T) int {
	if slabOf(p, part) != nil {
		return 0
	}
	return (len(bytesOf(part)) + stagingAlign - 1) / stagingAlign * stagingAlign
}

// staged is a part of a batch where it can be copied from. s has room for it.
func staged[T cgotorch.Element](s *staging, p *pinner, part []T) []T {
	n := needs(p, part)
	if n == 0 {
		return part
	}
	memory := unsafe.Slice((*T)(unsafe.Pointer(&s.slab.Bytes()[s.used])), len(part))
	s.used += n
	copy(memory, part)
	return memory
}
