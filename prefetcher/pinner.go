package prefetcher

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// pinner is the imageloader.Pinner that a source gets. It makes a [cgotorch.HostSlab] of each
// piece of the source's memory. For a CUDA device the slab is page-locked. On every device the
// stream checker knows the slab. A pinner may outlive its Prefetcher, because the source's memory
// may outlive the Prefetcher.
type pinner struct {
	device cgotorch.Device

	mu    sync.RWMutex
	slabs []*cgotorch.HostSlab
}

func (p *pinner) Pin(memory []byte) error {
	slab, err := cgotorch.HostSlabOver(memory)
	if err != nil {
		return err
	}
	if err := pinFor(p.device, slab); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slabs = append(p.slabs, slab)
	return nil
}

func (p *pinner) Unpin(memory []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slabs = slices.DeleteFunc(p.slabs, func(slab *cgotorch.HostSlab) bool {
		found := holds(slab, memory)
		if found {
			slab.Close() //edge:unpinned-slab-freed TestPinner_Refused
		}
		return found
	})
}

func (p *pinner) HostWrites(memory []byte) {
	if slab := slabOf(p, memory); slab != nil {
		slab.Touch(true) //edge:fill-is-a-write TestPinner_RefilledUnderACopy checked
	}
}

// slabOf returns the slab in which `memory` lies, or nil.
func slabOf[T cgotorch.Element](p *pinner, memory []T) *cgotorch.HostSlab {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, slab := range p.slabs {
		if holds(slab, memory) {
			return slab
		}
	}
	return nil
}

// holds reports whether `memory` lies in `slab`.
func holds[T cgotorch.Element](slab *cgotorch.HostSlab, memory []T) bool {
	all := slab.Bytes()
	offset := uintptr(unsafe.Pointer(unsafe.SliceData(memory))) - uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	return len(memory) > 0 && offset < uintptr(len(all)) && uintptr(len(all))-offset >= uintptr(len(bytesOf(memory)))
}

// bytesOf returns `memory` as bytes.
func bytesOf[T cgotorch.Element](memory []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)*int(unsafe.Sizeof(*new(T))))
}

// pinFor page-locks `slab` if `device` is a CUDA device. If that fails, pinFor closes the slab.
func pinFor(device cgotorch.Device, slab *cgotorch.HostSlab) error {
	if !device.IsCUDA() {
		return nil
	}
	err := slab.Pin()
	if err != nil {
		slab.Close()
	}
	return err
}
