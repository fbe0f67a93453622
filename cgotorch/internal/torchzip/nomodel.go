package torchzip

import (
	"bytes"
	"errors"
)

// NoModel returns an error that tells what a file is, and what to do, if its first bytes are those
// of a file that a download leaves in place of a model. It returns nil for all other files.
func NoModel(head []byte) error {
	begins := func(with string) bool {
		return len(head) >= len(with) && bytes.EqualFold(head[:len(with)], []byte(with))
	}
	switch {
	case begins("\x1f\x8b"):
		return errors.New("a gzip file: unpack it with gunzip, or with tar xzf if it is a .tgz")
	case begins("version https://git-lfs"):
		return errors.New("a pointer of Git LFS, and not the file itself: run git lfs pull in its repository")
	case begins("<!doctype"), begins("<html"), begins("<?xml"):
		return errors.New("a web page: download the file itself: the address gave a page, perhaps of an error")
	}
	return nil
}
