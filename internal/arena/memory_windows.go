package arena

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapMemory maps new memory, which is zero.
func mapMemory(bytes int) ([]byte, error) {
	address, err := windows.VirtualAlloc(0, uintptr(bytes), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The address is in memory of the system, where the garbage collector moves nothing.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), bytes), nil
}

// unmapMemory gives memory of mapMemory back to the system.
func unmapMemory(memory []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(memory))), 0, windows.MEM_RELEASE)
}

// discard does nothing: the number of mappings has no limit that unmapMemory could meet.
func discard([]byte) {}
