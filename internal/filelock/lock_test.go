package filelock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// A lock belongs to one open file and ends with it. The others may read and write meanwhile.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	holder := must.Get(Open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666))(t)
	must.Do(t, Lock(holder))
	must.Get(holder.WriteString("by its holder"))(t)
	other := must.Get(Open(path, os.O_RDWR|os.O_CREATE, 0o666))(t)
	defer other.Close()
	if held, err := Try(other); !held || err != nil {
		t.Errorf("a locked file: held is %v (%v)", held, err)
	}
	must.Get(other.WriteString("by another"))(t)
	if text, err := os.ReadFile(path); string(text) != "by anotherder" || err != nil {
		t.Errorf("the locked file reads as %q (%v)", text, err)
	}
	must.Do(t, holder.Close())
	if held, err := Try(other); held || err != nil {
		t.Errorf("the lock did not end with its file: held is %v (%v)", held, err)
	}
}

// An open file that is locked can be renamed over another, and removed.
func TestOpen_RenameAndRemove(t *testing.T) {
	folder := t.TempDir()
	path, final := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	must.Do(t, os.WriteFile(final, []byte("old"), 0o666))
	file := must.Get(Open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666))(t)
	defer file.Close()
	must.Do(t, Lock(file))
	must.Get(file.WriteString("new"))(t)
	must.Do(t, os.Rename(path, final))
	if text, err := os.ReadFile(final); string(text) != "new" || err != nil {
		t.Errorf("after the rename the file has %q (%v)", text, err)
	}
	must.Do(t, os.Remove(final))
	must.Do(t, file.Close())
	if _, err := os.Stat(final); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestOpen_Fails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if _, err := Open(path, os.O_RDWR, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	must.Do(t, os.WriteFile(path, nil, 0o666))
	if _, err := Open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a new file that is there: %v", err)
	}
	if _, err := Open(filepath.Join(path, "b"), os.O_RDWR, 0); err == nil {
		t.Error("a file below a file was opened")
	}
}
