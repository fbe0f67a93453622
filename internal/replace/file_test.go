package replace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// names lists the files of a folder.
func names(t *testing.T, folder string) string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// Writers of one path each put a whole file there, also at the same time.
func TestWrite_AtTheSameTime(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	var group sync.WaitGroup
	for i := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 20 {
				if err := Write(path, bytes.Repeat([]byte{byte(i)}, 100_000)); err != nil {
					t.Error(err)
				}
				data, err := os.ReadFile(path)
				if err != nil || len(data) != 100_000 || bytes.Count(data, data[:1]) != len(data) {
					t.Errorf("the file has %d bytes of several writers (%v)", len(data), err)
				}
			}
		}()
	}
	group.Wait()
	if got := names(t, folder); got != "a" {
		t.Errorf("the folder has %s", got)
	}
}

// A file is at its path after Commit and not before. Discard leaves nothing.
func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	discarded, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	discarded.WriteString("half")
	discarded.Discard()
	if got := names(t, folder); got != "a" {
		t.Errorf("after Discard the folder has %s", got)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("new")
	if data, _ := os.ReadFile(path); string(data) != "old" {
		t.Errorf("before Commit the file is %q", data)
	}
	if err := Write(path, []byte("other")); err != nil { // does not take f's file for an abandoned one
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	f.Discard()
	data, _ := os.ReadFile(path)
	if info, err := os.Stat(path); string(data) != "new" || err != nil || info.Mode().Perm() != 0o640 || names(t, folder) != "a" {
		t.Errorf("after Commit the file is %q with %v (%v), and the folder has %s", data, info.Mode(), err, names(t, folder))
	}
}

// What a killed process has left is removed, and nothing else.
func TestCreate_Abandoned(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a.new-1x2y", "a.new-notes.txt", "b.new-1x2y"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(filepath.Join(folder, "a"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, folder), "a a.new-notes.txt b.new-1x2y"; got != want {
		t.Errorf("the folder has %s, want %s", got, want)
	}
}

func TestCreate_Refuses(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{folder: "is a folder", pipe: "is a pipe", "/dev/null": "is a device"} {
		if _, err := Create(path); !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), path+" "+want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := Create(filepath.Join(folder, "none", "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if _, err := Create(filepath.Join(pipe, "a")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a pipe for a folder: %v", err)
	}
	if got := names(t, folder); got != "pipe" {
		t.Errorf("the folder has %s", got)
	}
}
