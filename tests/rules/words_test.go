package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// finished lists the folders whose comments keep the rules of this file. An entry is one folder.
// An entry that ends in "/..." is a folder with all folders below it. Offences in other folders
// are only printed:
//
//	go test ./tests/rules -run Words -v
var finished = []string{
	"bench/...",
	"cgotorch/...",
	"cmd/...",
	"csrc/...",
	"docs/...",
	"examples/...",
	"imageloader/...",
	"internal/...",
	"prefetcher/...",
	"tests/...",
}

const (
	maxColumns = 100 // of a line of comment, from its "//" to its end
	maxWords   = 25  // of a sentence in an exported doc comment
	maxLong    = 5   // at most this percentage of these sentences may be longer
)

// TestWords_Width checks that no comment in Go and C++ is too wide.
func TestWords_Width(t *testing.T) {
	wide := folderCounts{}
	for _, f := range commentedFiles(t) {
		for _, line := range f.lines {
			columns := width(line.text)
			wide.add(f.folder(), columns > maxColumns)
			if columns <= maxColumns {
				continue
			}
			offence := fmt.Sprintf("%s:%d: comment of %d columns", f.path, line.number, columns)
			switch {
			case isFinished(f.folder()):
				t.Errorf("%s, want at most %d", offence, maxColumns)
			case testing.Verbose():
				fmt.Println(offence)
			}
		}
	}
	wide.print("lines of comment", fmt.Sprintf("wider than %d columns", maxColumns))
}

// TestWords_Sentences checks that few sentences in the doc comments of exported names are too
// long.
func TestWords_Sentences(t *testing.T) {
	long, all, tooLong := folderCounts{}, 0, []string{}
	for _, f := range commentedFiles(t) {
		for _, s := range f.sentences {
			long.add(f.folder(), s.words > maxWords)
			if isFinished(f.folder()) {
				all++
			}
			if s.words <= maxWords {
				continue
			}
			offence := fmt.Sprintf("%s:%d: sentence of %d words: %s", f.path, s.line, s.words, s.start)
			if isFinished(f.folder()) {
				tooLong = append(tooLong, offence)
			}
			if testing.Verbose() {
				fmt.Println(offence)
			}
		}
	}
	long.print("sentences of exported doc comments", fmt.Sprintf("longer than %d words", maxWords))
	if 100*len(tooLong) > maxLong*all {
		t.Errorf("finished folders: %d of %d sentences of exported doc comments are longer than %d words, want at most %d %%:\n%s",
			len(tooLong), all, maxWords, maxLong, strings.Join(tooLong, "\n"))
	}
}

func isFinished(folder string) bool {
	return slices.ContainsFunc(finished, func(entry string) bool {
		above, below := strings.CutSuffix(entry, "/...")
		return folder == above || below && strings.HasPrefix(folder, above+"/")
	})
}

// folderCounts counts lines or sentences. For each folder it holds the number of all of them, and
// the number of those that break the rule.
type folderCounts map[string]*struct{ all, broken int }

func (c folderCounts) add(folder string, broken bool) {
	if c[folder] == nil {
		c[folder] = new(struct{ all, broken int })
	}
	c[folder].all++
	if broken {
		c[folder].broken++
	}
}

// print prints one line for each folder, if the test runs with -v.
func (c folderCounts) print(what, broken string) {
	if !testing.Verbose() {
		return
	}
	folders := []string{}
	for folder := range c {
		folders = append(folders, folder)
	}
	slices.Sort(folders)
	all, bad := 0, 0
	for _, folder := range folders {
		n := c[folder]
		all, bad = all+n.all, bad+n.broken
		fmt.Printf("%s: %d %s, %d %s\n", folder, n.all, what, n.broken, broken)
	}
	fmt.Printf("whole tree: %d %s, %d %s (%.1f %%)\n", all, what, bad, broken, 100*float64(bad)/float64(max(all, 1)))
}
