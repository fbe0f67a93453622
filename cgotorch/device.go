package cgotorch

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/internal/hostmemory"
)

// Device is the CPU or one CUDA device. The zero value is the CPU. Devices can be compared with
// ==.
type Device struct {
	cuda  bool
	index int
}

// CPU is the host.
var CPU = Device{}

// CUDA returns CUDA device i, counted from 0. It does not check that the device exists. To check
// this, call [Device.Check].
func CUDA(i int) Device { return Device{cuda: true, index: i} }

// ParseDevice reads "cpu", "cuda" (device 0), "cuda:N", or "auto". "auto" means CUDA device 0 if
// CUDA can be used, and otherwise the CPU. [CUDACount] returns the reason why CUDA cannot be
// used. "auto" opens the libraries, and fails if they are not installed. For any other text
// ParseDevice fails with [ErrInvalidArgument].
func ParseDevice(text string) (Device, error) {
	switch name, number, numbered := strings.Cut(text, ":"); {
	case text == "cpu":
		return CPU, nil
	case text == "cuda":
		return CUDA(0), nil
	case text == "auto":
		if err := ready(); err != nil {
			return CPU, err
		}
		if n, _ := CUDACount(); n == 0 {
			return CPU, nil
		}
		return CUDA(0), nil
	case name == "cuda" && numbered:
		if i, err := strconv.ParseUint(number, 10, 8); err == nil {
			return CUDA(int(i)), nil
		}
	}
	return CPU, &Error{Op: "ParseDevice", Kind: ErrInvalidArgument, Message: fmt.Sprintf("%q is no device: use cpu, cuda, cuda:N or auto", text)}
}

// IsCUDA reports whether d is a CUDA device.
func (d Device) IsCUDA() bool { return d.cuda }

// Index returns the number of a CUDA device. For the CPU it returns 0.
func (d Device) Index() int { return d.index }

func (d Device) String() string {
	if d.cuda {
		return fmt.Sprintf("cuda:%d", d.index)
	}
	return "cpu"
}

// devices holds the state of each device, made on first use. It is process-wide because CUDA has
// each device once.
var devices sync.Map // Device -> *deviceState

// deviceState is what a device has once.
type deviceState struct {
	stream  *Stream                   // the default stream
	capture atomic.Pointer[graphWork] // the capture under way; a device has at most one at a time
}

func (d Device) state() *deviceState {
	s, ok := devices.Load(d)
	if !ok {
		s, _ = devices.LoadOrStore(d, &deviceState{stream: &Stream{device: d, isDefault: true, name: defaultName}})
	}
	return s.(*deviceState)
}

func (d Device) c() ct.Device {
	if d.cuda {
		return ct.Device{Type: ct.CUDA, Index: int32(d.index)}
	}
	return ct.Device{Type: ct.CPU}
}

func deviceOf(d ct.Device) Device {
	if d.Type == ct.CUDA {
		return CUDA(int(d.Index))
	}
	return CPU
}

// Check fails with [ErrNoDevice] and the reason when the device does not exist. It fails with
// [ErrDeviceLost] after an error has destroyed the device's context.
func (d Device) Check() error { return check("Device.Check", ct.DeviceCheck(d.c())) }

// Synchronize waits until all work enqueued on every stream of the device is done.
func (d Device) Synchronize() error {
	waits("Device.Synchronize")
	return check("Device.Synchronize", ct.DeviceSynchronize(d.c()))
}

// CUDACount returns the number of usable CUDA devices. If the number is 0, the error says why.
func CUDACount() (int, error) {
	n, why := ct.CUDACount()
	if n == 0 && why != "" {
		return 0, &Error{Op: "CUDACount", Kind: ErrNoDevice, Message: why}
	}
	return int(n), nil
}

// Memory has counts of LibTorch's allocations on a device, and how much is left. All counts except
// Allocations are in bytes.
type Memory struct {
	Allocated     int64 // in use now
	PeakAllocated int64 // the largest Allocated since the last [Device.ResetPeakMemory]
	Reserved      int64 // held by LibTorch's allocator, in use or free; on the CPU equal to Allocated
	Allocations   int64 // number of allocations since counting began
	Free          int64 // what allocations can still take, of the device or of host memory; 0 if it is unknown
}

// Memory returns the counts of the device. On the CPU, counting begins with the first call of
// Memory.
func (d Device) Memory() (Memory, error) {
	var m ct.Memory
	if err := check("Device.Memory", ct.MemoryStats(d.c(), &m)); err != nil {
		return Memory{}, err
	}
	if !d.IsCUDA() {
		m.Free, _ = hostmemory.Available()
	}
	return Memory{m.Allocated, m.PeakAllocated, m.Reserved, m.Allocations, m.Free}, nil
}

// ResetPeakMemory sets PeakAllocated to Allocated.
func (d Device) ResetPeakMemory() error {
	return check("Device.ResetPeakMemory", ct.MemoryResetPeak(d.c()))
}

// ReleaseCachedMemory waits for the work enqueued on every CUDA device. It then gives the
// unused blocks of LibTorch's allocator back to these devices. On the CPU it does nothing.
func (d Device) ReleaseCachedMemory() error {
	waits("Device.ReleaseCachedMemory")
	return check("Device.ReleaseCachedMemory", ct.MemoryReleaseCached(d.c()))
}
