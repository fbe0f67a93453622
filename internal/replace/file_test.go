package replace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

// names lists the files of a folder.
func names(t *testing.T, folder string) string {
	t.Helper()
	entries := must.Get(os.ReadDir(folder))(t)
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
	together.Run(8, func(i int) {
		for range 20 {
			must.Check(t, Write(path, bytes.Repeat([]byte{byte(i)}, 100_000)))
			data, err := os.ReadFile(path)
			if err != nil || len(data) != 100_000 || bytes.Count(data, data[:1]) != len(data) {
				t.Errorf("the file has %d bytes of several writers (%v)", len(data), err)
			}
		}
	})
	if got := names(t, folder); got != "a" {
		t.Errorf("the folder has %s", got)
	}
}

// A file is at its path after Commit and not before. Discard leaves nothing.
func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	must.Do(t, os.WriteFile(path, []byte("old"), 0o640))
	before := must.Get(os.Stat(path))(t).Mode()
	discarded := must.Get(Create(path))(t)
	discarded.WriteString("half")
	discarded.Discard()
	if got := names(t, folder); got != "a" {
		t.Errorf("after Discard the folder has %s", got)
	}
	f := must.Get(Create(path))(t)
	f.WriteString("new")
	if data, _ := os.ReadFile(path); string(data) != "old" {
		t.Errorf("before Commit the file is %q", data)
	}
	if err := Write(path, []byte("other")); err != nil { // does not take f's file for an abandoned one
		t.Fatal(err)
	}
	must.Do(t, f.Commit())
	f.Discard()
	data, _ := os.ReadFile(path)
	if info, err := os.Stat(path); string(data) != "new" || err != nil || info.Mode() != before || names(t, folder) != "a" {
		t.Errorf("after Commit the file is %q with %v (%v), and the folder has %s", data, info.Mode(), err, names(t, folder))
	}
}

// What a killed process has left is removed, and nothing else.
func TestCreate_Abandoned(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a.new-1x2y", "a.new-notes.txt", "b.new-1x2y"} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), nil, 0o600))
	}
	must.Do(t, Write(filepath.Join(folder, "a"), []byte("x")))
	if got, want := names(t, folder), "a a.new-notes.txt b.new-1x2y"; got != want {
		t.Errorf("the folder has %s, want %s", got, want)
	}
}

func TestCreate_Refuses(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	filetest.Pipe(t, pipe)
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
