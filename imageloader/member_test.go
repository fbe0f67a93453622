package imageloader

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestArchive_Admit(t *testing.T) {
	a := &shard{path: "a.tar", maxMember: 100}
	for _, test := range []struct {
		entry   entry
		where   location
		ignored string
		bad     string
	}{
		{entry{name: "cat/1.jpg"}, location{class: "cat"}, "", ""},
		{entry{name: "train/cat/1.JPEG"}, location{"train", "train", "cat"}, "", ""},
		{entry{name: "./train/cat/1.png"}, location{"train", "train", "cat"}, "", ""},
		{entry{name: "train//cat/1.webp"}, location{"train", "train", "cat"}, "", ""},
		{entry{name: "data/train/cat/1.tiff"}, location{"data", "data/train", "cat"}, "", ""},
		{entry{name: "caf\xe9/1.jpg"}, location{}, "", "not UTF-8"},
		{entry{name: "a..b/..c.gif"}, location{}, ignoredHidden, ""},
		{entry{name: "a..b/c...gif"}, location{class: "a..b"}, "", ""},
		{entry{name: "cat/1.txt"}, location{}, ignoredNotImage, ""},
		{entry{name: "cat/jpg"}, location{}, ignoredNotImage, ""},
		{entry{name: "README"}, location{}, ignoredNotImage, ""},
		{entry{name: "cat/._1.jpg"}, location{}, ignoredAppleDouble, ""},
		{entry{name: "._cat/1.jpg"}, location{}, ignoredAppleDouble, ""},
		{entry{name: "__MACOSX/cat/1.jpg"}, location{}, ignoredAppleDouble, ""},
		{entry{name: "cat/.1.jpg"}, location{}, ignoredHidden, ""},
		{entry{name: ".git/cat/1.jpg"}, location{}, ignoredHidden, ""},
		{entry{name: "cat/1.jpg", kind: symbolicLink}, location{}, ignoredSymbolicLink, ""},
		{entry{name: "cat/1.jpg", kind: hardLink}, location{}, ignoredHardLink, ""},
		{entry{name: "cat/1.jpg", kind: specialFile}, location{}, ignoredSpecialFile, ""},
		{entry{name: "cat.jpg/", kind: subdirectory}, location{}, "", ""},
		{entry{name: "../cat/1.jpg"}, location{}, "", `unsafe name: it contains ".."`},
		{entry{name: "cat/../dog/1.jpg"}, location{}, "", `unsafe name: it contains ".."`},
		{entry{name: "cat/.."}, location{}, "", `unsafe name: it contains ".."`},
		{entry{name: "/cat/1.jpg"}, location{}, "", "unsafe name: it begins at the root"},
		{entry{name: "1.jpg"}, location{}, "", "no class"},
		{entry{name: "./1.jpg"}, location{}, "", "no class"},
		{entry{name: "cat/1.jpg", kind: sparseFile}, location{class: "cat"}, "", "sparse file"},
		{entry{name: "cat/1.jpg", size: 100}, location{class: "cat"}, "", ""},
		{entry{name: "cat/1.jpg", size: 101}, location{class: "cat"}, "", "too large: 101 bytes, and Options.MaxMemberBytes allows 100"},
	} {
		where, ignored, bad := a.admit(test.entry)
		if where != test.where || ignored != test.ignored {
			t.Errorf("%+v: got %+v, ignored %q; want %+v, ignored %q", test.entry, where, ignored, test.where, test.ignored)
		}
		if (bad != nil) != (test.bad != "") || bad != nil && !strings.Contains(bad.Error(), test.bad) {
			t.Errorf("%+v: got bad %v, want %q", test.entry, bad, test.bad)
		}
	}
}

