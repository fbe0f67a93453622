package prefetcher

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// pinner is the imageloader.Pinner that a source gets. Each piece of the source's memory is a slab
// here: page-locked for a CUDA device, and known to the stream checker on every device. It may
// outlive its Prefetcher, as the source's memory does.
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
		slab.HostWrites() //edge:fill-is-a-write TestPinner_RefilledUnderACopy checked
	}
}

// slabOf returns the slab that memory lies in, or nil.
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

// holds reports whether memory lies in a slab.
func holds[T cgotorch.Element](slab *cgotorch.HostSlab, memory []T) bool {
	all := slab.Bytes()
	offset := uintptr(unsafe.Pointer(unsafe.SliceData(memory))) - uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	return len(memory) > 0 && offset < uintptr(len(all)) && uintptr(len(all))-offset >= uintptr(len(bytesOf(memory)))
}

// bytesOf is memory as bytes.
func bytesOf[T cgotorch.Element](memory []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)*int(unsafe.Sizeof(*new(T))))
}

// pinFor page-locks a slab where the device needs that, and closes the slab if it cannot.
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
