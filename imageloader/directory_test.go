package imageloader

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

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
	must.Do(t, os.Truncate(filepath.Join(directory, "train/b/001.png"), 256<<20+1))
	r := must.Get(Scan(context.Background(), directory, 0))(t)
	if r.Images != 2 || len(r.Bad) != 1 || reasonOf(&Error{Reason: r.Bad[0].Reason}) != "too large" {
		t.Errorf("got %+v, want 2 images and one that is too large", r)
	}
}
