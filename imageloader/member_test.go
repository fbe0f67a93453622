package imageloader

import (
	"archive/tar"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

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
		"AppleDouble file (._)": 1, "hidden file": 1, "not an image": 1, "symbolic link": 1, "hard link": 1, "special file": 1,
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
	must.Do(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644, Format: tar.FormatGNU}))
	w.Write(body)
	w.Close()
	return []byte(out.String())
}

func TestOpen_SparseFile(t *testing.T) {
	directory := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(directory, "cat"), 0o755))
	file := filepath.Join(directory, "cat/1.png")
	must.Do(t, os.WriteFile(file, solid(1, 3, 3), 0o644))
	must.Do(t, os.Truncate(file, 1<<20))
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
// directories. The log says how many there are.
func TestOpen_DirectoryWithLinks(t *testing.T) {
	outside := writeDirectory(t, []member{{name: "secret/0.png", body: solid(200, 3, 3)}})
	root := writeDirectory(t, []member{{name: "cat/1.png", body: solid(1, 3, 3)}})
	for link, target := range map[string]string{"cat/2.png": outside + "/secret/0.png", "dog": outside + "/secret", "loop": root} {
		must.Do(t, os.Symlink(target, filepath.Join(root, link)))
	}
	var log strings.Builder
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	l := open(t, root, options())
	if got := fmt.Sprint(levels(t, l)); got != "[1]" {
		t.Errorf("got images %v, want [1]", got)
	}
	if got := l.Stats().Ignored["symbolic link"]; got != 3 {
		t.Errorf("got %d symbolic links, want 3", got)
	}
	if !strings.Contains(log.String(), "links are passed over") || !strings.Contains(log.String(), "links=3") {
		t.Errorf("the log says %q", &log)
	}
	links := writeDirectory(t, nil)
	must.Do(t, os.Symlink(outside+"/secret", filepath.Join(links, "dog")))
	_, err := Open(links, options())
	wantError(t, err, ErrNoImages, "1 symbolic link", "cp -rL")
	// A link to the root is followed, because the caller has chosen it.
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(root, link))
	if got := open(t, link, options()).Len(); got != 1 {
		t.Errorf("through a link: got %d images, want 1", got)
	}
}
