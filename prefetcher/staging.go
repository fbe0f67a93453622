package prefetcher

import (
	"slices"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

// staging is page-locked memory that belongs to one slot. Some parts of a host batch may lie
// outside the memory that the source gave to its Pinner. The host first copies these parts into
// the staging. A direct copy of them to a CUDA device would wait.
type staging struct {
	device cgotorch.Device
	slab   *cgotorch.HostSlab // nil until a part needs staging
	used   int                // bytes in use
}

// origin is the host memory from which a batch is copied to the device.
type origin struct {
	slab   *cgotorch.HostSlab // the slab that the images lie in
	images []byte
	labels []int64
	flips  []bool // nil if no image is flipped
	staged int64  // number of bytes in the staging
}

const stagingAlign = 64

// stage returns the memory from which the batch `host` is to be copied to the device. It copies the
// parts that lie in no slab of p into the staging. Before it writes the staging, it waits for the
// event `last`. That event was recorded after the most recent copy from the staging to the device.
// It is nil if there was no copy.
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

// reserve makes room for `bytes` bytes in the staging. It first waits for the event `last`, which
// is recorded after the last copy from the staging.
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
		slab, err := cgotorch.NewHostSlab(cgotorch.CPU, bytes)
		if err != nil {
			return err
		}
		if err := pinFor(s.device, slab); err != nil {
			return err
		}
		s.slab = slab
	}
	s.slab.Touch(true) //edge:staging-is-a-write TestStaging_RefilledUnderACopy checked
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

// needs returns the number of bytes that a part of a batch takes in the staging.
func needs[T cgotorch.Element](p *pinner, part []T) int {
	if slabOf(p, part) != nil {
		return 0
	}
	return (len(bytesOf(part)) + stagingAlign - 1) / stagingAlign * stagingAlign
}

// staged returns `part` itself if the device can copy from it without a wait. Otherwise it copies
// `part` into the staging, which has room for it, and returns the memory of that copy.
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
