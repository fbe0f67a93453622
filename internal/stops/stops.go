// Package stops ends a text, which comes in pieces, before the first of some other texts.
package stops

import "strings"

// Finder looks for the first of its Texts. Its zero value finds none.
type Finder struct {
	Texts []string // none is empty

	held string // may be the beginning of one of them
}

// Add returns the text that is certain with a piece. It keeps the end of the piece that may be the
// beginning of one of Texts. `found` says that one of them came. The text then ends before it, and
// nothing is kept.
func (f *Finder) Add(piece string) (text string, found bool) {
	f.held += piece
	first := len(f.held)
	for _, stop := range f.Texts {
		if at := strings.Index(f.held, stop); at >= 0 {
			first, found = min(first, at), true
		}
	}
	keep := 0
	if !found {
		keep = f.beginning()
	}
	text = f.held[:first-keep]
	f.held = f.held[first-keep : first]
	return text, found
}

// Flush returns what is kept, at the end of the text.
func (f *Finder) Flush() (text string) {
	text, f.held = f.held, ""
	return text
}

// beginning returns the length of the longest end of the held text with which one of Texts begins.
func (f *Finder) beginning() (longest int) {
	for _, stop := range f.Texts {
		for n := min(len(stop)-1, len(f.held)); n > longest; n-- {
			if strings.HasSuffix(f.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
