package imageloader

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
)

func TestOpen_BadArchive(t *testing.T) {
	images := tarOf(numbered(10))
	packed := gzipOf(images)
	flipped := bytes.Clone(packed)
	flipped[len(flipped)-6] ^= 1 // flips a bit of the checksum
	headerless := bytes.Clone(images)
	headerless[512+512+5] ^= 0x40 // flips a bit of the second member's name
	for _, test := range []struct {
		name, file string
		data       []byte
		kind       error
		want       string // text of the message, after the path
	}{
		{"empty file", "a.tgz", nil, ErrArchive, "empty file (0 bytes)"},
		{"text", "a.tgz", []byte(strings.Repeat("hello ", 200)), ErrArchive, `neither gzip nor tar (it begins with "hello he")`},
		{"short text", "a.tar", []byte("x"), ErrArchive, "neither gzip nor tar"},
		{"zip", "a.tgz", []byte("PK\x03\x04................"), ErrArchive, "a zip file"},
		{"xz", "a.tar.xz", []byte("\xfd7zXZ............"), ErrArchive, "compressed with xz"},
		{"web page", "a.tgz", []byte("<!DOCTYPE html><title>404"), ErrArchive, "a web page"},
		{"LFS pointer", "a.tgz", []byte("version https://git-lfs.github.com/spec/v1\n"), ErrArchive, "git lfs pull"},
		{"gzip of text", "a.tgz", gzipOf([]byte(strings.Repeat("hello ", 200))), ErrArchive, "no tar archive inside"},
		{"gzip of nothing", "a.tgz", gzipOf(nil), ErrNoImages, "no images"},
		{"gzip header alone", "a.tgz", packed[:5], ErrArchive, "cut short"},
		{"truncated gzip", "a.tgz", packed[:len(packed)/2], ErrArchive, "cut short: its gzip data end early"},
		{"gzip without its checksum", "a.tgz", packed[:len(packed)-8], ErrArchive, "cut short"},
		{"bit flipped in the checksum", "a.tgz", flipped, ErrArchive, "does not match the gzip checksum"},
		{"data after gzip", "a.tgz", append(bytes.Clone(packed), "more"...), ErrArchive, "other data follow"},
		{"data after padding", "a.tgz", append(bytes.Clone(packed), "\x00\x00more"...), ErrArchive, "other data follow"},
		{"truncated tar", "a.tar", images[:len(images)/2], ErrArchive, "cut short in or after member"},
		{"tar without its end", "a.tar", images[:len(images)-1024], ErrArchive, "no end marker after member 10"},
		{"damaged tar", "a.tar", headerless, ErrArchive, "invalid tar header after member 1 (train/a/000.png)"},
		{"truncated tar in gzip", "a.tgz", gzipOf(images[:len(images)/2]), ErrArchive, "cut short in or after member"},
		{"tar without members", "a.tar", tarOf(nil), ErrNoImages, "no images in it"},
		{"tgz without members", "a.tgz", gzipOf(tarOf(nil)), ErrNoImages, "no images in it"},
		{"no images", "a.tar", tarOf([]member{{name: "a/b.txt"}, {name: "a/._b.jpg"}}), ErrNoImages,
			"(passed over: 1 AppleDouble file (._), 1 not an image)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkLeaks(t)
			path := write(t, test.file, test.data)
			_, err := Open(path, options())
			wantError(t, err, test.kind, "imageloader: "+path+": ", test.want)
			_, err = Scan(context.Background(), path, 0)
			wantError(t, err, test.kind, path, test.want)
		})
	}
}

// wantError checks that err is an error of the given kind, has one line, and contains the given
// parts.
func wantError(t *testing.T, err error, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want one that is %q", err, kind)
	}
	for _, part := range append(parts, "imageloader: ") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got error %q, want %q in it", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

func TestOpen_Missing(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "no.tgz")
	_, err := Open(path, Options{})
	wantError(t, err, ErrArchive, path, "no such file or directory")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestOpen_Pipe(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "pipe.tgz")
	filetest.Pipe(t, path)
	_, err := Open(path, Options{})
	wantError(t, err, ErrArchive, path, "neither a file nor a directory")
}

func TestOpen_EmptyDirectory(t *testing.T) {
	checkLeaks(t)
	path := t.TempDir()
	_, err := Open(path, Options{})
	wantError(t, err, ErrNoImages, path)
}

// A .tgz or .tar that is cut anywhere gives an error. It never gives an archive with fewer
// images.
func TestOpen_CutAnywhere(t *testing.T) {
	checkLeaks(t)
	images := tarOf(numbered(4))
	for name, data := range map[string][]byte{"a.tgz": gzipOf(images), "a.tar": images} {
		whole, step := len(data), 1
		if name == "a.tar" {
			whole, step = len(data)-512, 64 // the second block of the end marker may be missing
		}
		path := write(t, name, nil)
		for n := 0; n < whole; n += step {
			must.Do(t, os.WriteFile(path, data[:n], 0o644))
			if err := walk(path); !errors.Is(err, ErrArchive) {
				t.Fatalf("%s cut to %d of %d bytes: got error %v", name, n, len(data), err)
			}
		}
	}
}

