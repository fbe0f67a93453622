package docs

import (
	"errors"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A mistake is a small wrong program, as a user might write it. It gets a folder for its files.
type mistake struct {
	name string
	want string // the message has these parts: the place in a file, the cause, and behind … the cure
	run  func(folder string) error
}

// mostLetters is the most characters of a message, without the folders of its paths.
const mostLetters = 400

// Each mistake ends in an error within 10 seconds, without a panic. The message has at most
// 400 characters, and names the place, the cause and the cure. The place is the line of the
// program, or a file with its row or member, or an option.
func TestMistakes(t *testing.T) {
	torchtest.CheckLeaks(t)
	var sizes []int
	for _, p := range slices.Concat(stepMistakes, fileMistakes, dataMistakes) {
		folder := t.TempDir()
		ended := make(chan error, 1)
		go func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("%s: it panics: %v", p.name, v)
					ended <- nil
				}
			}()
			ended <- p.run(folder)
		}()
		var err error
		select {
		case err = <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no end within 10 s", p.name)
		}
		if err == nil {
			t.Errorf("%s: no error", p.name)
			continue
		}
		text := strings.NewReplacer(folder+"/", "", ownFolder+"/", "").Replace(err.Error())
		sizes = append(sizes, len(text))
		var e *cgotorch.Error
		switch {
		case len(text) > mostLetters:
			t.Errorf("%s: %d characters: %s", p.name, len(text), text)
		case !pattern(p.want).MatchString(text):
			t.Errorf("%s: the message is %q, want %q", p.name, text, p.want)
		case errors.As(err, &e) && !ownLine.MatchString(e.Caller):
			t.Errorf("%s: the message does not name the line of the program: %s", p.name, text)
		}
		t.Logf("%s (%d): %s", p.name, len(text), text)
	}
	slices.Sort(sizes)
	if len(sizes) < 60 {
		t.Errorf("only %d mistakes", len(sizes))
	}
	t.Logf("%d mistakes; the median has %d characters, the longest %d", len(sizes), sizes[len(sizes)/2], sizes[len(sizes)-1])
}

// pattern matches texts with these parts, between three dots.
func pattern(parts string) *regexp.Regexp {
	return regexp.MustCompile("(?s)" + strings.ReplaceAll(regexp.QuoteMeta(parts), "…", ".*"))
}

var ownLine = regexp.MustCompile(`/mistakes_\w+_test\.go:\d+$`)

// ownFolder is the folder of this file, as errors name it.
var ownFolder = func() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}()
