package imageloader

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// If one file of a directory changes after Open, only that file is unusable.
func TestEpoch_FileChanges(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(file string) error
		want   string
	}{
		{"removed", os.Remove, "no such file"},
		{"a directory", func(file string) error { os.Remove(file); return os.Mkdir(file, 0o755) }, "no longer a file"},
		{"a pipe", func(file string) error { os.Remove(file); return syscall.Mkfifo(file, 0o644) }, "no longer a file"},
		{"empty", func(file string) error { return os.Truncate(file, 0) }, "zero bytes"},
		{"too large", func(file string) error { return os.Truncate(file, 1001) }, "too large: 1001 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			directory := writeDirectory(t, numbered(8))
			o := options()
			o.Reading.MaxMemberBytes = 1000
			strict := open(t, directory, o)
			o.Reading.MaxSkipRate = 0.2
			skipping := open(t, directory, o)
			if err := test.change(filepath.Join(directory, "train/a/002.png")); err != nil {
				t.Fatal(err)
			}
			_, err := tryRead(strict)
			wantError(t, err, ErrBadMember, directory+": member 5 (train/a/002.png): ", test.want)
			if got, want := levels(t, skipping), []int{0, 1, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
				t.Errorf("got images %v, want %v", got, want)
			}
		})
	}
}

// The images of a directory are in the order of their names, so the order is the same everywhere.
func TestOpen_DirectoryOrder(t *testing.T) {
	directory := writeDirectory(t, []member{
		{name: "b/2.png", body: solid(2, 3, 3)}, {name: "a/10.png", body: solid(0, 3, 3)}, {name: "a/9.png", body: solid(1, 3, 3)},
	})
	if got := fmt.Sprint(levels(t, open(t, directory, options()))); got != "[0 1 2]" {
		t.Errorf("got images %v, want [0 1 2]", got)
	}
}

func TestScan_DirectoryWithLargeFile(t *testing.T) {
	checkLeaks(t)
	directory := writeDirectory(t, numbered(3))
	if err := os.Truncate(filepath.Join(directory, "train/b/001.png"), 256<<20+1); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(context.Background(), directory, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Images != 2 || len(r.Bad) != 1 || reasonOf(&Error{Reason: r.Bad[0].Reason}) != "too large" {
		t.Errorf("got %+v, want 2 images and one that is too large", r)
	}
}
