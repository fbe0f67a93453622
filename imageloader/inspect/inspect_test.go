package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
)

// pack returns a .tgz. `members` holds the name and the content of each member in turn.
func pack(t *testing.T, members ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for i := 0; i < len(members); i += 2 {
		must.Do(t, w.WriteHeader(&tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1]))}))
		w.Write([]byte(members[i+1]))
	}
	w.Close()
	z.Close()
	return out.Bytes()
}

func picture(t *testing.T, width, height int) string {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, png.Encode(&out, image.NewGray(image.Rect(0, 0, width, height))))
	return out.String()
}

func TestInspect(t *testing.T) {
	small, large := picture(t, 3, 2), picture(t, 30, 20)
	good := pack(t, "train/cat/1.png", small, "train/dog/2.png", large, "test/cat/3.png", large, "notes.txt", "x")
	bad := pack(t, "cat/1.png", small, "cat/2.png", small[:len(small)-20], "cat/\x1b[2J.png", "", "../3.png", small)
	for _, test := range []struct {
		name   string
		data   []byte
		code   int
		stdout []string
		stderr string
	}{
		{"labels apart", pack(t, "data/1.png", small, "data/2.png", small, "data/1.cls", "0", "data/2.cls", "1"), 2,
			[]string{"\nThere is only one class, data: ", "\nIt is not clear where the labels are from.\n"}, "member 3 (data/1.cls): it may be the label"},
		{"one class", pack(t, "data/1.png", small), 0, []string{"\nThere is only one class, data: ", "All images are usable.\n"}, ""},
		{"numbers", pack(t, "10/1.png", small, "2/2.png", small), 0, []string{"  10         1 ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇\n  2          1 "}, ""},
		{"good", good, 0, []string{
			"archive  gzip-compressed tar, 4 members\n", "images   3 usable in 2 classes, ", "splits   test 1, train 2\n",
			"formats  PNG 3\n", "pixels   3x2 smallest, 30x20 median, 30x20 largest\n", "ignored  not an image 1\n",
			"  cat         2 ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇\n  dog         1 ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇\n", "\nAll images are usable.\n",
		}, ""},
		{"bad members", bad, 1, []string{
			"images   1 usable in 1 classes, ", "3 of 4 images cannot be used\n", "  member 2 (cat/2.png): truncated PNG",
			`  member 3 ("cat/\x1b[2J.png"): zero bytes`, `  member 4 (../3.png): unsafe name: it contains ".."`,
		}, ""},
		{"no usable image", pack(t, "cat/1.png", small[:20], "dog/2.png", ""), 2, []string{"images   0 usable", "2 of 2 images cannot be used\n"}, ""},
		{"cut short", good[:len(good)-12], 2, []string{"This is what was found before"}, "cut short: its gzip data end early"},
		{"no archive", []byte("hello"), 2, nil, "neither gzip nor tar"},
		{"no images", pack(t, "a.txt", "x"), 2, []string{"archive  "}, "no images in it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.tgz")
			must.Do(t, os.WriteFile(path, test.data, 0o644))
			var stdout, stderr strings.Builder
			if code := Run(context.Background(), []string{path}, &stdout, &stderr); code != test.code {
				t.Errorf("got exit code %d, want %d\n%s%s", code, test.code, &stdout, &stderr)
			}
			for _, want := range test.stdout {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("got output\n%s\nwant %q in it", &stdout, want)
				}
			}
			if strings.Contains(stdout.String(), "\x1b") {
				t.Errorf("the output has a control character: %q", &stdout)
			}
			if test.stderr == "" && stderr.Len() > 0 || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("got errors %q, want %q", &stderr, test.stderr)
			}

			stdout.Reset()
			if code := Run(context.Background(), []string{"-json", path}, &stdout, &stderr); code != test.code {
				t.Errorf("-json: got exit code %d, want %d", code, test.code)
			}
			var report imageloader.Report
			if err := json.Unmarshal([]byte(stdout.String()), &report); err != nil || report.Path != path {
				t.Errorf("-json: got %v, %v", report, err)
			}
		})
	}
}

func TestInspect_CommandLine(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "usage: inspect"},
		{[]string{"a", "b"}, 2, "usage: inspect"},
		{[]string{"-x"}, 2, "-x"},
		{[]string{"-h"}, 0, "usage: inspect"},
		{[]string{"/no/such/archive.tgz"}, 2, "imageloader: /no/such/archive.tgz: no such file or directory"},
	} {
		var stdout, stderr strings.Builder
		if code := Run(context.Background(), test.args, &stdout, &stderr); code != test.code || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%q: got exit code %d and errors %q; want %d and %q", test.args, code, &stderr, test.code, test.want)
		}
		if stdout.Len() > 0 {
			t.Errorf("%q: got output %q", test.args, &stdout)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1260: "1.3 kB", 999_949: "999.9 kB", 999_999: "1.0 MB", 32_400_000: "32.4 MB",
		150_000_000_000: "150.0 GB", 2_000_000_000_000: "2.0 TB", 3_000_000_000_000_000: "3000.0 TB",
	} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
