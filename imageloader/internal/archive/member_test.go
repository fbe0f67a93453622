package archive

import (
	"strings"
	"testing"
)

func TestArchive_Admit(t *testing.T) {
	a := &Shard{Path: "a.tar", Options: &Options{MaxMemberBytes: 100}}
	for _, test := range []struct {
		entry   Entry
		where   Location
		ignored string
		bad     string
	}{
		{Entry{Name: "cat/1.jpg"}, Location{Class: "cat"}, "", ""},
		{Entry{Name: "train/cat/1.JPEG"}, Location{"train", "train", "cat"}, "", ""},
		{Entry{Name: "./train/cat/1.png"}, Location{"train", "train", "cat"}, "", ""},
		{Entry{Name: "train//cat/1.webp"}, Location{"train", "train", "cat"}, "", ""},
		{Entry{Name: "data/train/cat/1.tiff"}, Location{"data", "data/train", "cat"}, "", ""},
		{Entry{Name: "caf\xe9/1.jpg"}, Location{}, "", "not UTF-8"},
		{Entry{Name: "a..b/..c.gif"}, Location{}, ignoredHidden, ""},
		{Entry{Name: "a..b/c...gif"}, Location{Class: "a..b"}, "", ""},
		{Entry{Name: "cat/1.txt"}, Location{}, ignoredNotImage, ""},
		{Entry{Name: "cat/jpg"}, Location{}, ignoredNotImage, ""},
		{Entry{Name: "README"}, Location{}, ignoredNotImage, ""},
		{Entry{Name: "cat/._1.jpg"}, Location{}, ignoredAppleDouble, ""},
		{Entry{Name: "._cat/1.jpg"}, Location{}, ignoredAppleDouble, ""},
		{Entry{Name: "__MACOSX/cat/1.jpg"}, Location{}, ignoredAppleDouble, ""},
		{Entry{Name: "cat/.1.jpg"}, Location{}, ignoredHidden, ""},
		{Entry{Name: ".git/cat/1.jpg"}, Location{}, ignoredHidden, ""},
		{Entry{Name: "cat/1.jpg", kind: symbolicLink}, Location{}, ignoredSymbolicLink, ""},
		{Entry{Name: "cat/1.jpg", kind: hardLink}, Location{}, ignoredHardLink, ""},
		{Entry{Name: "cat/1.jpg", kind: specialFile}, Location{}, ignoredSpecialFile, ""},
		{Entry{Name: "cat.jpg/", kind: subdirectory}, Location{}, "", ""},
		{Entry{Name: "../cat/1.jpg"}, Location{}, "", `unsafe name: it contains ".."`},
		{Entry{Name: "cat/../dog/1.jpg"}, Location{}, "", `unsafe name: it contains ".."`},
		{Entry{Name: "cat/.."}, Location{}, "", `unsafe name: it contains ".."`},
		{Entry{Name: "/cat/1.jpg"}, Location{}, "", "unsafe name: it begins at the root"},
		{Entry{Name: "1.jpg"}, Location{}, "", "no class"},
		{Entry{Name: "./1.jpg"}, Location{}, "", "no class"},
		{Entry{Name: "cat/1.jpg", kind: sparseFile}, Location{Class: "cat"}, "", "sparse file"},
		{Entry{Name: "cat/1.jpg", size: 100}, Location{Class: "cat"}, "", ""},
		{Entry{Name: "cat/1.jpg", size: 101}, Location{Class: "cat"}, "", "too large: 101 bytes, and Options.Reading.MaxMemberBytes allows 100"},
	} {
		where, ignored, bad := a.Admit(test.entry)
		if where != test.where || ignored != test.ignored {
			t.Errorf("%+v: got %+v, ignored %q; want %+v, ignored %q", test.entry, where, ignored, test.where, test.ignored)
		}
		if (bad != nil) != (test.bad != "") || bad != nil && !strings.Contains(bad.Error(), test.bad) {
			t.Errorf("%+v: got bad %v, want %q", test.entry, bad, test.bad)
		}
	}
}

func TestError_OddName(t *testing.T) {
	a := &Shard{Path: "a.tar"}
	err := a.badMember(Entry{Number: 3, Name: "a/\x1b[31m\n.jpg"}, nil, "truncated")
	if got, want := err.Error(), `imageloader: a.tar: member 3 ("a/\x1b[31m\n.jpg"): truncated`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
