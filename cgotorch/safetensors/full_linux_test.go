package safetensors

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// TestWriteFile_FullDisk fills a file system of 1 MiB. If the test may not mount a file system,
// it is skipped, and only TestWriteFile_FileTooLarge runs.
func TestWriteFile_FullDisk(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a file system to fill cannot be mounted here: ", err)
	}
	defer syscall.Unmount(folder, 0)
	path := filepath.Join(folder, "run.safetensors")
	must.Do(t, WriteFile(path, tensorOf(400_000), nil))
	old, _ := os.ReadFile(path)
	torchtest.WantError(t, WriteFile(path, tensorOf(800_000), nil), syscall.ENOSPC, path, "make room or choose another path")
	onlyFile(t, path, old)
	if err := WriteFile(path, tensorOf(500_000), nil); err != nil { // fits because the failed WriteFile has removed its file
		t.Errorf("afterwards: %v", err)
	}
}

const limitedPath = "SAFETENSORS_LIMITED_PATH"

// TestWriteFile_FileTooLarge writes while files are limited to 1 MiB. A separate process has this
// limit.
func TestWriteFile_FileTooLarge(t *testing.T) {
	if path := os.Getenv(limitedPath); path != "" {
		signal.Ignore(syscall.SIGXFSZ) // if the process ignores this signal, the write returns an error
		must.Do(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
		torchtest.WantError(t, WriteFile(path, tensorOf(3<<20), nil), syscall.EFBIG, path+": not saved")
		return
	}
	path := filepath.Join(t.TempDir(), "run.safetensors")
	must.Do(t, WriteFile(path, tensorOf(400_000), nil))
	old, _ := os.ReadFile(path)
	limited := exec.Command(os.Args[0], "-test.run=^TestWriteFile_FileTooLarge$")
	limited.Env = append(os.Environ(), limitedPath+"="+path)
	if out, err := limited.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	onlyFile(t, path, old)
}
