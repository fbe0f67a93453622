package distributed

import "syscall"

// copySocket returns a copy of a socket, for a caller that closes it. Programs that this process
// starts do not get the copy.
func copySocket(fd uintptr) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	copied, err := syscall.Dup(int(fd))
	if err == nil {
		syscall.CloseOnExec(copied)
	}
	return copied, err
}

// closeSocket closes a copy of copySocket.
func closeSocket(fd int) { syscall.Close(fd) }