// A flipped bit in a .tgz gives an error or changes nothing. Nothing changes if the bit is in the
// gzip header and has no meaning, or if a match then copies zeros from another place.
func TestOpen_BitFlippedAnywhere(t *testing.T) {
	checkLeaks(t)
	images := tarOf(numbered(4))
	data := gzipOf(images)
	harmless := 0
	path := write(t, "a.tgz", data)
	for bit := 0; bit < 8*len(data); bit += 7 {
		data[bit/8] ^= 1 << (bit % 8)
		must.Do(t, os.WriteFile(path, data, 0o644))
		err := walk(path)
		switch {
		case err == nil:
			z := must.Get(gzip.NewReader(bytes.NewReader(data)))(t)
			if same, err := io.ReadAll(z); err != nil || !bytes.Equal(same, images) {
				t.Fatalf("bit %d of byte %d flipped, and no error", bit%8, bit/8)
			}
			harmless++
		case !errors.Is(err, ErrArchive):
			t.Fatalf("bit %d of byte %d flipped: got error %v", bit%8, bit/8, err)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
	if harmless > len(data) {
		t.Errorf("%d of %d flipped bits were not noticed", harmless, 8*len(data))
	}
}

// walk reads all members of an archive.
func walk(path string) error {
	a, err := archive.Open(archive.OS, path, archive.Options{MaxMemberBytes: 1 << 20, Workers: 2, Labels: LabelsFromDirectories, Counts: new(archive.Counts)})
	if err != nil {
		return err
	}
	defer a.Close()
	s, err := a.Shards[0].Open(context.Background())
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		e, err := s.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if where, _, bad := a.Shards[0].Admit(e); bad != nil || where.Class == "" {
			continue
		}
		if _, err := s.Content(); err != nil {
			return err
		}
	}
}

// The content of a file decides its format, not its name.
func TestOpen_MisnamedArchive(t *testing.T) {
	images := tarOf(numbered(6))
	for name, data := range map[string][]byte{"a.tgz": images, "b.tar": gzipOf(images), "c": gzipOf(images)} {
		l := open(t, write(t, name, data), options())
		if got := l.Len(); got != 6 {
			t.Errorf("%s: got %d images, want 6", name, got)
		}
	}
}

// Several gzip members in one file, and zeros after them, are legal gzip.
func TestOpen_GzipInParts(t *testing.T) {
	images := tarOf(numbered(6))
	data := append(gzipOf(images[:1000]), gzipOf(images[1000:])...)
	l := open(t, write(t, "a.tgz", append(data, make([]byte, 1000)...)), options())
	if got, want := fmt.Sprint(levels(t, l)), "[0 1 2 3 4 5]"; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzArchive(f *testing.F) {
	images := tarOf(numbered(3))
	f.Add(images)
	f.Add(gzipOf(images))
	for _, c := range archives() {
		if len(c.data) < 64<<10 {
			f.Add(c.data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := walk(write(t, "a", data)); err != nil && !errors.Is(err, ErrArchive) {
			t.Errorf("got error %v, want one that is ErrArchive", err)
		}
	})
}

// Images after an end marker give an error, because tar itself would not show them. Zeros after
// the end marker are legal.
func TestOpen_JoinedArchives(t *testing.T) {
	a, b := numbered(9)[:4], numbered(9)[4:]
	for name, data := range map[string][]byte{
		"joined.tar": append(tarOf(a), tarOf(b)...),
		"joined.tgz": append(gzipOf(tarOf(a)), gzipOf(tarOf(b))...),
		"inside.tgz": gzipOf(append(tarOf(a), tarOf(b)...)),
	} {
		_, err := Open(write(t, name, data), Options{})
		if !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "more behind the end marker after member 4") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, data := range map[string][]byte{
		"padded.tar": append(tarOf(a), make([]byte, 10240)...),
		"padded.tgz": gzipOf(append(tarOf(a), make([]byte, 10240)...)),
	} {
		l, err := Open(write(t, name, data), Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		l.Close()
	}
}

func TestOpen_SplitBelowADirectory(t *testing.T) {
	var members []member
	for _, m := range numbered(9) {
		members = append(members, member{name: "photos/" + m.name, body: m.body}, member{name: "photos/test/" + m.name[len("train/"):], body: m.body})
	}
	path := write(t, "photos.tgz", gzipOf(tarOf(members)))
	for split, want := range map[string]int{"photos/train": 9, "photos": 18, "": 18} {
		l := must.Get(Open(path, Options{Split: split}))(t)
		if l.Len() != want {
			t.Errorf("split %q has %d images, want %d", split, l.Len(), want)
		}
		l.Close()
	}
	for _, split := range []string{"train", "photos/tra", "photos/train/a"} {
		_, err := Open(path, Options{Split: split})
		if !errors.Is(err, ErrNoImages) || !strings.Contains(err.Error(), "photos/test (9), photos/train (9)") {
			t.Errorf("split %q: %v", split, err)
		}
	}
}

func TestOpen_DirectoryOfALatinName(t *testing.T) {
	path := writeDirectory(t, []member{{name: "caf\xe9/1.png", body: solid(1, 2, 2)}})
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("got %v", err)
	}
}

// A pattern of all files of a folder does not take the index files that the loader writes there.
func TestOpen_PatternBesideIndex(t *testing.T) {
	folder := t.TempDir()
	must.Do(t, os.WriteFile(folder+"/a.tgz", gzipOf(tarOf(numbered(12))), 0o644))
	o := options()
	o.Train, o.Reading.ShuffleBuffer = true, 500
	for range 2 {
		l := open(t, folder+"/*", o)
		if got := len(levels(t, l)); got != 12 {
			t.Errorf("%d images", got)
		}
		l.Close()
	}
	if found, _ := filepath.Glob(folder + "/*.index"); len(found) != 1 {
		t.Errorf("the index files are %v, want one", found)
	}
}
