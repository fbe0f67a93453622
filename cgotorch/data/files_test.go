package data

import (
	"context"
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestFiles(t *testing.T) {
	torchtest.CheckLeaks(t)
	fsys := fstest.MapFS{"dog/b.wav": {Data: []byte{1, 2, 3}}, "cat/a.wav": {Data: []byte{4}}, "dog/notes.txt": {}, "top.wav": {}, "cat/large.wav": {Data: make([]byte, 20)}}
	files, err := NewFiles(fsys, FilesOptions{Pattern: "*.wav", MaxFile: 10})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(files.Classes(), files.Len()); got != "[. cat dog] 4" {
		t.Errorf("classes and files: %s", got)
	}
	s, err := files.Sample(2)
	if got, want := fmt.Sprint(s), "map[data:[1 2 3] label:2 path:dog/b.wav]"; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	for _, err := range open(t, files, Options{BatchSize: 4}).Epoch(context.Background()) {
		torchtest.WantError(t, err, ErrTooLarge, "sample 1", "cat/large.wav: it has more than 10 bytes")
	}
	delete(fsys, "cat/large.wav")
	for _, err := range open(t, files, Options{BatchSize: 4}).Epoch(context.Background()) {
		torchtest.WantError(t, err, fs.ErrNotExist)
	}
	for want, o := range map[string]FilesOptions{"no file": {Pattern: "*.mp3"}, "Pattern is": {Pattern: "["}, "MaxFile is": {MaxFile: -1}} {
		_, err := NewFiles(fsys, o)
		torchtest.WantError(t, err, ErrInvalidOptions, want)
	}
}
