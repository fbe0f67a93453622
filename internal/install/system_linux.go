package install

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// freeBytes returns how much of the disk of a folder this user may still write.
func freeBytes(folder string) (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(folder, &s)
	return int64(s.Bavail) * s.Bsize, err
}

// syncFolder brings what was written to the disk of a folder. After a power cut, a final name must
// not have empty files.
func syncFolder(folder string) {
	if f, err := os.Open(folder); err == nil {
		unix.Syncfs(int(f.Fd()))
		f.Close()
	}
}

// inGroup makes a command that ends with all that it has started when its context ends.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
}