// An archive has every kind of member that is no image. The loader counts these members by kind
// and reads only the images.
func TestOpen_OddMembers(t *testing.T) {
	long := strings.Repeat("long/", 60) + "cat/2.png" // this name needs a PAX or GNU header
	members := []member{
		{name: "./", kind: tar.TypeDir},
		{name: "cat/", kind: tar.TypeDir},
		{name: "cat/1.png", body: solid(1, 3, 3)},
		{name: "cat/._1.png", body: []byte("AppleDouble")},
		{name: "cat/.DS_Store", body: []byte("Mac")},
		{name: "cat/labels.txt", body: []byte("no")},
		{name: "cat/outside.png", kind: tar.TypeSymlink, link: "/etc/passwd"},
		{name: "cat/again.png", kind: tar.TypeLink, link: "cat/1.png"},
		{name: "cat/pipe.png", kind: tar.TypeFifo},
		{name: long, body: solid(2, 3, 3)},
		{name: "dog/größe-日本.png", body: solid(3, 3, 3)},
	}
	want := map[string]int{
		ignoredAppleDouble: 1, ignoredHidden: 1, ignoredNotImage: 1, ignoredSymbolicLink: 1, ignoredHardLink: 1, ignoredSpecialFile: 1,
	}
	data := tarOf(members)
	for _, path := range []string{write(t, "a.tar", data), write(t, "a.tgz", gzipOf(data))} {
		l := open(t, path, options())
		if got := fmt.Sprint(levels(t, l)); got != "[1 2 3]" {
			t.Errorf("%s: got images %v, want [1 2 3]", path, got)
		}
		if got := l.Stats().Ignored; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got ignored %v, want %v", path, got, want)
		}
		if got := fmt.Sprint(l.Classes()); got != "[cat dog]" {
			t.Errorf("%s: got classes %v", path, got)
		}
	}
}

func TestOpen_GNULongName(t *testing.T) {
	name := strings.Repeat("x", 150) + "/" + strings.Repeat("y", 150) + ".png"
	data := gnuTar(t, name, solid(9, 3, 3))
	l := open(t, write(t, "a.tar", data), options())
	if got := fmt.Sprint(levels(t, l)); got != "[9]" {
		t.Errorf("got images %v, want [9]", got)
	}
}

func gnuTar(t *testing.T, name string, body []byte) []byte {
	t.Helper()
	var out strings.Builder
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	w.Write(body)
	w.Close()
	return []byte(out.String())
}

func TestOpen_SparseFile(t *testing.T) {
	directory := t.TempDir()
	if err := os.Mkdir(filepath.Join(directory, "cat"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(directory, "cat/1.png")
	if err := os.WriteFile(file, solid(1, 3, 3), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "pax"} {
		checkLeaks(t)
		path := filepath.Join(directory, format+".tar")
		if out, err := exec.Command("tar", "-C", directory, "--sparse", "--format", format, "-cf", path, "cat").CombinedOutput(); err != nil {
			t.Skipf("no GNU tar to make a sparse file with: %v: %s", err, out)
		}
		_, err := Open(path, options())
		wantError(t, err, ErrBadMember, "(cat/1.png): stored as a sparse file")
	}
}

// Symbolic links in a directory are not followed, neither links to files nor links to
// directories.
func TestOpen_DirectoryWithLinks(t *testing.T) {
	outside := writeDirectory(t, []member{{name: "secret/0.png", body: solid(200, 3, 3)}})
	root := writeDirectory(t, []member{{name: "cat/1.png", body: solid(1, 3, 3)}})
	for link, target := range map[string]string{"cat/2.png": outside + "/secret/0.png", "dog": outside + "/secret", "loop": root} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, root, options())
	if got := fmt.Sprint(levels(t, l)); got != "[1]" {
		t.Errorf("got images %v, want [1]", got)
	}
	if got := l.Stats().Ignored[ignoredSymbolicLink]; got != 3 {
		t.Errorf("got %d symbolic links, want 3", got)
	}
	// A link to the root is followed, because the caller has chosen it.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	if got := open(t, link, options()).Len(); got != 1 {
		t.Errorf("through a link: got %d images, want 1", got)
	}
}

// If a file becomes a link out of the directory after Open, the link is not followed.
func TestEpoch_FileBecomesLink(t *testing.T) {
	outside := writeDirectory(t, []member{{name: "0.png", body: solid(200, 3, 3)}})
	root := writeDirectory(t, []member{{name: "cat/1.png", body: solid(1, 3, 3)}})
	l := open(t, root, options())
	file := filepath.Join(root, "cat/1.png")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside+"/0.png", file); err != nil {
		t.Fatal(err)
	}
	_, err := tryRead(l)
	wantError(t, err, ErrBadMember, "member 2 (cat/1.png)", "escapes")
}

func TestError_OddName(t *testing.T) {
	a := &shard{path: "a.tar"}
	err := a.badMember(entry{number: 3, name: "a/\x1b[31m\n.jpg"}, nil, "truncated")
	if got, want := err.Error(), `imageloader: a.tar: member 3 ("a/\x1b[31m\n.jpg"): truncated`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
