//go:build cgo

package main

import (
	"bytes"
	"context"
	"image"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// files writes files into a new folder. An image's text is its size, such as "30x20".
func files(t *testing.T, all map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range all {
		path := filepath.Join(folder, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		data := []byte(text)
		if strings.HasSuffix(name, ".png") {
			data = picture(t, text)
		}
		must.Do(t, os.WriteFile(path, data, 0o644))
	}
	return folder
}

func picture(t *testing.T, size string) []byte {
	t.Helper()
	width, height := 8, 8
	if size == "40x30" {
		width, height = 40, 30
	}
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = uint8(i*7 + len(size))
	}
	var out bytes.Buffer
	must.Do(t, png.Encode(&out, img))
	return out.Bytes()
}

// Equal folders give archives of equal bytes, which a loader reads in the order of the names.
func TestPack(t *testing.T) {
	folder := files(t, map[string]string{"cat/b.png": "8x8", "cat/a.png": "40x30", "dog/a.png": "8x8", "dog/notes.txt": "no image", "dog/.hidden.png": "8x8"})
	for _, extension := range []string{".tgz", ".tar"} {
		var bytes [2]string
		for i := range bytes {
			out := filepath.Join(t.TempDir(), "out"+extension)
			code, stdout, stderr := try(t, "pack", out, folder)
			if code != 0 || !strings.HasPrefix(stdout, "3 images in ") || stderr != "" {
				t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
			}
			data := must.Get(os.ReadFile(out))(t)
			bytes[i] = string(data)
			_, names, _ := try(t, "ls", out)
			if got := strings.Join(strings.Fields(names), " "); !strings.Contains(got, `"cat/a.png"`) || strings.Contains(got, "notes") || strings.Contains(got, "hidden") {
				t.Errorf("the members are %q", got)
			}
			if _, labels, _ := try(t, "labels", out); labels != "0\tcat\n1\tdog\n" {
				t.Errorf("the labels are %q", labels)
			}
			if code, text, _ := try(t, "inspect", out); code != 0 || !strings.Contains(text, "3 usable in 2 classes") {
				t.Errorf("inspect: %d, %q", code, text)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), ".*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		}
		if bytes[0] != bytes[1] {
			t.Errorf("%s: two archives of the same files differ", extension)
		}
	}
}

// Shards have all images, in the order of the seed. A list may give the classes.
func TestPack_ListAndShards(t *testing.T) {
	folder := files(t, map[string]string{"1.png": "8x8", "2.png": "8x8", "3.png": "8x8", "4.png": "40x30", "5.png": "8x8"})
	list := filepath.Join(folder, "list.tsv")
	var lines strings.Builder
	for i, class := range []string{"train/a", "train/b", "test/a", "train/a", "test/b"} {
		lines.WriteString(filepath.Join(folder, string(rune('1'+i))+".png") + "\t" + class + "\n")
	}
	must.Do(t, os.WriteFile(list, []byte(lines.String()), 0o644))
	out := filepath.Join(t.TempDir(), "out.tgz")
	if code, _, stderr := try(t, "pack", "-list", list, "-shards", "2", "-shuffle", "3", "-resize", "16", out); code != 0 {
		t.Fatal(stderr)
	}
	loader := must.Get(imageloader.Open(strings.TrimSuffix(out, ".tgz")+"-{000..001}.tgz", imageloader.Options{BatchSize: 2, Split: "train", Crop: imageloader.Crop{Transform: decode.Resize{Height: 4, Width: 4}}}))(t)
	defer loader.Close()
	if loader.Len() != 3 || len(loader.Classes()) != 2 {
		t.Errorf("%d images of %v", loader.Len(), loader.Classes())
	}
	var names strings.Builder
	for _, shard := range []string{"-000", "-001"} {
		_, text, _ := try(t, "ls", strings.TrimSuffix(out, ".tgz")+shard+".tgz")
		names.WriteString(text)
	}
	if strings.Count(names.String(), "\n") != 5 || !strings.Contains(names.String(), "train/a/4.jpg") {
		t.Errorf("the members are %s", names.String())
	}
	data := must.Get(shrink(picture(t, "40x30"), decode.Info{Width: 40, Height: 30}, 16, 90))(t)
	if c, err := jpeg.DecodeConfig(bytes.NewReader(data)); err != nil || c.Height != 16 || c.Width != 21 {
		t.Errorf("a shrunk image has %dx%d pixels, %v", c.Width, c.Height, err)
	}
}

// What cannot be packed is named, and leaves no archive.
func TestPack_Refuses(t *testing.T) {
	twice, other := files(t, map[string]string{"cat/a.png": "8x8"}), files(t, map[string]string{"cat/a.png": "40x30"})
	link := files(t, map[string]string{"cat/a.png": "8x8"})
	must.Do(t, os.Symlink("/etc/passwd", filepath.Join(link, "cat", "b.png")))
	list := filepath.Join(files(t, map[string]string{"list": filepath.Join(twice, "cat/a.png") + "\t../up\n"}), "list")
	hidden := filepath.Join(files(t, map[string]string{"list": filepath.Join(twice, "cat/a.png") + "\ttrain/.cat\n"}), "list")
	gone := filepath.Join(files(t, map[string]string{"list": "/no/such.png\tcat\n"}), "list")
	damaged := files(t, map[string]string{"cat/a.jpg": "no image"})
	for _, c := range []struct {
		want string
		args []string
		code int
	}{
		{"would both be cat/a.png", []string{twice, other}, 1},
		{"is a link", []string{link}, 1},
		{"leads out of the archive", []string{"-list", list}, 1},
		{"is a label of a WebDataset", []string{files(t, map[string]string{"data/a.png": "8x8", "data/a.cls": "0"})}, 1},
		{"all images are of one class, data, and ", []string{files(t, map[string]string{"data/a.png": "8x8", "data/b.png": "8x8", "labels.csv": "a,0"})}, 1},
		{`loaders pass over the class "train/.cat"`, []string{"-list", hidden}, 1},
		{"there are no images", []string{files(t, map[string]string{"__MACOSX/a.png": "8x8", ".git/b.png": "8x8"})}, 1},
		{"no such file", []string{"-list", gone}, 1},
		{"no such file", []string{"/no/such/folder"}, 1},
		{"there are no images", []string{files(t, map[string]string{"a.txt": ""})}, 1},
		{"has no class", []string{files(t, map[string]string{"a.png": "8x8"})}, 1},
		{"cat/a.jpg: ", []string{"-resize", "4", damaged}, 1},
		{"give folders, or -list", nil, 1},
		{"out of its range", []string{"-shards", "0", twice}, 1},
		{"flag provided but not defined", []string{"-x"}, 2},
	} {
		out := filepath.Join(t.TempDir(), "out.tgz")
		args := append([]string{"pack"}, c.args...)
		at := 1
		for at < len(args) && strings.HasPrefix(args[at], "-") {
			at += 2
		}
		at = min(at, len(args))
		code, _, stderr := try(t, append(append(append([]string{}, args[:at]...), out), args[at:]...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d and %q, want %d and %q", c.args, code, stderr, c.code, c.want)
		}
		if entries, _ := os.ReadDir(filepath.Dir(out)); len(entries) > 0 {
			t.Errorf("%q left %v", c.args, entries)
		}
	}
	if code, _, stderr := try(t, "pack", "out.zip", twice); code != 1 || !strings.Contains(stderr, "must end with .tgz") {
		t.Errorf("out.zip: %d, %q", code, stderr)
	}
}

// An interrupted run leaves no archive and no part of one.
func TestPack_Interrupted(t *testing.T) {
	folder := files(t, map[string]string{"cat/a.png": "8x8", "cat/b.png": "8x8"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out := filepath.Join(t.TempDir(), "out.tgz")
	var stdout, stderr strings.Builder
	if code := run(ctx, []string{"pack", out, folder}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "canceled") {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
	if entries, _ := os.ReadDir(filepath.Dir(out)); len(entries) > 0 {
		t.Errorf("left %v", entries)
	}
}

// ls fails for a damaged archive after it has listed what it could read.
func TestList_Damaged(t *testing.T) {
	out := filepath.Join(t.TempDir(), "a.tgz")
	if code, _, stderr := try(t, "pack", out, files(t, map[string]string{"cat/a.png": "8x8"})); code != 0 {
		t.Fatal(stderr)
	}
	data := must.Get(os.ReadFile(out))(t)
	data[len(data)-5] ^= 1 // of the checksum
	damaged := filepath.Join(files(t, map[string]string{"a.tgz": string(data)}), "a.tgz")
	if code, stdout, stderr := try(t, "ls", damaged); code != 1 || !strings.Contains(stdout, "cat/a.png") || !strings.Contains(stderr, damaged+": damaged") {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	empty := filepath.Join(files(t, map[string]string{"a.tgz": ""}), "a.tgz")
	if code, _, stderr := try(t, "ls", empty); code != 1 || !strings.Contains(stderr, "empty file") {
		t.Errorf("%d, %q", code, stderr)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "usage: streamtorch COMMAND"},
		{[]string{"help"}, 0, ""},
		{[]string{"zip"}, 2, `there is no command "zip"`},
		{[]string{"ls"}, 2, "usage: streamtorch ls ARCHIVE"},
		{[]string{"ls", "-h"}, 0, "usage: streamtorch ls ARCHIVE"},
		{[]string{"ls", "/no/such.tgz"}, 1, "no such file"},
		{[]string{"ls", "main_test.go"}, 1, "neither a .tgz nor a .tar"},
		{[]string{"labels", "main_test.go"}, 1, "neither gzip nor tar"},
		{[]string{"install", "-cpu", "-cuda"}, 2, "-cpu and -cuda exclude each other"},
		{[]string{"install", "-list", "-remove"}, 2, "-list and -remove exclude each other"},
		{[]string{"install", "-index", "foo"}, 2, "-index foo: give a URL that begins with https:// or http://"},
		{[]string{"install", "-index", "/srv/wheels"}, 2, "-index /srv/wheels: give a URL"},
		{[]string{"install", "-from", "file:///srv/release"}, 2, "or the path of a folder"},
		{[]string{"install", "-from=~/release"}, 2, "or the path of a folder"},
	} {
		if code, _, stderr := try(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d and %q, want %d and %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
